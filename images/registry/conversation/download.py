"""Downloads a blob from a registry host; after a broken connection, the next one continues.

The bytes are untrusted.  The caller checks the digest over all bytes from all connections.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator

import requests

from images.bounds.cancel import CancelToken
from images.image_errors import Interrupted, Misdelivered, NoRanges, Stalled
from images.image_settings import ImageSettings
from images.registry.conversation.registry_client import RegistryClient
from images.registry.conversation.retry import RetryPolicy
from images.registry.manifests import Descriptor

CHUNK_BYTES = 120 << 10
SLOWEST_BYTES_PER_SECOND = 1024
"""Least bytes a second over the whole stall time; a slower host counts as stalled."""
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-[0-9]{1,19}/(?:[0-9]{1,19}|\*)\Z")


def chunks(
    client: RegistryClient,
    descriptor: Descriptor,
    settings: ImageSettings,
    policy: RetryPolicy,
    token: CancelToken,
    begin: int = 0,
) -> Generator[bytes, None, None]:
    """The blob's bytes from ``begin`` on; raises Faults if the host fails or is given up."""
    at, ranges = begin, True
    while True:
        try:
            for chunk in _chunks_from(client, descriptor, at if ranges else 0, at, settings):
                at += len(chunk)
                policy.received(len(chunk))
                yield chunk
            if at >= descriptor.size:
                return
            # Without a Content-Length an early end looks like the end.
            raise Interrupted("pull", f"{descriptor.digest} at {client.host}", f"it ends at byte {at}")
        except NoRanges:
            if not ranges:
                raise
            ranges = False
        except (Interrupted, Stalled) as fault:
            token.check()
            token.sleep(policy.backoff(fault))


def _chunks_from(
    client: RegistryClient,
    descriptor: Descriptor,
    asked: int,
    at: int,
    settings: ImageSettings,
) -> Iterator[bytes]:
    """The blob from byte ``at`` on, over one connection; asked: the first byte of the request."""
    with client.blob(descriptor.digest, asked) as response:
        start = _first_byte(response)
        declared = response.headers.get("Content-Length", "")
        subject = f"{descriptor.digest} at {client.host}"
        if start > at:
            raise Misdelivered("pull", subject, f"the host was asked for byte {at}, and begins at {start}")
        if declared.isdigit() and int(declared) != descriptor.size - start:
            cause = f"the host offers {declared} bytes where the manifest says {descriptor.size - start}"
            raise Misdelivered("pull", subject, cause)
        skip = at - start
        for chunk in _timely(response, subject, settings.stall_seconds):
            if skip < len(chunk):
                yield chunk[skip:]
            skip = max(0, skip - len(chunk))


def _first_byte(response: requests.Response) -> int:
    """The first byte of a response."""
    if response.status_code != requests.codes.partial_content:
        return 0
    found = _CONTENT_RANGE.match(response.headers.get("Content-Range", "").strip())
    if found is None:
        raise NoRanges("pull", response.url.partition("?")[0], "206 without a proper Content-Range")
    return int(found[1])


def _timely(response: requests.Response, subject: str, stall: float) -> Iterator[bytes]:
    """The response's bytes; Stalled if they trickle. Counts only waiting, not the work between reads."""
    waited, came = 0.0, 0
    while True:
        asked = time.monotonic()
        chunk = response.raw.read1(CHUNK_BYTES, decode_content=False)
        waited += time.monotonic() - asked
        if not chunk:
            return
        came += len(chunk)
        if waited >= stall:
            if came < SLOWEST_BYTES_PER_SECOND * stall:
                raise Stalled("pull", subject, f"{came} bytes in {waited:.0f} s")
            waited, came = 0.0, 0
        yield chunk
