"""Cost of hostile neighbours for an honest pod: ``python -m tests.bench.neighbours``; ``--only`` some kinds.

First beside hostile zones (their agents, programs and requests), then beside attackers of xenpod-cri
(registries, images, clients, pods).
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from tests.bench.neighbours import attacked, tables, zones
from tests.bench.neighbours.attacked import Attacked, AttackPlan
from tests.bench.neighbours.hostile import Requests, mixes
from tests.bench.neighbours.zones import Beside
from tests.support.session import leaving


def main() -> int:
    """Prints the tables."""
    arguments = _parse()
    folder = Path(tempfile.mkdtemp(prefix="xenpod-bench-"))
    try:
        with leaving.nothing_left(folder):
            beside, rows = leaving.run(_measure(folder, arguments))
        console = Console(width=None if sys.stdout.isatty() else 180)
        if beside:
            zones.show(beside, console)
        if rows:
            tables.show(rows, console)
    except asyncio.CancelledError:
        return 1
    finally:
        shutil.rmtree(folder)
    return 0


async def _measure(folder: Path, arguments: argparse.Namespace) -> tuple[list[Beside], list[Attacked]]:
    beside: list[Beside] = []
    rows: list[Attacked] = []
    if any(arguments.only in mix.name for mix in mixes(arguments.neighbours)):
        requests = Requests(0, 0) if arguments.equal else Requests()
        beside = await zones.measure(
            folder / "n", arguments.neighbours, arguments.seconds, arguments.only, requests
        )
    if chosen := attacked.rows(arguments.only):
        plan = AttackPlan(arguments.attack_seconds, arguments.patience, arguments.recovery)
        rows = await attacked.measure(folder / "a", plan, chosen)
    return beside, rows


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.bench.neighbours", description=__doc__)
    parser.add_argument("--neighbours", type=int, default=20, help="hostile zones of every kind together")
    parser.add_argument("--seconds", type=float, default=zones.SECONDS, help="each kind of zone, half alone")
    parser.add_argument(
        "--attack-seconds",
        type=float,
        default=attacked.SECONDS,
        help="alone, and again beside each kind of attackers of xenpod-cri",
    )
    parser.add_argument(
        "--patience", type=float, default=attacked.PATIENCE, help="seconds until a call has no answer"
    )
    parser.add_argument(
        "--recovery",
        type=float,
        default=attacked.RECOVERY,
        help="seconds from an attack's end to the memory after",
    )
    parser.add_argument(
        "--equal",
        action="store_true",
        help="all pods ask for as much CPU; else honest ones for 100m, hostile ones for none",
    )
    parser.add_argument("--only", default="", help="neighbours or attackers whose name has this")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
