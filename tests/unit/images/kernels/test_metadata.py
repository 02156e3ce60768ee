"""Claims of a kernel image about itself, and the pods with a choice."""

from __future__ import annotations

import contextlib
import gzip
import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri.config import KERNEL, CriConfig, HandlerConfig
from cri.sandbox.kernel import chosen
from daemonkit.faults import Denied, Invalid, Refused
from images.image_settings import KernelSettings
from images.kernels import metadata
from images.kernels.metadata import Metadata
from images.worker.kernel import kconfig
from tests.support.images.kernel_images import METADATA, config
from xenpod_proto.cri.v1 import runtime_pb2 as cri


def test_metadata_is_parsed() -> None:
    assert metadata.parse(METADATA.encode(), "x") == Metadata("6.12.4", "zone", platform.machine())
    other = "# made by hand\n\n  KERNEL_VERSION=5\r\nVENDOR=a = b\n"
    assert metadata.parse(other.encode(), "x") == Metadata(version="5")
    assert metadata.parse(b"", "x") == Metadata()


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"KERNEL_VERSION\n", "line 1 of /kernel/metadata is not KEY=VALUE"),
        (b"A=1\nkernel=2\n", "line 2"),
        (b"A=1\nA=1\n", "says A once more"),
        (b"A=\x1b[31m\n", "line 1"),
        (b"A=\xff\n", "line 1"),
        (b"A=" + b"x" * 300, "line 1"),
        (b"A=1\n" * 300, "more than 256 lines"),
        (b"#" * (metadata.LIMIT_BYTES + 1), "bytes, more than"),
        (b"KERNEL_ARCH=s390x\n", "it is for s390x"),
    ],
)
def test_malformed_metadata_is_refused(data: bytes, cause: str) -> None:
    with pytest.raises(Refused, match=cause):
        metadata.parse(data, "x")


def test_a_fitting_kernel_is_accepted() -> None:
    kconfig.check_kconfig(config(), "x", set())
    kconfig.check_kconfig(config(OVERLAY_FS="m", NET_9P="m"), "x", {"addons.squashfs"})
    kconfig.check_kconfig(
        config(SQUASHFS="m", XEN_BLKDEV_FRONTEND="m"), "x", {"initramfs", "addons.squashfs"}
    )


@pytest.mark.parametrize(
    ("data", "extras", "cause"),
    [
        (config(XEN="", OVERLAY_FS=""), set(), "built without XEN, OVERLAY_FS"),
        (config(OVERLAY_FS="m"), set(), "OVERLAY_FS are modules, which the zone cannot reach"),
        (config(SQUASHFS="m"), {"addons.squashfs"}, "SQUASHFS are modules"),
        (b"no gzip", set(), "config.gz"),
        (config()[:-9], set(), "cut off"),
        (gzip.compress(bytes(20 << 20)), set(), "more than"),
    ],
)
def test_an_impossible_kernel_is_refused(data: bytes, extras: set[str], cause: str) -> None:
    with pytest.raises(Refused, match=cause):
        kconfig.check_kconfig(data, "x", extras)


_LINES = st.lists(st.sampled_from([b"A=1", b"KERNEL_ARCH=", b"KERNEL_VERSION=\xff", b"#", b" ", b"=", b"\0"]))


@given(st.binary(max_size=200) | _LINES.map(b"\n".join))
def test_nothing_in_metadata_is_trusted(untrusted: bytes) -> None:
    with contextlib.suppress(Refused):
        said = metadata.parse(untrusted, "x")
        assert all(text.isprintable() and len(text) <= 256 for text in (said.version, said.flavor, said.arch))


@given(st.binary(max_size=200), st.integers(0, 300))
def test_nothing_in_a_configuration_is_trusted(noise: bytes, at: int) -> None:
    whole = config()
    for untrusted in (noise, gzip.compress(noise), whole[:at] + noise + whole[at + len(noise) :]):
        with contextlib.suppress(Refused):
            kconfig.check_kconfig(untrusted, "x", set())


def _pod(kernel: str | None = None) -> cri.PodSandboxConfig:
    notes = {} if kernel is None else {KERNEL: kernel}
    return cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name="p"), annotations=notes)


def test_no_pod_may_choose_without_permission() -> None:
    handler = HandlerConfig(kernel="registry.example/kernels/fast:1")
    allowed = KernelSettings(allow=("registry.example/kernels/*",))
    assert chosen(_pod(), HandlerConfig(), allowed) == ""
    assert chosen(_pod(), handler, KernelSettings()) == "registry.example/kernels/fast:1"
    wanted = _pod(kernel="registry.example/kernels/small")
    assert chosen(wanted, handler, allowed) == "registry.example/kernels/small:latest"
    for settings in (KernelSettings(), KernelSettings(allow=("registry.example/kernels/other",))):
        with pytest.raises(Denied, match="kernels.allow"):
            chosen(wanted, handler, settings)
    # Not even the handler's own.
    with pytest.raises(Denied):
        chosen(_pod(kernel=handler.kernel), handler, KernelSettings())


@pytest.mark.parametrize("name", ["", "x/UPPER", "a" * 64, "x y", "../x"])
def test_a_malformed_choice_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match=KERNEL):
        chosen(_pod(kernel=name), HandlerConfig(), KernelSettings(allow=("*",)))


def test_a_handlers_kernel_is_pinned() -> None:
    made = CriConfig(handlers={"fast": HandlerConfig(kernel="registry.example/k")})
    assert made.image_settings().pinned == ("registry.example/k:latest",)
    assert made.image_settings().state_dir == Path("/var/lib/xenpod")
    with pytest.raises(ValueError, match="kernel"):
        HandlerConfig(kernel="NOT A NAME")
