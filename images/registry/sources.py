"""The sources of an image: the hosts of a registry, or a layout on this host.

A source blocks, and is therefore read in a worker thread.  A separate process of the pull asks hosts, and
retries each by its own policy (see ``conversation``); the pull chooses the next source.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import NamedTuple, Protocol

from daemonkit.faults import Broken, Fault, Refused
from images.bounds.cancel import CancelToken
from images.bounds.fields import Malformed
from images.image_errors import Corrupt, Stalled
from images.image_settings import ImageSettings
from images.registry.exchange import Ending, Question, outcome
from images.registry.hosts import PULL, RESOLVE, RegistryHost, hosts_for
from images.registry.manifests import DOCKER_CONFIG, OCI_CONFIG, Descriptor
from images.registry.names import Reference

_PIECE_BYTES = 1 << 20
# After a few small pieces in a row the reader pauses before the next: a registry that sends single bytes
# would cost CPU time for each byte. A stream of 3 MB/s still passes in small pieces.
_SMALL, _FEW, _PAUSE = 16 << 10, 8, 0.005


class GivenManifest(NamedTuple):
    """A manifest or an index from a source, all untrusted.

    media_type: "" if unknown; claims: see claims.borne_out().
    """

    data: bytes
    media_type: str = ""
    claims: bytes = b""


class ImageSource(Protocol):
    """A source that may have an image.  Bytes are untrusted until their digest is verified.

    resolves: whether the source may resolve tags.
    """

    name: str
    resolves: bool

    def manifest(self, target: str, most: int, token: CancelToken) -> GivenManifest:
        """Read a manifest of limited size by tag or digest."""

    def blob(
        self, descriptor: Descriptor, token: CancelToken, begin: int = 0
    ) -> AbstractContextManager[Iterator[bytes]]:
        """A blob's bytes from ``begin`` on, in chunks; raises Faults during the reading."""


class Conversation(Protocol):
    """The process that talks to the hosts of a pull."""

    def ask(self, request: Question) -> tuple[socket.socket, socket.socket]:
        """Send a request; returns a socket for the answer's bytes, and a socket for the outcome."""

    def ended(self, subject: str) -> Fault:
        """The fault for a process that ended without an outcome."""


def pull_hosts(reference: Reference, settings: ImageSettings) -> tuple[RegistryHost, ...]:
    """The configured hosts with the pull capability, in order; raises Refused."""
    hosts = tuple(host for host in hosts_for(reference.host, settings.certs_dir) if PULL in host.capabilities)
    if not hosts:
        raise Refused("pull", str(reference), f"no host of {reference.host} has the capability {PULL!r}")
    return hosts


def registry_sources(
    reference: Reference,
    hosts: tuple[RegistryHost, ...],
    settings: ImageSettings,
    conversation: Conversation,
) -> tuple[ImageSource, ...]:
    """The hosts of a conversation, as sources."""
    return tuple(
        RegistrySource(number, host, reference, settings, conversation) for number, host in enumerate(hosts)
    )


class RegistrySource:
    """One host, asked through the conversation of its pull."""

    def __init__(
        self,
        number: int,
        host: RegistryHost,
        reference: Reference,
        settings: ImageSettings,
        conversation: Conversation,
    ) -> None:
        self.name = str(host)
        self.resolves = RESOLVE in host.capabilities
        self._number = number
        self._subject = f"{reference} at {host}"
        self._settings = settings
        self._conversation = conversation

    def manifest(self, target: str, most: int, token: CancelToken) -> GivenManifest:
        """See ImageSource."""
        request = Question(self._number, target, most, 0, False)
        ended: list[Ending] = []
        with self._asking(request, token, ended, self._settings.document_seconds) as pieces:
            data = bytearray()
            for piece in pieces:
                data += piece
                if len(data) > most:
                    raise Corrupt("pull", self._subject, f"the manifest is larger than {most} bytes")
        return GivenManifest(bytes(data), *ended[0])

    @contextmanager
    def blob(self, descriptor: Descriptor, token: CancelToken, begin: int = 0) -> Iterator[Iterator[bytes]]:
        """See ImageSource."""
        request = Question(self._number, descriptor.digest, descriptor.size, begin, True)
        is_config = descriptor.media_type in (OCI_CONFIG, DOCKER_CONFIG)
        seconds = self._settings.document_seconds if is_config else None
        with self._asking(request, token, [], seconds) as pieces:
            yield pieces

    @contextmanager
    def _asking(
        self, request: Question, token: CancelToken, ended: list[Ending], seconds: float | None
    ) -> Iterator[Iterator[bytes]]:
        """The bytes of an answer; ended: receives the ending. seconds: deadline for the whole answer."""
        stream, ending = self._conversation.ask(request)

        def hang_up() -> None:
            for link in (stream, ending):
                with suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)

        with stream, ending, token.unblocking(hang_up):
            yield self._pieces(stream, ending, ended, token, seconds)

    def _pieces(
        self,
        stream: socket.socket,
        ending: socket.socket,
        ended: list[Ending],
        token: CancelToken,
        seconds: float | None,
    ) -> Iterator[bytes]:
        until, small = None if seconds is None else time.monotonic() + seconds, 0
        try:
            while piece := _received(stream, until):
                yield piece
                small = small + 1 if len(piece) < _SMALL else 0
                if small > _FEW:
                    token.sleep(_PAUSE)
            token.check()
            _limit(ending, until)
            ended.append(outcome(ending))
        except TimeoutError:
            cause = f"the registry gave no whole answer in {seconds:.0f} s"
            raise Stalled("pull", self._subject, cause) from None
        except Malformed as error:
            cause = f"the process that talks to the registry tells nonsense: {error}"
            raise Broken("pull", self._subject, cause) from error
        except (EOFError, ConnectionResetError):
            token.check()
            raise self._conversation.ended(self._subject) from None


def _received(stream: socket.socket, until: float | None) -> bytes:
    _limit(stream, until)
    return stream.recv(_PIECE_BYTES)


def _limit(link: socket.socket, until: float | None) -> None:
    """Limit the next wait: TimeoutError at ``until``, in seconds of the monotonic clock."""
    if until is not None:
        link.settimeout(max(0.001, until - time.monotonic()))
