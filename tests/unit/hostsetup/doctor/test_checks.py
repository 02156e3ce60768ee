"""``protect doctor``: each check healthy, broken on purpose, mended by the fix as it is printed."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hostsetup.doctor import bundle, checks, hypervisor
from hostsetup.doctor.machine import CheckVerdict
from protect.config import ToolstackKind
from protect.model.capacity.host_resources import HostNotice, HostWants
from protect.toolstack.libxl.capacity import preflight
from tests.support.protect.throw_away import KUBELET, ThrowAway, healthy_host

MIB = 1 << 20
Break = Callable[[ThrowAway], object]


@pytest.fixture
def host(short_path: Path) -> Iterator[ThrowAway]:
    with healthy_host(short_path) as host:
        yield host


def hold(name: str, place: str) -> Break:
    return lambda host: (host.root / place).rename(host.root / "held" / name)


def kubelet(before: str, after: str) -> Break:
    return lambda host: host.file("var/lib/kubelet/config.yaml", KUBELET.replace(before, after))


def unsynchronized(host: ThrowAway) -> None:
    host.file("synchronized", "no")
    host.remove("has-chrony")


def test_every_check_passes_on_a_healthy_host(host: ThrowAway) -> None:
    amiss = {name: one.says for name, one in host.results().items() if one.verdict is not CheckVerdict.OK}
    assert amiss == {}
    assert len(host.results()) >= 25


FAILED, WARNING = CheckVerdict.FAILED, CheckVerdict.WARNING
BROKEN: dict[str, tuple[str, CheckVerdict, Break]] = {
    "no Xen": ("xen", FAILED, lambda h: h.remove("sys/hypervisor/type")),
    "old Xen": ("xen", FAILED, lambda h: h.file("sys/hypervisor/version/minor", "14\n")),
    "no dom0": ("dom0", FAILED, lambda h: h.remove("proc/xen/capabilities")),
    "no xenstored": ("xenstored", FAILED, lambda h: h.remove("proc/101")),
    "no xenconsoled": ("xenconsoled", FAILED, lambda h: h.remove("proc/102")),
    "module": ("module xen_gntdev", FAILED, lambda h: h.remove("sys/module/xen_gntdev")),
    "no file": ("protectd.toml", FAILED, lambda h: h.remove("etc/protect/protectd.toml")),
    "key": ("protectd.toml", FAILED, lambda h: h.file("etc/protect/protectd.toml", "x = 1\n")),
    "TOML": ("cri.toml", FAILED, lambda h: h.file("etc/xenpod/cri.toml", "state_dir =")),
    "writable": ("permissions of /etc/xenpod/cri.toml", FAILED,
                 lambda h: (h.root / "etc/xenpod/cri.toml").chmod(0o666)),
    "readable": ("permissions of /var/lib/protect", FAILED,
                 lambda h: (h.root / "var/lib/protect").chmod(0o755)),
    "no groups": ("control groups", FAILED,
                  lambda h: h.remove("sys/fs/cgroup/cgroup.controllers")),
    "no memory group": ("control groups", WARNING,
                        lambda h: (h.file("etc/default/grub", "GRUB_CMDLINE_LINUX=cgroup_disable=memory"),
                                   h.file("sys/fs/cgroup/cgroup.controllers", "cpu io pids\n"))),
    "full": ("disk of /var/lib/protect", FAILED, lambda h: h.file("room", "100 0")),
    "nearly full": ("disk of /var/lib/protect", WARNING, lambda h: h.file("room", "100 14")),
    "clock": ("clock", WARNING, unsynchronized),
    "forwarding": ("ip_forward", WARNING, lambda h: h.file("proc/sys/net/ipv4/ip_forward", "0\n")),
    "image tools": ("tar2sqfs", FAILED, lambda h: (h.bin / "tar2sqfs").unlink()),
    "agent": ("guest parts: the agent", FAILED,
              lambda h: h.remove("usr/lib/xenpod/guest/root/init")),
    "crun": ("guest parts: crun", FAILED,
             lambda h: (h.root / "usr/lib/xenpod/guest/root/usr/bin/crun").chmod(0o644)),
    "no network": ("CNI configuration", FAILED, lambda h: h.remove("etc/cni")),
    "wrong network": ("CNI configuration", FAILED,
                      lambda h: h.file("etc/cni/net.d/00-first.conf", '{"type": "../../bin/sh"}')),
    "no plugin": ("CNI plugin bridge", FAILED, lambda h: h.remove("usr/lib/cni/bridge")),
    "ipam plugin": ("CNI plugin host-local", FAILED,
                    lambda h: (h.root / "usr/lib/cni/host-local").chmod(0o644)),
    "protectd": ("protectd", FAILED, hold("protect.sock", "run/protect/protect.sock")),
    "xenpod-cri": ("xenpod-cri", FAILED, hold("cri.sock", "run/xenpod/cri.sock")),
    "endpoint": ("kubelet containerRuntimeEndpoint", WARNING, kubelet("/run/xenpod/cri", "/run/other")),
    "gate": ("kubelet PodAndContainerStatsFromCRI", WARNING, kubelet("FromCRI: true", "FromCRI: false")),
    "pulls": ("kubelet serializeImagePulls", WARNING, kubelet("serializeImagePulls: false\n", "")),
    "driver": ("kubelet cgroupDriver", FAILED, kubelet("systemd", "cgroupfs")),
    "flag": ("kubelet --config-dir", FAILED,
             lambda h: (h.file("proc/103/comm", "kubelet\n"), h.file("proc/103/cmdline", "kubelet\0"))),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_the_fix_mends_the_host(host: ThrowAway, broken: str) -> None:
    name, verdict, make = BROKEN[broken]
    make(host)
    found = host.results()[name]
    assert (found.verdict, bool(found.says)) == (verdict, True)
    assert checks.is_healthy(list(host.results().values())) is (verdict is CheckVerdict.WARNING)
    host.apply(found.fix)
    after = host.results()
    assert name not in after or after[name].verdict is CheckVerdict.OK, after[name].says
    assert [one.says for one in after.values() if one.verdict is not CheckVerdict.OK] == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_file_of_another_user(host: ThrowAway) -> None:
    os.chown(host.root / "etc/protect/protectd.toml", 1000, 1000)
    found = host.results()["permissions of /etc/protect/protectd.toml"]
    assert found.verdict is CheckVerdict.FAILED
    host.apply(found.fix)
    assert host.results()[found.check].verdict is CheckVerdict.OK


def test_a_socket_of_everybody(host: ThrowAway) -> None:
    (host.root / "run/protect/protect.sock").chmod(0o666)
    (found,) = [
        one for one in checks.run_checks(host.machine, host.settings) if one.verdict is CheckVerdict.FAILED
    ]
    assert "mode 666" in found.says
    if os.getuid() == 0:
        host.apply(found.fix)
        assert checks.is_healthy(checks.run_checks(host.machine, host.settings))


def test_the_fake_needs_no_xen(host: ThrowAway) -> None:
    shutil.rmtree(host.root / "sys/hypervisor")
    assert not checks.is_healthy(checks.run_checks(host.machine, host.settings))
    fake = replace(host.settings.protectd, toolstack=ToolstackKind.FAKE)
    assert checks.is_healthy(checks.run_checks(host.machine, replace(host.settings, protectd=fake)))


WANTS = HostWants(zones=512, disks_per_zone=80)


def xen_settings(host: ThrowAway) -> dict[str, str]:
    """Xen's command line as in GRUB."""
    script = f'. {host.root}/etc/default/grub.d/xenpod.cfg; echo "$GRUB_CMDLINE_XEN"'
    return preflight.settings(subprocess.check_output(["sh", "-ec", script], text=True))


