"""Remembers of the last pulls their credentials, and their side.  In memory only, never logged."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cri.delegate.owners import Owner
from daemonkit.faults import Invalid
from images.registry import names
from images.registry.names import Reference
from xenpod_proto.cri.v1 import runtime_pb2 as cri

MOST_SECRETS = 256
"""How many repositories' credentials are remembered."""
SECRET_BYTES = 64 << 10
LIFETIME_SECONDS = 12 * 3600.0
"""Seconds for which credentials are remembered: as long as the large clouds' tokens are valid."""
MOST_SIDES = 4096
"""How many names are remembered with the side of their last pull."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class PullMemory:
    """Remembers credentials and sides of the pulls that succeeded."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._secrets: _Bounded[str, _Secret] = _Bounded(MOST_SECRETS)
        self._sides: _Bounded[str, Owner] = _Bounded(MOST_SIDES)
        self._clock = clock

    def pulled(self, name: str, side: Owner, auth: cri.AuthConfig) -> None:
        """Note that a pull of this name has succeeded.  A name that is not a valid reference is ignored."""
        try:
            reference = names.parse(name)
        except Invalid:
            return
        self.moved(reference, side)
        # A pull without credentials leaves those of private images in the same repository.
        if 0 < auth.ByteSize() <= SECRET_BYTES:
            kept = cri.AuthConfig()
            kept.CopyFrom(auth)
            self._secrets.put(reference.name, _Secret(kept, self._clock() + LIFETIME_SECONDS))

    def moved(self, reference: Reference, side: Owner) -> None:
        """Note that a name now means the image that this side has just got for it."""
        self._sides.put(str(reference), side)

    def side(self, name: str) -> Owner:
        """The side on which a name got its image last; ours when that is not known."""
        try:
            return self._sides.get(str(names.parse(name))) or Owner.OURS
        except Invalid:
            return Owner.OURS

    def auth(self, reference: Reference) -> cri.AuthConfig | None:
        """The credentials that were last used for a repository; None: none, or they are too old."""
        secret = self._secrets.get(reference.name)
        if secret is not None and secret.until <= self._clock():
            self._secrets.drop(reference.name)
            secret = None
        return secret.auth if secret is not None else None


@dataclass(frozen=True)
class _Secret:
    auth: cri.AuthConfig = field(repr=False)
    until: float


class _Bounded(Generic[K, V]):
    """A table of at most ``most`` entries, which forgets those that were put longest ago."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[K, V] = OrderedDict()

    def put(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def get(self, key: K) -> V | None:
        return self._entries.get(key)

    def drop(self, key: K) -> None:
        self._entries.pop(key, None)
