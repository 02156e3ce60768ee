"""Quantities in Kubernetes' notation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemonkit.quantity import quantity_text, whole


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("0", 0),
        ("1", 1),
        ("+7", 7),
        ("-3", -3),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1.5Gi", 3 << 29),
        (".5Mi", 1 << 19),
        ("1e3", 1000),
        ("12E2", 1200),
        ("1E", 10**18),
        ("7Ei", 7 << 60),
        ("100m", 1),
        ("1500m", 2),
        ("1n", 1),
        ("5.", 5),
    ],
)
def test_quantities_are_read(written: str, size: int) -> None:
    assert whole(written) == size


@pytest.mark.parametrize(
    "written",
    [
        "",
        " 1",
        "1 ",
        "1KiB",
        "Ki",
        "--1",
        "1e",
        "0x10",
        "NaN",
        "inf",
        "1e99",
        "8Ei",
        "1" * 65,
        "١",
        None,
        5,
        {},
    ],
)
def test_invalid_quantity_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="no quantity|out of range"):
        whole(written)


@given(st.integers(0, 2**63 - 1))
def test_written_quantity_is_read_as_the_same_size(size: int) -> None:
    assert whole(quantity_text(size)) == size
