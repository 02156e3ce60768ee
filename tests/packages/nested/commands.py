"""In a Debian under QEMU: runs the commands from a port of virtio-serial, in order.

A line of JSON has the command; the answer is a line with exit status and output (nested/debian.py).  The port
ends with the machine.  Standard library only, because the program runs before any package of the project.
"""

import json
import subprocess
import sys
from io import FileIO

_LIMIT = 1 << 20
"""Bytes of sent output: the last bytes."""


def main() -> None:
    with FileIO(sys.argv[1], "r+") as port:
        port.write(b'{"status": 0, "output": "ready"}\n')
        while line := _line(port):
            done = _run(*json.loads(line))
            answer = memoryview(json.dumps(done).encode() + b"\n")
            while answer:
                answer = answer[port.write(answer) :]


def _line(port: FileIO) -> bytes:
    """The next line, as soon as it is complete; empty: no reader at the other end."""
    read = b""
    while not read.endswith(b"\n"):
        part = port.read(65536)
        if not part:
            return b""
        read += part
    return read


def _run(command: list[str], seconds: float) -> dict[str, object]:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return {"status": 124, "output": f"{_text(late.output or b'')}\nnot done within {seconds:.0f} s"}
    except OSError as error:
        return {"status": 127, "output": str(error)}
    return {"status": done.returncode, "output": _text(done.stdout)}


def _text(output: bytes) -> str:
    return output[-_LIMIT:].decode(errors="replace")


if __name__ == "__main__":
    main()
