"""The installer of Debian packages and its first messages, with stand-ins for dpkg-query and similar
programs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
SCRIPT = PACKAGING / "install-debian-packages"


def run(folder: Path, *sections: str, missing: str = "", root: bool = True) -> tuple[int, str, list[str]]:
    """Exit status, stderr, and the arguments of apt-get."""
    calls = folder / "calls"
    stand_ins = {
        "dpkg-query": f'case " {missing} " in *" $4 "*) exit 1 ;; esac; echo -n installed',
        "id": f"echo {0 if root else 1000}",
        "apt-get": f'echo "$@" >>{calls}',
    }
    for name, body in stand_ins.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    # policy-rc.d belongs to the machine: the script must not write to its place
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


def test_only_missing_packages_are_installed(tmp_path: Path) -> None:
    status, _, calls = run(tmp_path, "run", "test", missing="crun umoci")
    assert status == 0
    assert calls == ["update -q", "install -q -y --no-install-recommends crun umoci"]
    assert not (tmp_path / "policy-rc.d").exists()


def test_other_sections_do_not_matter(tmp_path: Path) -> None:
    assert run(tmp_path, "run", missing="umoci qemu-system-x86") == (0, "", [])


def test_without_root_the_missing_packages_are_listed(tmp_path: Path) -> None:
    status, said, calls = run(tmp_path, "xen", missing="lz4", root=False)
    assert status == 1 and "apt-get install --no-install-recommends lz4" in said and calls == []


@pytest.mark.parametrize("sections", [[], ["nope"]])
def test_a_wrong_section_is_an_error(tmp_path: Path, sections: list[str]) -> None:
    assert run(tmp_path, *sections)[0] == 2


def said_first(
    folder: Path, *words: str, machine: str = "x86_64", root: bool = True, has: tuple[str, ...] = ()
) -> tuple[int, str]:
    """Exit status and stderr of check-machine with only the programs of ``has``."""
    for name, body in {"uname": f"echo {machine}", "id": f"echo {0 if root else 1000}"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    for name in (*has, "sed"):
        (folder / name).symlink_to(shutil.which(name) or "/bin/true")
    (folder / "os-release").write_text('NAME=Fedora\nPRETTY_NAME="Fedora Linux 42"\n')
    environment = {"PATH": str(folder), "OS_RELEASE": str(folder / "os-release"), "DIR": "/tmp/node"}
    command = ["/bin/sh", str(PACKAGING / "check-machine"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr.count("\n") <= 1
    return done.returncode, done.stderr


def test_without_root_the_command_to_type_is_shown(tmp_path: Path) -> None:
    status, said = said_first(tmp_path, "run", "root", root=False, has=("dpkg-query",))
    assert status == 1 and "make run needs root" in said and "su -c 'make run DIR=/tmp/node'" in said
    (tmp_path / "sudo").symlink_to("/bin/true")
    done = subprocess.run(
        ["/bin/sh", str(PACKAGING / "check-machine"), "test", "root"],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "type sudo make test, or make test-unit" in done.stderr


def test_outside_debian_missing_packages_are_named(tmp_path: Path) -> None:
    status, said = said_first(tmp_path, "demo", "root", has=("python3", "cc"))
    assert status == 1 and "Fedora Linux 42" in said
    assert "crun (Debian: crun)" in said and "tar2sqfs (Debian: squashfs-tools-ng)" in said
    assert "python3 (" not in said and "cc (" not in said


@pytest.mark.parametrize(
    ("machine", "target", "status", "text"),
    [
        ("x86_64", "demo", 0, ""),
        ("aarch64", "demo", 0, "the fake toolstack"),
        ("aarch64", "test", 0, "the fake toolstack"),
        ("aarch64", "test-all", 1, "make test-fake"),
        ("aarch64", "test-rest", 1, "make test-fake"),
        ("aarch64", "test-xen", 1, "which need no Xen"),
        ("aarch64", "demo-xen", 1, "make demo"),
        ("aarch64", "run", 0, "Xen needs x86_64"),
        ("riscv64", "demo", 1, "riscv64"),
    ],
)
def test_limits_of_other_processors_are_printed_first(
    tmp_path: Path, machine: str, target: str, status: int, text: str
) -> None:
    found = said_first(tmp_path, target, "root", machine=machine, has=("dpkg-query",))
    assert found[0] == status and text in found[1] and bool(found[1]) is bool(text)


def test_targets_with_root_check_for_root_first() -> None:
    """Targets without needs by ``make help`` build and install nothing before their work."""
    lines = (PACKAGING.parent / "Makefile").read_text().splitlines()
    targets = {line.partition(":")[0]: line for line in lines if "## needs root" in line}
    assert set(targets) >= {"demo", "run", "test-fake", "test-all", "test-xen", "bench"}
    asking = {name for name, line in targets.items() if f" root-{name} " in line}
    assert asking == set(targets)


@pytest.mark.parametrize("target", ["quick", "check", "test-unit"])
def test_a_target_with_few_needs_installs_no_debian_packages(target: str) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", target], cwd=PACKAGING.parent, capture_output=True, text=True,
        check=True, env=own,
    )  # fmt: skip
    assert "pip install" in done.stdout and "install-debian-packages" not in done.stdout


@pytest.mark.parametrize(
    "target", ["demo", "run", "test", "test-rest", "test-all", "test-fake", "test-xen", "demo-xen", "bench"]
)
def test_make_without_root_refuses_and_does_nothing(tmp_path: Path, target: str) -> None:
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    # A make that may run these tests must not be the parent.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", target, "DIR=/tmp/node"], cwd=PACKAGING.parent, capture_output=True, text=True, check=False,
        env={**own, "PATH": f"{tmp_path}:{own['PATH']}"},
    )  # fmt: skip
    said, error = done.stderr.splitlines()
    assert done.returncode == 2 and done.stdout == ""
    assert f"make {target} needs root" in said and ": type " in said and f"make {target}" in said
    assert error.startswith("make: *** ")
