"""What a command is, and its errors that are not a gRPC status."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine
from typing import Any

Command = Callable[[argparse.Namespace], Coroutine[Any, Any, None]]


class CheckFailed(Exception):
    """The command has found something wrong, and has shown what."""


class CommandFailed(Exception):
    """The command could not do what was asked; the text says why."""


class CommandEnded(Exception):
    """What the command ran has ended, with a status that is the command's own, too."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status
