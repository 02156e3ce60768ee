"""The one door to tar2sqfs (squashfs-tools-ng): a tar stream in, one squashfs file out."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, BinaryIO

from cri.images.cancel import Cancel
from daemonkit.faults import Broken, Exhausted, Refused

TOOL = "tar2sqfs"
BLOCK_BYTES = 128 << 10
PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_LEVELLED = ("zstd", "gzip")


def squashfs(
    out: Path, feed: Callable[[BinaryIO], None], compression: str, level: int, jobs: int, cancel: Cancel
) -> None:
    """Makes the file from the tar stream that feed writes; it then stands synced and read-only.

    On any failure the tool is ended and the file removed. Raises Exhausted for a full disk, Broken,
    Cancelled, and what feed raises.
    """
    options = ["-c", compression, *(["-X", f"level={level}"] if compression in _LEVELLED else [])]
    command = [TOOL, "--quiet", "--no-skip", *options, "-b", str(BLOCK_BYTES), "-j", str(jobs), str(out)]
    with tempfile.TemporaryFile() as errors:
        process = _start(command, errors)
        try:
            with cancel.interrupting(process.kill):
                broken = _pump(process, feed)
                status = process.wait()
            cancel.check()
            if status or broken:
                raise _failure(out, status, errors)
            out.chmod(0o444)
            _sync(out)
        except BaseException:
            process.kill()
            process.wait()
            out.unlink(missing_ok=True)
            raise


def _start(command: list[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
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
    """Whether the tool stopped reading before the end; its status and words then tell why."""
    assert process.stdin is not None
    try:
        with process.stdin as pipe, open(pipe.fileno(), "wb", buffering=PIPE_BYTES, closefd=False) as sink:
            feed(sink)
    except BrokenPipeError:
        return True
    return False


def _failure(out: Path, status: int, errors: IO[bytes]) -> Exception:
    errors.seek(0)
    said = errors.read(4096).decode("utf-8", "replace").strip().replace("\n", "; ")
    if "No space left" in said or "Disk quota exceeded" in said:
        return Exhausted(
            "build filesystem image", out.name, "the disk is full", "free space under the state directory"
        )
    return Broken("build filesystem image", out.name, f"{TOOL} ended with {status}: {said or 'no message'}")


def _sync(out: Path) -> None:
    with out.open("rb") as file:
        os.fsync(file.fileno())
