"""Runs a command on real Xen: ``python -m tests.xen.run [options] -- COMMAND...``.

The exit code is the command's; 125 when the machine failed.  Results that the command puts into
``/run/nested/results`` are in ``FOLDER/job/results`` afterwards.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
from pathlib import Path

from tests.xen import machine
from tests.xen.parts import NotInstalled

FAILED = 125


def main() -> int:
    arguments = _parse()
    end_in_order()
    with tempfile.TemporaryDirectory(prefix="xenpod-nested-") as scratch:
        folder = (arguments.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            outcome = machine.run(
                arguments.command,
                folder=folder,
                deadline=arguments.deadline,
                environment=dict(pair.split("=", 1) for pair in arguments.env),
                hypervisor=arguments.xen,
                hardware=shlex.split(arguments.qemu),
            )
        except NotInstalled as error:
            sys.stderr.write(f"{error}\n")
            return FAILED
        return report(outcome)


def end_in_order() -> None:
    """SIGTERM raises an error, and the machine is switched off."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))


def report(outcome: machine.Outcome) -> int:
    """Our exit code; if not 0, also the cause and the end of dom0's console."""
    if outcome.status != 0:
        _show(outcome)
    return FAILED if outcome.status is None else outcome.status


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.xen.run", description=__doc__)
    parser.add_argument("--folder", type=Path, help="keep console.log and results here")
    parser.add_argument("--deadline", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--xen", default="", metavar="WORDS", help="more of Xen's command line")
    parser.add_argument("--qemu", default="", metavar="ARGUMENTS", help="more of the machine's hardware")
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


def _show(outcome: machine.Outcome, tail: int = 8192) -> None:
    text = outcome.console.read_bytes()[-tail:].decode(errors="replace") if outcome.console.exists() else ""
    reason = outcome.cause or f"the command's exit code is {outcome.status}"
    sys.stderr.write(f"\n--- end of dom0's console ---\n{text}\n--- {reason}, {outcome.seconds:.0f} s ---\n")


if __name__ == "__main__":
    sys.exit(main())
