"""The arguments of ``protect``."""

from __future__ import annotations

import argparse

from protectctl.nouns import NOUNS

_STATUSES = """\
exit status:
  0    done
  1    refused, failed, or found damage (image verify) or a fault (doctor)
  2    wrong usage
  3    no daemon serves the socket
  130  interrupted
  zone exec and workload exec end with the exit status of their command"""


def parser(word: str = "") -> argparse.ArgumentParser:
    """The parser of all arguments; with ``word``, the first of a command line, of its noun only."""
    top_level = argparse.ArgumentParser(
        prog="protect",
        description="Zones, workloads and images of this host.",
        epilog=_STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top_level.add_argument("--version", action="version", version=f"protect {_version()}")
    parsers = top_level.add_subparsers(required=True, metavar="COMMAND")
    for name, noun in NOUNS.items():
        added = parsers.add_parser(name, help=noun.text, description=noun.text)
        if word in ("", name):
            noun.load().add_arguments(added)
    return top_level


def _version() -> str:
    from importlib.metadata import version

    return version("xenpod")
