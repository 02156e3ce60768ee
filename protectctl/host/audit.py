"""``protect audit``: checks audit logs without a daemon."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping

from daemonkit.observe.audit import command
from protectctl.command_errors import CheckFailed, Command
from protectctl.usage.verbs import add_verb, verbs_of


def add_arguments(noun: argparse.ArgumentParser) -> None:
    text = "check that nothing of an audit log was changed, moved or cut out"
    command.add_arguments(add_verb(verbs_of(noun), "audit verify", text))


async def audit_verify(options: argparse.Namespace) -> None:
    """CheckFailed: a log has a fault, and the fault has been shown."""
    if not await asyncio.to_thread(command.check_logs, options):
        raise CheckFailed


COMMANDS: Mapping[str, Command] = {"audit verify": audit_verify}
