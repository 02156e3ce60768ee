"""How images are cut into filesystems."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.rootfs.stack import MAX_PARTS, chain, parts

_LAYERS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=30)


def _digest(text: object) -> str:
    return f"sha256:{hashlib.sha256(repr(text).encode()).hexdigest()}"


def _ends(sizes: list[int], least: int) -> list[int]:
    return [part.end for part in parts([_digest(n) for n in range(len(sizes))], sizes, least)]


@pytest.mark.parametrize(
    ("sizes", "ends"),
    [
        ([], [0]),
        ([1], [1]),
        ([1, 1, 1], [3]),
        ([50, 1, 1], [1, 3]),
        ([1, 1, 50, 1], [3, 4]),
        ([4, 4, 4], [3]),
        ([5, 5, 9, 50], [2, 4]),
        ([4, 4, 4, 9], [3, 4]),
        ([1, 1, 80, 1], [2, 3, 4]),
        ([80, 80, 1, 80], [1, 2, 3, 4]),
        ([1, 80] * 4, [1, 2, 3, 4, 6, 8]),
        ([10] * 8, [1, 2, 3, 4, 5, 6, 7, 8]),
        ([10] * 12, [1, 2, 3, 4, 5, 6, 7, 12]),
    ],
)
def test_a_part_ends_at_its_size(sizes: list[int], ends: list[int]) -> None:
    assert _ends(sizes, 10) == ends


def test_the_lowest_is_named_by_its_chain_of_layers() -> None:
    ids = [_digest(n) for n in range(3)]
    (one,) = parts(ids, [1, 1, 1], 10)
    assert (one.chain_id, one.below) == (chain(ids), "")
    # OCI image-spec, config.md: ChainID(L0|L1) = Digest(ChainID(L0) + " " + DiffID(L1)).
    assert chain(ids[:2]) == f"sha256:{hashlib.sha256(f'{ids[0]} {ids[1]}'.encode()).hexdigest()}"
    assert chain([]) == f"sha256:{hashlib.sha256().hexdigest()}"


@given(_LAYERS, _LAYERS)
def test_a_very_large_layer_is_cut_out_alike_over_whatever_is_below(
    below: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    for layers in (below[:2], others[:2]):
        assert len(layers) + 1 in _ends([*(size for _, size in layers), 80, 5], 10)
        assert not layers or len(layers) in _ends([*(size for _, size in layers), 80, 5], 10)


@given(_LAYERS, _LAYERS, _LAYERS)
def test_equal_beginnings_are_cut_equally_and_names_tell_all_apart(
    shared: list[tuple[int, int]], one: list[tuple[int, int]], two: list[tuple[int, int]]
) -> None:
    made = []
    for layers in (shared + one, shared + two):
        stack = parts([_digest(layer) for layer, _ in layers], [size for _, size in layers], 10)
        assert stack[-1].end == len(layers) and len(stack) <= MAX_PARTS
        assert len({part.chain_id for part in stack}) == len(stack)
        assert [part.below for part in stack] == ["", *(part.chain_id for part in stack[:-1])]
        made.append((layers, stack))
    (layers, stack), (others, other) = made
    for a, b in zip(stack[:-1], other[:-1], strict=False):
        if max(a.end, b.end) > len(shared):
            break
        assert a == b
    # A name stands for the same layers, cut in the same places.
    for n, a in enumerate(stack):
        for m, b in enumerate(other):
            if a.chain_id == b.chain_id:
                assert [part.end for part in stack[: n + 1]] == [part.end for part in other[: m + 1]]
                assert [layer for layer, _ in layers[: a.end]] == [layer for layer, _ in others[: b.end]]
