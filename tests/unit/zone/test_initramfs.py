"""The initramfs of zones: the same, however the kernel's modules are compressed."""

from __future__ import annotations

import gzip
import importlib.util
import lzma
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
PLAIN = {"kernel/a/one.ko": b"\x7fELF one" * 900, "kernel/b/two.ko": b"\x7fELF two" * 700}


@pytest.fixture(scope="module")
def initramfs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("initramfs", ROOT / "zone/initramfs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-qc"], input=data, stdout=subprocess.PIPE, check=True).stdout


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".xz": lambda data: lzma.compress(data, check=lzma.CHECK_CRC32),  # as the kernel's build does
    ".gz": gzip.compress,
    ".zst": _zstd,
}


def kernel(folder: Path, suffix: str = "", pack: Callable[[bytes], bytes] = bytes) -> Path:
    """A kernel's module folder: ``one`` needs ``two``."""
    for name, content in PLAIN.items():
        path = folder / f"{name}{suffix}"
        path.parent.mkdir(parents=True)
        path.write_bytes(pack(content))
    one, two = (f"{name}{suffix}" for name in PLAIN)
    (folder / "modules.dep").write_text(f"{one}: {two}\n{two}:\n")
    (folder / "modules.builtin").write_text("")
    return folder


def built(initramfs: ModuleType, modules: Path, output: Path) -> bytes:
    initramfs.write(None, modules, output, ("one",))
    return output.read_bytes()


@pytest.mark.parametrize("suffix", PACKERS)
def test_compressed_modules_give_the_same_initramfs(
    initramfs: ModuleType, tmp_path: Path, suffix: str
) -> None:
    if suffix == ".zst" and shutil.which("zstd") is None:
        pytest.skip("needs zstd (make setup)")
    plain = built(initramfs, kernel(tmp_path / "plain"), tmp_path / "plain.cpio")
    packed = kernel(tmp_path / "packed", suffix, PACKERS[suffix])
    assert built(initramfs, packed, tmp_path / "packed.cpio") == plain
    assert re.findall(rb"two\.ko\none\.ko\n", plain), "in the order of loading"


@pytest.mark.parametrize(
    ("suffix", "text"), [(".lz4", "only .ko"), (".zst", "zstd ended with 1"), (".zst", "needs zstd")]
)
def test_an_unreadable_module_is_named(
    initramfs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, text: str
) -> None:
    if text.startswith("needs"):
        monkeypatch.setenv("PATH", str(tmp_path))
    elif suffix == ".zst" and shutil.which("zstd") is None:
        pytest.skip("needs zstd (make setup)")
    packed = kernel(tmp_path / "packed", suffix)
    with pytest.raises(SystemExit, match=rf"two\.ko\{suffix}: {text}"):
        built(initramfs, packed, tmp_path / "packed.cpio")
    assert not (tmp_path / "packed.cpio").exists()
