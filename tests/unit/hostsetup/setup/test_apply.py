"""xenpod-setup on a throw-away tree: changes, preview, repeated runs, and the undo."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from hostsetup.doctor.doctor_settings import DoctorSettings
from hostsetup.doctor.kubelet import kubelet
from hostsetup.doctor.machine import CheckedMachine, CheckVerdict
from hostsetup.setup import apply as applying
from hostsetup.setup.__main__ import main
from hostsetup.setup.change import Plan, variable, with_variable
from hostsetup.setup.host import Host, MachineSize
from hostsetup.setup.plan import Wishes, plan

ROOT = Path(__file__).resolve().parents[4]
GRUB = "etc/default/grub.d/xenpod.cfg"
pytestmark = pytest.mark.skipif(shutil.which("systemctl") is None, reason="needs systemctl (make setup)")
MACHINE = ("--memory-mib", "16384", "--cpus", "16")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A Debian with GRUB, Xen and xenpod, as far as the set-up looks."""
    root = tmp_path / "tree"
    files = {
        "etc/default/grub": "GRUB_DISTRIBUTOR=Debian\n",
        "etc/default/xen": "#XENCONSOLED_TRACE=[none|guest|hv|all]\nXENSTORED_ARGS=\n",
        "etc/default/xendomains": "XENDOMAINS_SAVE=/var/lib/xen/save\n\nXENDOMAINS_RESTORE=true\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    units = root / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    for unit in (ROOT / "packaging/systemd").glob("*.service"):
        shutil.copy(unit, units)
    (root / "etc/protect").mkdir()
    shutil.copy(ROOT / "packaging/protectd.toml", root / "etc/protect")
    return root


def content(tree: Path) -> Mapping[str, str]:
    """Every file and link below etc."""
    return {
        str(path.relative_to(tree)): str(path.readlink()) if path.is_symlink() else path.read_text()
        for path in sorted((tree / "etc").rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def shell(tree: Path, file: str, *names: str) -> list[str]:
    """The variables as a shell reads them from the file, like GRUB and Debian's init scripts."""
    shown = "".join(f'printf "%s\\n" "${name}"; ' for name in names)
    script = f". {tree / 'etc/default/grub'}; . {tree / file}; {shown}"
    done = subprocess.run(
        ["sh", "-euc", script],
        capture_output=True,
        text=True,
        check=True,
        env={"GRUB_CMDLINE_XEN_DEFAULT": "loglvl=all"},
    )
    return done.stdout.splitlines()


def test_a_machine_becomes_a_node(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", str(tree), *MACHINE]) == 0
    xen, default = shell(tree, GRUB, "GRUB_CMDLINE_XEN_DEFAULT", "GRUB_DEFAULT")
    # 35% of 16 GiB; a quarter of the CPUs; 512 zones of 80 disks.
    assert xen.split() == [
        "loglvl=all",
        "dom0_mem=5734M,max:5734M",
        "dom0_max_vcpus=4",
        "gnttab_max_maptrack_frames=1776",
    ]
    assert default == "Debian GNU/Linux, with Xen hypervisor"
    assert shell(tree, "etc/default/xen", "XENCONSOLED_ARGS") == ["--log=guest"]
    assert shell(tree, "etc/default/xendomains", "XENDOMAINS_SAVE", "XENDOMAINS_RESTORE") == ["", "false"]
    made = content(tree)
    assert "runtime-endpoint: unix:///run/xenpod/cri.sock\n" in made["etc/crictl.yaml"]
    assert made["etc/sysctl.d/90-xenpod.conf"] == "net.ipv4.ip_forward=1\n"
    drop_in = made["etc/kubernetes/kubelet.conf.d/10-xenpod.conf"]
    assert drop_in == (ROOT / "packaging/kubelet/10-xenpod.conf").read_text()
    wanted = {
        f"etc/systemd/system/multi-user.target.wants/{name}.service"
        for name in ("protectd", "xenpod-cri", "xenpod-zones")
    }
    assert wanted <= made.keys()
    said = capsys.readouterr().out
    assert '+XENDOMAINS_SAVE=""' in said and "update-grub" in said and "--config-dir" in said


def test_doctor_finds_the_new_kubelet_healthy(tree: Path) -> None:
    assert main(["--root", str(tree), *MACHINE]) == 0
    (tree / "run/systemd/system").mkdir(parents=True)
    found = list(kubelet(CheckedMachine(root=tree), DoctorSettings()))
    assert len(found) == 4
    assert [one for one in found if one.verdict is not CheckVerdict.OK] == []


def test_a_running_host_follows_at_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(Host, "run", lambda _, *command: ran.append(command))
    host = Host(tree)
    todo = plan(host, MachineSize(16 << 30, 16), Wishes())
    host.live, units = True, Plan(todo.files, (), ())
    applying.apply(host, units)
    assert ran == [
        ("update-grub",),
        ("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/xenpod-consoles.conf"),
        ("/usr/lib/systemd/systemd-sysctl", "/etc/sysctl.d/90-xenpod.conf"),
    ]
    ran.clear()
    assert applying.undo(host, lambda _: None)
    assert ran == [("update-grub",)]


def test_a_dry_run_shows_the_same_and_changes_nothing(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(tree)
    assert main(["--root", str(tree), *MACHINE, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert content(tree) == before and not (tree / "var").exists()
    assert main(["--root", str(tree), *MACHINE]) == 0
    done = capsys.readouterr().out
    assert shown.splitlines()[:-4] == done.splitlines()[:-4] and "protectd.service: enabled" in shown


def test_a_second_run_has_nothing_to_do(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", str(tree), *MACHINE]) == 0
    made = content(tree)
    capsys.readouterr()
    # Booted into Xen, and Xen counts a little more memory: dom0's memory stays.
    assert main(["--root", str(tree), "--memory-mib", "16500", "--cpus", "16"]) == 0
    assert capsys.readouterr().out.startswith("nothing to do") and content(tree) == made
    assert main(["--root", str(tree), *MACHINE, "--dom0-memory", "4GiB", "--dom0-cpus", "2"]) == 0
    [xen] = shell(tree, GRUB, "GRUB_CMDLINE_XEN_DEFAULT")
    assert "dom0_mem=4096M,max:4096M dom0_max_vcpus=2" in xen


def test_an_undo_restores_the_state_before_the_first_run(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "etc/crictl.yaml").write_text(
        "runtime-endpoint: unix:///run/containerd/containerd.sock\ndebug: true\n"
    )
    before = content(tree)
    for size in ("4GiB", "5GiB"):
        assert main(["--root", str(tree), *MACHINE, "--dom0-memory", size]) == 0
    assert "debug: true" in (tree / "etc/crictl.yaml").read_text()
    assert main(["--root", str(tree), "--undo", "--dry-run"]) == 0
    assert content(tree) != before
    assert main(["--root", str(tree), "--undo"]) == 0
    assert content(tree) == before
    capsys.readouterr()
    assert main(["--root", str(tree), "--undo"]) == 0
    assert capsys.readouterr().out == "nothing to undo\n"


def test_an_undo_leaves_foreign_changes(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", str(tree), *MACHINE]) == 0
    with (tree / "etc/default/xen").open("a") as file:
        file.write("XENSTORED_ARGS=--trace\n")
    assert main(["--root", str(tree), "--undo"]) == 1
    assert "left /etc/default/xen alone" in capsys.readouterr().out
    assert "XENCONSOLED_ARGS" in (tree / "etc/default/xen").read_text()
    assert not (tree / GRUB).exists()
    assert [change.path for change in applying.recorded(Host(tree)).files] == ["/etc/default/xen"]


@pytest.mark.parametrize("at", range(8))
def test_interrupted_setup_can_be_undone_and_finished(
    tree: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended before its n-th write; the first write is the record."""
    before, write, writes = content(tree), Host.write, iter(range(100))

    def failing(host: Host, path: str, text: str | None) -> None:
        if next(writes) == at:
            raise KeyboardInterrupt
        write(host, path, text)

    with monkeypatch.context() as patched:
        patched.setattr(Host, "write", failing)
        with pytest.raises(KeyboardInterrupt):
            main(["--root", str(tree), *MACHINE])
    assert main(["--root", str(tree), "--undo"]) == 0
    assert content(tree) == before
    assert main(["--root", str(tree), *MACHINE]) == 0
    assert main(["--root", str(tree), *MACHINE, "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--dom0-memory", "much"], "not a size"),
        (["--dom0-memory", "99%"], "zones need 1024 MiB"),
        (["--dom0-memory", "512MiB"], "zones need 1024 MiB"),
        (["--dom0-cpus", "17"], "has 16 CPUs"),
        (["--dom0-cpus", "0"], "has 16 CPUs"),
    ],
)
def test_impossible_setup_is_refused_before_any_change(
    tree: Path, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(tree)
    assert main(["--root", str(tree), *MACHINE, *arguments]) == 1
    assert why in capsys.readouterr().err and content(tree) == before


@pytest.mark.parametrize("file", ["etc/default/grub", "etc/default/xen", "etc/default/xendomains"])
def test_without_xen_the_package_to_install_is_named(
    tree: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / file).unlink()
    assert main(["--root", str(tree), *MACHINE]) == 1
    assert f"/{file}: it is not there (apt-get install" in capsys.readouterr().err


def test_an_unreadable_record_is_left_alone(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tree / applying.RECORD.lstrip("/")
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    assert main(["--root", str(tree), *MACHINE]) == 1
    assert "read the record" in capsys.readouterr().err and record.read_text() == "{}"
    assert not (tree / GRUB).exists()


def test_modes_of_files_stay(tree: Path) -> None:
    (tree / "etc/default/xen").chmod(0o600)
    assert main(["--root", str(tree), *MACHINE]) == 0
    assert os.stat(tree / "etc/default/xen").st_mode & 0o777 == 0o600
    assert os.stat(tree / GRUB).st_mode & 0o777 == 0o644


def test_variables_of_shell_files_are_read_and_written() -> None:
    text = "# A=1\nA=2\nB=\nA='3'\n"
    assert variable(text, "A") == "3" and variable(text, "B") == "" and variable(text, "C") is None
    assert with_variable(text, "A", "4") == "# A=1\nA=2\nB=\nA=4\n"
    assert with_variable("", "A", "4") == "A=4\n"
