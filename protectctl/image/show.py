"""Prints answers of xenpod.images.v1 as tables for people; for programs by ``output``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence

from google.protobuf.message import Message

from protectctl import find, show
from protectctl.output import as_dict, structured
from protectctl.output import event as print_event
from xenpod_proto.images.v1 import images_pb2 as pb

_OUTCOMES = {
    pb.REPAIR_OUTCOME_REBUILT: "rebuilt",
    pb.REPAIR_OUTCOME_FETCHED: "fetched",
    pb.REPAIR_OUTCOME_FAILED: "failed ",
}
_NAMES = "NAMES"
_STAGES = {
    pb.PULL_STAGE_RESOLVING: "resolving",
    pb.PULL_STAGE_FETCHING: "fetching",
    pb.PULL_STAGE_BUILDING: "building",
}


def images(answer: Message, listed: Sequence[pb.Image], output: str) -> None:
    """Print images as a table, or ``answer`` as JSON."""
    if structured(output, answer, names=(one.id for one in listed)):
        return
    short = find.short([one.id for one in listed])
    rows = [
        (short[one.id], show.mib(one.size_bytes), str(len(one.containers) + len(one.zones) or ""),
         "yes" if one.pinned else "", show.age(one.pulled_at_ns), "\n".join(_short_names(one)))
        for one in listed
    ]  # fmt: skip
    show.table(("ID", "SIZE", "USERS", "PINNED", "AGE", _NAMES), rows, fold=_NAMES)


def ids(listed: Sequence[pb.Image]) -> None:
    """Print the short id of each image on a line."""
    for text in find.short([one.id for one in listed]).values():
        _line(text)


def collected(answer: pb.CollectResponse, dry_run: bool, output: str) -> None:
    """Print removed images, or with ``dry_run`` removable ones, and on stderr the freed space."""
    images(answer, answer.removed, output)
    if not dry_run:
        show.note(f"freed {show.mib(answer.freed_bytes)}")
    if answer.unfinished_bytes:
        show.note(f"layers of unfinished pulls: {show.mib(answer.unfinished_bytes)}")


def tagged(answer: pb.TagResponse, output: str) -> None:
    if structured(output, answer, names=[answer.name]):
        return
    before = f", no longer of {_short(answer.taken_from)}" if answer.taken_from else ""
    _line(f"{answer.name} is now a name of {_short(answer.image.id)}{before}")


def untagged(answer: pb.UntagResponse, output: str) -> None:
    if structured(output, answer, names=[answer.name]):
        return
    left = "" if answer.image.tags else ", which has no tag now"
    _line(f"{answer.name} is no longer a name of {_short(answer.image.id)}{left}")


def kernels(answer: pb.ListKernelsResponse, output: str) -> None:
    """Print kernel images; the digest is the manifest's, as in a name with a digest."""
    if structured(output, answer, names=(one.image.id for one in answer.kernels)):
        return
    rows = []
    for one in answer.kernels:
        size = one.image_bytes + one.addons_bytes + one.initramfs_bytes
        what = " ".join(part for part in (one.version, one.flavor) if part)
        state = one.fault or ("taken out" if one.taken_out else "")
        zones = ",".join(zone[: find.SHORT] for zone in one.image.zones)
        row = (_name(one.image), _short(one.image.manifest_digest), what, show.mib(size), zones, state)
        rows.append(row)
    show.table(("IMAGE", "DIGEST", "KERNEL", "SIZE", "ZONES", "STATE"), rows)


def imported(answer: pb.ImportResponse, output: str) -> None:
    if structured(output, answer, names=(one.id for one in answer.images)):
        return
    short = find.short([one.id for one in answer.images])
    rows = [(short[one.id], show.mib(one.size_bytes), one.name) for one in answer.images]
    show.table(("ID", "SIZE", _NAMES), rows, fold=_NAMES)


