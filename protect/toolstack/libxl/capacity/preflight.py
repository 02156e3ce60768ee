"""Settings of Xen and dom0 that zones need: checks of the present values.

Sources: xen-command-line(7), xl.conf(5), oxenstored.conf, Debian's /etc/default/xen and xendomains.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from protect.model.capacity.host_resources import HostNotice, HostWants, ZoneCapacity
from protect.toolstack.libxl.capacity import rings
from protect.toolstack.libxl.capacity.blkfront import nodes_for

_MIB = 1 << 20
_XEN = "Xen's command line, GRUB_CMDLINE_XEN"
_SUFFIXES = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "": 1 << 10}

_DEFAULT_MAPTRACK_FRAMES = 1024
_MAPS_OF_FRAME = 256
"""Mappings in a frame of the map-track table: a page of struct grant_mapping, 16 bytes each."""
_DEFAULT_GRANT_FRAMES = 64
_GRANTS_OF_FRAME = 512
_RING_REQUESTS, _SEGMENTS = 32, 11
_CONSOLE_AND_STORE, _NETWORK = 2, 258
_MAPPED_TWICE = 2
"""A PV dom0 maps pages of a vchan twice: for its kernel and for the process."""
DEFAULT_NODES = 1000

_OXENSTORED = Path("/etc/xen/oxenstored.conf")
_DEBIAN_SCRIPT = Path("/etc/init.d/xen")
_XENDOMAINS = (Path("/etc/default/xendomains"), Path("/etc/sysconfig/xendomains"))
_ENABLED = ("/etc/rc[2-5].d/S*xendomains", "/etc/systemd/system/*.wants/xendomains.service")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """``xen``: Xen's command line; ``volumes``: the zones' kernel and initramfs have 9P."""

    xen: Mapping[str, str]
    dom0_bytes: int
    iommu: bool
    volumes: bool
    launcher: Path


@dataclass(frozen=True, slots=True)
class StoreQuota:
    """A guest's quota of nodes in xenstore, and the place of the setting."""

    nodes: int
    setting: str
    place: str


def settings(command_line: str) -> dict[str, str]:
    """Xen's settings by name; the last value wins, as in Xen."""
    return {name: value for name, _, value in (word.partition("=") for word in command_line.split())}


def check_settings(facts: HostFacts, wants: HostWants) -> tuple[HostNotice, ...]:
    """Notices for all wrong settings.  Blocks (reads /proc and /etc): call it in a thread."""
    return tuple(
        notice
        for notice in (
            dom0_memory(facts.xen, facts.dom0_bytes),
            maptrack(facts.xen, wants),
            grant_frames(facts.xen, wants),
            consoles(processes()),
            saved_domains(Path("/")),
            store_nodes(store_quota(), wants),
            devices(facts, wants),
            volumes(facts),
        )
        if notice
    )


# -- Xen


def dom0_memory(xen: Mapping[str, str], dom0_bytes: int) -> HostNotice | None:
    """dom0's memory has to be fixed: memory that its balloon takes back is promised to zones."""
    value = xen.get("dom0_mem", "")
    parts = dict(_named(part) for part in value.split(",") if part)
    size, most = parts.get("", ""), parts.get("max", "")
    if size and _bytes(size) == _bytes(most) is not None:
        return None
    mib = (_bytes(size) or dom0_bytes) // _MIB
    effect = "dom0's memory is not fixed, and its balloon can take what zones were promised"
    return HostNotice("dom0_mem", _XEN, value, f"{mib}M,max:{mib}M", effect)


def maps_per_zone(disks: int) -> int:
    """Most pages of a zone that dom0 maps: rings, and requests in flight of its network and of one disk."""
    user = _MAPPED_TWICE * (rings.pages(rings.CHANNEL_ORDER) + rings.pages(rings.SHARING_ORDER))
    return user + _CONSOLE_AND_STORE + _NETWORK + disks + _RING_REQUESTS * _SEGMENTS


def maptrack_capacity(xen: Mapping[str, str], disks: int) -> ZoneCapacity:
    """Room for zones of so many disks.  If the table is full, disks and networks of zones fail."""
    frames = _number(xen.get("gnttab_max_maptrack_frames", ""), _DEFAULT_MAPTRACK_FRAMES)
    each = maps_per_zone(disks)
    zones = frames * _MAPS_OF_FRAME // each
    bound = (
        f"Xen's map-track table has {frames} frames of {_MAPS_OF_FRAME} mappings "
        f"(gnttab_max_maptrack_frames), a zone takes {each} of them, so there is room for {zones}"
    )
    return ZoneCapacity(zones, bound)


