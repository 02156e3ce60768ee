"""The installer of Debian packages, with stand-ins for dpkg-query, id and apt-get."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

PACKAGING = Path(__file__).resolve().parents[3] / "packaging"
SCRIPT = PACKAGING / "install-debian-packages"


def run(folder: Path, *sections: str, missing: str = "", root: bool = True) -> tuple[int, str, list[str]]:
    """Exit status, stderr, and what apt-get was called with."""
    calls = folder / "calls"
    stand_ins = {
        "dpkg-query": f'case " {missing} " in *" $4 "*) exit 1 ;; esac; echo -n installed',
        "id": f"echo {0 if root else 1000}",
        "apt-get": f'echo "$@" >>{calls}',
    }
    for name, body in stand_ins.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    # policy-rc.d is the machine's own: keep the script from writing there
    script = folder / "install-debian-packages"
    script.write_text(SCRIPT.read_text().replace("/usr/sbin/policy-rc.d", str(folder / "policy-rc.d")))
    (folder / "debian-packages.txt").write_text((PACKAGING / "debian-packages.txt").read_text())
    done = subprocess.run(
        ["sh", str(script), *sections],
        env={"PATH": f"{folder}:/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr, calls.read_text().splitlines() if calls.exists() else []


def test_nothing_is_done_when_nothing_is_missing(tmp_path: Path) -> None:
    assert run(tmp_path, "run", "test", "xen") == (0, "", [])


def test_only_what_is_missing_is_installed(tmp_path: Path) -> None:
    status, _, calls = run(tmp_path, "run", "test", missing="crun umoci")
    assert status == 0
    assert calls == ["update -q", "install -q -y --no-install-recommends crun umoci"]
    assert not (tmp_path / "policy-rc.d").exists()


def test_other_sections_do_not_matter(tmp_path: Path) -> None:
    assert run(tmp_path, "run", missing="umoci qemu-system-x86") == (0, "", [])


def test_without_root_it_says_what_to_install(tmp_path: Path) -> None:
    status, said, calls = run(tmp_path, "xen", missing="lz4", root=False)
    assert status == 1 and "apt-get install --no-install-recommends lz4" in said and calls == []


@pytest.mark.parametrize("sections", [[], ["nope"]])
def test_a_wrong_section_is_an_error(tmp_path: Path, sections: list[str]) -> None:
    assert run(tmp_path, *sections)[0] == 2
