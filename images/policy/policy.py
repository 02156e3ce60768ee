"""Which images may be pulled: by name, and by what the host's verifiers say of them."""

from __future__ import annotations

import json
from functools import partial

from daemonkit.faults import Denied
from images.concurrency import WorkerThreads
from images.errors import Rejected
from images.globs import Globs
from images.policy.verifiers import judge, verifiers_in
from images.registry.manifests import Descriptor
from images.registry.names import Reference
from images.settings import PolicySettings


class Policy:
    """An operator's policy.  It applies to pulls and tags, not to imports or images that are here already.

    A name is enough for a pod to run an image without a pull, so giving one must not lead around the policy.
    """

    def __init__(self, settings: PolicySettings, threads: WorkerThreads) -> None:
        self._settings = settings
        self._threads = threads
        self._allow, self._deny = Globs(settings.allow), Globs(settings.deny)

    def check_name(self, reference: Reference, operation: str = "pull") -> None:
        """Raise Denied for a name that may not be pulled; operation: for the message.

        A pattern counts for the whole name, and for the repository alone: so that a repository can be named
        with all that is in it, by whatever tag or digest.
        """
        names = (str(reference), reference.name)
        pattern = self._deny.matching(names)
        if pattern:
            raise Denied(operation, str(reference), f"images.policy.deny has {pattern!r}")
        if self._allow and not self._allow.matching(names):
            raise Denied(operation, str(reference), "nothing in images.policy.allow matches it")

    async def check_content(self, reference: Reference, target: Descriptor, operation: str = "pull") -> None:
        """Ask each verifier about what the name stands for; Rejected when one says no, or cannot say."""
        directory = self._settings.verifier_dir
        if directory is None:
            return
        descriptor = {"mediaType": target.media_type, "digest": target.digest, "size": target.size}
        payload, seconds = json.dumps(descriptor).encode(), self._settings.verifier_timeout
        for program in await self._threads.run(lambda _: verifiers_in(directory)):
            arguments = ("-name", str(reference), "-digest", target.digest)
            verdict = await self._threads.run(partial(judge, program, arguments, payload, seconds))
            if not verdict.allowed:
                raise Rejected(
                    operation, f"{reference} ({target.digest})", f"{program.name}: {verdict.reason}"
                )
