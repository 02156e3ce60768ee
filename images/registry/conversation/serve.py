"""The worker of one pull: answers the daemon's requests by asking registries, each in a thread."""

from __future__ import annotations

import select
import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial

from daemonkit.faults import Broken, Fault
from images.bounds.cancel import CancelToken
from images.image_errors import Cancelled
from images.registry import briefing
from images.registry.briefing import Briefing
from images.registry.claims import MAX_CLAIMS_BYTES, MAX_DOCUMENT_BYTES
from images.registry.conversation import download
from images.registry.conversation.registry_client import RegistryClient
from images.registry.conversation.retry import RetryPolicy, with_retries
from images.registry.conversation.transport import early_context, tls_context
from images.registry.exchange import (
    MAX_QUESTION_BYTES,
    Ending,
    Question,
    send_end,
    send_fault,
    unpack_question,
)
from images.registry.facts import pack_document
from images.registry.manifests import Descriptor
from images.registry.reading import read_document

_STACK_BYTES = 1 << 20


class HostSource:
    """A host of the pull, with one session for all requests."""

    def __init__(self, number: int, told: Briefing) -> None:
        host, trust = told.hosts[number]
        tls = early_context(host, trust) if trust.clients else partial(tls_context, host, trust)
        self._settings = told.settings
        self._wanted, self._layers = told.platform, told.layers
        self._policy = partial(RetryPolicy, told.settings, number == len(told.hosts) - 1)
        self._connect = partial(RegistryClient, host, tls, told.reference, told.credentials, told.settings)
        self._connected: RegistryClient | None = None
        self._lock = threading.Lock()

    @property
    def _client(self) -> RegistryClient:
        with self._lock:
            if self._connected is None:
                self._connected = self._connect()
            return self._connected

    def claims(self, data: bytes, said: str) -> bytes:
        """Packed facts of a manifest or an index, b"" if unusable; said: the media type.

        An unreadable document has no facts: an independent process reports the error.
        """
        if len(data) > MAX_DOCUMENT_BYTES:
            return b""
        try:
            packed = pack_document(read_document(data, said, "", self._wanted, self._layers))
        except Fault:
            return b""
        return packed if len(packed) <= MAX_CLAIMS_BYTES else b""

    def manifest(self, target: str, most: int, token: CancelToken) -> tuple[bytes, str]:
        """A manifest by tag or digest, with its media type."""
        return with_retries(lambda: self._client.manifest(target, most), self._policy(), token)

    @contextmanager
    def blob(self, digest: str, size: int, begin: int, token: CancelToken) -> Iterator[Iterator[bytes]]:
        """A blob's bytes from ``begin`` on."""
        descriptor = Descriptor("", digest, size)
        found = download.chunks(self._client, descriptor, self._settings, self._policy(), token, begin)
        with closing(found) as chunks:
            yield chunks


class HangUp(CancelToken):
    """Cancelled once the daemon has closed the answer's socket."""

    def __init__(self, link: socket.socket) -> None:
        super().__init__()
        self._poll = select.poll()
        self._poll.register(link, 0)

    def check(self) -> None:
        """Raise Cancelled if the daemon no longer waits for the answer."""
        self.sleep(0)

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise Cancelled as soon as the daemon no longer waits for the answer."""
        if self._poll.poll(seconds * 1000):
            raise Cancelled


class PullServer:
    """All hosts of the pull. Made before the confinement, because OpenSSL reads files."""

    def __init__(self, told: bytes) -> None:
        about = briefing.unpack(told)
        self._sources = [HostSource(number, about) for number in range(len(about.hosts))]

    def run(self, control: socket.socket) -> None:
        """Answer until the daemon closes its end; running threads end with the process."""
        threading.stack_size(_STACK_BYTES)
        while True:
            said, handles, _, _ = socket.recv_fds(control, MAX_QUESTION_BYTES, 2)
            if not said:
                return
            stream, outcome = (socket.socket(fileno=handle) for handle in handles)
            question = unpack_question(said)
            work = partial(_answer_question, self._sources[question.host], question, stream, outcome)
            threading.Thread(target=work, daemon=True).start()


def _answer_question(
    source: HostSource, question: Question, stream: socket.socket, outcome: socket.socket
) -> None:
    # The daemon reads the outcome after the stream ends, and closes both to give up.
    with outcome, stream, suppress(BrokenPipeError, ConnectionResetError, Cancelled):
        try:
            ending = _transfer(source, question, stream)
        except (BrokenPipeError, ConnectionResetError, Cancelled):
            raise
        except Fault as fault:
            send_fault(outcome, fault)
        except Exception as error:
            traceback.print_exc()
            cause = f"the process that talks to the registry failed with {type(error).__name__}"
            send_fault(outcome, Broken("pull", question.target, cause))
        else:
            send_end(outcome, ending)


def _transfer(source: HostSource, question: Question, stream: socket.socket) -> Ending:
    token = HangUp(stream)
    if not question.is_blob:
        data, media_type = source.manifest(question.target, question.most, token)
        stream.sendall(data)
        return Ending(media_type, source.claims(data, media_type))
    with source.blob(question.target, question.most, question.begin, token) as chunks:
        for chunk in chunks:
            stream.sendall(chunk)
    return Ending()
