"""Makes image layers from installed Debian packages, without downloading anything."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BUSYBOX = Path("/bin/busybox")
_FOLDERS = ("bin", "dev", "etc", "lib64", "proc", "root", "run", "sys", "tmp", "usr", "usr/bin", "var")
_ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}
# The first process of pod sandboxes in other runtimes: ends on SIGTERM, reaps orphans.
_PAUSE = r"""
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int n) { (void)n; _exit(0); }
static void reap(int n) { (void)n; while (waitpid(-1, NULL, WNOHANG) > 0); }
int main(void) {
	signal(SIGINT, end); signal(SIGTERM, end); signal(SIGCHLD, reap);
	for (;;) pause();
}
"""


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """A member of a layer; ``target`` makes a hard link, ``content`` a file, the lack of both a directory."""

    path: str
    mode: int = 0o755
    content: bytes | None = None
    target: str = ""
    uid: int = 0
    gid: int = 0


def layer(*entries: LayerEntry) -> bytes:
    """Make an uncompressed tar, always the same for the same entries."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.path)
            info.mode, info.uid, info.gid = entry.mode, entry.uid, entry.gid
            if entry.target:
                info.type, info.linkname = tarfile.LNKTYPE, entry.target
            elif entry.content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(entry.content)
            tar.addfile(info, io.BytesIO(entry.content) if entry.content is not None else None)
    return out.getvalue()


def busybox() -> bytes:
    """A small system: Debian's dynamic busybox with every applet, the required libraries, accounts.

    The applets are hard links to one file: masking one applet in a container leaves the others alone.
    """
    entries = [LayerEntry(folder, 0o1777 if folder == "tmp" else 0o755) for folder in _FOLDERS]
    entries += [LayerEntry(name, 0o644, text.encode()) for name, text in _ACCOUNTS.items()]
    entries.append(LayerEntry("bin/busybox", content=BUSYBOX.read_bytes()))
    listed = subprocess.run([BUSYBOX, "--list"], check=True, capture_output=True, text=True).stdout.split()
    entries += [LayerEntry(f"bin/{name}", target="bin/busybox") for name in sorted(set(listed) - {"busybox"})]
    for library in libraries(BUSYBOX):
        entries += _with_folders(str(library).lstrip("/"), library.read_bytes(), entries)
    return layer(*entries)


def pause(folder: Path) -> bytes:
    """The pause program of other runtimes' sandboxes, compiled in ``folder``."""
    program = folder / "pause"
    subprocess.run(
        ["gcc", "-Os", "-static", "-s", "-Wl,--build-id=none", "-x", "c", "-", "-o", program],
        input=_PAUSE.encode(),
        check=True,
    )
    return layer(LayerEntry("pause", content=program.read_bytes()))


def _with_folders(path: str, content: bytes, before: list[LayerEntry]) -> Iterator[LayerEntry]:
    known = {entry.path for entry in before}
    for parent in reversed(Path(path).parents):
        if str(parent) != "." and str(parent) not in known:
            yield LayerEntry(str(parent))
    yield LayerEntry(path, content=content)


def libraries(program: Path) -> list[Path]:
    """The absolute paths printed by ldd(1): ``libc.so.6 => /lib/... (0x...)`` or ``/lib64/ld... (0x...)``."""
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    words = (word for line in listed.splitlines() for word in line.split())
    return sorted({Path(word) for word in words if word.startswith("/")})
