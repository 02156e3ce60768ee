"""``protect host``: its verbs, with the arguments and the function of each."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from protectctl.command_errors import Command
from protectctl.host import capacity, console, info, overhead
from protectctl.usage.values import count
from protectctl.usage.verbs import Verbs, add_verb, asks_cri, asks_protectd, named


def add_arguments(noun: argparse.ArgumentParser) -> None:
    asks_cri(asks_protectd(named(noun, "host")))
    text = "info (the default), capacity, overhead, console"
    verbs = noun.add_subparsers(metavar="VERB", help=text)
    asks_cri(_verb(verbs, "host info", "show toolstack, memory, handlers, notices"), inherited=True)
    verb = _verb(verbs, "host capacity", "show the memory of zones: promised, free, reserved")
    verb.add_argument("--follow", "-f", action="store_true", help="go on with each change")
    text = "measure what a zone takes beside its pod, and print the overhead of a RuntimeClass"
    overhead.add_arguments(_verb(verbs, "host overhead", text))
    verb = _verb(verbs, "host console", "show Xen's own console (xl dmesg)")
    verb.add_argument("--lines", "-n", type=count, default=0, help="only the last N; 0: all (default)")


def _verb(verbs: Verbs, command: str, text: str) -> argparse.ArgumentParser:
    return asks_protectd(add_verb(verbs, command, text), inherited=True)


COMMANDS: Mapping[str, Command] = {
    "host": info.host,
    "host info": info.host,
    "host capacity": capacity.capacity,
    "host overhead": overhead.overhead,
    "host console": console.console,
}
