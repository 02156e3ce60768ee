"""Where an image's bytes come from: hosts of a registry in turn, or one layout on this machine.

Each host is borne with for a while (``patience``) before the next one is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Protocol, TypeVar

from cri.images.cancel import Cancel
from cri.images.errors import Oversized, Unpackable
from cri.images.registry import download
from cri.images.registry.client import RegistryClient
from cri.images.registry.credentials import Credentials
from cri.images.registry.hosts import PULL, RESOLVE, RegistryHost, hosts_for
from cri.images.registry.manifests import Descriptor
from cri.images.registry.names import Reference
from cri.images.registry.retry import with_patience
from cri.images.settings import ImageSettings
from daemonkit.faults import Fault, Refused

T = TypeVar("T")
# The image itself is at fault, whichever place it comes from.
_HOPELESS = (Unpackable, Oversized)


class ImageSource(Protocol):
    """One place that may have an image. What it gives is untrusted until its digest was held against it."""

    name: str
    resolves: bool

    def manifest(self, target: str, most: int, cancel: Cancel) -> tuple[bytes, str]:
        """At most so many bytes of a manifest by tag or digest, and its media type ("" when not known)."""

    def blob(self, descriptor: Descriptor, cancel: Cancel) -> AbstractContextManager[Iterator[bytes]]:
        """A blob's bytes in pieces; raises Faults while they are read."""


def registry_sources(
    reference: Reference, credentials: Credentials, settings: ImageSettings
) -> tuple[ImageSource, ...]:
    """The configured hosts for a name that may give content."""
    hosts = [host for host in hosts_for(reference.host, settings.certs_dir) if PULL in host.capabilities]
    if not hosts:
        raise Refused("pull", str(reference), f"no host of {reference.host} has the capability {PULL!r}")
    return tuple(_RegistrySource(host, reference, credentials, settings) for host in hosts)


def first_of(places: Sequence[ImageSource], attempt: Callable[[ImageSource], T], cancel: Cancel) -> T:
    """What the first place that can gives; else the fault of the last one, which is the registry itself."""
    causes: list[Fault] = []
    for place in places:
        cancel.check()
        try:
            return attempt(place)
        except _HOPELESS:
            raise
        except Fault as fault:
            cancel.check()
            causes.append(fault)
    last = causes[-1]
    # A mirror that is the server too, as some files have it, is told once.
    before = "; ".join(dict.fromkeys(str(cause) for cause in causes[:-1] if str(cause) != str(last)))
    if not before:
        raise last
    cause = f"{last.cause}; tried before: {before}"[:2000]
    raise type(last)(last.operation, last.subject, cause, last.hint) from last


class _RegistrySource:
    def __init__(
        self, host: RegistryHost, reference: Reference, credentials: Credentials, settings: ImageSettings
    ) -> None:
        self.name = str(host)
        self.resolves = RESOLVE in host.capabilities
        self._settings = settings
        self._make = partial(RegistryClient, host, reference, credentials, settings)
        self._made: RegistryClient | None = None

    @property
    def _registry(self) -> RegistryClient:
        # Made at first use: a broken certificate file of one host must not keep the others from being tried.
        if self._made is None:
            self._made = self._make()
        return self._made

    def manifest(self, target: str, most: int, cancel: Cancel) -> tuple[bytes, str]:
        """See Place."""
        return with_patience(lambda: self._registry.manifest(target, most), self._settings, cancel)

    @contextmanager
    def blob(self, descriptor: Descriptor, cancel: Cancel) -> Iterator[Iterator[bytes]]:
        """See Place."""
        with closing(download.pieces(self._registry, descriptor, self._settings, cancel)) as pieces:
            yield pieces
