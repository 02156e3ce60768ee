"""Reads passwords: from a terminal, without echo, or from standard input."""

from __future__ import annotations

import getpass
import sys
import warnings

from protectctl.command_errors import CommandFailed

_MOST_BYTES = 1 << 16


def read_password(prompt: str) -> str:
    """Read a password of one line.  CommandFailed: no input, or the terminal would echo the password."""
    if not sys.stdin.isatty():
        return sys.stdin.readline(_MOST_BYTES).rstrip("\r\n")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)
            return getpass.getpass(prompt)
    except EOFError:
        raise CommandFailed("no password was typed") from None
    except getpass.GetPassWarning:
        raise CommandFailed("the terminal would show the password: give it on standard input") from None
