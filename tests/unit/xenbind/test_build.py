"""The binding is built for the running Xen: its release, the release of the headers, kept modules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xenbind import build


def xen(root: Path, release: str) -> Path:
    """A host whose hypervisor is this release of Xen."""
    hypervisor = root / "hypervisor"
    (hypervisor / "version").mkdir(parents=True)
    (hypervisor / "type").write_text("xen\n")
    for part, number in zip(("major", "minor"), release.split("."), strict=True):
        (hypervisor / "version" / part).write_text(f"{number}\n")
    return hypervisor


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with a module for Xen 4.17, on a host with Xen 4.17; headers are present."""
    folder = tmp_path / "xenbind"
    folder.mkdir()
    module = folder / "_libxl.abi3.so"
    module.write_bytes(b"\x7fELF\0libxenlight.so.4.17\0libc.so.6\0")
    os.utime(module, (0, 0))
    header = tmp_path / "libxl.h"
    header.touch()
    monkeypatch.setattr(build, "HERE", folder)
    monkeypatch.setattr(build, "HEADERS", (header,))
    monkeypatch.setattr(build, "_HYPERVISOR", xen(tmp_path, "4.17"))
    return folder


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The builds so far."""
    done: list[str] = []
    monkeypatch.setattr(build, "_build", lambda: done.append("built"))
    return done


def headers_of(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "offered_xen", lambda usr: release)


def test_a_missing_or_another_hypervisor_is_no_xen(tmp_path: Path) -> None:
    assert build.running_xen(tmp_path / "none") == ""
    hypervisor = xen(tmp_path, "4.17")
    assert build.running_xen(hypervisor) == "4.17"
    (hypervisor / "type").write_text("kvm\n")
    assert build.running_xen(hypervisor) == ""


def test_the_headers_say_their_release_by_their_library(tmp_path: Path) -> None:
    assert build.offered_xen(tmp_path) == ""
    library = tmp_path / "lib" / "x86_64-linux-gnu"
    library.mkdir(parents=True)
    (library / "libxenlight.so.4.20.0").touch()
    (library / "libxenlight.so").symlink_to("libxenlight.so.4.20.0")
    assert build.offered_xen(tmp_path) == "4.20"


def test_newer_headers_wait_for_the_boot(
    package: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """libxl of a release cannot speak to a hypervisor of another release: the working module is kept."""
    headers_of("4.20", monkeypatch)
    assert build.main(["--required", "--force"]) == 0
    assert builds == [] and "kept for Xen 4.17" in capsys.readouterr().err
    monkeypatch.setattr(build, "_HYPERVISOR", xen(package.parent / "booted", "4.20"))
    assert build.main(["--required", "--force"]) == 0
    assert builds == ["built"]


def test_headers_of_the_running_xen_are_built_for(
    package: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    headers_of("4.17", monkeypatch)
    assert build.main(["--required"]) == 0
    assert builds == ["built"], "the header is newer than the module"


def test_an_unusable_module_is_reported(
    package: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    headers_of("4.20", monkeypatch)
    next(package.iterdir()).unlink()
    assert build.main(["--required"]) == 0
    assert builds == ["built"] and "cannot be used before a boot" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "status"), [([], 0), (["--required"], 1)])
def test_missing_headers_are_an_error_where_they_are_required(
    package: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int
) -> None:
    monkeypatch.setattr(build, "HEADERS", (package / "nowhere.h",))
    assert build.main(arguments) == status and builds == []
