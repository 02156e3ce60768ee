"""Well-formed but impossible values on this host end their daemon's start; the error names file and key."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import cri.__main__
import protect.__main__
from cri.config import CriConfig
from daemonkit.config import about, load_config
from daemonkit.faults import Invalid
from protect.config import ProtectdConfig

TEMPLATE = """{"cniVersion": "1.0.0", "name": "n",
"plugins": [{"type": "bridge", "ipam": {"ranges": $POD_CIDR_RANGES}}]}"""
TLS = "streaming.tls.certificate = '{0}/{1}'\nstreaming.tls.key = '{0}/{2}'\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("no template $NOTHING, no PEM either")
    (tmp_path / "template").write_text(TEMPLATE)
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("text", "key", "cause"),
    [
        ("cni.conf_template = '{0}/none'", "cni.conf_template", "none: No such file"),
        ("cni.conf_template = '{0}/folder'", "cni.conf_template", "folder is not a file"),
        ("cni.conf_template = '{0}/file'", "cni.conf_template", "is not a template"),
        (TLS.format("{0}", "none", "file"), "streaming.tls.certificate", "none: No such file"),
        (TLS.format("{0}", "file", "none"), "streaming.tls.key", "none: No such file"),
        (TLS.format("{0}", "file", "folder"), "streaming.tls.key", "folder is not a file"),
        (TLS.format("{0}", "file", "file") + "streaming.tls.client_ca = '{0}/none'",
         "streaming.tls.client_ca", "none: No such file"),
    ],
)  # fmt: skip
async def test_unusable_file_in_cri_config_ends_the_start(
    folder: Path, text: str, key: str, cause: str
) -> None:
    path = folder / "cri.toml"
    path.write_text(f"state_dir = '{folder}/state'\nrun_dir = '{folder}/run'\n{text.format(folder)}\n")
    with pytest.raises(Invalid) as caught, about(path):
        await cri.__main__.serve_cri(load_config(CriConfig, path), asyncio.Event())
    assert str(caught.value).startswith(f"read configuration {path}: key '{key}': ")
    assert cause in str(caught.value)
    assert not (folder / "state").exists(), "nothing is made before the configuration is known to work"


@pytest.mark.parametrize(
    ("text", "key", "cause"),
    [
        ("guest_dir = '{0}/none'", "guest_dir", "none: No such file"),
        ("guest_dir = '{0}/file'", "guest_dir", "file is not a directory"),
        ("toolstack = 'libxl'\nguest_dir = '{0}'\nlibxl.kernel = '{0}/none'", "libxl.kernel",
         "none: No such file"),
        ("toolstack = 'libxl'\nguest_dir = '{0}'\nlibxl.initramfs = '{0}/folder'", "libxl.initramfs",
         "folder is not a file"),
        ("toolstack = 'fake'\nguest_dir = '{0}'\nfake.reserve = '1000TiB'", "fake.reserve", "all the memory"),
    ],
)  # fmt: skip
async def test_impossible_value_in_protectd_config_ends_the_start(
    folder: Path, text: str, key: str, cause: str
) -> None:
    path = folder / "protectd.toml"
    path.write_text(f"state_dir = '{folder}/state'\nrun_dir = '{folder}/run'\n{text.format(folder)}\n")
    with pytest.raises(Invalid) as caught, about(path):
        await protect.__main__.serve_zones(load_config(ProtectdConfig, path), asyncio.Event())
    assert str(caught.value).startswith(f"read configuration {path}: key '{key}': ")
    assert cause in str(caught.value)
    assert not (folder / "state").exists()
