"""The shipped example configurations load, and their values are the defaults."""

from __future__ import annotations

from pathlib import Path

import cluster.dra.config
import cri.config
import protect.config
from daemonkit.config import load_config

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"


def test_protectds_example_is_its_defaults() -> None:
    shipped = load_config(protect.config.ProtectdConfig, PACKAGING / "protectd.toml")
    assert shipped.profile("") == protect.config.ProtectdConfig().profile("")
    compared = ("run_dir", "state_dir", "guest_dir", "toolstack", "memory", "host", "limits", "timeouts")
    for name in (*compared, "fake", "faults"):
        assert getattr(shipped, name) == getattr(protect.config.ProtectdConfig(), name), name


def test_cris_example_is_its_defaults() -> None:
    assert load_config(cri.config.CriConfig, PACKAGING / "cri.toml") == cri.config.CriConfig()


def test_the_dra_drivers_example_is_its_defaults() -> None:
    assert load_config(cluster.dra.config.DraConfig, PACKAGING / "dra.toml") == cluster.dra.config.DraConfig()


def test_the_kubelets_drop_in_names_our_socket_and_the_gate() -> None:
    lines = (PACKAGING / "kubelet" / "10-xenpod.conf").read_text().splitlines()
    assert f"containerRuntimeEndpoint: unix://{cri.config.CriConfig().listen}" in lines
    assert lines[lines.index("featureGates:") + 1] == "  PodAndContainerStatsFromCRI: true"
