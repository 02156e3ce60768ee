"""Blobs fetched and verified: nothing leaves this module under a digest it does not have."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cri.images.cancel import Cancel
from cri.images.errors import Corrupt, Misdelivered, Oversized, Unpackable, disk_full
from cri.images.layer.layers import LayerIndex, read_layer
from cri.images.pull.progress import Meter
from cri.images.registry.manifests import Descriptor
from cri.images.registry.sources import ImageSource, first_of
from cri.images.settings import ImageLimits
from daemonkit.disk_space import is_full


def digest_of(data: bytes) -> str:
    """The canonical digest of bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def matches(data: bytes, digest: str) -> bool:
    """Whether the bytes have the digest."""
    algorithm, _, wanted = digest.partition(":")
    return hashlib.new(algorithm, data).hexdigest() == wanted


def fetch_document(places: Sequence[ImageSource], descriptor: Descriptor, most: int, cancel: Cancel) -> bytes:
    """A small blob (a configuration) whole in memory."""
    if descriptor.size > most:
        raise Oversized("pull", descriptor.digest, f"{descriptor.size} bytes, more than {most}")

    def attempt(place: ImageSource) -> bytes:
        verified = _Verified(descriptor)
        with place.blob(descriptor, cancel) as pieces:
            data = b"".join(verified.passing(pieces))
        verified.finish(place.name)
        return data

    return first_of(places, attempt, cancel)


def fetch_manifest(places: Sequence[ImageSource], descriptor: Descriptor, most: int, cancel: Cancel) -> bytes:
    """A manifest that an index promised."""
    if descriptor.size > most:
        raise Oversized("pull", descriptor.digest, f"a manifest of {descriptor.size} bytes, more than {most}")

    def attempt(place: ImageSource) -> bytes:
        data, _ = place.manifest(descriptor.digest, most, cancel)
        if len(data) != descriptor.size or not matches(data, descriptor.digest):
            raise Corrupt(
                "pull", f"{descriptor.digest} at {place.name}", "the manifest has another digest or size"
            )
        return data

    return first_of(places, attempt, cancel)


def fetch_layer(
    places: Sequence[ImageSource],
    descriptor: Descriptor,
    diff_id: str,
    out: Path,
    limits: ImageLimits,
    cancel: Cancel,
    meter: Meter,
) -> LayerIndex:
    """A layer into a new file, read through on the way; synced when this returns, removed when it raises."""
    if descriptor.size > limits.layer_bytes:
        raise Oversized("pull", descriptor.digest, f"{descriptor.size} bytes, more than {limits.layer_bytes}")

    def attempt(place: ImageSource) -> LayerIndex:
        verified = _Verified(descriptor)
        meter.restart()
        with _new_file(out) as file, place.blob(descriptor, cancel) as pieces:
            passing = _stored(verified.passing(pieces), file, cancel, meter)
            index = _read_through(passing, verified, place, diff_id, limits)
            file.flush()
            os.fsync(file.fileno())
        return index

    return first_of(places, attempt, cancel)


def _read_through(
    passing: Iterator[bytes], verified: _Verified, place: ImageSource, diff_id: str, limits: ImageLimits
) -> LayerIndex:
    """The index; what looks broken is the transfer's fault if the digest is wrong, else the image's."""
    try:
        index = read_layer(passing, verified.descriptor.size, diff_id, limits)
    except Misdelivered:
        raise
    except (Corrupt, Unpackable) as fault:
        _drain(passing)
        verified.finish(place.name)
        raise Unpackable(fault.operation, fault.subject, fault.cause) from fault
    _drain(passing)
    verified.finish(place.name)
    return index


def _drain(pieces: Iterator[bytes]) -> None:
    for _ in pieces:
        pass


class _Verified:
    """Pieces held against a descriptor while they pass."""

    def __init__(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor
        algorithm, _, self._wanted = descriptor.digest.partition(":")
        self._hash = hashlib.new(algorithm)
        self._size = 0

    def passing(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """The same pieces; stops with Corrupt once there are more bytes than promised."""
        for piece in pieces:
            self._size += len(piece)
            if self._size > self.descriptor.size:
                raise Corrupt(
                    "pull", self.descriptor.digest, f"more than the promised {self.descriptor.size} bytes"
                )
            self._hash.update(piece)
            yield piece

    def finish(self, where: str) -> None:
        """Raises Corrupt unless all that passed is what was promised."""
        subject = f"{self.descriptor.digest} at {where}"
        if self._size != self.descriptor.size:
            raise Corrupt("pull", subject, f"{self._size} bytes instead of {self.descriptor.size}")
        if self._hash.hexdigest() != self._wanted:
            raise Corrupt("pull", subject, "the bytes have another digest")


@contextmanager
def _new_file(out: Path) -> Iterator[BinaryIO]:
    try:
        with out.open("wb") as file:
            yield file
    except BaseException as error:
        out.unlink(missing_ok=True)
        if is_full(error):
            raise disk_full("store blob", out.name) from error
        raise


def _stored(pieces: Iterator[bytes], file: BinaryIO, cancel: Cancel, meter: Meter) -> Iterator[bytes]:
    for piece in pieces:
        cancel.check()
        file.write(piece)
        meter.add(len(piece))
        yield piece
