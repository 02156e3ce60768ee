"""Helpers for the parsers of nouns: they add verbs, and the common arguments of verbs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeAlias

from protectctl.output import FORMATS

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

PROTECT_SOCKET = Path("/run/protect/protect.sock")
CRI_SOCKET = Path("/run/xenpod/cri.sock")
ZONE = "the zone's id or name, or an unambiguous prefix of either"
ID = "the id, or an unambiguous prefix of it"


def verbs_of(noun: argparse.ArgumentParser) -> Verbs:
    """The verbs of a noun.  A command line has to name a verb."""
    return noun.add_subparsers(required=True)


def add_verb(verbs: Verbs, command: str, text: str) -> argparse.ArgumentParser:
    """Add a verb.  ``command``: its noun and its name."""
    verb = verbs.add_parser(command.split()[-1], help=text, description=text)
    return named(verb, command)


def add_protectd_verb(verbs: Verbs, command: str, text: str) -> argparse.ArgumentParser:
    """Add a verb served by protectd."""
    return asks_protectd(add_verb(verbs, command, text))


def named(parser: argparse.ArgumentParser, command: str) -> argparse.ArgumentParser:
    """Store the name of the command in the parser."""
    parser.set_defaults(command=command, refuse=parser.error)
    return parser


def asks_protectd(parser: argparse.ArgumentParser, *, inherited: bool = False) -> argparse.ArgumentParser:
    """Add the arguments of a command that asks protectd.  ``inherited``: the noun already has them."""

    def default(value: object) -> object:
        return argparse.SUPPRESS if inherited else value

    text = "socket of protectd"
    parser.add_argument("--socket", type=Path, default=default(PROTECT_SOCKET), metavar="PATH", help=text)
    parser.add_argument("--output", "-o", choices=FORMATS, default=default("table"))
    return parser


def asks_cri(parser: argparse.ArgumentParser, *, inherited: bool = False) -> argparse.ArgumentParser:
    """Add the socket of xenpod-cri.  ``inherited``: the noun already has the argument."""
    default = argparse.SUPPRESS if inherited else CRI_SOCKET
    text = "socket of xenpod-cri"
    parser.add_argument("--cri-socket", type=Path, default=default, metavar="PATH", help=text)
    return parser
