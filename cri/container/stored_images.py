"""The image store as containers see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from cri.oci.values import RootImage
from daemonkit.faults import Invalid, Missing
from images.manager import ImageManager
from images.store.catalogue import StoredImage
from xenpod_proto.protect.v1 import protect_pb2 as pb

_ACCOUNTS_BYTES = 1024 * 1024


class StoredImages:
    """Implements ``cri.ports.Images`` with the image store."""

    def __init__(self, manager: ImageManager) -> None:
        self._manager = manager
        self._store = manager.store

    def resolve(self, reference: str) -> RootImage:
        """The image by id, tag or digest; Missing if the store lacks the image."""
        image = self._store.resolve(reference)
        run: Mapping[str, Any] = image.run  # JSON of a registry: checked field by field
        known = image.repo_digests[0] if image.repo_digests else image.id
        return RootImage(
            id=image.id,
            reference=known,
            name=image.repo_tags[0] if image.repo_tags else known,
            filesystems=tuple(str(path) for path in image.stack),
            type=image.fs_type,
            env=_words(run, "Env"),
            entrypoint=_words(run, "Entrypoint"),
            cmd=_words(run, "Cmd"),
            user=_word(run, "User"),
            working_dir=_word(run, "WorkingDir"),
            stop_signal=_word(run, "StopSignal"),
            volumes=_keys(run, "Volumes"),
            passwd=self._text(image, "/etc/passwd"),
            group=self._text(image, "/etc/group"),
        )

    async def mend(self, references: Sequence[str]) -> None:
        """See ``cri.ports.Images``."""
        for reference in references:
            with suppress(Missing, Invalid):
                await self._manager.mend(self._store.resolve(reference))

    def hold(self, image_id: str, container_id: str) -> None:
        """Keep an image on the disk until ``release``, even after RemoveImage."""
        self._store.hold(image_id, container_id)

    def release(self, container_id: str) -> None:
        """End a container's holds on its images."""
        self._store.release(container_id)

    def collect(self) -> None:
        """Delete removed images without holds; a starting daemon calls this after making all its holds."""
        self._store.collect()

    def pulls(self) -> list[dict[str, object]]:
        """See ``cri.ports.Images``."""
        return [snapshot.as_json() for snapshot in self._manager.pulls.snapshots()]

    async def kernel(self, image_id: str) -> pb.ZoneKernel:
        """See ``cri.ports.Images``."""
        found = await self._manager.kernels.files(image_id)
        return pb.ZoneKernel(
            name=found.name,
            image_path=str(found.image),
            initramfs_path=str(found.initramfs or ""),
            addons_path=str(found.addons or ""),
        )

    def _text(self, image: StoredImage, path: str) -> str:
        untrusted = self._store.read_file(image, path, _ACCOUNTS_BYTES)
        return (untrusted or b"").decode(errors="replace")


def _words(run: Mapping[str, Any], key: str) -> tuple[str, ...]:
    untrusted = run.get(key)
    if not isinstance(untrusted, list):
        return ()
    return tuple(word for word in untrusted if isinstance(word, str))


def _keys(run: Mapping[str, Any], key: str) -> tuple[str, ...]:
    untrusted = run.get(key)
    return tuple(untrusted) if isinstance(untrusted, dict) else ()


def _word(run: Mapping[str, Any], key: str) -> str:
    untrusted = run.get(key)
    return untrusted if isinstance(untrusted, str) else ""
