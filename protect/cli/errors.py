"""How a command fails without a status of gRPC."""

from __future__ import annotations


class CheckFailed(Exception):
    """The command ran, and found something damaged, which it has shown."""


class CommandFailed(Exception):
    """The command could not do what was asked; the text says why."""