def test_fixes_of_the_preflight_satisfy_the_preflight(
    host: ThrowAway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protectd's own functions, before and after."""
    dom0, maptrack = preflight.dom0_memory({}, 1024 * MIB), preflight.maptrack({}, WANTS)
    assert dom0 and maptrack
    host.settings = replace(host.settings, notices=(dom0, maptrack))
    found = host.results()
    for setting in ("dom0_mem", "gnttab_max_maptrack_frames"):
        assert found[setting].verdict is CheckVerdict.WARNING
        host.apply(found[setting].fix)
    after = xen_settings(host)
    assert preflight.dom0_memory(after, 1024 * MIB) is None and preflight.maptrack(after, WANTS) is None

    host.file("etc/rc3.d/S01xendomains")
    host.file("etc/default/xendomains", 'XENDOMAINS_SAVE="/var/lib/xen/save"\n')
    saving = preflight.saved_domains(host.root)
    assert saving is not None
    host.apply(hypervisor.fix(host.machine, replace(saving, place="/etc/default/xendomains")))
    assert preflight.saved_domains(host.root) is None

    for debian, file, setting in (
        (True, "etc/default/xen", 'XENCONSOLED_ARGS="$XENCONSOLED_ARGS --log=guest"'),
        (False, "etc/default/xencommons", "XENCONSOLED_TRACE=guest"),
    ):
        script = host.root / "etc/init.d/xen"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.touch() if debian else script.unlink()
        monkeypatch.setattr(preflight, "_DEBIAN_SCRIPT", script)
        consoles = preflight.consoles({"xenconsoled": ["xenconsoled"]})
        assert consoles is not None
        host.apply(hypervisor.fix(host.machine, consoles))
        assert setting in (host.root / file).read_text().splitlines()


def test_nobody_knows_the_settings_of_xen(host: ThrowAway) -> None:
    host.settings = replace(host.settings, notices=None)
    assert host.results()["settings of Xen"].verdict is CheckVerdict.UNKNOWN


def test_xl_says_them_while_protectd_is_away(host: ThrowAway) -> None:
    assert checks.notices_by_xl(host.machine, host.settings.protectd) is None
    (host.bin / "xl").write_text("#!/bin/sh\necho 'xen_commandline : placeholder dom0_mem=1G,max:1G'\n")
    (host.bin / "xl").chmod(0o755)
    found = checks.notices_by_xl(host.machine, host.settings.protectd)
    assert found is not None and "dom0_mem" not in {one.setting for one in found}
    assert "gnttab_max_maptrack_frames" in {one.setting for one in found}


SECRETS = ("hunter2", "s3cr3t", "QWxhZGRpbjpvcGVu", "MIIEabc", "k3y-0f-it")
TEXT = """\
password = "hunter2 and more"
[host."https://r.example".header]
  x-own = ["k3y-0f-it"]
[host."https://s.example"]
url: https://me:s3cr3t@r.example/x
{"identityToken": "s3cr3t", "kept": "this"}
Authorization: Basic QWxhZGRpbjpvcGVu
-----BEGIN RSA PRIVATE KEY-----
MIIEabc
-----END RSA PRIVATE KEY-----
state_dir = "/var/lib/protect"
"""


def test_a_bundle_is_redacted_bounded_and_its_owner_s(host: ThrowAway, tmp_path: Path) -> None:
    host.file("etc/xenpod/certs.d/r.example/hosts.toml", TEXT)
    path = tmp_path / "b.tar.gz"
    parts = [
        ("logs/x", TEXT.replace("x-own", "token").encode()),
        ("consoles/z1", b"x" * 40 + b"\nline\n" * bundle.LIMIT_BYTES),
        *bundle.collect(host.machine, host.settings),
    ]
    missing = bundle.write_bundle(path, iter(parts))
    assert any(line.startswith("xen/console: ") for line in missing), "what is not there is named"
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as tar:
        found = {one.name.removeprefix("xenpod-doctor/"): tar.extractfile(one) for one in tar.getmembers()}
        texts = {name: io.TextIOWrapper(file).read() for name, file in found.items() if file}
    whole = "".join(texts.values())
    assert not [secret for secret in SECRETS if secret in whole]
    assert "certs.d/r.example/hosts.toml: it cannot be read as TOML" in texts["missing"]
    assert '"/var/lib/protect"' in texts["logs/x"] and '[host."https://s.example"]' in texts["logs/x"]
    assert len(texts["consoles/z1"]) <= bundle.LIMIT_BYTES + 100
    assert {"files/etc/xenpod/cri.toml", "files/var/lib/kubelet/config.yaml", "missing"} <= texts.keys()
    with pytest.raises(FileExistsError):
        bundle.write_bundle(path, iter(parts))


def test_a_notice_without_a_command_says_where(host: ThrowAway) -> None:
    fix = hypervisor.fix(host.machine, HostNotice("iommu", "the firmware", "", "1", "no PCI"))
    assert fix == "# the firmware: set iommu to 1"
