"""One blob from one registry host: where the connection breaks, the next one continues.

What comes is untrusted; the digest that is held against it covers all of it, from whichever connections.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import suppress

import requests

from cri.images.cancel import Cancel
from cri.images.errors import Interrupted, Misdelivered, NoRanges, Stalled
from cri.images.registry.client import RegistryClient
from cri.images.registry.manifests import Descriptor
from cri.images.registry.retry import Patience
from cri.images.settings import ImageSettings

PIECE = 1 << 20
# Bytes a second; who sends less over the whole stall time does so to hold us up.
SLOWEST = 1024
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-[0-9]{1,19}/(?:[0-9]{1,19}|\*)\Z")


def pieces(
    registry: RegistryClient, descriptor: Descriptor, settings: ImageSettings, cancel: Cancel
) -> Generator[bytes, None, None]:
    """The blob's bytes; raises Faults when the host gives up, or is given up."""
    patience = Patience(settings, cancel)
    at, ranges = 0, True
    while True:
        try:
            for piece in _from(registry, descriptor, at, ranges, settings, cancel):
                at += len(piece)
                patience.moved(len(piece))
                yield piece
            if at >= descriptor.size:
                return
            # Without a Content-Length an early end looks like the end.
            raise Interrupted("pull", f"{descriptor.digest} at {registry.host}", f"it ends at byte {at}")
        except NoRanges:
            if not ranges:
                raise
            ranges = False
        except (Interrupted, Stalled) as fault:
            cancel.check()
            patience.again(fault)


def _from(
    registry: RegistryClient,
    descriptor: Descriptor,
    at: int,
    ranges: bool,
    settings: ImageSettings,
    cancel: Cancel,
) -> Iterator[bytes]:
    """The blob from a byte on, over one connection."""
    with registry.blob(descriptor.digest, at if ranges else 0) as response:
        start = _start(response)
        declared = response.headers.get("Content-Length", "")
        subject = f"{descriptor.digest} at {registry.host}"
        if start > at:
            raise Misdelivered("pull", subject, f"the host was asked for byte {at}, and begins at {start}")
        if declared.isdigit() and int(declared) != descriptor.size - start:
            cause = f"the host offers {declared} bytes where the manifest says {descriptor.size - start}"
            raise Misdelivered("pull", subject, cause)
        with cancel.interrupting(lambda: _hang_up(response)):
            skip = at - start
            for piece in _timely(response, subject, settings.stall_seconds):
                if skip < len(piece):
                    yield piece[skip:]
                skip = max(0, skip - len(piece))


def _start(response: requests.Response) -> int:
    """The byte that an answer begins with."""
    if response.status_code != requests.codes.partial_content:
        return 0
    found = _CONTENT_RANGE.match(response.headers.get("Content-Range", "").strip())
    if found is None:
        raise NoRanges("pull", response.url.partition("?")[0], "206 without a proper Content-Range")
    return int(found[1])


def _timely(response: requests.Response, subject: str, stall: float) -> Iterator[bytes]:
    """The answer's bytes; Stalled when they trickle. Only the waiting counts, not what we do meanwhile."""
    waited, came = 0.0, 0
    while True:
        asked = time.monotonic()
        piece = response.raw.read1(PIECE, decode_content=False)
        waited += time.monotonic() - asked
        if not piece:
            return
        came += len(piece)
        if waited >= stall:
            if came < SLOWEST * stall:
                raise Stalled("pull", subject, f"{came} bytes in {waited:.0f} s")
            waited, came = 0.0, 0
        yield piece


def _hang_up(response: requests.Response) -> None:
    """Ends a read that another thread is blocked in."""
    connection = response.raw.connection
    if connection is not None and connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
