"""Progress of pulls, written by worker threads and read on the event loop.

Numbers may change during a read: each is right by itself, but several together may be inconsistent.
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
    """Finding out the image's layers."""
    FETCHING = "fetching"
    BUILDING = "building"
    """Building the filesystem image; all layers are stored."""


class State(Enum):
    """The state of a layer or of a filesystem image."""

    WAITING = "waiting"
    ACTIVE = "active"
    DONE = "done"


@dataclass(frozen=True)
class Measured:
    """A meter's state at one moment. total: bytes, 0 if unknown; bytes: done until now."""

    name: str
    state: State
    bytes: int
    total: int

    def as_json(self) -> dict[str, object]:
        """The JSON in ``crictl info``."""
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
    """All filesystems of the image together."""
    host: str = ""
    """The last host that gave content, "https://mirror.example"; "" before the first."""
    passed_over: Mapping[str, str] = field(default_factory=dict)
    """The hosts that are asked last, each with the reason."""

    def as_json(self) -> dict[str, object]:
        """The JSON in ``crictl info``."""
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
    """Progress of a layer or a filesystem image, for all pulls that share the work."""

    def __init__(self, name: str, total: int) -> None:
        self.name = name
        self.total = total
        self.state = State.WAITING
        self.bytes = 0
        # Never decreases; bytes restarts with each host.
        self.moved = 0

    @contextmanager
    def running(self, total: int | None = None) -> Iterator[None]:
        """While the body runs, bytes should move; a normal exit means: all bytes are here."""
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
        """Mark as done, unless work is under way: the bytes need no fetching."""
        if self.state is State.WAITING:
            self.done()

    def done(self) -> None:
        """Mark as done."""
        self.bytes, self.state = self.total, State.DONE

    def measured(self) -> Measured:
        """The present state."""
        return Measured(self.name, self.state, self.bytes, self.total)


class Meters:
    """Meters of work under way, by digest and origin; used on the event loop."""

    def __init__(self) -> None:
        self._meters: WeakValueDictionary[tuple[str, str], Meter] = WeakValueDictionary()

    def of(self, name: str, total: int, origin: str = "") -> Meter:
        """The shared meter of a name, kept while in use; origin: of bytes not yet verified."""
        return self._meters.setdefault((name, origin), Meter(name, total))

    def of_layers(self, layers: Sequence[Descriptor], origin: str) -> list[Meter]:
        """The meters of layers, in their order; an image may have the same layer twice."""
        return [self.of(layer.digest, layer.size, origin) for layer in layers]


class Progress:
    """Progress of a pull or import."""

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
        """Set the work to do."""
        self._layers, self._filesystems = tuple(layers), tuple(filesystems)

    @property
    def moved(self) -> int:
        """A counter that grows with all progress."""
        return self._steps + sum(meter.moved for meter in self._meters)

    @property
    def active(self) -> bool:
        """Whether bytes should be moving; False while the pull waits for its turn, for instance."""
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
    """The sum for all filesystems of an image, under the name of the topmost."""
    if not parts:
        return None
    states = {part.state for part in parts}
    state = states.pop() if len(states) == 1 else State.ACTIVE
    return Measured(
        parts[-1].name, state, sum(part.bytes for part in parts), sum(part.total for part in parts)
    )
