"""Limits of containers' writes, from annotations."""

from __future__ import annotations

import pytest

from cri.checks import storage
from cri.config import EMPTY_DIRS, EPHEMERAL_STORAGE
from daemonkit.faults import Invalid

MIB = 1 << 20


def test_storage_annotations_give_limits_in_bytes() -> None:
    notes = {EPHEMERAL_STORAGE: "web=8Mi", EMPTY_DIRS: "cache=1.5Mi, log-0=1000000"}
    assert storage.writable_layers(notes) == {"web": 8 * MIB}
    assert storage.empty_dirs(notes) == {"cache": 1.5 * MIB, "log-0": 1000000}
    assert storage.writable_layers({}) == storage.empty_dirs({}) == {}


@pytest.mark.parametrize("key", [EPHEMERAL_STORAGE, EMPTY_DIRS])
@pytest.mark.parametrize(
    "text",
    ["", "web", "web=", "=1Mi", "web=0", "web=1Mi,web=2Mi", "../a=1Mi", "w" * 64 + "=1Mi", "a=1Zi", ","],
)
def test_malformed_storage_annotation_is_refused(key: str, text: str) -> None:
    with pytest.raises(Invalid, match=key):
        storage.check_storage({key: text})


def test_number_of_empty_dir_limits_is_bounded() -> None:
    most = ",".join(f"v{number}=1Mi" for number in range(256))
    assert len(storage.empty_dirs({EMPTY_DIRS: most})) == 256
    with pytest.raises(Invalid, match="more than 256"):
        storage.empty_dirs({EMPTY_DIRS: most + ",more=1Mi"})
