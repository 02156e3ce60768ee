"""The sources of an image: the hosts of a registry, or a layout on this machine.

A source blocks, so it is read in a worker thread.  Each host is retried by its own policy (``retry``) in that
thread; which source comes next is the pull's to decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Protocol

from cri.images.bounds.cancel import CancelToken
from cri.images.registry import download
from cri.images.registry.client import RegistryClient
from cri.images.registry.connections import cancelled_by
from cri.images.registry.credentials import Credentials
from cri.images.registry.hosts import PULL, RESOLVE, RegistryHost, hosts_for
from cri.images.registry.manifests import Descriptor
from cri.images.registry.names import Reference
from cri.images.registry.retry import RetryPolicy, with_retries
from cri.images.settings import ImageSettings
from daemonkit.faults import Refused


class ImageSource(Protocol):
    """A source that may have an image.  Its bytes are untrusted until their digest has been checked.

    resolves: whether it may say what a tag stands for.
    """

    name: str
    resolves: bool

    def manifest(self, target: str, most: int, token: CancelToken) -> tuple[bytes, str]:
        """Read a manifest of limited size by tag or digest, and its media type ("" if not known)."""

    def blob(
        self, descriptor: Descriptor, token: CancelToken, begin: int = 0
    ) -> AbstractContextManager[Iterator[bytes]]:
        """A blob's bytes from ``begin`` on, in chunks; raises Faults while they are read."""


def registry_sources(
    reference: Reference, credentials: Credentials, settings: ImageSettings
) -> tuple[ImageSource, ...]:
    """The configured hosts for a name that may give content, in the order to try them."""
    hosts = [host for host in hosts_for(reference.host, settings.certs_dir) if PULL in host.capabilities]
    if not hosts:
        raise Refused("pull", str(reference), f"no host of {reference.host} has the capability {PULL!r}")
    last = hosts[-1]
    return tuple(_RegistrySource(host, reference, credentials, settings, host is last) for host in hosts)


class _RegistrySource:
    def __init__(
        self,
        host: RegistryHost,
        reference: Reference,
        credentials: Credentials,
        settings: ImageSettings,
        last: bool,
    ) -> None:
        self.name = str(host)
        self.resolves = RESOLVE in host.capabilities
        self._settings = settings
        self._policy = partial(RetryPolicy, settings, last)
        self._connect = partial(RegistryClient, host, reference, credentials, settings)
        self._connected: RegistryClient | None = None

    @property
    def _client(self) -> RegistryClient:
        # Made at first use: a broken certificate file of one host must not keep the others from being tried.
        if self._connected is None:
            self._connected = self._connect()
        return self._connected

    def manifest(self, target: str, most: int, token: CancelToken) -> tuple[bytes, str]:
        """See ImageSource."""
        with cancelled_by(token):
            return with_retries(lambda: self._client.manifest(target, most), self._policy(), token)

    @contextmanager
    def blob(self, descriptor: Descriptor, token: CancelToken, begin: int = 0) -> Iterator[Iterator[bytes]]:
        """See ImageSource."""
        found = download.chunks(self._client, descriptor, self._settings, self._policy(), token, begin)
        with cancelled_by(token), closing(found) as chunks:
            yield chunks
