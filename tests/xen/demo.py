"""``make demo-xen``: the story of ``make demo`` on real Xen, in QEMU's software emulation."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.xen import machine, prepare, run
from tests.xen.parts import NotInstalled

_DEADLINE = 600.0


def main() -> int:
    """Exit status 0 when every step succeeded in dom0."""
    run.end_in_order()
    colour = {"FORCE_COLOR": "1"} if sys.stdout.isatty() else {}
    columns = {"COLUMNS": str(os.get_terminal_size().columns)} if sys.stdout.isatty() else {}
    sys.stdout.write("booting Xen in QEMU (no hardware support needed) ...\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="xenpod-nested-") as folder:
        try:
            prepare.guest_parts()
            outcome = machine.run(
                [sys.executable, "-m", "localnode.demo", "--toolstack", "libxl"],
                folder=Path(folder),
                deadline=_DEADLINE,
                environment={**colour, **columns},
            )
        except NotInstalled as error:
            sys.stderr.write(f"{error}\n")
            return run.FAILED
        return run.report(outcome)


if __name__ == "__main__":
    sys.exit(main())
