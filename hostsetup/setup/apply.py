"""Carries out a plan, and undoes a set-up.  A durable record of the former state comes first.

The record names every file to be written, with its content before and after.  The next run can therefore
finish or undo a set-up that was interrupted at any step.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from daemonkit.faults import Broken
from hostsetup.setup.change import FileChange, Plan
from hostsetup.setup.host import Host
from hostsetup.setup.plan import CONSOLES, FORWARDING, GRUB

RECORD = "/var/lib/xenpod-setup/done.json"
_VERSION = 1
_SYSCTL = "/usr/lib/systemd/systemd-sysctl"
"""The program that reads these files at boot; present without procps."""


@dataclass(frozen=True, slots=True)
class Done:
    """Record of all runs: files before the first and after the last run, and enabled units."""

    files: tuple[FileChange, ...] = ()
    units: tuple[str, ...] = ()


def recorded(host: Host) -> Done:
    """Return the record; Broken: the file cannot be read."""
    text = host.read(RECORD)
    if text is None:
        return Done()
    try:
        told = json.loads(text)
        if told["version"] != _VERSION:
            raise ValueError(f"it is of version {told['version']}")
        files = tuple(
            FileChange(one["path"], one["before"], one["after"], one["why"]) for one in told["files"]
        )
        return Done(files, tuple(str(unit) for unit in told["units"]))
    except (ValueError, KeyError, TypeError) as error:
        hint = "it is not changed; repair it, or move it away and undo by hand"
        raise Broken("read the record of set-ups", RECORD, str(error), hint) from error


def apply(host: Host, plan: Plan) -> None:
    """Carry out a plan.  Refused, OSError: earlier changes stay, and are recorded."""
    _record(host, _joined(recorded(host), plan))
    for change in plan.files:
        host.write(change.path, change.after)
    if host.live:
        _follow(host, {change.path for change in plan.files})
    for unit in plan.units:
        host.enable(unit)


def undo(host: Host, say: Callable[[str], None]) -> bool:
    """Undo all set-ups; False: files that others have changed since keep their content and their record."""
    done = recorded(host)
    for unit in done.units:
        if host.is_enabled(unit):
            host.disable(unit)
            say(f"disabled {unit}")
    left, restored = [], set()
    for change in done.files:
        now = host.read(change.path)
        if now == change.after and now != change.before:
            host.write(change.path, change.before)
            restored.add(change.path)
            say(f"{'removed' if change.before is None else 'restored'} {change.path}")
        elif now != change.before:
            left.append(change)
            say(f"left {change.path} alone: it has been changed since")
    if host.live:
        _follow(host, restored)
    if left:
        _record(host, Done(tuple(left)))
    else:
        host.write(RECORD, None)
    return not left


def _joined(before: Done, plan: Plan) -> Done:
    """For each file, the content that the first run found, and the content after this run."""
    files = {change.path: change for change in before.files}
    for change in plan.files:
        first = files.get(change.path)
        # If others have changed the file since, an undo restores their content.
        if first is not None and change.before in (first.before, first.after):
            change = FileChange(change.path, first.before, change.after, change.why)
        files[change.path] = change
    return Done(tuple(files.values()), tuple(dict.fromkeys((*before.units, *plan.units))))


def _record(host: Host, done: Done) -> None:
    files = [
        {"path": one.path, "before": one.before, "after": one.after, "why": one.why} for one in done.files
    ]
    text = json.dumps({"version": _VERSION, "files": files, "units": done.units}, indent=1)
    host.write(RECORD, f"{text}\n")


def _follow(host: Host, paths: set[str]) -> None:
    """Apply those files to the running host that are only read at boot."""
    if GRUB in paths:
        host.run("update-grub")
    if CONSOLES in paths and host.read(CONSOLES) is not None:
        host.run("systemd-tmpfiles", "--create", CONSOLES)
    if FORWARDING in paths and host.read(FORWARDING) is not None:
        host.run(_SYSCTL, FORWARDING)
