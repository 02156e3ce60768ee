"""Fetches manifests, configurations and layers, verified, from the first working source.

``read_first`` asks the sources in turn; the other functions read from a given source, block, and run in a
thread. The module returns content only under its verified digest.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from daemonkit.faults import Fault
from daemonkit.host.disk_space import is_full
from images.bounds.cancel import CancelToken
from images.bounds.digests import VerifiedChunks, digest_of, matches
from images.bounds.limits import ImageLimits
from images.concurrency import WorkerThreads
from images.image_errors import Corrupt, DiskFull, Misdelivered, Oversized, Unpackable, disk_full, oversized
from images.layer.layers import Cost, file_chunks
from images.pull.candidates import Candidates
from images.pull.progress import Meter
from images.registry.facts import IndexFacts, ManifestFacts
from images.registry.manifests import Descriptor, ImageConfig
from images.registry.names import Reference
from images.registry.sources import ImageSource
from images.rootfs.eager import EagerFilesystem
from images.worker.documents import DocumentReader
from images.worker.layer_workers import read_layer
from images.worker.workers import LayerWorkers

log = logging.getLogger(__name__)
T = TypeVar("T")
Reading = Callable[[], AbstractContextManager[EagerFilesystem | None]]
# Faults of the image itself or of this host; another source would not help.
_FINAL = (Unpackable, Oversized, DiskFull)


class Document(NamedTuple):
    """A manifest or index: verified, and read once."""

    digest: str
    data: bytes
    facts: IndexFacts | ManifestFacts


def _any(_: ImageSource) -> bool:
    return True


async def read_first(
    threads: WorkerThreads,
    candidates: Candidates,
    read: Callable[[ImageSource, CancelToken], T],
    may: Callable[[ImageSource], bool] = _any,
) -> T:
    """The result of ``read`` from the first successful source; each attempt runs in a thread.

    may: selects the sources to ask, at least one. If every source fails, raises the fault of the registry
    itself (the last configured source), with the faults of the other sources in the cause.
    """
    faults: list[Fault] = []
    asked = candidates.in_order(may)
    for source in asked:
        try:
            result = await threads.run(partial(read, source))
        except _FINAL:
            raise
        except Fault as fault:
            candidates.failed(source, fault)
            faults.append(fault)
        else:
            candidates.answered(source)
            return result
    final = faults[asked.index(candidates.registry(may))]
    # hosts.toml may list the server as a mirror of itself; name it once.
    others = "; ".join(dict.fromkeys(str(fault) for fault in faults if str(fault) != str(final)))
    if not others:
        raise final
    cause = f"{final.cause}; tried too: {others}"[:2000]
    raise type(final)(final.operation, final.subject, cause, final.hint) from final


def read_tagged(
    reference: Reference,
    limits: ImageLimits,
    reader: DocumentReader,
    source: ImageSource,
    token: CancelToken,
) -> Document:
    """The manifest or index of a name, from a given source."""
    given = source.manifest(reference.target, limits.manifest_bytes, token)
    data = given.data
    subject = f"{reference} at {source.name}"
    if reference.digest is not None and not matches(data, reference.digest):
        raise Corrupt("pull", subject, "the manifest has another digest")
    # A login page instead of a manifest means: the source does not have the image.
    facts = reader.document(given, str(reference), token)
    return Document(reference.digest or digest_of(data), data, facts)


def read_manifest(
    descriptor: Descriptor,
    limits: ImageLimits,
    reader: DocumentReader,
    source: ImageSource,
    token: CancelToken,
) -> Document:
    """The manifest or index of a descriptor."""
    given = source.manifest(descriptor.digest, limits.manifest_bytes, token)
    data = given.data
    if len(data) != descriptor.size or not matches(data, descriptor.digest):
        subject = f"{descriptor.digest} at {source.name}"
        raise Corrupt("pull", subject, "the manifest has another digest or size")
    facts = reader.document(given, descriptor.digest, token, descriptor.media_type)
    return Document(descriptor.digest, data, facts)


def read_config(
    descriptor: Descriptor,
    layers: int,
    limits: ImageLimits,
    reader: DocumentReader,
    source: ImageSource,
    token: CancelToken,
) -> tuple[bytes, ImageConfig]:
    """An image's configuration, raw and parsed; layers: number of layers in the manifest."""
    most = limits.config_bytes
    if descriptor.size > most:
        raise oversized(
            "pull", descriptor.digest, f"{descriptor.size} bytes, more than {most}", "config_bytes"
        )
    verified = VerifiedChunks(descriptor.digest, descriptor.size)
    with source.blob(descriptor, token) as chunks:
        data = b"".join(verified.passing(chunks))
    verified.finish(source.name)
    return data, reader.config(data, descriptor.digest, layers, token)


