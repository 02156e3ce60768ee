"""Modes of a kernel, by its notes; domains forbidden by their kernel, their label or the host."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemonkit.faults import Fault, Invalid, Refused
from protect.model.toolstack import Capabilities, DomainKernel, DomainSpec, Mode
from protect.toolstack.libxl import boot, kernel
from protect.toolstack.libxl.capacity.admit import Admission
from protect.toolstack.libxl.config import domain_config
from protect.toolstack.libxl.kernel import boot_modes
from tests.support import elf
from tests.unit.protect.toolstack.libxl.test_boot import SPEC
from xenbind import flask

LABEL = "system_u:system_r:tenant_a_t"
WHOLE = Capabilities(pv=True, hvm=True, hap=True, flask=True)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(
    ("notes", "modes"),
    [
        (elf.PV, {Mode.PV}),
        (elf.PVH, {Mode.PVH}),
        ([*elf.PV, *elf.PVH], {Mode.PV, Mode.PVH}),
        ([], set()),
        ([(b"Xen", 18)], set()),  # CONFIG_PVH without CONFIG_XEN, for KVM
        ([(b"Xen", 6)], set()),
        ([(b"Linux", 1), (b"Linux", 6), (b"Linux", 18)], set()),
    ],
)
def test_modes_follow_from_the_notes(
    tmp_path: Path, notes: list[elf.Note], modes: set[Mode], wide: bool
) -> None:
    (tmp_path / "k").write_bytes(elf.image(notes, wide=wide))
    assert boot_modes(tmp_path / "k") == modes
    files = boot.Boot.of(tmp_path / "k", tmp_path / "k")
    assert files.modes == modes


@given(
    st.binary(max_size=200), st.integers(0, 0x100), st.sampled_from([b"", b"\xff" * 8, b"\xff\xff\xff\x7f"])
)
def test_nothing_in_an_image_is_trusted(
    tmp_path_factory: pytest.TempPathFactory, more: bytes, place: int, nonsense: bytes
) -> None:
    """Sizes and offsets to any place: an answer in each case."""
    data = bytearray(elf.image(elf.PV) + more)
    data[place : place + len(nonsense)] = nonsense
    path = tmp_path_factory.mktemp("k") / "k"
    for untrusted in (bytes(data), bytes(data[:place]) or b"x"):
        path.write_bytes(untrusted)
        assert boot_modes(path) <= {Mode.PV}


def test_many_notes_are_not_read_for_ever(tmp_path: Path) -> None:
    """65535 segments with the same notes."""
    data = bytearray(elf.image([(b"x", 0)] * 4096))
    struct.pack_into("<HH", data, 54, 0, 0xFFFF)
    struct.pack_into("<I", data, 0x40, 4)
    (tmp_path / "k").write_bytes(data)
    assert boot_modes(tmp_path / "k") == set()


@pytest.mark.skipif(not list(Path("/boot").glob("vmlinuz-*-amd64")), reason="no kernel of Debian here")
def test_debians_kernels_boot_in_both(tmp_path: Path) -> None:
    for number, image in enumerate(sorted(Path("/boot").glob("vmlinuz-*-amd64"))):
        assert boot_modes(kernel.unpacked_kernel(image, tmp_path / str(number))) == set(Mode)


class NoHypervisor:
    """Admission's view of workers: no domains, much memory, a single label in the policy."""

    def __init__(self, **answers: object) -> None:
        self.answers = {"domains": [], "physinfo": SimpleNamespace(free_bytes=1 << 40), **answers}

    held = False

    async def ask(self, function: Callable[..., object], *arguments: object) -> object:
        found = self.answers[function.__name__]
        return found(*arguments) if callable(found) else found


async def _admitted(spec: DomainSpec, can: Capabilities, modes: frozenset[Mode] = frozenset(Mode)) -> None:
    workers: Any = NoHypervisor(knows=lambda label: label == LABEL)
    files = boot.Boot(Path("/k/vmlinux"), Path("/i"), 0, modes=modes)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Admission(workers, can).admit(spec, files))


