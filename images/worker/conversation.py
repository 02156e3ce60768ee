"""Runs the process that talks to the registries of one pull, for the daemon's threads."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, closing, suppress

from daemonkit.faults import Fault
from images.image_settings import ImageSettings
from images.registry.briefing import Briefing, brief, pack
from images.registry.credentials import Credentials
from images.registry.exchange import Question
from images.registry.hosts import RegistryHost
from images.registry.manifests import Platform
from images.registry.names import Reference
from images.registry.sources import pull_hosts
from images.worker.session import Worker
from images.worker.workers import LayerWorkers

_STREAM_BYTES = 4 << 20


class RegistryConversation:
    """Implements ``Conversation``; the process begins with the first request, and ends with close()."""

    def __init__(self, workers: LayerWorkers, told: Briefing) -> None:
        self._workers = workers
        self._told = told
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._control: socket.socket | None = None
        self._worker: Worker | None = None

    def ask(self, request: Question) -> tuple[socket.socket, socket.socket]:
        """See Conversation; in the process, PullServer.run() takes the question."""
        stream, its_stream = socket.socketpair()
        ending, its_ending = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # As large as the system's limit allows: the worker continues while the daemon stores.
        its_stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _STREAM_BYTES)
        with its_stream, its_ending, self._lock:
            # If the worker has ended, the streams have ended too.
            with suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._begun(), [request.pack()], [its_stream.fileno(), its_ending.fileno()])
        return stream, ending

    def ended(self, subject: str) -> Fault:
        """See Conversation."""
        with self._lock:
            assert self._worker is not None
            return self._worker.ended(subject)

    def close(self) -> None:
        """Kill the process, and wait for the end; blocks."""
        with self._lock:
            self._stack.close()
            self._control = None

    def _begun(self) -> socket.socket:
        if self._control is None:
            self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._stack.enter_context(self._control)
            with its:
                worker = self._workers.converse(pack(self._told), its.fileno())
                self._worker = self._stack.enter_context(closing(worker))
        return self._control


def converse(
    workers: LayerWorkers,
    reference: Reference,
    credentials: Credentials,
    settings: ImageSettings,
    platform: Platform,
) -> tuple[tuple[RegistryHost, ...], RegistryConversation]:
    """The hosts of a pull, and a conversation with the hosts; reads the files named in hosts.toml.

    Refused: no host has the name.
    """
    hosts = pull_hosts(reference, settings)
    return hosts, RegistryConversation(workers, brief(reference, credentials, hosts, settings, platform))
