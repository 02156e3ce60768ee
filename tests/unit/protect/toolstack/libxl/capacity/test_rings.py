"""Rings of a vchan: the guest chooses their sizes, and preflight counts the largest permitted rings."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from protect.toolstack.libxl.capacity import preflight, rings
from tests.support.protect.binding import needs_binding
from xenbind import raw, vchan
from xenbind.errors import RingsTooLarge

ROOT = Path(__file__).parents[6]


class Library:
    """libxenvchan, with a guest that serves rings of these orders."""

    def __init__(self, read: int, write: int) -> None:
        self.channel: Any = raw.ffi.new("struct libxenvchan *")
        self.channel.read.order, self.channel.write.order = read, write
        self.calls: list[str] = []

    def libxenvchan_client_init(self, logger: object, domid: int, path: bytes) -> object:
        return self.channel

    def libxenvchan_close(self, channel: object) -> None:
        assert channel == self.channel
        self.calls.append("close")

    def binding_never_block(self, channel: object) -> None:
        self.calls.append("use")


@needs_binding
@pytest.mark.parametrize("orders", [(17, 16), (16, 17), (20, 20)])
def test_larger_rings_are_unmapped_at_once(monkeypatch: pytest.MonkeyPatch, orders: tuple[int, int]) -> None:
    library = Library(*orders)
    monkeypatch.setattr(vchan, "lib", library)
    with pytest.raises(RingsTooLarge, match=f"a ring of {1 << max(orders)} bytes, at most 65536 are allowed"):
        vchan.VchanClient(7, "/x", 16)
    assert library.calls == ["close"]


@needs_binding
@pytest.mark.parametrize("orders", [(16, 16), (10, 11), (16, 12)])
def test_rings_up_to_the_limit_are_used(monkeypatch: pytest.MonkeyPatch, orders: tuple[int, int]) -> None:
    library = Library(*orders)
    monkeypatch.setattr(vchan, "lib", library)
    client = vchan.VchanClient(7, "/x", 16)
    client.close()
    assert library.calls == ["use", "close"]


@pytest.mark.parametrize(
    ("source", "name", "order"),
    [
        ("zone/agent/channel/wire.h", "WINDOW", rings.CHANNEL_ORDER),
        ("zone/agent/mounts/pump.c", "RING", rings.SHARING_ORDER),
    ],
)
def test_the_agent_s_own_rings_are_allowed(source: str, name: str, order: int) -> None:
    found = re.search(rf"\b{name} = (\d+)", (ROOT / source).read_text())
    assert found and int(found[1]) == 1 << order


def test_preflight_counts_the_largest_permitted_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = rings.pages(rings.CHANNEL_ORDER) + rings.pages(rings.SHARING_ORDER)
    assert mapped == 33 + 65
    counted = preflight.maps_per_zone(4)
    monkeypatch.setattr(
        preflight, "rings", SimpleNamespace(pages=lambda order: 0, CHANNEL_ORDER=0, SHARING_ORDER=0)
    )
    assert counted - preflight.maps_per_zone(4) == 2 * mapped == 196
