"""What the kernel has counted of the disks of a control group."""

from __future__ import annotations

from pathlib import Path

_LOOP = "7:"
_WAYS = {"read": ("rbytes", "Read"), "write": ("wbytes", "Write")}


def counted(group: Path, way: str) -> int:
    """Bytes that the domain's tasks have read from, or written to, loop devices."""
    second, first = _WAYS[way]
    if (group / "io.stat").exists():
        lines = [line.split() for line in (group / "io.stat").read_text().splitlines()]
        words = [word.split("=") for line in lines if line[0].startswith(_LOOP) for word in line[1:]]
        return sum(int(value) for name, value in words if name == second)
    lines = [line.split() for line in (group / "blkio.throttle.io_service_bytes").read_text().splitlines()]
    return sum(int(line[2]) for line in lines if line[0].startswith(_LOOP) and line[1] == first)


def limits(group: Path, way: str) -> list[int]:
    """The bytes per second of each disk with a limit."""
    if (group / "io.max").exists():
        lines = (group / "io.max").read_text().splitlines()
        found = (word.partition("=") for line in lines for word in line.split()[1:])
        name = {"read": "rbps", "write": "wbps"}[way]
        return [int(value) for key, _, value in found if key == name and value != "max"]
    text = (group / f"blkio.throttle.{way}_bps_device").read_text()
    return [int(line.split()[1]) for line in text.splitlines()]