def download_layer(
    layer: Descriptor,
    diff_id: str,
    out: Path,
    listed: BinaryIO,
    limits: ImageLimits,
    meter: Meter,
    source: ImageSource,
    workers: LayerWorkers,
    token: CancelToken,
    reading: Reading = nullcontext,
) -> Cost:
    """Download a layer into a file and list its entries; synced on return. Returns the layer's cost.

    listed: file for the list of entries. Bytes already in the file are not fetched again, but verified like
    new bytes. If the whole is wrong, everything is fetched again. reading: entered for each attempt; gives
    the early build for the files, or None.
    """
    if layer.size > limits.layer_bytes:
        cause = f"{layer.size} bytes, more than {limits.layer_bytes}"
        raise oversized("pull", layer.digest, cause, "layer_bytes")
    fetch = partial(_download_rest, layer, diff_id, out, listed, meter, source, workers, token, reading)
    begin = out.stat().st_size if out.exists() else 0
    if begin:
        try:
            return fetch(begin)
        except (Corrupt, Unpackable, Oversized) as fault:
            log.info("the part of layer %s that was kept is of no use: %s", layer.digest, fault)
            out.unlink()
    try:
        return fetch(0)
    except Unpackable as fault:
        if not isinstance(fault.__cause__, Corrupt):
            raise
        # The bytes have the promised digest. Read them again before blaming the image: a process on this host
        # reported the fault, and may have read a damaged copy.
        log.warning("layer %s is read once more: %s", layer.digest, fault)
        return fetch(layer.size)


def _download_rest(
    layer: Descriptor,
    diff_id: str,
    out: Path,
    listed: BinaryIO,
    meter: Meter,
    source: ImageSource,
    workers: LayerWorkers,
    token: CancelToken,
    reading: Reading,
    begin: int,
) -> Cost:
    verified = VerifiedChunks(layer.digest, layer.size)
    meter.restart()
    # An earlier attempt may have filled the list.
    listed.seek(0)
    listed.truncate()
    with ExitStack() as stack:
        file = stack.enter_context(_appending(out))
        # If the file is complete, the host has no more bytes to give.
        rest = stack.enter_context(source.blob(layer, token, begin)) if begin < layer.size else iter(())
        before = _counted(file_chunks(out, token), meter) if begin else iter(())
        chunks = verified.passing(chain(before, _stored(rest, file, meter, token)))
        begun = stack.enter_context(reading())
        named = (layer.digest, layer.size)
        read = partial(read_layer, workers, chunks, named, diff_id, listed, token, begun)
        cost = _indexed(chunks, verified, read, source.name)
        file.flush()
        os.fsync(file.fileno())
    return cost


def _indexed(
    chunks: Iterator[bytes], verified: VerifiedChunks, read: Callable[[], Cost], source: str
) -> Cost:
    """Read a layer. If reading fails, a wrong digest blames the transfer, a right digest the image."""
    try:
        cost = read()
    except Misdelivered:
        raise
    except (Corrupt, Unpackable) as fault:
        _drain(chunks)
        verified.finish(source)
        raise Unpackable(fault.operation, fault.subject, fault.cause) from fault
    _drain(chunks)
    verified.finish(source)
    return cost


def _drain(chunks: Iterator[bytes]) -> None:
    for _ in chunks:
        pass


@contextmanager
def _appending(out: Path) -> Iterator[BinaryIO]:
    try:
        with out.open("ab") as file:
            yield file
    except OSError as error:
        if is_full(error):
            raise disk_full("store blob", out.name) from error
        raise


def _stored(chunks: Iterator[bytes], file: BinaryIO, meter: Meter, token: CancelToken) -> Iterator[bytes]:
    for chunk in chunks:
        token.check()
        file.write(chunk)
        meter.add(len(chunk))
        yield chunk


def _counted(chunks: Iterator[bytes], meter: Meter) -> Iterator[bytes]:
    for chunk in chunks:
        meter.add(len(chunk))
        yield chunk
