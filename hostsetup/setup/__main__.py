"""``xenpod-setup``: makes a Debian machine a node that runs xenpod.

Exit status: 0 done, or nothing to do; 1 refused, failed, or partly left undone; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from daemonkit.daemon import add_version
from daemonkit.faults import Fault
from hostsetup.setup.apply import apply, recorded, undo
from hostsetup.setup.host import MIB, Host, MachineSize
from hostsetup.setup.plan import Wishes, plan

_PROGRAM = "xenpod-setup"


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    options = parser().parse_args(arguments)
    try:
        if not options.root.is_dir():
            raise NotADirectoryError(20, "not a folder", str(options.root))
        host = Host(options.root)
        return _undo(host, options.dry_run) if options.undo else _set_up(host, options)
    except (Fault, ValueError, OSError) as error:
        sys.stderr.write(f"{_PROGRAM}: {error}\n")
        return 1


def parser() -> argparse.ArgumentParser:
    text = (
        "Makes a Debian machine a node: settings of GRUB, Xen, xendomains, crictl and the kubelet, units "
        "enabled.  Shows each change; settings that are right already stay."
    )
    top = argparse.ArgumentParser(prog=_PROGRAM, description=text)
    add_version(top)
    top.add_argument("--dry-run", action="store_true", help="only show what would be done")
    top.add_argument("--undo", action="store_true", help="undo all that this command has done")
    text = 'memory of dom0: a part of the machine\'s, or a size such as "8GiB"; default: 35%%'
    top.add_argument("--dom0-memory", metavar="SIZE", help=text)
    text = "vCPUs of dom0; default: a quarter of the machine's CPUs, at least 2"
    top.add_argument("--dom0-cpus", type=int, metavar="N", help=text)
    text = "a tree to set up instead of this machine, such as an image's; nothing is run in it"
    top.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help=text)
    text = "with --root: memory in MiB of the machine that it is for; default: this one's"
    top.add_argument("--memory-mib", type=int, metavar="N", help=text)
    text = "with --root: CPUs of the machine that it is for; default: this one's"
    top.add_argument("--cpus", type=int, metavar="N", help=text)
    return top


def _set_up(host: Host, options: argparse.Namespace) -> int:
    here = host.machine()
    memory = here.memory if options.memory_mib is None else options.memory_mib * MIB
    machine = MachineSize(memory, here.cpus if options.cpus is None else options.cpus)
    wanted = plan(host, machine, Wishes(options.dom0_memory, options.dom0_cpus))
    for change in wanted.files:
        _say(change.shown())
    for unit in wanted.units:
        _say(f"{unit}: enabled, starts at each boot")
    if wanted.empty:
        _say("nothing to do: this is a node already")
        return 0
    if not options.dry_run:
        _as_root(host)
        apply(host, wanted)
    _say(
        "nothing was changed (--dry-run); it would remain to:" if options.dry_run else "done; it remains to:"
    )
    for note in wanted.notes or ("start the units, or reboot",):
        _say(f"  {note}")
    return 0


def _undo(host: Host, dry_run: bool) -> int:
    done = recorded(host)
    if dry_run:
        for change in done.files:
            what = "is removed" if change.before is None else "gets its former content"
            _say(f"{change.path}: {what}, unless it has been changed since")
        for unit in done.units:
            _say(f"{unit}: disabled")
    if not done.files and not done.units:
        _say("nothing to undo")
    elif not dry_run:
        _as_root(host)
        return 0 if undo(host, _say) else 1
    return 0


def _as_root(host: Host) -> None:
    if host.live and os.geteuid() != 0:
        raise PermissionError(1, "only root can change this machine; --dry-run shows what would be done")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
