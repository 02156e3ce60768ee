"""Opens channels to the gRPC servers of daemons.

Imports nothing of a server, with which a command would take three times as long to start.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio

MESSAGE_LIMIT = 16 * 1024 * 1024
"""Most bytes of a gRPC message in either direction; the kubelet has the same limit."""

_CHANNEL_OPTIONS: Sequence[tuple[str, int | str]] = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    ("grpc.http2.bdp_probe", 0),
    # A daemon that restarts is back within a second: do not wait out an exponential back-off.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name also how long one attempt may take: a busy daemon must get the time to greet.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A unix socket's path must never be sent to a proxy of the environment.
    ("grpc.enable_http_proxy", 0),
    # Each channel its own connection: a stream that is slow to read must not hold up another channel.
    ("grpc.use_local_subchannel_pool", 1),
)


def channel(path: Path, options: Sequence[tuple[str, int | str]] = ()) -> grpc.aio.Channel:
    """A client channel to the daemon that serves ``path``; connects when first used, reconnects by itself."""
    target, chosen = f"unix:{path.absolute()}", (*_CHANNEL_OPTIONS, *options)
    return grpc.aio.insecure_channel(target, options=chosen)
