"""Makes messages of xenpod.images.v1 about images and pulls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from images.kernels.kernel_images import ZONE, KernelImage
from images.kernels.kernel_plan import ADDONS, INITRAMFS, KERNEL
from images.pull.progress import Measured, Snapshot, Stage, State
from images.pull.repair import Outcome, Repair
from images.store.catalogue import StoredImage
from images.store.export import LayoutFile, Note, Piece
from xenpod_proto.images.v1 import images_pb2 as pb

_STAGES: Mapping[Stage, pb.PullStage.ValueType] = {
    Stage.RESOLVING: pb.PULL_STAGE_RESOLVING,
    Stage.FETCHING: pb.PULL_STAGE_FETCHING,
    Stage.BUILDING: pb.PULL_STAGE_BUILDING,
}
_STATES: Mapping[State, pb.PartState.ValueType] = {
    State.WAITING: pb.PART_STATE_WAITING,
    State.ACTIVE: pb.PART_STATE_ACTIVE,
    State.DONE: pb.PART_STATE_DONE,
}

_OUTCOMES: Mapping[Outcome, pb.RepairOutcome.ValueType] = {
    Outcome.REBUILT: pb.REPAIR_OUTCOME_REBUILT,
    Outcome.FETCHED: pb.REPAIR_OUTCOME_FETCHED,
    Outcome.FAILED: pb.REPAIR_OUTCOME_FAILED,
}


def image_message(image: StoredImage, holders: Sequence[str]) -> pb.Image:
    """An image's message; holders: as in ImageStore.holders."""
    zones = [holder.removeprefix(ZONE) for holder in holders if holder.startswith(ZONE)]
    return pb.Image(
        id=image.id,
        tags=image.repo_tags,
        digests=image.repo_digests,
        size_bytes=image.size,
        manifest_digest=image.manifest_digest,
        pulled_at_ns=image.pulled_at,
        pinned=image.pinned,
        containers=[holder for holder in holders if not holder.startswith(ZONE)],
        zones=zones,
    )


def kernel_message(kernel: KernelImage, holders: Sequence[str]) -> pb.KernelImage:
    """A kernel image's message; holders: as in ImageStore.holders."""
    return pb.KernelImage(
        image=image_message(kernel.image, holders),
        version=kernel.metadata.version,
        flavor=kernel.metadata.flavor,
        arch=kernel.metadata.arch,
        image_bytes=kernel.sizes.get(KERNEL, 0),
        addons_bytes=kernel.sizes.get(ADDONS, 0),
        initramfs_bytes=kernel.sizes.get(INITRAMFS, 0),
        taken_out=kernel.taken_out,
        fault=kernel.fault,
    )


def export_message(piece: Piece) -> pb.ExportEvent:
    """A piece of an export."""
    match piece:
        case LayoutFile():
            return pb.ExportEvent(file=pb.ExportFile(path=piece.path, size_bytes=piece.size))
        case Note():
            return pb.ExportEvent(note=piece.text)
        case _:
            return pb.ExportEvent(data=piece)


def pull_message(snapshot: Snapshot) -> pb.PullProgress:
    """The message of a pull's progress."""
    message = pb.PullProgress(
        name=snapshot.name, stage=_STAGES[snapshot.stage], started_at_ns=snapshot.started_at
    )
    message.host = snapshot.host
    message.passed_over.update(snapshot.passed_over)
    message.layers.extend(_part(layer) for layer in snapshot.layers)
    if snapshot.filesystem is not None:
        message.filesystem.CopyFrom(_part(snapshot.filesystem))
    return message


def repair_message(repair: Repair) -> pb.Repair:
    """The message about the repair of a damaged object."""
    return pb.Repair(object=repair.object, outcome=_OUTCOMES[repair.outcome], detail=repair.detail)


def _part(measured: Measured) -> pb.PartProgress:
    return pb.PartProgress(
        name=measured.name,
        state=_STATES[measured.state],
        bytes=measured.bytes,
        total_bytes=measured.total,
    )
