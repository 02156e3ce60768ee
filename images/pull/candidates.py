"""Orders the hosts that may have an image; one that fails moves to the end."""

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
    """A short name for where a pull's bytes come from, to be the same for the same parts alone.

    Pulls of one origin may wait for each other's bytes before these are verified, all others may not.
    """
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class Candidates:
    """The sources of one pull, of which the last is the registry itself.

    A source that could not give something is asked last for the rest of the pull.  It is still asked then:
    it may be the only one that has the image.
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
        """The source that is configured to be asked first."""
        return self._sources[0]

    def in_order(self, may: Callable[[ImageSource], bool]) -> list[ImageSource]:
        """The sources that may be asked; those that failed come last."""
        asked = [source for source in self._sources if may(source)]
        return sorted(asked, key=lambda source: source.name in self._behind)

    def registry(self, may: Callable[[ImageSource], bool]) -> ImageSource:
        """The last configured of the sources that may be asked, whose word counts most."""
        return [source for source in self._sources if may(source)][-1]

    def answered(self, source: ImageSource) -> None:
        """Note that a source gave what it was asked for."""
        self._health.answered(source.name, self._registry)
        self._progress.host = source.name

    def failed(self, source: ImageSource, fault: Fault) -> None:
        """Note that a source gave nothing."""
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
