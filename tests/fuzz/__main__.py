"""Fuzzers for longer runs by hand: ``python -m tests.fuzz streams --seconds 600``."""

from __future__ import annotations

import argparse
import importlib
import sys


def main() -> int:
    """Run one fuzzer for a while; the first failure ends the run."""
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("name", help="a module of this folder")
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    importlib.import_module(f"tests.fuzz.{arguments.name}").main(arguments.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
