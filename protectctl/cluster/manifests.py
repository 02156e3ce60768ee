"""``protect generate --fill`` and ``--critical``: change manifests in a folder, or show the differences."""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.objects.manifests import folder, plans
from cluster.objects.manifests.document import ManifestError, Planner
from cluster.objects.manifests.plans import DEFAULT_LABEL, Critical
from cluster.objects.platforms import PLACEHOLDER, NodePlatform
from protectctl import show
from protectctl.command_errors import CheckFailed, CommandFailed


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments: which folder, and what to change in it."""
    group = verb.add_argument_group("manifests in a folder, to be changed")
    which = group.add_mutually_exclusive_group()
    text = f"give pods of the class {PLACEHOLDER} the class of the platform"
    which.add_argument("--fill", type=Path, metavar="DIR", help=text)
    text = f"have DaemonSets tolerate {plans.TAINT} and prefer nodes for add-ons"
    which.add_argument("--critical", type=Path, metavar="DIR", help=text)
    text = "only this DaemonSet, Deployment or StatefulSet; may be repeated"
    group.add_argument("--addon", action="append", default=[], metavar="NAMESPACE/NAME", help=text)
    text = f"label of nodes for add-ons; default: {DEFAULT_LABEL}"
    group.add_argument("--addon-label", default=DEFAULT_LABEL, metavar="KEY[=VALUE]", help=text)
    group.add_argument("--dry-run", action="store_true", help="only show the differences")


def check_usage(options: argparse.Namespace) -> bool:
    """Whether to change manifests.  Ends with status 2 if arguments contradict each other."""
    if not options.critical and (options.addon or options.addon_label != DEFAULT_LABEL):
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
        return _make_critical(options)
    if len(platforms) > 1:
        known = ", ".join(one.name for one in platforms)
        raise CommandFailed(f"each platform has a class of its own: name one with --platform ({known})")
    runtime_class = platforms[0].default_class
    if runtime_class == PLACEHOLDER:
        return show.note(f"the class of these nodes is {runtime_class} itself: nothing to fill")
    plan = functools.partial(plans.fill, runtime_class=runtime_class)
    if not _change(options.fill, plans.PODS, plan, options.dry_run):
        raise CheckFailed


def _make_critical(options: argparse.Namespace) -> None:
    try:
        wanted = Critical(options.addon_label, frozenset(options.addon))
    except ValueError as error:
        options.refuse(f"argument --addon-label: {error}")
    done = _change(options.critical, plans.ADDONS, wanted.plan, options.dry_run)
    for name in sorted(wanted.missing):
        show.note(f"protect: {options.critical}: no manifest has the add-on {name}")
    if wanted.missing or not done:
        raise CheckFailed


def _change(top: Path, words: re.Pattern[str], plan: Planner, dry_run: bool) -> bool:
    """Change the manifests and print the changes and errors; returns whether all files could be changed."""
    done = True
    for path in folder.manifests(top):
        try:
            sys.stdout.write(_shown(folder.change(path, words, plan, dry_run=dry_run)))
        except ManifestError as error:
            done = False
            show.note(f"protect: {path}{f':{error.line}' if error.line else ''}: {error}")
        except OSError as error:
            done = False
            show.note(f"protect: {path}: {error.strerror or error}")
    return done


def _shown(text: str) -> str:
    """A text to print.  On a terminal control characters are escaped; programs get it unchanged."""
    if not text or not sys.stdout.isatty():
        return text
    return "".join(f"{show.plain(line)}\n" for line in text.removesuffix("\n").split("\n"))
