"""The only caller of tar2sqfs (squashfs-tools-ng): a tar stream in, one squashfs file out."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Protocol

from daemonkit.faults import Broken, Refused
from daemonkit.host.disk_space import is_full
from images.bounds.cancel import CancelToken
from images.image_errors import disk_full, oversized
from images.image_settings import ImageSettings
from images.rootfs.stream import PIPE_BYTES

log = logging.getLogger(__name__)

TOOL = "tar2sqfs"
BLOCK_BYTES = 128 << 10
_THREAD_BYTES = 4 << 20
"""Least bytes of a filesystem for each compressing thread."""
_F_SETPIPE_SZ = 1031
_BUILD = "build filesystem image"
_LEVELLED = ("zstd", "gzip")


class RunningTool(Protocol):
    """A program running as a separate process."""

    def wait(self) -> int | None:
        """The exit status, negative for a signal; None: unknown. May be repeated."""

    def kill(self) -> None:
        """Kill the process, from any thread; harmless after the exit."""


class Tools(Protocol):
    """Starts programs that read hostile bytes, without any rights."""

    def start_tool(
        self, program: str, arguments: Sequence[str], threads: int, source: int, errors: int, out: int
    ) -> RunningTool:
        """Start a program; source, errors: standard input and error output.

        out: the output file, the program's last argument; the program's user owns the file from now on.
        """


class Squashfs:
    """A squashfs file in the making: callers write into ``sink``; finish() once, close() in any case.

    Both calls block. The calls may come from different threads, but not at the same time.
    """

    def __init__(self, out: Path, size: int, settings: ImageSettings, tools: Tools) -> None:
        """Start the tool to write ``out``, of about ``size`` bytes; raises Refused without a tool."""
        self.out = out
        self._cpu_seconds = settings.limits.cpu_seconds
        self._finished = False
        with ExitStack() as undo:
            self._errors = undo.enter_context(tempfile.TemporaryFile())
            # The tool gets an open file and cannot remove it: the file remains to diagnose a failure.
            self._file = undo.enter_context(out.open("x+b"))
            undo.callback(out.unlink, missing_ok=True)
            source, self._sink = os.pipe()
            undo.callback(self._end_stream)
            try:
                self._tool = _start_tool(
                    tools, size, settings, source, self._errors.fileno(), self._file.fileno()
                )
            finally:
                os.close(source)
            undo.pop_all()
        # The pipe quota of the user may be used up; a small pipe works too.
        with suppress(PermissionError):
            fcntl.fcntl(self.sink, _F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def sink(self) -> int:
        """The handle of the tool's pipe."""
        return self._sink

    def finish(self, whole: bool, token: CancelToken) -> None:
        """Complete a synced, read-only file; raises Exhausted for a full disk, Broken, Cancelled.

        whole: whether the tool read the whole stream; if not, the exit status and message give the reason.
        """
        with token.unblocking(self.kill):
            self._end_stream()
            status = self._tool.wait()
        token.check()
        if status != 0 or not whole:
            raise self._failure(status)
        os.fchown(self._file.fileno(), os.geteuid(), os.getegid())
        os.fchmod(self._file.fileno(), 0o444)
        os.fsync(self._file.fileno())
        self._finished = True

    def kill(self) -> None:
        """Kill the tool, from any thread; calls in other threads then fail."""
        self._tool.kill()

    def close(self) -> None:
        """End the tool; removes an unfinished file."""
        self._tool.kill()
        self._end_stream()
        self._tool.wait()
        self._file.close()
        self._errors.close()
        if not self._finished:
            self.out.unlink(missing_ok=True)

    def _end_stream(self) -> None:
        if self._sink >= 0:
            os.close(self._sink)
            self._sink = -1

    def _failure(self, status: int | None) -> Exception:
        name = self.out.name
        if status == -signal.SIGXCPU:
            cause = f"{TOOL} takes more than {self._cpu_seconds} s of CPU time in each of its threads"
            return oversized(_BUILD, name, cause, "cpu_seconds")
        if status == -signal.SIGSYS:
            cause = f"{TOOL} made a system call that it may not make, and was killed"
            log.error("%s %s: %s; the image may attack this host", _BUILD, name, cause)
            return Broken(_BUILD, name, cause, "the image may attack this host")
        self._errors.seek(0)
        said = self._errors.read(4096).decode("utf-8", "replace").strip().replace("\n", "; ")
        if _disk_full(self._file):
            return disk_full(_BUILD, name)
        return Broken(_BUILD, name, f"{TOOL} ended with {status}: {said or 'no message'}")


def _start_tool(
    tools: Tools, size: int, settings: ImageSettings, source: int, errors: int, out: int
) -> RunningTool:
    program = shutil.which(TOOL)
    if program is None:
        raise Refused(_BUILD, "", f"no {TOOL} on the PATH", "install squashfs-tools-ng")
    kind = settings.compression
    level = ["-X", f"level={settings.compression_level}"] if kind in _LEVELLED else []
    # Each thread takes memory and startup time: a third of the whole for a small filesystem.
    threads = min(1 + size // _THREAD_BYTES, len(os.sched_getaffinity(0)))
    # Without SOURCE_DATE_EPOCH the file's own times are 0, whatever the daemon's environment.
    arguments = ["--quiet", "--force", "--no-skip", "-c", kind, *level]
    arguments += ["-b", str(BLOCK_BYTES), "-j", str(threads)]
    return tools.start_tool(os.path.abspath(program), arguments, threads, source, errors, out)


def _disk_full(file: IO[bytes]) -> bool:
    """Whether the unfinished file cannot grow: the tool itself only says "I/O error"."""
    try:
        os.pwrite(file.fileno(), bytes(8 * BLOCK_BYTES), os.fstat(file.fileno()).st_size)
        os.fsync(file.fileno())
    except OSError as error:
        return is_full(error)
    return False
