"""Filters of images: their matches, and malformed filters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from daemonkit.faults import Invalid
from images.store.catalogue import StoredImage
from images.store.filters import MAX_FILTERS, Filters

HOUR = 3600 * 10**9
NOW = 1_800_000_000 * 10**9
DIGEST = "sha256:" + "a" * 64


def _image(**changes: Any) -> StoredImage:
    fields: dict[str, Any] = {
        "id": DIGEST,
        "repo_tags": ("docker.io/library/web:1", "registry.example/team/web:1"),
        "repo_digests": (f"docker.io/library/web@{DIGEST}",),
        "size": 50 << 20,
        "config": {"config": {"Labels": {"team": "blue", "keep": ""}}},
        "stack": (Path("/x"),),
        "fs_type": "squashfs",
        "chain_id": DIGEST,
        "manifest_digest": DIGEST,
        "pulled_at": NOW - 25 * HOUR,
    }
    return StoredImage(**fields | changes)


def _fits(*texts: str, used: bool = False, **changes: Any) -> bool:
    return Filters(texts, NOW).fit(_image(**changes), used)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ((), True),
        (("reference=web",), True),
        (("reference=web:1",), True),
        (("reference=web:2",), False),
        (("reference=docker.io/library/web:*",), True),
        (("reference=registry.example/*",), True),
        (("reference=*/team/*",), True),
        (("reference=team/web",), False),
        (("reference=nothing", "reference=web"), True),
        (("reference=web", "dangling=true"), False),
        (("dangling=false",), True),
        (("pinned=true",), False),
        (("pinned=false",), True),
        (("in-use=false",), True),
        (("in-use=true",), False),
        (("label=team",), True),
        (("label=team=blue",), True),
        (("label=team=red",), False),
        (("label=team=blue", "label=none"), False),
        (("label=keep=",), True),
        (("label!=keep",), False),
        (("label!=team=red",), True),
        (("label!=none",), True),
        (("larger=49MiB",), True),
        (("larger=50MiB",), False),
        (("smaller=50MiB",), False),
        (("smaller=1GB",), True),
        (("until=24h",), True),
        (("until=26h",), False),
        (("until=1d",), True),
        (("until=2d",), False),
        (("until=90m",), True),
        (("until=2027-01-15T08:00:00+00:00",), True),
        (("until=2027-01-01",), False),
        (("until=99999999999999999999d",), False),
    ],
)
def test_filters_match_names_and_labels(texts: tuple[str, ...], expected: bool) -> None:
    assert _fits(*texts) is expected


def test_image_without_a_tag_is_dangling() -> None:
    assert _fits("dangling=true", repo_tags=())
    assert not _fits("dangling=false", repo_tags=())


def test_held_image_is_in_use() -> None:
    assert _fits("in-use=true", used=True) and not _fits("in-use=false", used=True)
    assert _fits("pinned=true", pinned=True)


@pytest.mark.parametrize("labels", [None, [], "team", {"team": ["blue"]}, {"team": None}])
def test_malformed_labels_match_no_filter(labels: object) -> None:
    config = {"config": {"Labels": labels}}
    assert not _fits("label=team=blue", config=config)
    assert _fits("label!=team=blue", config=config)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("colour=red", "there is no such filter, only reference, dangling"),
        ("dangling", "not KEY=VALUE"),
        ("dangling=", "not KEY=VALUE"),
        ("=true", "there is no such filter"),
        ("dangling=yes", "want true or false"),
        ("larger=huge", "not a size"),
        ("until=yesterday", "want an age such as"),
        ("until=d", "want an age such as"),
        ("reference=a b", "no pattern"),
        ("label=" + "x" * 2000, "not KEY=VALUE"),
    ],
)
def test_invalid_filter_is_refused(text: str, cause: str) -> None:
    with pytest.raises(Invalid, match=cause):
        Filters([text], NOW)


def test_too_many_filters_are_refused() -> None:
    Filters(["dangling=true"] * MAX_FILTERS, NOW)
    with pytest.raises(Invalid, match="more than"):
        Filters(["dangling=true"] * (MAX_FILTERS + 1), NOW)
