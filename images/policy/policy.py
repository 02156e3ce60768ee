"""Decides about pulls: by image name, and by the verdict of the host's verifiers."""

from __future__ import annotations

import json
from functools import partial

from daemonkit.faults import Denied
from images.concurrency import WorkerThreads
from images.globs import Globs
from images.image_errors import Rejected
from images.image_settings import PolicySettings
from images.policy.verifiers import judge, verifiers_in
from images.registry.manifests import Descriptor
from images.registry.names import Reference


class Policy:
    """An operator's policy.  Applies to pulls and tags, not to imports or stored images.

    A tag matters because a pod can run a stored image by name without a pull. Tags must not bypass the
    policy.
    """

    def __init__(self, settings: PolicySettings, threads: WorkerThreads) -> None:
        self._settings = settings
        self._threads = threads
        self._allow, self._deny = Globs(settings.allow), Globs(settings.deny)

    def check_name(self, reference: Reference, operation: str = "pull") -> None:
        """Raise Denied if the policy forbids the name; operation: for the message.

        Patterns match the whole name, or the repository alone: a pattern of a repository then covers all its
        tags and digests.
        """
        names = (str(reference), reference.name)
        pattern = self._deny.matching(names)
        if pattern:
            raise Denied(operation, str(reference), f"images.policy.deny has {pattern!r}")
        if self._allow and not self._allow.matching(names):
            raise Denied(operation, str(reference), "nothing in images.policy.allow matches it")

    async def check_content(self, reference: Reference, target: Descriptor, operation: str = "pull") -> None:
        """Ask each verifier about the image; Rejected if a verifier refuses, or fails."""
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
