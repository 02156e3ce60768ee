"""Short programs of the host, such as xl: run to their end, with a deadline and bounded output."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence

from daemonkit.faults import Broken, Missing, TooLate
from daemonkit.host.children import settle

_TIMEOUT_SECONDS = 20.0
_LIMIT_BYTES = 4 << 20


def run_program(
    command: Sequence[str], *, timeout: float = _TIMEOUT_SECONDS, limit: int = _LIMIT_BYTES
) -> bytes:
    """The program's output, both streams together, at most ``limit`` bytes.  Blocks.

    Missing: not installed; TooLate: it did not end in time; Broken: it failed, with its last line.
    """
    operation = f"run {' '.join(command)}"
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except FileNotFoundError:
        raise Missing(operation, "", f"{command[0]} is not installed") from None
    except OSError as error:
        raise Broken(operation, "", error.strerror or str(error)) from error
    late = threading.Event()

    def give_up() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(timeout, give_up)
    with process:
        settle(process.pid)
        timer.start()
        try:
            assert process.stdout is not None
            said: bytes = process.stdout.read(limit)
            is_whole = not process.stdout.read(1)
            if not is_whole:
                process.kill()  # the limit is reached, and the rest would fill the pipe
            status = process.wait()
        finally:
            timer.cancel()
            process.kill()
    if late.is_set():
        raise TooLate(operation, "", f"it did not end within {timeout:g} s")
    if status and is_whole:
        lines = said.decode(errors="replace").strip().splitlines()
        raise Broken(operation, "", f"exit status {status}: {lines[-1] if lines else 'it said nothing'}")
    return said
