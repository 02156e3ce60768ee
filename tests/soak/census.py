"""Objects of an idle node: a comparison finds leaks."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.cri.cri_daemons import CriNode

if TYPE_CHECKING:
    from xenbind.xenstore import Xenstore

_MIB = 1 << 20
_SPARE_BYTES = 6 * _MIB
_SPARE = 4
"""Descriptors and threads that a pool may have opened since."""
_GROWTH = 1.10


@dataclass(frozen=True, slots=True)
class Process:
    """A daemon's own: resident bytes, descriptors, threads."""

    rss: int
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Census:
    """Of both daemons."""

    protectd: Process
    cri: Process

    def shown(self) -> str:
        return "; ".join(
            f"{name}: {one['rss'] / _MIB:.1f} MiB, {one['descriptors']} descriptors, {one['threads']} threads"
            for name, one in asdict(self).items()
        )

    def grown(self, before: Census) -> list[str]:
        """Growth beyond the permitted amounts."""
        pairs = (("protectd", before.protectd, self.protectd), ("xenpod-cri", before.cri, self.cri))
        return [
            f"{name}: {what} from {old} to {new}"
            for name, then, now in pairs
            for what, old, new, most in (
                ("resident bytes", then.rss, now.rss, then.rss * _GROWTH + _SPARE_BYTES),
                ("descriptors", then.descriptors, now.descriptors, then.descriptors + _SPARE),
                ("threads", then.threads, now.threads, then.threads + _SPARE),
            )
            if new > most
        ]


def take(node: CriNode) -> Census:
    """Of a node's daemons, now."""
    assert node.protectd.daemon.process is not None and node.daemon.process is not None
    return Census(_of(node.protectd.daemon.process.pid), _of(node.daemon.process.pid))


def _of(pid: int) -> Process:
    status = Path(f"/proc/{pid}/status").read_text()
    rss, threads = (int(_field(name, status)) for name in ("VmRSS", "Threads"))
    return Process(rss * 1024, len(os.listdir(f"/proc/{pid}/fd")), threads)


def _field(name: str, status: str) -> str:
    found = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
    assert found is not None, f"{name} is not in status"
    return found[1]


def left(node: CriNode) -> list[str]:
    """What pods have left: in the kernel, on the disk, in the store, on a Xen host in xenstore."""
    found = [f"{kind} {name}" for kind, names in node.leftovers().items() for name in names]
    for folder in ("zones", "volumes"):
        found += [str(path) for path in (node.protectd.run_dir / folder).glob("*")]
    if os.path.exists("/proc/xen/privcmd"):
        found += _of_xen()
    return found


def _below(store: Xenstore, place: str) -> dict[str, object]:
    """All files below a node: an owner and the last writer are visible."""
    return {
        name: _below(store, f"{place}/{name}") or (store.read(f"{place}/{name}") or b"").decode()
        for name in store.list(place)
    }


def _of_xen() -> list[str]:
    from xenbind import domain
    from xenbind.context import Context
    from xenbind.xenstore import Xenstore

    with Context() as context:
        found = [f"domain {info.domid} {info.name}" for info in domain.domains(context) if info.domid]
    with Xenstore() as store:
        for place in ("/local/domain", "/libxl"):
            found += [f"{place}/{name}" for name in store.list(place) if name != "0"]
        for kind in store.list("/local/domain/0/backend"):
            place = f"/local/domain/0/backend/{kind}"
            found += [
                f"backend {kind} {name}: {_below(store, f'{place}/{name}')}" for name in store.list(place)
            ]
    found += [name for name in os.listdir("/sys/class/net") if name.startswith("vif")]
    return found + [str(path) for path in Path("/var/log/xen/console").glob("guest-*.log")]
