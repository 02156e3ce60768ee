# PYTHON_ARGCOMPLETE_OK
"""``protect``: shows zones, workloads and images, manages images, and makes a cluster's objects.

Exit status: 0 done, 1 refused, failed or damaged, 2 wrong usage, 3 no daemon answers, 130 interrupted; of
``zone exec`` and ``workload exec`` the status of the command in the zone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio

from daemonkit.faults import Fault
from protectctl.command_errors import CheckFailed, CommandEnded, CommandFailed
from protectctl.nouns import command
from protectctl.output import plain
from protectctl.usage.arguments import parser as parser

_INTERRUPTED = 130
_PROBE_SECONDS = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for words
        from protectctl.usage import completion

        completion.complete(parser())
    options = parser(words[0] if words else "").parse_args(words)
    try:
        if "username" in options:
            # Outside the event loop, because inside Ctrl-C would not interrupt the prompt.
            options.password = _password(options.username)
        asyncio.run(command(options.command)(options))
    except CheckFailed:
        return 1
    except CommandEnded as ended:
        return ended.status
    except (CommandFailed, Fault) as error:
        sys.stderr.write(f"protect: {plain(str(error))}\n")
        return 1
    except grpc.aio.AioRpcError as error:
        return _explain(error, options)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, as in ``protect watch | head``.
        sys.stderr.close()
    return 0


def _password(username: str) -> str:
    """Read a user's password, blocking; "" without a user name."""
    from protectctl.image import passwords

    return passwords.read_password(f"Password of {username}: ") if username else ""


def _explain(error: grpc.aio.AioRpcError, options: argparse.Namespace) -> int:
    # A daemon also answers UNAVAILABLE if a registry or a zone does not answer the daemon.
    sockets = [getattr(options, name) for name in ("socket", "cri_socket") if name in options]
    away = next((path for path in sockets if not _is_served(path)), None)
    if error.code() is not grpc.StatusCode.UNAVAILABLE or away is None:
        sys.stderr.write(f"protect: {plain(error.details() or '')} [{error.code().name}]\n")
        return 1
    sys.stderr.write(f"protect: nobody serves {away}: start the daemon, or name its socket\n")
    return 3


def _is_served(path: Path) -> bool:
    """Whether a process accepts connections on the socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
