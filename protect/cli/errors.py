"""Errors of commands that are not a gRPC status."""

from __future__ import annotations


class CheckFailed(Exception):
    """The command has found something wrong, and has shown what."""


class CommandFailed(Exception):
    """The command could not do what was asked; the text says why."""
