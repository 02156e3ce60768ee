"""``protect generate --fill`` and ``--critical``: change manifests in a folder, or show the differences."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.objects.manifests import critical, fill, folder
from cluster.objects.manifests.critical import Critical
from cluster.objects.manifests.folder import FolderChanges
from cluster.objects.platforms import PLACEHOLDER, NodePlatform
from protectctl import show
from protectctl.errors import CheckFailed, CommandFailed


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments: which folder, and what to change in it."""
    group = verb.add_argument_group("manifests in a folder, changed in place")
    which = group.add_mutually_exclusive_group()
    text = f"give pods of the class {PLACEHOLDER} the class of the platform"
    which.add_argument("--fill", type=Path, metavar="DIR", help=text)
    text = f"have DaemonSets tolerate {critical.TAINT} and prefer nodes for add-ons"
    which.add_argument("--critical", type=Path, metavar="DIR", help=text)
    text = "only this DaemonSet, Deployment or StatefulSet; may be repeated"
    group.add_argument("--addon", action="append", default=[], metavar="NAMESPACE/NAME", help=text)
    text = f"label of nodes for add-ons; default: {critical.DEFAULT_LABEL}"
    group.add_argument("--addon-label", default=critical.DEFAULT_LABEL, metavar="KEY[=VALUE]", help=text)
    group.add_argument("--dry-run", action="store_true", help="only show the differences")


def check_usage(options: argparse.Namespace) -> bool:
    """Whether to change manifests.  Ends with status 2 if arguments contradict each other."""
    if not options.critical and (options.addon or options.addon_label != critical.DEFAULT_LABEL):
        options.refuse("--addon and --addon-label are for --critical")
    if not (options.fill or options.critical):
        if options.dry_run:
            options.refuse("--dry-run is for --fill and --critical")
        return False
    if options.what or options.to:
        options.refuse("--fill and --critical change manifests: they make nothing else, and have no --to")
    return True


def change(options: argparse.Namespace, platforms: Sequence[NodePlatform]) -> None:
    """Change the manifests.  CheckFailed: some file could not be changed, which was shown; the others were.

    ``platforms`` are for --fill; --critical needs none.
    """
    if options.critical:
        _make_critical(options)
    else:
        _fill(options, platforms)


def _fill(options: argparse.Namespace, platforms: Sequence[NodePlatform]) -> None:
    if len(platforms) > 1:
        known = ", ".join(one.name for one in platforms)
        raise CommandFailed(f"each platform has a class of its own: name one with --platform ({known})")
    runtime_class = platforms[0].default_class
    if runtime_class == PLACEHOLDER:
        show.note(f"the class of these nodes is {runtime_class} itself: nothing to fill")
    _report(options, folder.change(options.fill, _filling(runtime_class), dry_run=options.dry_run))


def _filling(runtime_class: str) -> folder.Planner:
    return lambda text: fill.fill(text, runtime_class)


def _make_critical(options: argparse.Namespace) -> None:
    try:
        wanted = Critical(options.addon_label, frozenset(options.addon))
    except ValueError as error:
        options.refuse(f"argument --addon-label: {error}")
    changes = folder.change(options.critical, wanted.plan, dry_run=options.dry_run)
    changes.errors += [f"{options.critical}: no manifest has the add-on {name}" for name in wanted.missing()]
    _report(options, changes)


def _report(options: argparse.Namespace, changes: FolderChanges) -> None:
    """Write differences or changes to stdout, notes and errors to stderr."""
    if options.dry_run:
        sys.stdout.write("".join(map(_shown, changes.differences)))
    else:
        sys.stdout.write("".join(f"{show.plain(line)}\n" for line in changes.changed))
    sys.stdout.flush()
    for line in [*changes.notes, *changes.errors]:
        show.note(f"protect: {line}")
    if changes.errors:
        raise CheckFailed


def _shown(difference: str) -> str:
    """A difference to print.  On a terminal control characters are escaped; programs get it unchanged."""
    if not sys.stdout.isatty():
        return difference
    return "".join(f"{show.plain(line)}\n" for line in difference.removesuffix("\n").split("\n"))
