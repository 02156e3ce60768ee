"""``protect zone``: its verbs, with the arguments and the function of each."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from protectctl.command_errors import Command
from protectctl.selector import ZONE as FIELDS
from protectctl.selector import add_selector
from protectctl.usage.values import count
from protectctl.usage.verbs import ZONE, Verbs, add_protectd_verb, asks_cri, verbs_of
from protectctl.zone import commands, create, execute, logs, lost, resize, show_events, top


def add_arguments(noun: argparse.ArgumentParser) -> None:
    verbs = verbs_of(noun)
    _add_views(verbs)
    _add_changes(verbs)
    _add_sessions(verbs)
    _add_recovery(verbs)


def _add_views(verbs: Verbs) -> None:
    """Add the verbs that show zones."""
    verb = add_protectd_verb(verbs, "zone list", "list zones")
    add_selector(verb, FIELDS)
    text = "list domains without a record instead: other virtual machines, and lost zones"
    verb.add_argument("--strangers", action="store_true", help=text)
    verb = add_protectd_verb(verbs, "zone inspect", "show a zone, and what its agent reports")
    verb.add_argument("id", help=ZONE)
    verb = add_protectd_verb(verbs, "zone top", "show the CPU, memory and network use of zones")
    top.add_arguments(verb)
    add_selector(verb, FIELDS)
    text = "show what happens to zones and workloads, from now on"
    verb = add_protectd_verb(verbs, "zone events", text)
    verb.add_argument("id", nargs="?", default="", help=f"only one zone, until it is gone: {ZONE}")
    verb.add_argument("--all", action="store_true", help="first show the present state")
    add_selector(verb, FIELDS)


def _add_changes(verbs: Verbs) -> None:
    """Add the verbs that make, change and end zones."""
    create.add_arguments(add_protectd_verb(verbs, "zone create", "create an empty zone, without network"))
    resize.add_arguments(add_protectd_verb(verbs, "zone resize", "change a zone's size while it runs"), ZONE)
    for command, text in (
        ("zone destroy", "end zones and what runs in them"),
        ("zone pause", "stop everything in zones until they are resumed"),
        ("zone resume", "let paused zones run again"),
    ):
        verb = add_protectd_verb(verbs, command, text)
        verb.add_argument("ids", nargs="*", metavar="id", help=ZONE)
        add_selector(verb, FIELDS)


def _add_sessions(verbs: Verbs) -> None:
    """Add the verbs that run commands in zones or show their output."""
    verb = add_protectd_verb(verbs, "zone exec", "run a command in a zone's workload")
    verb.add_argument("--workload", default="", metavar="ID", help="which workload, if it has several")
    execute.add_arguments(verb, ZONE)
    text = "show what a zone wrote to its console; of a dead zone, the last lines"
    verb = add_protectd_verb(verbs, "zone console", text)
    verb.add_argument("id", help=ZONE)
    verb.add_argument("--lines", "-n", type=count, default=50, help="how many; 0: all (default: 50)")
    text = "go on with new output, until the zone ends"
    verb.add_argument("--follow", "-f", action="store_true", help=text)
    verb = add_protectd_verb(verbs, "zone logs", "show what a zone's containers wrote")
    logs.add_arguments(asks_cri(verb), ZONE)


def _add_recovery(verbs: Verbs) -> None:
    """Add the verbs for zones whose records are lost, and for the host's shutdown."""
    for command, text in (
        ("zone adopt", "take over domains of zones whose records are lost"),
        ("zone remove", "end domains of zones whose records are lost"),
    ):
        verb = add_protectd_verb(verbs, command, text)
        verb.add_argument("uuids", nargs="+", metavar="uuid", help="as zone list --strangers shows it")
    verb = add_protectd_verb(verbs, "zone shutdown", "end all zones in order, for the host's shutdown")
    text = "seconds for all of it; workloads that do not end by themselves are killed before that"
    verb.add_argument("--deadline", type=float, default=90.0, metavar="SECONDS", help=text)


COMMANDS: Mapping[str, Command] = {
    "zone list": commands.zone_list,
    "zone inspect": commands.zone_inspect,
    "zone top": top.top,
    "zone events": show_events.events,
    "zone create": create.create_zone,
    "zone resize": resize.resize,
    "zone destroy": commands.zone_destroy,
    "zone pause": commands.zone_pause,
    "zone resume": commands.zone_resume,
    "zone exec": execute.zone_exec,
    "zone console": commands.zone_console,
    "zone logs": logs.logs,
    "zone adopt": lost.zone_adopt,
    "zone remove": lost.zone_remove,
    "zone shutdown": lost.zone_shutdown,
}
