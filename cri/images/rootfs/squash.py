"""The only caller of tar2sqfs (squashfs-tools-ng): a tar stream in, one squashfs file out."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from cri.images.bounds.cancel import CancelToken
from cri.images.errors import disk_full
from cri.images.rootfs.stream import PIPE_BYTES
from cri.images.settings import ImageSettings
from daemonkit.faults import Broken, Refused
from daemonkit.host.children import make_way, settle
from daemonkit.host.disk_space import is_full

TOOL = "tar2sqfs"
BLOCK_BYTES = 128 << 10
_F_SETPIPE_SZ = 1031
_LEVELLED = ("zstd", "gzip")


class Squashfs:
    """A squashfs file in the making: others write into ``sink``; finish() once, close() in any case.

    Both block; they may be called in one thread after the other.
    """

    def __init__(self, out: Path, settings: ImageSettings) -> None:
        """Start the tool, which is to make ``out``; raises Refused when it is not installed."""
        self.out = out
        self._finished = False
        self._errors = tempfile.TemporaryFile()
        # The tool gets an open file, which it cannot remove: a failure can be looked into.
        self._file = out.open("x+b")
        try:
            self._process = _start(settings, self._file.fileno(), self._errors)
        except BaseException:
            self._file.close()
            self._errors.close()
            out.unlink(missing_ok=True)
            raise
        # The pipe quota of the user may be used up; a small pipe works too.
        with suppress(PermissionError):
            fcntl.fcntl(self.sink, _F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def sink(self) -> int:
        """The handle of the tool's pipe."""
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def finish(self, whole: bool, token: CancelToken) -> None:
        """Have a synced, read-only file; raises Exhausted for a full disk, Broken, Cancelled.

        whole: whether the tool took all of the stream; if not, its status and message say why.
        """
        with token.unblocking(self.kill):
            self._end_stream()
            status = self._process.wait()
        token.check()
        if status or not whole:
            raise self._failure(status)
        os.fchmod(self._file.fileno(), 0o444)
        os.fsync(self._file.fileno())
        self._finished = True

    def kill(self) -> None:
        """End the tool at once, from any thread; the others' calls then fail."""
        self._process.kill()

    def close(self) -> None:
        """End the tool; the file is removed unless it is finished."""
        self._process.kill()
        self._end_stream()
        self._process.wait()
        self._file.close()
        self._errors.close()
        if not self._finished:
            self.out.unlink(missing_ok=True)

    def _end_stream(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _failure(self, status: int) -> Exception:
        self._errors.seek(0)
        said = self._errors.read(4096).decode("utf-8", "replace").strip().replace("\n", "; ")
        name = self.out.name
        if _disk_full(self._file):
            return disk_full("build filesystem image", name)
        return Broken("build filesystem image", name, f"{TOOL} ended with {status}: {said or 'no message'}")


def _start(settings: ImageSettings, target: int, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    kind = settings.compression
    level = ["-X", f"level={settings.compression_level}"] if kind in _LEVELLED else []
    jobs = str(max(1, len(os.sched_getaffinity(0))))
    command = [
        TOOL,
        "--quiet",
        "--force",
        "--no-skip",
        "-c",
        kind,
        *level,
        "-b",
        str(BLOCK_BYTES),
        "-j",
        jobs,
    ]
    # Without SOURCE_DATE_EPOCH the file's own times are 0, whatever the daemon's environment.
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            [*command, f"/proc/self/fd/{target}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
            bufsize=0,
            pass_fds=(target,),
        )
    except FileNotFoundError as error:
        raise Refused(
            "build filesystem image", "", f"no {TOOL} on the PATH", "install squashfs-tools-ng"
        ) from error
    settle(process.pid)
    make_way(process.pid)
    return process


def _disk_full(file: IO[bytes]) -> bool:
    """Whether the unfinished file cannot grow: the tool itself only says "I/O error"."""
    try:
        os.pwrite(file.fileno(), bytes(8 * BLOCK_BYTES), os.fstat(file.fileno()).st_size)
        os.fsync(file.fileno())
    except OSError as error:
        return is_full(error)
    return False
