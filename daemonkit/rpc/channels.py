"""Opens channels to the gRPC servers of daemons.

Imports no server code: a command would take three times as long to start.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio

MESSAGE_LIMIT_BYTES = 16 * 1024 * 1024
"""Most bytes of a gRPC message in either direction; the kubelet has the same limit."""

_CHANNEL_OPTIONS: Sequence[tuple[str, int | str]] = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.http2.bdp_probe", 0),
    # A restarting daemon is back within a second: do not wait for an exponential back-off.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name also the time limit of an attempt: a busy daemon must get the time to greet.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A unix socket's path must never be sent to a proxy of the environment.
    ("grpc.enable_http_proxy", 0),
    # A connection for each channel: a slowly read stream must not delay another channel.
    ("grpc.use_local_subchannel_pool", 1),
)


def channel(path: Path, options: Sequence[tuple[str, int | str]] = ()) -> grpc.aio.Channel:
    """A client channel to the daemon at ``path``; connects at first use, reconnects automatically."""
    target, chosen = f"unix:{path.absolute()}", (*_CHANNEL_OPTIONS, *options)
    return grpc.aio.insecure_channel(target, options=chosen)
