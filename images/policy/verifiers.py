"""The only caller of image verifiers: executables that decide about pulls.

The contract is containerd's (docs/image-verification.md, its "bindir" plugin): every file of a directory,
sorted by name, runs as ``<file> -name <name> -digest <digest> -stdin-media-type <type>`` with an OCI
descriptor as JSON on standard input; status 0 allows; standard output is the reason. Stricter than
containerd: a configured directory that is missing or has too many files allows nothing (containerd ignores
both).
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from daemonkit.faults import Refused
from daemonkit.host.children import settle
from daemonkit.logs import fields
from images.bounds.cancel import CancelToken

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/vnd.oci.descriptor.v1+json"
MOST_VERIFIERS = 32
# Limit on a verifier's output; the rest is ignored.
MOST_OUTPUT_BYTES = 32 << 10
_MOST_REASON = 1000


@dataclass(frozen=True)
class Verdict:
    """A verifier's decision; reason: one line for the caller."""

    allowed: bool
    reason: str


def verifiers_in(directory: Path) -> list[Path]:
    """The directory's files by name; raises Refused if unreadable or too many."""
    hint = "see images.policy.verifier_dir"
    try:
        found = sorted(path for path in directory.iterdir() if not path.is_dir())
    except OSError as error:
        raise Refused("list image verifiers", str(directory), error.strerror or str(error), hint) from error
    if len(found) > MOST_VERIFIERS:
        raise Refused(
            "list image verifiers", str(directory), f"{len(found)} files, more than {MOST_VERIFIERS}", hint
        )
    return found


def judge(
    program: Path, arguments: Sequence[str], payload: bytes, seconds: float, token: CancelToken
) -> Verdict:
    """Run a verifier until its end or the deadline.  Any failure rejects the image."""
    with tempfile.TemporaryFile() as stdin:
        stdin.write(payload)
        stdin.seek(0)
        command = [str(program), *arguments, "-stdin-media-type", MEDIA_TYPE]
        try:
            process = _start_verifier(command, stdin)
        except OSError as error:
            return Verdict(False, f"cannot be run: {error.strerror}")
        try:
            with token.unblocking(lambda: _kill_group(process)):
                said, heard = _listen(process, time.monotonic() + seconds)
        finally:
            _kill_group(process)
            process.wait()
            assert process.stdout is not None and process.stderr is not None
            process.stdout.close()
            process.stderr.close()
    token.check()
    if said is None:
        return Verdict(False, f"did not answer within {seconds:.0f} s")
    log.debug("image verifier", extra=fields(program=str(program), code=process.returncode, stderr=heard))
    reason = said or ("allowed" if process.returncode == 0 else "no reason given")
    if process.returncode < 0:
        reason = f"ended by signal {-process.returncode}: {reason}"
    return Verdict(process.returncode == 0, reason)


def _start_verifier(command: Sequence[str], stdin: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the verifier in a new process group, to kill all its children with it."""
    process = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
        start_new_session=True,
        bufsize=0,
    )
    settle(process.pid)
    return process


def _listen(process: subprocess.Popen[bytes], deadline: float) -> tuple[str | None, str]:
    """Read both streams until the process ends; None: the deadline passed first."""
    assert process.stdout is not None and process.stderr is not None
    ended = os.pidfd_open(process.pid)
    kept = {stream.fileno(): bytearray() for stream in (process.stdout, process.stderr)}
    try:
        poll = select.poll()
        for descriptor in (ended, *kept):
            os.set_blocking(descriptor, False)
            poll.register(descriptor, select.POLLIN)
        done = False
        while not done:
            left = deadline - time.monotonic()
            ready = {descriptor for descriptor, _ in poll.poll(max(0.0, left) * 1000)} if left > 0 else set()
            if not ready:
                return None, ""
            done = ended in ready
            for descriptor in kept if done else ready:
                # After the process ends, empty the pipes, even if a child still holds them open.
                while not _take_output(descriptor, kept[descriptor], poll) and done:
                    pass
    finally:
        os.close(ended)
    first, second = (_line(data) for data in kept.values())
    return first, second


def _take_output(descriptor: int, kept: bytearray, poll: select.poll) -> bool:
    """Read once, up to the limit on output; returns whether the pipe is empty for now."""
    try:
        data = os.read(descriptor, MOST_OUTPUT_BYTES)
    except BlockingIOError:
        return True
    if not data:
        with suppress(KeyError):
            poll.unregister(descriptor)
        return True
    kept += data[: MOST_OUTPUT_BYTES - len(kept)]
    # After the limit, wait only for the end of the process.
    return len(kept) >= MOST_OUTPUT_BYTES


def _line(untrusted: bytes | bytearray) -> str:
    text = bytes(untrusted).decode("utf-8", "replace")
    words = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return words if len(words) <= _MOST_REASON else words[:_MOST_REASON] + "..."


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the verifier and its children, who may outlive it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
