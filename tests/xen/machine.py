"""Boots QEMU → Xen → dom0 and runs one command in dom0, on the host's own files.

dom0 sees the host's root read-only under a tmpfs, with the caller's checkout and virtual environment at the
same paths.  Written files vanish at the end, except for the results folder (``/run/nested/results`` in
dom0).  Software emulation is enough; hardware support is not used.
"""

from __future__ import annotations

import gzip
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.xen import qemu, snapshot
from tests.xen.images import dom0_image
from tests.xen.parts import NotInstalled, Parts, find_parts, version_key
from tests.xen.qemu import Boot, Size
from tests.xen.snapshot import Snapshot

CHECKOUT = Path(__file__).resolve().parents[2]
HIDDEN = tuple(Path(name) for name in ("/proc", "/sys", "/dev", "/run"))
"""Folders of the host that dom0 covers with its own folders."""

SHARE = Path("/run/nested")
"""In dom0: the folder shared with the host."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``status`` is the command's exit code, or None for a command without an end (``cause``)."""

    status: int | None
    cause: str
    seconds: float
    console: Path


def run(
    command: Sequence[str],
    *,
    folder: Path,
    deadline: float,
    environment: Mapping[str, str] | None = None,
    size: Size | None = None,
    hypervisor: str = "",
    hardware: Sequence[str] = (),
    store: str = "xenstored",
) -> Outcome:
    """Run ``command`` in dom0, its output going to our standard output.

    ``folder`` (made when absent) keeps ``console.log`` and ``results/``.  After ``deadline`` seconds
    the machine is switched off.  ``hypervisor``: more words for Xen's command line.
    ``hardware``: more arguments for QEMU.  ``store``: the program that is Xenstore, of Debian's two.
    """
    parts = find_parts()
    _check_visible(CHECKOUT)
    job = folder / "job"
    shutil.rmtree(job / "results", ignore_errors=True)
    (job / "results").mkdir(parents=True)
    (job / "status").unlink(missing_ok=True)
    console = folder / "console.log"
    _write_job(job, command, environment or {})
    (job / "store").write_text(store)
    program = folder / "xen"
    program.write_bytes(gzip.decompress(parts.hypervisor.read_bytes()))
    images = snapshot.build(CHECKOUT, folder)
    initramfs = dom0_image.build(parts, folder, images)
    began = time.monotonic()
    cause = ""
    with _relayed(folder / "output.log") as output:
        arguments = _arguments(parts, program, initramfs, job, console, output, size or Size(), hypervisor)
        arguments += [*_drives(images), *hardware]
        with subprocess.Popen(arguments, stdin=subprocess.DEVNULL, pass_fds=[output]) as machine:
            try:
                machine.wait(deadline)
            except subprocess.TimeoutExpired:
                cause = f"it did not end within {deadline:.0f} s"
            finally:
                machine.kill()
    for image in images:  # large, and of no use any more
        image.file.unlink()
    return _outcome(job, cause, machine.returncode, time.monotonic() - began, console)


@contextmanager
def _relayed(log: Path) -> Iterator[int]:
    """A pipe with output to our standard output and to ``log``, without delay."""
    source, target = os.pipe()

    def relay() -> None:
        with open(source, "rb", buffering=0) as stream, log.open("wb", buffering=0) as copy:
            while data := stream.read(65536):
                copy.write(data)
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()

    thread = threading.Thread(target=relay, name="relay")
    thread.start()
    try:
        yield target
    finally:
        os.close(target)
        thread.join()


def _check_visible(path: Path) -> None:
    for hidden in HIDDEN:
        if path.is_relative_to(hidden):
            raise ValueError(f"dom0 cannot see a checkout under {hidden}; move it elsewhere: {path}")


def _write_job(job: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines.append(f"cd {shlex.quote(str(CHECKOUT))} || exit 125")
    lines.append(f"exec {shlex.join(command)}")
    (job / "command").write_text("\n".join(lines) + "\n")
    shutil.copy(Path(__file__).parent / "images" / "dom0" / "stage2", job / "stage2")


def _arguments(
    parts: Parts, xen: Path, image: Path, job: Path, console: Path, output: int, size: Size, more: str
) -> list[str]:
    dom0 = "console=hvc0 quiet loglevel=4 panic=5 net.ifnames=0 random.trust_cpu=on mitigations=off"
    hypervisor = (
        f"dom0_mem={size.dom0_mib}M,max:{size.dom0_mib}M com1=115200,8n1 console=com1 loglvl=warning "
        f"guest_loglvl=warning spec-ctrl=no {more}"
    )
    share = "local,security_model=none,multidevs=remap"
    boot = Boot(xen, hypervisor, parts.kernel, dom0, image)
    return [
        *qemu.arguments(parts.qemu, boot, size, console),
        *("-chardev", f"file,id=output,path=/proc/self/fd/{output}"),
        *("-device", "virtserialport,chardev=output,name=output"),
        *("-virtfs", f"{share},path=/,mount_tag=hostroot,readonly=on"),
        *("-virtfs", f"{share},path={job},mount_tag=job"),
    ]


def _drives(images: Sequence[Snapshot]) -> list[str]:
    drives = []
    for number, image in enumerate(images):
        file = str(image.file).replace(",", ",,")
        drives += ["-drive", f"file={file},format=raw,if=none,readonly=on,id=snap{number}"]
        drives += ["-device", f"virtio-blk-pci,drive=snap{number}"]
    return drives


def _outcome(job: Path, cause: str, qemu_status: int, seconds: float, console: Path) -> Outcome:
    try:
        status: int | None = int((job / "status").read_text())
    except FileNotFoundError:
        status = None
    if status is None and not cause:
        cause = f"dom0 ended before its command did (QEMU's exit code {qemu_status})"
    return Outcome(status, cause if status is None else "", seconds, console)


def zone_kernel() -> Path:
    """The zones' kernel: Debian's, with 9p and volumes, needed by dom0 too."""
    return find_parts().kernel


def small_kernel() -> Path:
    """For guests without volumes: Debian's cloud kernel with its faster boot."""
    kernels = sorted(Path("/boot").glob("vmlinuz-*-cloud-amd64"), key=version_key)
    if not kernels:
        raise NotInstalled("nested Xen needs a Debian package: apt-get install linux-image-cloud-amd64")
    return kernels[-1]


def is_dom0() -> bool:
    """True if this process runs in a dom0 with a control interface."""
    return os.path.exists("/proc/xen/privcmd") and "control_d" in Path("/proc/xen/capabilities").read_text()
