"""The progress of pulls, written by worker threads and read on the event loop.

Numbers may be read while they change: each is right by itself, and nothing is decided by several of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from weakref import WeakValueDictionary

from images.registry.manifests import Descriptor


class Stage(Enum):
    """The stage of a pull."""

    RESOLVING = "resolving"
    """Finding out which layers the image has."""
    FETCHING = "fetching"
    BUILDING = "building"
    """Building the filesystem image, when all layers are here."""


class State(Enum):
    """The state of a layer or of a filesystem image."""

    WAITING = "waiting"
    ACTIVE = "active"
    DONE = "done"


@dataclass(frozen=True)
class Measured:
    """A meter's state at one moment. total: bytes, 0 when not known yet; bytes: those done."""

    name: str
    state: State
    bytes: int
    total: int

    def as_json(self) -> dict[str, object]:
        """The JSON that ``crictl info`` shows."""
        return {
            "digest": self.name,
            "state": self.state.value,
            "bytes": self.bytes,
            "totalBytes": self.total,
        }


@dataclass(frozen=True)
class Snapshot:
    """A pull's state at one moment. started_at: nanoseconds since the epoch."""

    name: str
    stage: Stage
    started_at: int
    layers: tuple[Measured, ...]
    filesystem: Measured | None
    """All of its filesystems together."""
    host: str = ""
    """The last one that gave something of it, "https://mirror.example"; "" before that."""
    passed_over: Mapping[str, str] = field(default_factory=dict)
    """The hosts that are asked last, and why each of them is."""

    def as_json(self) -> dict[str, object]:
        """The JSON that ``crictl info`` shows."""
        return {
            "image": self.name,
            "stage": self.stage.value,
            "startedAt": datetime.fromtimestamp(self.started_at / 1e9, UTC).isoformat(),
            "layers": [layer.as_json() for layer in self.layers],
            "filesystem": None if self.filesystem is None else self.filesystem.as_json(),
            "host": self.host,
            "passedOver": dict(self.passed_over),
        }


class Meter:
    """One layer, or one filesystem image, on its way, for all pulls that share the work."""

    def __init__(self, name: str, total: int) -> None:
        self.name = name
        self.total = total
        self.state = State.WAITING
        self.bytes = 0
        # Never goes back, as bytes does when another host is tried.
        self.moved = 0

    @contextmanager
    def running(self, total: int | None = None) -> Iterator[None]:
        """While the body runs, its bytes should be moving; when it ends well, they are all here."""
        self.total = self.total if total is None else total
        self.bytes, self.state = 0, State.ACTIVE
        try:
            yield
        except BaseException:
            self.state = State.WAITING
            raise
        self.done()

    def restart(self) -> None:
        """Begin at the first byte again."""
        self.bytes = 0

    def add(self, size: int) -> None:
        """Count bytes."""
        self.bytes += size
        self.moved += size

    def skip(self) -> None:
        """Mark it done unless somebody works on it: it need not be fetched."""
        if self.state is State.WAITING:
            self.done()

    def done(self) -> None:
        """Mark it done."""
        self.bytes, self.state = self.total, State.DONE

    def measured(self) -> Measured:
        """The present state."""
        return Measured(self.name, self.state, self.bytes, self.total)


class Meters:
    """The meters of what is under way, by digest and origin; used on the event loop."""

    def __init__(self) -> None:
        self._meters: WeakValueDictionary[tuple[str, str], Meter] = WeakValueDictionary()

    def of(self, name: str, total: int, origin: str = "") -> Meter:
        """The one meter of that name while anybody has it; origin: of bytes that are not verified yet."""
        return self._meters.setdefault((name, origin), Meter(name, total))

    def of_layers(self, layers: Sequence[Descriptor], origin: str) -> list[Meter]:
        """The meters of layers, in their order; an image may have the same layer twice."""
        return [self.of(layer.digest, layer.size, origin) for layer in layers]


class Progress:
    """One pull or import on its way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.host = ""
        self.passed_over: dict[str, str] = {}
        self.started_at = time.time_ns()
        self._stage = Stage.RESOLVING
        self._steps = 0
        self._layers: tuple[Meter, ...] = ()
        self._filesystems: tuple[Meter, ...] = ()

    def enter(self, stage: Stage) -> None:
        """Begin a stage."""
        self._stage = stage
        self._steps += 1

    def plan(self, layers: Sequence[Meter], filesystems: Sequence[Meter]) -> None:
        """Set what there is to do."""
        self._layers, self._filesystems = tuple(layers), tuple(filesystems)

    @property
    def moved(self) -> int:
        """A counter that grows with everything that happens."""
        return self._steps + sum(meter.moved for meter in self._meters)

    @property
    def active(self) -> bool:
        """Whether bytes should be moving: not while it waits for its turn, for instance."""
        return any(meter.state is State.ACTIVE for meter in self._meters)

    def snapshot(self) -> Snapshot:
        """The present state."""
        layers = tuple(meter.measured() for meter in self._layers)
        filesystems = [meter.measured() for meter in self._filesystems]
        return Snapshot(
            self.name,
            self._stage,
            self.started_at,
            layers,
            _together(filesystems),
            self.host,
            dict(self.passed_over),
        )

    @property
    def _meters(self) -> tuple[Meter, ...]:
        return (*self._layers, *self._filesystems)


def _together(parts: Sequence[Measured]) -> Measured | None:
    """The progress of all filesystems of an image together, under the name of the topmost."""
    if not parts:
        return None
    states = {part.state for part in parts}
    state = states.pop() if len(states) == 1 else State.ACTIVE
    return Measured(
        parts[-1].name, state, sum(part.bytes for part in parts), sum(part.total for part in parts)
    )
