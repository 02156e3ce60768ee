"""The only caller of tar2sqfs (squashfs-tools-ng): a tar stream in, one squashfs file out."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, BinaryIO

from cri.images.concurrency import CancelToken
from cri.images.errors import disk_full
from daemonkit.disk_space import is_full
from daemonkit.faults import Broken, Refused

TOOL = "tar2sqfs"
BLOCK_BYTES = 128 << 10
PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_LEVELLED = ("zstd", "gzip")


def squashfs(
    out: Path, feed: Callable[[BinaryIO], None], compression: str, level: int, jobs: int, token: CancelToken
) -> None:
    """Make a synced, read-only squashfs file from the tar stream that ``feed`` writes.

    On any failure the tool is ended and the file removed. Raises Exhausted for a full disk, Broken,
    Cancelled, and what feed raises.
    """
    options = ["-c", compression, *(["-X", f"level={level}"] if compression in _LEVELLED else [])]
    # The tool gets an open file, which it cannot remove: a failure can be looked into.
    with tempfile.TemporaryFile() as errors, out.open("x+b") as file:
        target = f"/proc/self/fd/{file.fileno()}"
        command = [TOOL, "--quiet", "--force", "--no-skip", *options, "-b", str(BLOCK_BYTES), "-j", str(jobs)]
        process = _start([*command, target], errors, file.fileno())
        try:
            with token.unblocking(process.kill):
                broken = _pump(process, feed)
                status = process.wait()
            token.check()
            if status or broken:
                raise _failure(out, file, status, errors)
            os.fchmod(file.fileno(), 0o444)
            os.fsync(file.fileno())
        except BaseException:
            process.kill()
            process.wait()
            out.unlink(missing_ok=True)
            raise


def _start(command: list[str], errors: IO[bytes], target: int) -> subprocess.Popen[bytes]:
    # Without SOURCE_DATE_EPOCH the file's own times are 0, whatever the daemon's environment.
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            command,
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
    assert process.stdin is not None
    # The pipe quota of the user may be used up; a small pipe works too.
    with suppress(PermissionError):
        fcntl.fcntl(process.stdin.fileno(), _F_SETPIPE_SZ, PIPE_BYTES)
    return process


def _pump(process: subprocess.Popen[bytes], feed: Callable[[BinaryIO], None]) -> bool:
    """Whether the tool stopped reading before the end; its status and message then say why."""
    assert process.stdin is not None
    try:
        with process.stdin as pipe, open(pipe.fileno(), "wb", buffering=PIPE_BYTES, closefd=False) as sink:
            feed(sink)
    except BrokenPipeError:
        return True
    return False


def _failure(out: Path, file: IO[bytes], status: int, errors: IO[bytes]) -> Exception:
    errors.seek(0)
    said = errors.read(4096).decode("utf-8", "replace").strip().replace("\n", "; ")
    if _disk_full(file):
        return disk_full("build filesystem image", out.name)
    return Broken("build filesystem image", out.name, f"{TOOL} ended with {status}: {said or 'no message'}")


def _disk_full(file: IO[bytes]) -> bool:
    """Whether the unfinished file cannot grow: the tool itself only says "I/O error"."""
    try:
        os.pwrite(file.fileno(), bytes(8 * BLOCK_BYTES), os.fstat(file.fileno()).st_size)
        os.fsync(file.fileno())
    except OSError as error:
        return is_full(error)
    return False
