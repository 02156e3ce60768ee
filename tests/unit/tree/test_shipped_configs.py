"""The example configurations that are shipped: they load, and say what the defaults are."""

from __future__ import annotations

from pathlib import Path

import pytest

import cri.config
import protect.config
from daemonkit.config import load
from daemonkit.faults import Invalid

PACKAGING = Path(__file__).resolve().parents[3] / "packaging"


def test_protectds_example_is_its_defaults() -> None:
    shipped = load(protect.config.ProtectdConfig, PACKAGING / "protectd.toml")
    assert shipped.profile("") == protect.config.ProtectdConfig().profile("")
    for name in ("run_dir", "state_dir", "guest_dir", "toolstack", "memory", "limits", "timeouts", "faults"):
        assert getattr(shipped, name) == getattr(protect.config.ProtectdConfig(), name), name


def test_cris_example_is_its_defaults() -> None:
    assert load(cri.config.CriConfig, PACKAGING / "cri.toml") == cri.config.CriConfig()


def test_the_kubelets_drop_in_names_our_socket_and_the_gate() -> None:
    lines = (PACKAGING / "kubelet" / "10-xenpod.conf").read_text().splitlines()
    assert f"containerRuntimeEndpoint: unix://{cri.config.CriConfig().listen}" in lines
    assert lines[lines.index("featureGates:") + 1] == "  PodAndContainerStatsFromCRI: true"


@pytest.mark.parametrize(
    ("table", "text", "cause"),
    [
        ("images", "downloads_per_image = 0", "'downloads_per_image': 0 is less than 1"),
        ("images", "conversions = -1", "'conversions'"),
        ("images", 'compression = "lzma9"', "'lzma9' is not one of zstd, gzip, xz, lz4"),
        ("images", "compression_level = 23", "between 1 and 22"),
        ("images", "stall_timeout = 0", "'stall_timeout': want a duration"),
        ("images.limits", "layers = -5", "'layers': -5"),
        ("images.policy", "verifier_timeout = 0", "'verifier_timeout'"),
        ("container", "nofile = -3", "'nofile': -3 is less than 0"),
        ("container", "shm_size = 0", "'shm_size'"),
        ("cni", "timeout = 0", "'timeout': want a duration"),
    ],
)
def test_values_that_cannot_be_are_refused_at_the_start(
    tmp_path: Path, table: str, text: str, cause: str
) -> None:
    path = tmp_path / "cri.toml"
    path.write_text(f"[{table}]\n{text}\n")
    with pytest.raises(Invalid) as raised:
        load(cri.config.CriConfig, path)
    assert f"{table}: " in str(raised.value) and cause in str(raised.value)


@pytest.mark.parametrize(
    ("table", "text", "cause"),
    [
        ("limits", "execs_per_zone = -1", "'execs_per_zone': -1 is less than 0"),
        ("limits", "disks_per_zone = 0", "1 <= disks_per_zone"),
        ("timeouts", "call = 0", "'call': want a duration"),
    ],
)
def test_protectds_that_cannot_be(tmp_path: Path, table: str, text: str, cause: str) -> None:
    path = tmp_path / "protectd.toml"
    path.write_text(f"[{table}]\n{text}\n")
    with pytest.raises(Invalid) as raised:
        load(protect.config.ProtectdConfig, path)
    assert f"{table}: " in str(raised.value) and cause in str(raised.value)