@pytest.mark.parametrize(
    ("spec", "modes", "said"),
    [
        (
            replace(SPEC, mode=Mode.PVH),
            {Mode.PV},
            r"kernel vmlinux is no pvh guest: .* CONFIG_XEN and CONFIG_PVH",
        ),
        (replace(SPEC, mode=Mode.PV), {Mode.PVH}, "kernel vmlinux is no pv guest: .* CONFIG_XEN_PV"),
        (replace(SPEC, kernel=DomainKernel("mine:1", Path("/m"))), set(), "kernel mine:1 is no pvh guest"),
    ],
)
async def test_a_kernel_without_the_mode_is_refused(spec: DomainSpec, modes: set[Mode], said: str) -> None:
    await _admitted(spec, WHOLE)
    with pytest.raises(Invalid, match=said):
        await _admitted(spec, WHOLE, frozenset(modes))


@pytest.mark.parametrize(
    ("label", "can", "kind", "said"),
    [
        (LABEL, replace(WHOLE, flask=False), Refused, "hypervisor has no FLASK"),
        ("a:b:c", WHOLE, Invalid, "policy lacks the label a:b:c"),
    ],
)
async def test_impossible_labels_are_refused(
    label: str, can: Capabilities, kind: type[Fault], said: str
) -> None:
    await _admitted(replace(SPEC, seclabel=LABEL), WHOLE)
    await _admitted(SPEC, can)
    with pytest.raises(kind, match=said):
        await _admitted(replace(SPEC, seclabel=label), can)


def test_a_label_in_libxls_words() -> None:
    files = boot.Boot(Path("/k"), Path("/i"), 0)
    created = domain_config(replace(SPEC, seclabel=LABEL), files, "")["c_info"]
    assert created == {"type": "pvh", "name": "z", "uuid": str(SPEC.uuid), "ssid_label": LABEL}
    assert "ssid_label" not in str(domain_config(SPEC, files, ""))


class FakeLibxl:
    """Two functions of libxl: the answer, or -1 with errno."""

    def __init__(self, enforce: int, labels: dict[bytes, int]) -> None:
        self.enforce, self.labels, self.errno = enforce, labels, 0

    def new(self, kind: str) -> object:
        return object()

    def libxl_flask_getenforce(self, ctx: object) -> int:
        return self._said(self.enforce)

    def libxl_flask_context_to_sid(self, ctx: object, label: bytes, length: int, sid: object) -> int:
        return self._said(self.labels[label[:length]])

    def _said(self, answer: int) -> int:
        self.errno = max(0, -answer)
        return 0 if answer == 0 else max(answer, -1)


@pytest.fixture
def libxl(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def use(enforce: int = 0, **labels: int) -> Any:
        fake = FakeLibxl(enforce, {label.encode(): answer for label, answer in labels.items()})
        monkeypatch.setattr(flask, "lib", fake)
        monkeypatch.setattr(flask, "ffi", fake)
        return SimpleNamespace(ctx=object(), take_log=lambda: setattr(fake, "errno", 0))

    return use


def test_flask_is_detected(libxl: Callable[..., Any]) -> None:
    assert flask.enforcing(libxl(1)) is True
    assert flask.enforcing(libxl(0)) is False
    assert flask.enforcing(libxl(-errno.ENOSYS)) is None
    with pytest.raises(OSError, match="libxl_flask_getenforce"):
        flask.enforcing(libxl(-errno.EACCES))


def test_label_is_known_if_in_the_policy(libxl: Callable[..., Any]) -> None:
    context = libxl(known=0, unknown=-errno.EINVAL, nothing=-errno.ENOSYS, secret=-errno.EACCES)
    assert [flask.knows(context, label) for label in ("known", "unknown", "nothing")] == [True, False, False]
    with pytest.raises(OSError, match="libxl_flask_context_to_sid secret"):
        flask.knows(context, "secret")


@pytest.mark.parametrize(
    ("text", "hotplug"), [(b"\0hotplug_unpopulated\0", True), (b"hotplug_unpopulated", False)]
)
def test_kernel_with_the_balloons_sysctl_hot_plugs_memory(tmp_path: Path, text: bytes, hotplug: bool) -> None:
    image = tmp_path / "vmlinux"
    image.write_bytes(b"\x7fELF" + text)
    assert kernel.hotplugs_memory(image) is hotplug
