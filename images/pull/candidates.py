"""Orders the hosts that may have an image; a failed host moves to the end."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence

from daemonkit.faults import Denied, Fault, Missing
from images.pull.progress import Progress
from images.registry.health import HostHealth
from images.registry.sources import ImageSource

log = logging.getLogger(__name__)


def origin_of(*parts: object) -> str:
    """A short name for the origin of a pull's bytes, unique for these parts.

    Pulls of the same origin may share bytes before verification; pulls of different origins may not.
    """
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class Candidates:
    """The sources of a pull; the last source is the registry itself.

    A failed source is asked last for the rest of the pull. It may still be the only source of the image.
    """

    def __init__(
        self,
        sources: Sequence[ImageSource],
        registry: str,
        health: HostHealth,
        progress: Progress,
        origin: str = "",
    ) -> None:
        """origin: see origin_of()."""
        self.origin = origin
        self._sources = tuple(sources)
        self._registry = registry
        self._health = health
        self._progress = progress
        self._behind: set[str] = set()
        for source in self._sources[:-1]:
            if cause := health.failure(source.name, registry):
                self._move_behind(source, f"it failed a short while ago: {cause}")

    @property
    def first(self) -> ImageSource:
        """The first configured source."""
        return self._sources[0]

    def in_order(self, may: Callable[[ImageSource], bool]) -> list[ImageSource]:
        """The permitted sources; failed sources come last."""
        asked = [source for source in self._sources if may(source)]
        return sorted(asked, key=lambda source: source.name in self._behind)

    def registry(self, may: Callable[[ImageSource], bool]) -> ImageSource:
        """The last configured source among the permitted sources. Its answer decides."""
        return [source for source in self._sources if may(source)][-1]

    def answered(self, source: ImageSource) -> None:
        """Record a success of a source."""
        self._health.answered(source.name, self._registry)
        self._progress.host = source.name

    def failed(self, source: ImageSource, fault: Fault) -> None:
        """Record a failure of a source."""
        if isinstance(fault, Missing | Denied):
            self._health.answered(source.name, self._registry)
        else:
            self._health.failed(source.name, self._registry, fault)
        self._move_behind(source, fault.cause)

    def _move_behind(self, source: ImageSource, cause: str) -> None:
        if len(self._sources) == 1 or source.name in self._behind:
            return
        self._behind.add(source.name)
        self._progress.passed_over[source.name] = cause
        log.warning("pull %s: %s is asked last from now on: %s", self._progress.name, source.name, cause)
