"""Tokens that make streaming URLs hard to guess, usable once, and short-lived."""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_NAME_BYTES = 12
_SECRET_BYTES = 24
"""Bytes of a token's secret part, hard to guess; the other part, the name, finds the entry."""
TOKEN_CHARACTERS = (_NAME_BYTES + _SECRET_BYTES) * 4 // 3
"""Length of a token in characters (base64url)."""


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    secret: bytes
    value: T
    expires: float
    gone: Callable[[], None]


class Tokens(Generic[T]):
    """Values waiting to be redeemed, each for ``ttl`` seconds of ``clock``."""

    def __init__(self, ttl: float, clock: Callable[[], float]) -> None:
        self._ttl = ttl
        self._clock = clock
        self._entries: OrderedDict[str, _Entry[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def issue(self, value: T, gone: Callable[[], None] = lambda: None) -> str:
        """Issue a token for a value; ``gone`` is called once, at the end of the token's use."""
        self.expire()
        name = secrets.token_urlsafe(_NAME_BYTES)
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        self._entries[name] = _Entry(secret.encode(), value, self._clock() + self._ttl, gone)
        return name + secret

    def find(self, untrusted_token: str) -> T | None:
        """The value; None: the token was never issued, is used up, or has expired."""
        self.expire()
        cut = _NAME_BYTES * 4 // 3
        name, secret = untrusted_token[:cut], untrusted_token[cut:]
        entry = self._entries.get(name)
        if entry is None or not hmac.compare_digest(entry.secret, secret.encode()):
            return None
        return entry.value

    def redeem(self, untrusted_token: str) -> T | None:
        """The value, once; None as for ``find``."""
        value = self.find(untrusted_token)
        if value is not None:
            self._drop(untrusted_token[: _NAME_BYTES * 4 // 3])
        return value

    def expire(self) -> None:
        """Drop expired tokens; all live equally long, and the oldest is first."""
        now = self._clock()
        while self._entries:
            name, entry = next(iter(self._entries.items()))
            if entry.expires > now:
                return
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._entries.pop(name).gone()