def maptrack(xen: Mapping[str, str], wants: HostWants) -> HostNotice | None:
    capacity = maptrack_capacity(xen, wants.disks_per_zone)
    if capacity.domains >= wants.zones:
        return None
    frames = -(-wants.zones * maps_per_zone(wants.disks_per_zone) // _MAPS_OF_FRAME)
    value = xen.get("gnttab_max_maptrack_frames", "")
    effect = f"{capacity.domains} zones fit, limits.zones of protectd.toml is {wants.zones}"
    return HostNotice("gnttab_max_maptrack_frames", _XEN, value, str(frames), effect)


def grant_frames(xen: Mapping[str, str], wants: HostWants) -> HostNotice | None:
    """A zone grants the rings of its disks, and the requests in flight."""
    value = xen.get("gnttab_max_frames", "")
    frames = _number(value, _DEFAULT_GRANT_FRAMES)
    grants = 2 * maps_per_zone(wants.disks_per_zone)
    if (needed := -(-grants // _GRANTS_OF_FRAME)) <= frames:
        return None
    effect = f"a zone of {wants.disks_per_zone} disks grants {grants} pages, {frames} frames have room for "
    effect += str(frames * _GRANTS_OF_FRAME)
    return HostNotice("gnttab_max_frames", _XEN, value, str(needed), effect)


def devices(facts: HostFacts, wants: HostWants) -> HostNotice | None:
    if facts.iommu or not wants.pci:
        return None
    effect = "Xen uses no IOMMU, and the PCI devices of [host.devices] cannot be given to zones"
    place = f"{_XEN}, with VT-d or AMD-Vi switched on in the firmware"
    return HostNotice("iommu", place, facts.xen.get("iommu", ""), "1", effect)


# -- dom0


def consoles(running: Mapping[str, list[str]]) -> HostNotice | None:
    """Without consoles the cause of a zone's death is lost."""
    arguments = running.get("xenconsoled")
    logs = next((word.partition("=")[2] for word in arguments or () if word.startswith("--log=")), "")
    if logs in ("guest", "all"):
        return None
    effect = "consoles of zones are not kept" if arguments else "xenconsoled does not run"
    # Debian's init script reads XENCONSOLED_ARGS only; Xen's own units read XENCONSOLED_TRACE.
    if _DEBIAN_SCRIPT.exists():
        return HostNotice("XENCONSOLED_ARGS", "/etc/default/xen", logs, "--log=guest", effect)
    place = "/etc/default/xencommons; xenconsoled --log=guest"
    return HostNotice("XENCONSOLED_TRACE", place, logs, "guest", effect)


def saved_domains(root: Path) -> HostNotice | None:
    """At the host's shutdown xendomains would write each zone's memory to disk, and wait for the write."""
    if not any(True for pattern in _ENABLED for _ in root.glob(pattern.lstrip("/"))):
        return None
    for file in _XENDOMAINS:
        if value := shell_variable(root / file.relative_to("/"), "XENDOMAINS_SAVE"):
            effect = "xendomains saves the memory of zones when the host shuts down"
            return HostNotice("XENDOMAINS_SAVE", str(file), value, '""', effect)
    return None


def store_nodes(quota: StoreQuota, wants: HostWants) -> HostNotice | None:
    needed = nodes_for(wants.disks_per_zone)
    if quota.nodes >= needed:
        return None
    effect = f"a zone of {wants.disks_per_zone} disks (limits.disks_per_zone) needs {needed} nodes"
    return HostNotice(quota.setting, quota.place, str(quota.nodes), str(needed), effect)


def volumes(facts: HostFacts) -> HostNotice | None:
    if not facts.launcher.is_file():
        effect = "no zone can be made: the program that serves volumes is not there"
        return HostNotice("guest_dir", "protectd.toml", str(facts.launcher.parent), "the guest parts", effect)
    if facts.volumes:
        return None
    effect = "the kernel of zones has no 9P, and zones no volumes of the host"
    return HostNotice("libxl.kernel", "protectd.toml", "one without 9p", "linux-image-amd64's", effect)


def store_quota() -> StoreQuota:
    """The quota of the running xenstored."""
    arguments = processes().get("xenstored", [])
    for option in ("--entry-nb", "-E"):
        if (found := _option(arguments, option)) is not None:
            return StoreQuota(found, option, "XENSTORED_ARGS of /etc/default/xen")
    if arguments:
        return StoreQuota(DEFAULT_NODES, "--entry-nb", "XENSTORED_ARGS of /etc/default/xen")
    value = _number(shell_variable(_OXENSTORED, "quota-maxentity"), DEFAULT_NODES)
    return StoreQuota(value, "quota-maxentity", str(_OXENSTORED))


# -- inside


def processes() -> Mapping[str, list[str]]:
    """Arguments of dom0's Xen daemons, by name."""
    return {name: words for name, words in _running() if name in ("xenconsoled", "xenstored", "oxenstored")}


def _running() -> Iterator[tuple[str, list[str]]]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            name = (process / "comm").read_text().strip()
            if name.endswith(("xenconsoled", "xenstored")):
                yield name, (process / "cmdline").read_bytes().decode(errors="replace").split("\0")


def shell_variable(file: Path, name: str) -> str:
    """The value of ``name`` in a file of ``name=value`` lines; "" if unset."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return ""
    found = re.findall(rf"^\s*{re.escape(name)}\s*=\s*(.*?)\s*$", text, re.MULTILINE)
    return found[-1].strip("\"'") if found else ""


def _option(arguments: list[str], option: str) -> int | None:
    for at, word in enumerate(arguments):
        value = arguments[at + 1] if word == option and at + 1 < len(arguments) else ""
        value = word.removeprefix(f"{option}=") if word.startswith(f"{option}=") else value
        if value.isdigit():
            return int(value)
    return None


def _named(part: str) -> tuple[str, str]:
    name, colon, value = part.partition(":")
    return (name, value) if colon else ("", name)


def _bytes(text: str) -> int | None:
    found = re.fullmatch(r"(\d{1,12})([BKMGT]?)", text.upper())
    return int(found[1]) * _SUFFIXES[found[2]] if found else None


def _number(text: str, usual: int) -> int:
    try:
        return int(text.split(",")[0], 0)
    except ValueError:
        return usual
