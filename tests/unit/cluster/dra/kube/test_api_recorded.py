"""The driver against recorded answers of real API servers: resource.k8s.io in 1.32, 1.33 and 1.36."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.dra.config import DraConfig
from daemonkit.quantity import whole
from tests.support.dra.recorded import DOM0_MEMORY, Recording, Story, served
from tests.support.labels.api_server import NAME

DATA = Path(__file__).resolve().parents[4] / "data" / "apiservers"
MIB = 1 << 20


@pytest.mark.parametrize(
    ("release", "version", "mode"),
    [("1.32", "v1beta1", "split"), ("1.33", "v1beta2", "split"), ("1.36", "v1", "shared")],
)
async def test_driver_works_with_recorded_answers_of_each_release(
    tmp_path: Path, release: str, version: str, mode: str
) -> None:
    content = json.loads((DATA / f"apiserver-{release}.json").read_text())
    recording = Recording(content["exchanges"])
    with served(recording, tmp_path) as path:
        story = Story(DraConfig(node=NAME, kubeconfig=path, dom0_memory=DOM0_MEMORY))
        device = await story.first()
        allocated = await story.second(content["claim"])
    assert recording.complete, recording.unexpected
    assert (allocated.total_bytes, allocated.device, story.mode) == (512 * MIB, device, mode)
    written = {one["path"].split("/")[3] for one in content["exchanges"] if one["body"]}
    assert written == {version}
    *memory, card = story.slices[-1]
    assert card["attributes"]["device"] == {"string": "card.0"} and "capacity" not in card
    last = {one["name"]: whole(one["capacity"]["memory"]["value"]) // MIB for one in memory}
    if mode == "shared":
        assert last == {device: 4096} and len(story.slices) == 5
    else:
        assert last.pop(device) == 512 and list(last.values()) == [3584]
