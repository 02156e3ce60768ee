"""The part of the configuration that checks read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protect.config import ProtectdConfig
from protect.model.capacity.host_resources import HostNotice


@dataclass(frozen=True, slots=True)
class CniFolders:
    """``[cni]`` of cri.toml."""

    conf_dir: Path = Path("/etc/cni/net.d")
    bin_dirs: tuple[Path, ...] = (Path("/opt/cni/bin"), Path("/usr/lib/cni"))
    conf_template: Path | None = None


@dataclass(frozen=True, slots=True)
class CriFolders:
    """The keys of cri.toml that checks read."""

    state_dir: Path = Path("/var/lib/xenpod")
    cni: CniFolders = CniFolders()


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """``notices``: findings of the preflight, by protectd if protectd answers; None: unknown."""

    protectd: ProtectdConfig = field(default_factory=ProtectdConfig)
    cri: CriFolders = CriFolders()
    protectd_file: Path = Path("/etc/protect/protectd.toml")
    cri_file: Path = Path("/etc/xenpod/cri.toml")
    protect_socket: Path = Path("/run/protect/protect.sock")
    cri_socket: Path = Path("/run/xenpod/cri.sock")
    kubelet_file: Path = Path("/var/lib/kubelet/config.yaml")
    kubelet_dir: Path = Path("/etc/kubernetes/kubelet.conf.d")
    notices: Sequence[HostNotice] | None = None
