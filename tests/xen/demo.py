"""``make demo-xen``: the story of ``make demo`` on real Xen, in QEMU's software emulation."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.xen import machine, prepare, run
from tests.xen.parts import NotInstalled

RESULTS = "/run/nested/results"
"""In dom0: the results are in ``job/results`` of the folder afterwards."""

_DEADLINE = 600.0


def main() -> int:
    """Exit status 0 when every step succeeded in dom0."""
    parser = argparse.ArgumentParser(prog="tests.xen.demo", description=__doc__)
    parser.add_argument("--picture", type=Path, help="write what is shown as an SVG, too")
    picture: Path | None = parser.parse_args().picture
    run.end_in_order()
    colour = {"FORCE_COLOR": "1"} if sys.stdout.isatty() else {}
    columns = {"COLUMNS": str(os.get_terminal_size().columns)} if sys.stdout.isatty() else {}
    sys.stdout.write("booting Xen in QEMU (no hardware support needed) ...\n")
    sys.stdout.flush()
    drawn = ["--picture", f"{RESULTS}/demo.svg"] if picture else []
    with tempfile.TemporaryDirectory(prefix="xenpod-nested-") as folder:
        try:
            prepare.guest_parts()
            outcome = machine.run(
                [sys.executable, "-m", "tools.localnode.demo", "--toolstack", "libxl", *drawn],
                folder=Path(folder),
                deadline=_DEADLINE,
                environment={**colour, **columns},
            )
        except NotInstalled as error:
            sys.stderr.write(f"{error}\n")
            return run.FAILED
        if picture and outcome.status == 0:
            shutil.copy(Path(folder, "job/results/demo.svg"), picture)
        return run.report(outcome)


if __name__ == "__main__":
    sys.exit(main())
