"""zone/devicemodel: what a QEMU sees that it starts (a shell takes QEMU's part)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from protect.host import mounts
from protect.volumes.area import Area
from tests.support.protect.daemons import GUEST

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not (GUEST / "device-model").exists(), reason="needs the guest parts (make -C zone)"),
]

ANSWERS = """echo "$@"
while read -r word; do ls -R "$0" | tr '\\n' ' '; echo; done
"""
"""Its arguments, then the place at each line of input."""


def show(area: Area, source: Path, name: str) -> None:
    tree = mounts.clone(source, recursive=True)
    mounts.change(tree, propagation=mounts.MS_PRIVATE, recursive=True)
    area.attach("w", name, tree, directory=True)
    os.close(tree)


def test_the_place_is_the_namespace_live_and_for_qemu_alone(tmp_path: Path, area: Area) -> None:
    place, source = tmp_path / "place", tmp_path / "source"
    place.mkdir()
    source.mkdir()
    (source / "marker").touch()
    show(area, source, "before")
    own = ["-xenpod-share", str(area.namespace), str(place), "/bin/sh"]
    command = [str(GUEST / "device-model"), "-c", ANSWERS, str(place), "one", *own, "two", "three"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as qemu:
        assert qemu.stdin and qemu.stdout
        assert qemu.stdout.readline() == "one two three\n"

        def seen() -> str:
            assert qemu.stdin and qemu.stdout
            qemu.stdin.write("look\n")
            qemu.stdin.flush()
            return qemu.stdout.readline()

        assert "w/before: marker" in seen()
        show(area, source, "after")
        assert "w/after: marker" in seen()
        area.detach("w")
        assert "marker" not in seen()
        assert list(place.iterdir()) == [] and str(place) not in Path("/proc/self/mountinfo").read_text()
        qemu.stdin.close()
        assert qemu.wait(60) == 0


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ([], "want -xenpod-share"),
        (["-xenpod-share", "/nowhere", "/nowhere"], "want -xenpod-share"),
        (["-xenpod-share", "/nowhere", "/nowhere", "/bin/true"], "open: /nowhere: No such file"),
        (["-xenpod-share", "{namespace}", "/nowhere", "/bin/true"], "move_mount: /nowhere: No such file"),
        (["-xenpod-share", "{namespace}", "{place}", "/nowhere"], "execv: /nowhere: No such file"),
        (["-xenpod-share", "/dev/null", "{place}", "/bin/true"], "setns: /dev/null: Invalid argument"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, area: Area, own: list[str], said: str) -> None:
    words = [word.format(namespace=area.namespace, place=tmp_path) for word in own]
    command = [str(GUEST / "device-model"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and said in done.stderr
