"""Repairs damaged images from layers on this host, or from the registry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial

from daemonkit.faults import Fault, Missing, Refused
from images.bounds.digests import matches
from images.concurrency import WorkerThreads
from images.image_errors import Damaged, NotKept
from images.pull.candidates import Candidates
from images.pull.progress import Progress
from images.pull.pull import Puller
from images.pull.resolve import ResolvedImage
from images.registry import names
from images.registry.credentials import ANONYMOUS, Credentials
from images.registry.names import Reference
from images.store.catalogue import StoredImage
from images.store.db import FilesystemRow
from images.store.store import ImageStore

_HINT = "pull it again (protect image pull), or remove it"


class Outcome(Enum):
    """The outcome for a damaged object."""

    REBUILT = "rebuilt"
    """Rebuilt from layers."""
    FETCHED = "fetched"
    """Fetched from the registry."""
    FAILED = "failed"


@dataclass(frozen=True)
class Damage:
    """The damaged parts of an image: configuration or manifest, layers (digests), filesystems."""

    documents: bool = False
    layers: tuple[str, ...] = ()
    filesystems: tuple[FilesystemRow, ...] = ()


@dataclass(frozen=True)
class Repair:
    """The repair of one object; detail: the method, or the cause of failure."""

    object: str
    outcome: Outcome
    detail: str = ""


class Repairer:
    """Repairs through the puller; pulls under way share the work."""

    def __init__(self, store: ImageStore, puller: Puller, threads: WorkerThreads) -> None:
        self._store = store
        self._puller = puller
        self._threads = threads

    async def rebuild(self, image: StoredImage, progress: Progress) -> None:
        """Build an image's damaged filesystems from layers on this host.

        Refused if layers are missing: fetching them needs a pull with credentials.
        """
        try:
            await self._puller.keep(self._resolved(image), None, None, progress)
        except (Damaged, NotKept) as fault:
            cause = f"its filesystem on this host is damaged (not the registry's bytes), and {fault.cause}"
            raise Refused("rebuild image", name_of(image), cause, _HINT) from fault

    async def run(
        self, image: StoredImage, damage: Damage, credentials: Credentials, progress: Progress
    ) -> list[Repair]:
        """Repair as much as possible; returns a result for each damaged object."""
        repairs: list[Repair] = []
        if damage.documents:
            documents = self._fetch_documents(image, credentials, progress)
            repairs.append(await _tried("its configuration and manifest", Outcome.FETCHED, documents))
        async with AsyncExitStack() as stack:
            everywhere = [
                await stack.enter_async_context(self._puller.candidates(known, credentials, progress))
                for known in _repositories(image, credentials)
            ]
            repairs += await self._repaired(image, damage, everywhere, progress)
        return repairs

    async def _repaired(
        self, image: StoredImage, damage: Damage, everywhere: Sequence[Candidates], progress: Progress
    ) -> list[Repair]:
        """Repair layers and filesystems."""
        repairs: list[Repair] = []
        for digest in damage.layers:
            work = self._first(everywhere, partial(self._fetch, image, digest))
            repairs.append(await _tried(f"layer {digest}", Outcome.FETCHED, work))
        if damage.filesystems:
            await self._threads.run(lambda _: self._store.mark_damaged(damage.filesystems))
            work = self._first(everywhere, partial(self._rebuild, image, progress))
            repairs.append(await _tried(_filesystems(damage.filesystems), Outcome.REBUILT, work))
        return repairs

    async def _first(
        self, everywhere: Sequence[Candidates], work: Callable[[Candidates | None], Awaitable[str]]
    ) -> str:
        """The result of ``work`` with the first repository that succeeds."""
        for candidates in everywhere[:-1]:
            with suppress(Fault):
                return await work(candidates)
        return await work(everywhere[-1] if everywhere else None)

    async def _fetch_documents(self, image: StoredImage, credentials: Credentials, progress: Progress) -> str:
        if not image.repo_digests:
            raise Missing("repair", name_of(image), "it has no name with a digest to be pulled by", _HINT)
        await self._puller.pull(names.parse(image.repo_digests[0]), credentials, progress)
        return ""

    async def _fetch(self, image: StoredImage, digest: str, candidates: Candidates | None) -> str:
        resolved = self._resolved(image)
        for number, layer in enumerate(resolved.manifest.layers):
            if layer.digest == digest:
                await self._puller.fetch(resolved, number, candidates)
                return ""
        raise Missing("repair", digest, "the manifest does not name this layer", _HINT)

    async def _rebuild(self, image: StoredImage, progress: Progress, candidates: Candidates | None) -> str:
        resolved = self._resolved(image)
        blob_path = self._store.files.blob_path
        lacking = [one for one in resolved.manifest.layers if not blob_path(one.digest).is_file()]
        await self._puller.keep(resolved, None, candidates, progress)
        return f"{len(lacking)} layers came from the registry" if lacking else "of the layers kept here"

    def _resolved(self, image: StoredImage) -> ResolvedImage:
        """The image from its stored documents."""
        row, _ = self._store.stored(image)
        if not matches(row.config, row.id) or not matches(row.manifest, row.manifest_digest):
            cause = "its configuration or manifest on this host is damaged"
            raise Damaged("rebuild image", name_of(image), cause, _HINT)
        return ResolvedImage(row.manifest_digest, row.manifest, row.config, self._store.facts(image))


def name_of(image: StoredImage) -> str:
    """An image's name for messages."""
    return next(iter((*image.repo_tags, *image.repo_digests)), image.id)


def _repositories(image: StoredImage, credentials: Credentials) -> list[Reference]:
    """Repositories of the image's layers, each once; a secret is for the registry of the first name alone."""
    found = {known.name: known for known in map(names.parse, (*image.repo_digests, *image.repo_tags))}
    known = list(found.values())
    return [one for one in known if credentials == ANONYMOUS or one.host == known[0].host]


async def _tried(what: str, outcome: Outcome, work: Awaitable[str]) -> Repair:
    try:
        return Repair(what, outcome, await work)
    except Fault as fault:
        return Repair(what, Outcome.FAILED, str(fault))


def _filesystems(rows: Sequence[FilesystemRow]) -> str:
    return "filesystem image " + ", ".join(row.chain_id for row in rows)
