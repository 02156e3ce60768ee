"""Filters of images, in the operators' form "KEY=VALUE"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, TypeAlias

from daemonkit.config import duration, size
from daemonkit.faults import Invalid
from images.globs import Globs
from images.store.catalogue import StoredImage

MAX_FILTERS = 64
_MAX_TEXT = 1024
_NS = 1_000_000_000
_DAY_SECONDS = 24 * 3600
_HUB = "docker.io/"
_LIBRARY = "docker.io/library/"


class _Candidate(NamedTuple):
    image: StoredImage
    used: bool


_Test: TypeAlias = Callable[[_Candidate], bool]


class Filters:
    """Matches images that pass all filters; of several references one is enough.

    Raises Invalid for an unknown filter or a malformed value.
    """

    def __init__(self, untrusted_texts: Sequence[str], now_ns: int) -> None:
        """now_ns: the reference time of ``until``, in nanoseconds since the epoch."""
        if len(untrusted_texts) > MAX_FILTERS:
            raise Invalid("read filters", "", f"{len(untrusted_texts)} filters, more than {MAX_FILTERS}")
        self._tests: list[_Test] = []
        references: list[str] = []
        for text in untrusted_texts:
            key, equals, value = text[: _MAX_TEXT + 1].partition("=")
            make = _KEYS.get(key)
            try:
                if len(text) > _MAX_TEXT or not equals or not value:
                    raise ValueError("it is not KEY=VALUE")
                if key == "reference":
                    Globs([value], short=True)
                    references.append(value)
                elif make is not None:
                    self._tests.append(make(value, now_ns))
                else:
                    known = ", ".join(("reference", *_KEYS))
                    raise ValueError(f"there is no such filter, only {known}")
            except ValueError as error:
                raise Invalid("read filter", repr(text[:100]), str(error)) from None
        if references:
            globs = Globs(references, short=True)
            self._tests.append(lambda one: bool(globs.matching(_all_names(one.image))))

    def fit(self, image: StoredImage, used: bool) -> bool:
        """Whether an image passes all filters; used: a container or a zone uses the image."""
        candidate = _Candidate(image, used)
        return all(test(candidate) for test in self._tests)


def _dangling(value: str, _: int) -> _Test:
    wanted = _flag(value)
    return lambda one: (not one.image.repo_tags) == wanted


def _in_use(value: str, _: int) -> _Test:
    wanted = _flag(value)
    return lambda one: one.used == wanted


def _pinned(value: str, _: int) -> _Test:
    wanted = _flag(value)
    return lambda one: one.image.pinned == wanted


def _label(value: str, _: int) -> _Test:
    key, equals, wanted = value.partition("=")
    return lambda one: _has_label(one.image, key, wanted if equals else None)


def _no_label(value: str, _: int) -> _Test:
    key, equals, wanted = value.partition("=")
    return lambda one: not _has_label(one.image, key, wanted if equals else None)


def _larger(value: str, _: int) -> _Test:
    bound = size(value)
    return lambda one: one.image.size > bound


def _smaller(value: str, _: int) -> _Test:
    bound = size(value)
    return lambda one: one.image.size < bound


def _until(value: str, now_ns: int) -> _Test:
    bound = _moment(value, now_ns)
    return lambda one: one.image.pulled_at < bound


_KEYS: Mapping[str, Callable[[str, int], _Test]] = {
    "dangling": _dangling,
    "in-use": _in_use,
    "pinned": _pinned,
    "label": _label,
    "label!": _no_label,
    "larger": _larger,
    "smaller": _smaller,
    "until": _until,
}


def _flag(value: str) -> bool:
    if value not in ("true", "false"):
        raise ValueError("want true or false")
    return value == "true"


def _moment(value: str, now_ns: int) -> int:
    """An age ("90m", "24h", "7d") or a date (ISO 8601; local time without a zone), in nanoseconds."""
    number = value.removesuffix("d")
    if value.endswith("d") and number.isascii() and number.isdigit():
        return now_ns - int(number[:9]) * _DAY_SECONDS * _NS
    try:
        return int(datetime.fromisoformat(value).timestamp() * _NS)
    except (ValueError, OverflowError):
        pass
    try:
        return now_ns - int(duration(value) * _NS)
    except ValueError:
        raise ValueError("want an age such as 24h or 7d, or a date such as 2026-01-31") from None


def _has_label(image: StoredImage, key: str, value: str | None) -> bool:
    untrusted = image.run.get("Labels")
    if not isinstance(untrusted, dict) or key not in untrusted:
        return False
    return value is None or untrusted[key] == value


def _all_names(image: StoredImage) -> list[str]:
    """All names and repositories of an image, whole and in the short form for Docker Hub."""
    found: list[str] = []
    for name in (*image.repo_tags, *image.repo_digests):
        repository = name.partition("@")[0] if "@" in name else name.rpartition(":")[0]
        for text in (name, repository):
            short = text.removeprefix(_LIBRARY)
            found += [text, short if short != text else text.removeprefix(_HUB)]
    return found
