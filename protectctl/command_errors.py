"""The type of a command, and its errors beside gRPC statuses."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine
from typing import Any

Command = Callable[[argparse.Namespace], Coroutine[Any, Any, None]]


class CheckFailed(Exception):
    """The command has found a fault, and has shown the fault."""


class CommandFailed(Exception):
    """The command could not do its work; the text says why."""


class CommandEnded(Exception):
    """The process run by the command has ended; its status is also the command's."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status
