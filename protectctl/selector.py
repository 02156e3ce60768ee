"""``--selector``: selects listed objects by their fields, as in ``state=running,name=web/*``."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import reservations_pb2 as reservations

T = TypeVar("T")

Fields = Mapping[str, Callable[[T], str]]
"""Fields for selection: by name, the function that reads the value."""


def _word(kind: type[object], prefix: str, value: int) -> str:
    name: str = kind.Name(value)  # type: ignore[attr-defined]  # an enum of protobuf
    return name.removeprefix(prefix).lower()


def zone_state(zone: pb.Zone) -> str:
    """The state for display; ``paused`` is a running zone that is paused."""
    paused = zone.paused and zone.state == pb.ZONE_STATE_RUNNING
    return "paused" if paused else _word(pb.ZoneState, "ZONE_STATE_", zone.state)


ZONE: Fields[pb.Zone] = {
    "id": lambda one: one.id,
    "name": lambda one: one.name,
    "state": lambda one: zone_state(one),
    "profile": lambda one: one.profile,
    "mode": lambda one: _word(pb.ZoneMode, "ZONE_MODE_", one.mode),
    "kernel": lambda one: one.kernel,
    "cpupool": lambda one: one.cpupool,
    "death": lambda one: one.death_kind,
    "channel": lambda one: "connected" if one.channel_connected else "lost",
}
WORKLOAD: Fields[pb.Workload] = {
    "id": lambda one: one.id,
    "zone": lambda one: one.zone_id,
    "state": lambda one: _word(pb.WorkloadState, "WORKLOAD_STATE_", one.state),
    "reason": lambda one: one.reason,
    "exit": lambda one: str(one.exit_code) if one.state == pb.WORKLOAD_STATE_EXITED else "",
}
DEVICE: Fields[pb.Device] = {
    "name": lambda one: one.name,
    "place": lambda one: one.place,
    "kind": lambda one: _word(pb.DeviceKind, "DEVICE_KIND_", one.kind),
    "zone": lambda one: one.zone_id,
    "state": lambda one: "attached" if one.attached else "free" if one.present else "absent",
}
RESERVATION: Fields[reservations.Reservation] = {
    "id": lambda one: one.id,
    "zone": lambda one: one.zone_id,
    "state": lambda one: "used" if one.zone_id else "waiting",
}


@dataclass(frozen=True, slots=True)
class _Term:
    field: str
    pattern: str
    is_wanted: bool


@dataclass(frozen=True, slots=True)
class Selector:
    """Terms that all have to hold; no terms select everything."""

    terms: tuple[_Term, ...] = ()

    def select(self, fields: Fields[T], listed: Sequence[T]) -> list[T]:
        return [one for one in listed if self._holds(fields, one)]

    def _holds(self, fields: Fields[T], one: T) -> bool:
        return all(
            fnmatch.fnmatchcase(fields[term.field](one), term.pattern) is term.is_wanted
            for term in self.terms
        )


def add_selector(verb: argparse.ArgumentParser, fields: Mapping[str, object]) -> None:
    """Add ``--selector`` for these fields."""

    def parse(text: str) -> Selector:
        return Selector(tuple(_term(fields, word) for word in text.split(",")))

    text = f"only those that match: KEY=GLOB or KEY!=GLOB, separated by commas; keys: {', '.join(fields)}"
    verb.add_argument("--selector", "-l", type=parse, default=Selector(), metavar="TERMS", help=text)


def _term(fields: Mapping[str, object], word: str) -> _Term:
    field, equals, pattern = word.partition("=")
    key = field.removesuffix("!").strip()
    if not equals or key not in fields:
        known = ", ".join(fields)
        raise argparse.ArgumentTypeError(
            f"{word!r:.80} is not KEY=GLOB or KEY!=GLOB, with KEY one of {known}"
        )
    return _Term(key, pattern.strip(), not field.endswith("!"))