def removed(answer: pb.RemoveResponse, output: str) -> None:
    if structured(output, answer, names=[answer.image.id]):
        return
    for name in (*answer.image.tags, *answer.image.digests):
        _line(f"removed {name}")
    users = len(answer.image.containers) + len(answer.image.zones)
    kept = "" if answer.freed else f", kept on the disk for {users} containers and zones"
    _line(f"removed {answer.image.id}{kept}")


def inspected(answer: pb.InspectResponse, output: str) -> None:
    """Print an image.  In JSON its own documents are nested as JSON, not as base64."""
    document = as_dict(answer) | {key: json.loads(getattr(answer, key)) for key in ("config", "manifest")}
    if structured(output, document, names=[answer.image.id]):
        return
    one = answer.image
    untrusted = json.loads(answer.config)
    run = untrusted.get("config")
    run = run if isinstance(run, dict) else {}
    show.pairs(
        [
            ("id", one.id),
            *(("name", name) for name in (*one.tags, *one.digests)),
            ("manifest", one.manifest_digest),
            ("platform", f"{untrusted.get('os', '')}/{untrusted.get('architecture', '')}"),
            ("pulled", show.when(one.pulled_at_ns)),
            ("size", show.mib(one.size_bytes)),
            ("pinned", "yes" if one.pinned else ""),
            *(("container", container) for container in one.containers),
            *(("kernel of zone", zone) for zone in one.zones),
            *(("layer", f"{layer.digest} {show.mib(layer.size_bytes)}") for layer in answer.layers),
            *(
                ("filesystem", f"{stored.path} ({stored.type}, {show.mib(stored.size_bytes)})")
                for stored in answer.filesystems
            ),
            *(("not kept", f"{loss.text} (files: {loss.files})") for loss in answer.losses),
            *((key.lower(), _text(run[key])) for key in ("Entrypoint", "Cmd", "User") if run.get(key)),
        ]
    )


def verified(event: pb.VerifyEvent, output: str) -> None:
    """Print a line or an object for each image, and flush for waiting readers."""
    print_event(output, event, lambda: "\n".join(_verdict(event)), [event.image.id])


def _verdict(event: pb.VerifyEvent) -> Iterator[str]:
    repaired = event.repairs and not event.remaining
    verdict = "sound  " if not event.faults else "REPAIRED" if repaired else "DAMAGED"
    yield f"{verdict} {_name(event.image)} {_short(event.image.id)} {show.mib(event.read_bytes)}"
    for fault in event.faults:
        yield f"  {fault}"
    for repair in event.repairs:
        how = f": {repair.detail}" if repair.detail else ""
        yield f"  {_OUTCOMES.get(repair.outcome, 'not known')} {repair.object}{how}"
    if event.repairs:
        for fault in event.remaining:
            yield f"  still, {fault}"


def pulls(event: pb.WatchPullsEvent, output: str) -> None:
    """Print a line for each pull."""
    print_event(output, event, lambda: "\n".join(_under_way(event)), (pull.name for pull in event.pulls))


def _under_way(event: pb.WatchPullsEvent) -> Iterator[str]:
    for pull in event.pulls:
        done = sum(layer.bytes for layer in pull.layers)
        total = sum(layer.total_bytes for layer in pull.layers)
        yield f"{pull.name} {_STAGES.get(pull.stage, '')} {show.mib(done)} of {show.mib(total)}"
    if not event.pulls:
        yield "nothing is being pulled"


def _name(image: pb.Image) -> str:
    return next(iter(_short_names(image)), "")


def _short_names(image: pb.Image) -> list[str]:
    """All names of an image, with digests cut to the length that other commands need for the look-up."""
    return [_short_name(name) for name in (*image.tags, *image.digests)]


def _short_name(name: str) -> str:
    repository, at, digest = name.partition("@")
    algorithm, colon, value = digest.partition(":")
    return f"{repository}{at}{algorithm}{colon}{value[: find.SHORT]}"


def _short(image_id: str) -> str:
    return image_id.partition(":")[2][: find.SHORT]


def _text(untrusted: object) -> str:
    """The text on one line, with control characters escaped."""
    return untrusted if isinstance(untrusted, str) and untrusted.isprintable() else json.dumps(untrusted)


def _line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
