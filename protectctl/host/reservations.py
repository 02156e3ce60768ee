"""``protect reservation``: memory kept for pods."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from protectctl import daemons, find, selector, show
from protectctl.command_errors import Command, CommandFailed
from protectctl.output import structured
from protectctl.usage.verbs import ID, add_protectd_verb, verbs_of
from xenpod_proto.protect.v1 import reservations_pb2 as pb
from xenpod_proto.protect.v1 import reservations_pb2_grpc

_TIMEOUT_SECONDS = 60.0
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def add_arguments(noun: argparse.ArgumentParser) -> None:
    verbs = verbs_of(noun)
    verb = add_protectd_verb(verbs, "reservation list", "list reservations and their zones")
    selector.add_selector(verb, selector.RESERVATION)
    text = "reserve memory for pods; again, it adds pods"
    verb = add_protectd_verb(verbs, "reservation make", text)
    verb.add_argument("id", help="1 to 64 of [a-z0-9-], such as the uid of a resource claim")
    verb.add_argument("memory", help='such as "512Mi"')
    verb.add_argument("--vcpus", type=int, default=0, metavar="N")
    verb.add_argument("--pod", action="append", default=[], metavar="UID", help="a pod that it is for")
    verb = add_protectd_verb(verbs, "reservation bind", "add a pod to a reservation")
    verb.add_argument("id", help=ID)
    verb.add_argument("pod", metavar="UID")
    verb = add_protectd_verb(verbs, "reservation release", "release reservations")
    verb.add_argument("ids", nargs="+", metavar="id", help=ID)


async def reservation_list(options: argparse.Namespace) -> None:
    async with daemons.reservations(options) as service:
        answer = await service.ListReservations(pb.ListReservationsRequest(), timeout=_TIMEOUT_SECONDS)
    chosen = options.selector.select(selector.RESERVATION, answer.reservations)
    answer = pb.ListReservationsResponse(reservations=chosen)
    if structured(options.output, answer, names=(one.id for one in answer.reservations)):
        return
    zones = find.short([one.zone_id for one in answer.reservations if one.zone_id])
    rows = [
        (
            one.id,
            one.claim,
            show.mib(one.memory_bytes),
            show.mib(one.overhead_bytes),
            str(one.vcpus) if one.vcpus else "",
            " ".join(one.pod_uids),
            zones.get(one.zone_id, ""),
            show.age(one.created_at_ns),
        )
        for one in answer.reservations
    ]
    show.table(("RESERVATION", "CLAIM", "MEMORY", "OVERHEAD", "VCPUS", "PODS", "ZONE", "AGE"), rows)


async def reservation_make(options: argparse.Namespace) -> None:
    request = pb.MakeReservationRequest(
        id=options.id, memory_bytes=size(options.memory), vcpus=options.vcpus, pod_uids=options.pod
    )
    async with daemons.reservations(options) as service:
        await service.MakeReservation(request, timeout=_TIMEOUT_SECONDS)


async def reservation_bind(options: argparse.Namespace) -> None:
    async with daemons.reservations(options) as service:
        reservation_id = await _find(service, options.id)
        request = pb.BindReservationRequest(id=reservation_id, pod_uid=options.pod)
        await service.BindReservation(request, timeout=_TIMEOUT_SECONDS)


async def reservation_release(options: argparse.Namespace) -> None:
    """Release reservations, once all of them have been found."""
    async with daemons.reservations(options) as service:
        for reservation_id in [await _find(service, text) for text in options.ids]:
            request = pb.ReleaseReservationRequest(id=reservation_id)
            await service.ReleaseReservation(request, timeout=_TIMEOUT_SECONDS)


async def _find(service: reservations_pb2_grpc.ReservationsAsyncStub, text: str) -> str:
    answer = await service.ListReservations(pb.ListReservationsRequest(), timeout=_TIMEOUT_SECONDS)
    return find.one_of([one.id for one in answer.reservations], text, "reservation")


def size(text: str) -> int:
    """Bytes of a quantity, for example "512Mi".  CommandFailed: malformed."""
    found = re.fullmatch(r"(\d{1,16})([KMGT]i)?B?", text)
    if not found or (number := int(found[1]) * _UNITS[found[2] or ""]) >= 1 << 63:
        raise CommandFailed(f"{text!r:.80} is no size such as 512Mi")
    return number


COMMANDS: Mapping[str, Command] = {
    "reservation list": reservation_list,
    "reservation make": reservation_make,
    "reservation bind": reservation_bind,
    "reservation release": reservation_release,
}
