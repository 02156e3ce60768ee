"""Digests, to verify bytes from any origin (OCI image-spec, descriptor.md)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from images.image_errors import Corrupt

_DIGEST = re.compile(r"(?:sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})\Z")


def is_digest(text: str) -> bool:
    """Whether the text is a supported digest (sha256 or sha512, lower case)."""
    return _DIGEST.match(text) is not None


def digest_of(data: bytes) -> str:
    """The canonical digest of bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def matches(data: bytes, digest: str) -> bool:
    """Whether the bytes have the digest."""
    algorithm, _, wanted = digest.partition(":")
    return hashlib.new(algorithm, data).hexdigest() == wanted


class VerifiedChunks:
    """Checks passing chunks against a promised digest and size."""

    def __init__(self, digest: str, size: int) -> None:
        self._digest = digest
        self._promised = size
        self._passed = 0
        algorithm, _, self._wanted = digest.partition(":")
        self._hash = hashlib.new(algorithm)

    def passing(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The same chunks; raises Corrupt if they exceed the promised size."""
        for chunk in chunks:
            self._passed += len(chunk)
            if self._passed > self._promised:
                raise Corrupt("pull", self._digest, f"more than the promised {self._promised} bytes")
            self._hash.update(chunk)
            yield chunk

    def finish(self, where: str) -> None:
        """Raise Corrupt unless exactly the promised bytes have passed; where: the source, for the message."""
        subject = f"{self._digest} at {where}"
        if self._passed != self._promised:
            raise Corrupt("pull", subject, f"{self._passed} bytes instead of {self._promised}")
        if self._hash.hexdigest() != self._wanted:
            raise Corrupt("pull", subject, "the bytes it gave have another digest")
