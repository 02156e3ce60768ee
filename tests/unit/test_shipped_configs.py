"""The example configurations that are shipped: they load, and say what the defaults are."""

from __future__ import annotations

from pathlib import Path

import cri.config
import protect.config
from daemonkit.config import load

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"


def test_protectds_example_is_its_defaults() -> None:
    shipped = load(protect.config.Config, PACKAGING / "protectd.toml")
    assert shipped.profile("") == protect.config.Config().profile("")
    for name in ("run_dir", "state_dir", "guest_dir", "toolstack", "memory", "limits", "timeouts", "faults"):
        assert getattr(shipped, name) == getattr(protect.config.Config(), name), name


def test_cris_example_is_its_defaults() -> None:
    assert load(cri.config.Config, PACKAGING / "cri.toml") == cri.config.Config()
