"""``audit verify``: checks audit logs, from their folders or from journalctl's output."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from daemonkit.observe.audit.chain import ChainLink, Verified, verify
from daemonkit.observe.audit.log_files import verify_folder

FOLDERS = (Path("/var/lib/protect/audit/protectd"), Path("/var/lib/xenpod/audit/xenpod-cri"))
_STDIN = Path("-")


def add_arguments(verb: argparse.ArgumentParser) -> None:
    usual = " and ".join(map(str, FOLDERS))
    text = f"folders of audit logs (default: {usual}, if they are there); -: lines on standard input"
    verb.add_argument("folders", nargs="*", type=Path, metavar="DIR", help=text)
    text = "an entry that was written down before, and must be there still: of one log"
    verb.add_argument("--contains", type=_link, metavar="SEQ:HASH", help=text)


def check_logs(options: argparse.Namespace) -> bool:
    """Check the logs, and print the result for each; returns whether all are sound."""
    folders: list[Path] = options.folders or [one for one in FOLDERS if one.is_dir()]
    if not folders:
        sys.stdout.write("there is no audit log\n")
        return False
    return all([_one(folder, options.contains) for folder in folders])


def _one(folder: Path, anchor: ChainLink | None) -> bool:
    if folder == _STDIN:
        found = verify(sys.stdin.buffer, anchor)
    elif folder.is_dir():
        found = verify_folder(folder, anchor)
    else:
        found = Verified(wrong=["there is no such folder"])
    for wrong in found.wrong:
        sys.stdout.write(f"{folder}: {wrong}\n")
    if not found.wrong:
        last = f"{found.first} to {found.last}" if found.entries else "none"
        sys.stdout.write(f"{folder}: {found.entries} entries in order: {last}\n")
    return not found.wrong


def _link(text: str) -> ChainLink:
    seq, _, digest = text.partition(":")
    if not (seq.isdecimal() and len(digest) == 64):
        raise argparse.ArgumentTypeError(f"{text!r} is not SEQ:HASH, as audit verify shows it")
    return ChainLink(int(seq), digest)
