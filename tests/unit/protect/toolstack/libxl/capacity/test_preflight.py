"""The host's settings for zones: the message for each in Debian's default, and in the right state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daemonkit.faults import Exhausted
from protect.model.capacity.host_resources import HostNotice, HostWants
from protect.toolstack.libxl import boot
from protect.toolstack.libxl.capacity import preflight
from protect.toolstack.libxl.capacity.admit import Admission
from protect.toolstack.libxl.capacity.blkfront import BlockFrontend, disk_limit, nodes_for
from protect.toolstack.libxl.capacity.preflight import HostFacts, StoreQuota
from protect.toolstack.libxl.capacity.shortage import shortage
from tests.unit.protect.toolstack.libxl.test_boot import SPEC
from tests.unit.protect.toolstack.libxl.test_kernel import WHOLE, NoHypervisor
from xenbind import errors

MIB, GIB = 1 << 20, 1 << 30
WANTS = HostWants(zones=250, disks_per_zone=80)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("placeholder com1=115200", "2048M,max:2048M"),
        ("dom0_mem=4G", "4096M,max:4096M"),
        ("dom0_mem=max:3G", "2048M,max:2048M"),
        ("dom0_mem=1G,max:2G", "1024M,max:1024M"),
        ("dom0_mem=nonsense", "2048M,max:2048M"),
        ("dom0_mem=4096M,max:4G", ""),
        ("dom0_mem=1G dom0_mem=2097152,max:2G", ""),
        ("dom0_mem=max:2G,min:1G,2048M", ""),
    ],
)
def test_dom0_memory_is_to_be_fixed(line: str, wanted: str) -> None:
    found = preflight.dom0_memory(preflight.settings(line), 2 * GIB)
    assert (found.wanted if found else "") == wanted
    if found:
        assert "is not fixed" in found.effect and "GRUB_CMDLINE_XEN" in found.place


def test_mappings_bound_the_zones_and_the_notice_says_how_many_frames_are_needed() -> None:
    each = preflight.maps_per_zone(80)
    capacity = preflight.maptrack_capacity({}, 80)
    assert capacity.domains == 1024 * 256 // each >= 250
    assert preflight.maptrack({}, WANTS) is None
    wanted = HostWants(zones=512, disks_per_zone=80)
    notice = preflight.maptrack({}, wanted)
    assert notice and (notice.setting, notice.value) == ("gnttab_max_maptrack_frames", "")
    assert notice.effect == f"{capacity.domains} zones fit, limits.zones of protectd.toml is 512"
    raised = {"gnttab_max_maptrack_frames": notice.wanted}
    assert preflight.maptrack(raised, wanted) is None
    fewer = {"gnttab_max_maptrack_frames": str(int(notice.wanted) - 4)}
    assert preflight.maptrack(fewer, wanted) is not None
    small = preflight.maptrack_capacity({"gnttab_max_maptrack_frames": "16,1024"}, 80)
    assert small.domains == 16 * 256 // each
    assert f"16 frames of 256 mappings (gnttab_max_maptrack_frames), a zone takes {each}" in small.bound
    assert preflight.maptrack_capacity({"gnttab_max_maptrack_frames": "many"}, 80) == capacity


def test_too_few_grant_frames_have_a_notice() -> None:
    assert preflight.grant_frames({}, WANTS) is None
    notice = preflight.grant_frames({"gnttab_max_frames": "2"}, WANTS)
    assert notice and (notice.value, int(notice.wanted)) == ("2", -(-2 * preflight.maps_per_zone(80) // 512))


@pytest.mark.parametrize(
    ("running", "effect"),
    [
        ({}, "xenconsoled does not run"),
        ({"xenconsoled": ["/usr/sbin/xenconsoled", ""]}, "consoles of zones are not kept"),
        ({"xenconsoled": ["xenconsoled", "--log=hv", ""]}, "consoles of zones are not kept"),
        ({"xenconsoled": ["xenconsoled", "--pid-file=x", "--log=guest", ""]}, ""),
        ({"xenconsoled": ["xenconsoled", "--log=all", ""]}, ""),
    ],
)
def test_consoles_are_to_be_kept(running: dict[str, list[str]], effect: str) -> None:
    found = preflight.consoles(running)
    assert (found.effect if found else "") == effect
    assert found is None or found.wanted in ("guest", "--log=guest")


def test_zones_are_not_to_be_saved_at_shutdown(tmp_path: Path) -> None:
    config = tmp_path / "etc/default/xendomains"
    config.parent.mkdir(parents=True)
    config.write_text("# XENDOMAINS_SAVE=/none\nXENDOMAINS_SAVE=/var/lib/xen/save\n")
    assert preflight.saved_domains(tmp_path) is None, "it is not enabled"
    link = tmp_path / "etc/rc2.d/S01xendomains"
    link.parent.mkdir()
    link.touch()
    notice = preflight.saved_domains(tmp_path)
    assert notice == HostNotice(
        "XENDOMAINS_SAVE",
        "/etc/default/xendomains",
        "/var/lib/xen/save",
        '""',
        "xendomains saves the memory of zones when the host shuts down",
    )
    config.write_text('XENDOMAINS_SAVE=""\n')
    assert preflight.saved_domains(tmp_path) is None


def test_the_store_is_to_have_room_for_the_disks() -> None:
    quota = StoreQuota(1000, "quota-maxentity", "/etc/xen/oxenstored.conf")
    assert preflight.store_nodes(quota, WANTS) is None
    notice = preflight.store_nodes(quota, HostWants(250, 200))
    assert notice and (notice.value, notice.wanted) == ("1000", str(nodes_for(200)))
    assert (notice.setting, notice.place) == ("quota-maxentity", "/etc/xen/oxenstored.conf")


def test_quotas_of_both_xenstoreds_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "oxenstored.conf"
    config.write_text("# quota-maxentity = 5\nquota-maxentity = 3000\nquota-maxwatch = 100\n")
    monkeypatch.setattr(preflight, "_OXENSTORED", config)
    for running, quota in (
        ({"oxenstored": ["oxenstored"]}, StoreQuota(3000, "quota-maxentity", str(config))),
        ({"xenstored": ["xenstored", "-E", "77"]}, (77, "-E")),
        ({"xenstored": ["xenstored", "--entry-nb=88"]}, (88, "--entry-nb")),
        ({"xenstored": ["xenstored"]}, (1000, "--entry-nb")),
    ):
        monkeypatch.setattr(preflight, "processes", lambda now=running: now)
        found = preflight.store_quota()
        assert found == quota or (found.nodes, found.setting) == quota


def test_missing_parts_and_devices_have_a_notice(tmp_path: Path) -> None:
    launcher = tmp_path / "share"
    facts = HostFacts({}, GIB, iommu=False, volumes=True, launcher=launcher)
    notice = preflight.volumes(facts)
    assert notice and "no zone can be made" in notice.effect
    launcher.touch()
    assert preflight.volumes(facts) is None
    without = preflight.volumes(HostFacts({}, GIB, False, False, launcher))
    assert without and "no 9P" in without.effect
    assert preflight.devices(facts, WANTS) is None
    lacking = preflight.devices(facts, HostWants(250, 80, pci=True))
    assert lacking and lacking.text == (
        "iommu is not set: Xen uses no IOMMU, and the PCI devices of [host.devices] cannot be given to zones;"
        " set it to 1 (Xen's command line, GRUB_CMDLINE_XEN, with VT-d or AMD-Vi switched on in the firmware)"
    )
    assert preflight.devices(HostFacts({}, GIB, True, True, launcher), HostWants(1, 1, pci=True)) is None


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("libxl: xc_domain_claim_pages failed: Cannot allocate memory", "memory of the host"),
        ("libxl_dom.c: setting shadow allocation: Cannot allocate memory", "page tables that Xen keeps"),
        ("libxl_xshelp.c: xs_write failed: Quota exceeded", "nodes in xenstore"),
        ("xc_gnttab: grant table: No space left on device", "gnttab_max_maptrack_frames"),
        ("xc_evtchn_alloc_unbound: event channel: No space left on device", "event channels"),
        ("libxl: kernel image is not a guest: Invalid argument", ""),
        ("", ""),
    ],
)
def test_error_text_of_xen_names_the_short_resource(said: str, what: str) -> None:
    found = shortage(said)
    assert what in found and bool(found) == bool(what)


async def test_a_failed_create_names_the_shortage_in_xens_words(tmp_path: Path) -> None:
    workers: Any = NoHypervisor()
    words = "xc_domain_claim_pages failed: Cannot allocate memory"
    files = boot.Boot(Path("/k/vmlinux"), Path("/i"), 0)
    with pytest.raises(Exhausted) as raised:
        async with Admission(workers, WHOLE).admit(SPEC, files):
            raise errors.XenError("libxl_domain_create_new", -3, detail=words)
    assert "short of memory of the host" in raised.value.cause and words in raised.value.cause
    workers.answers["physinfo"] = iter_free(1 << 40, 1 << 20)
    with pytest.raises(Exhausted) as raised:
        async with Admission(workers, WHOLE).admit(SPEC, files):
            raise errors.XenError("libxl_domain_create_new", -3, detail="nothing")
    assert "1048576 are free" in raised.value.cause and "nothing" in raised.value.cause
    workers.answers["physinfo"] = iter_free(1 << 40, 1 << 40)
    with pytest.raises(errors.XenError):
        async with Admission(workers, WHOLE).admit(SPEC, files):
            raise errors.XenError("libxl_domain_create_new", -3, detail="no such file")


def iter_free(*free: int) -> Callable[[], SimpleNamespace]:
    """Free memory, for successive questions."""
    left = list(free)
    return lambda: SimpleNamespace(free_bytes=left.pop(0))


def test_a_small_zone_has_a_frugal_driver_and_fewer_disks() -> None:
    small = BlockFrontend.of(256 * MIB, 4)
    assert small.arguments == (
        "xen_blkfront.max_queues=1 xen_blkfront.max_indirect_segments=11 xen_blkfront.feature_persistent=0"
    )
    assert BlockFrontend.of(2 * GIB, 4).queues == 2
    assert (BlockFrontend.of(8 * GIB, 3).queues, BlockFrontend.of(8 * GIB, 3).segments) == (3, 32)
    limits = [disk_limit(size * MIB, 1, 1000) for size in (64, 128, 192, 512)]
    assert [one.disks for one in limits] == sorted(one.disks for one in limits)
    assert limits[0].disks == 8, "an image of eight filesystems runs in the smallest zone"
    for size, limit in zip((128, 192), limits[1:3], strict=True):
        assert limit.disks * small.disk_bytes <= (size - 64) * MIB // 2
        assert f"each takes {small.disk_bytes >> 10} KiB" in limit.bound and f"its {size} MiB" in limit.bound
    assert disk_limit(64 * GIB, 1, 1000).disks == 80
    assert disk_limit(64 * GIB, 8, 1000).disks == (1000 - 120) // (11 + 3 * 4)
    assert "23 of its 1000 nodes in xenstore" in disk_limit(64 * GIB, 8, 1000).bound
    assert disk_limit(64 * GIB, 1, 1 << 20).disks == 676
