"""Runs the gRPC server of a daemon on a guarded unix socket."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio

from daemonkit.faults import Broken
from daemonkit.logs import fields
from daemonkit.loop.in_flight import InFlight
from daemonkit.observe.audit.log import AuditLog
from daemonkit.observe.calls import CallObserver
from daemonkit.rpc.channels import MESSAGE_LIMIT_BYTES
from daemonkit.rpc.interceptors import CallGuard
from daemonkit.rpc.peer_proxy import PeerProxy, listen, own_lock
from daemonkit.tasks import Background

log = logging.getLogger(__name__)

BATCH_ITEMS = 64
"""Most items in a message of a streaming list: far below the size limit, but few messages for a node."""

T = TypeVar("T")

_GRACE_SECONDS = 5.0
_MOST_CALLS = 4096
_SERVER_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.bdp_probe", 0),
)


@contextlib.asynccontextmanager
async def serve_unix(
    path: Path,
    add_services: Callable[[grpc.aio.Server], None],
    *,
    name: str,
    grace: float = _GRACE_SECONDS,
    tasks: Background | None = None,
    in_flight: InFlight | None = None,
    audit: AuditLog | None = None,
) -> AsyncIterator[None]:
    """Serve gRPC on the unix socket ``path`` (mode 0600) while the block runs.

    Only root and the daemon's own user have access.  Replaces a dead daemon's socket; Refused if a live
    daemon serves the path.  At the end, calls under way get ``grace`` seconds to finish. ``tasks`` owns the
    handlers, and their undo after a client's departure.  The caller closes ``tasks`` after the server; None:
    the server has its own, and waits ``grace`` seconds for it. ``underway`` counts the calls, ``audit``
    records changing calls.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with own_lock(path):
        owner = tasks or Background()
        observer = CallObserver(audit)
        guard = CallGuard(name, owner, in_flight, observer)
        server = grpc.aio.server(
            interceptors=[guard], options=_SERVER_OPTIONS, maximum_concurrent_rpcs=_MOST_CALLS
        )
        add_services(server)
        async with contextlib.AsyncExitStack() as undo:
            if tasks is None:
                undo.push_async_callback(owner.close, grace)
            # a server never started must be stopped too, or its destructor complains
            undo.push_async_callback(server.stop, grace)
            inner = await _start_inner(server, path)
            undo.callback(os.close, inner)
            proxy = PeerProxy(listen(path), f"/proc/self/fd/{inner}", name, observer.callers)
            undo.callback(proxy.close)
            undo.push_async_callback(server.stop, grace)
            undo.callback(guard.end_subscriptions)
            undo.callback(_unlisten, proxy, path)
            proxy.open()
            log.info("serving", extra=fields(server=name, socket=path))
            yield


def _unlisten(proxy: PeerProxy, path: Path) -> None:
    proxy.close_listener()
    path.unlink(missing_ok=True)


async def _start_inner(server: grpc.aio.Server, path: Path) -> int:
    """Start the server on a socket that only this process can reach; returns its O_PATH descriptor.

    The socket is bound in a 0700 directory, and its name removed at once.  ``/proc/self/fd/<n>`` still leads
    to the socket, for this process alone, and a SIGKILL leaves no file behind.  Binding through the
    directory's descriptor keeps the name short (sun_path).
    """
    folder = path.with_name(f".{path.name}.inner")
    shutil.rmtree(folder, ignore_errors=True)  # left by a daemon killed between bind and removal
    folder.mkdir(mode=0o700)
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        server.add_insecure_port(f"unix:/proc/self/fd/{directory}/s")
        await server.start()
        return os.open("s", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except (OSError, RuntimeError) as error:
        raise Broken("start gRPC server on", str(path), str(error)) from error
    finally:
        os.close(directory)
        shutil.rmtree(folder, ignore_errors=True)


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Cut the items of a streaming list into messages of a bounded size; none for no items."""
    for start in range(0, len(items), BATCH_ITEMS):
        yield items[start : start + BATCH_ITEMS]
