"""Starts a daemon: reads the command line and the configuration, sets up logging, and serves."""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeVar

from daemonkit import checkpoints, lifecycle, logs
from daemonkit.config import about, load_config
from daemonkit.convert import WrongKey
from daemonkit.faults import Fault


class FaultSettings(Protocol):
    """The table ``[faults]``: fault injection, for tests."""

    @property
    def kill_at(self) -> str:
        """See ``daemonkit.checkpoints``."""


class DaemonConfig(Protocol):
    """The keys in every daemon's configuration."""

    @property
    def log_level(self) -> str:
        """See ``daemonkit.logs``."""

    @property
    def faults(self) -> FaultSettings: ...


C = TypeVar("C", bound=DaemonConfig)


def main(
    name: str,
    description: str,
    config_class: type[C],
    default_config: Path,
    serve: Callable[[C, asyncio.Event], Awaitable[None]],
    arguments: Sequence[str] | None = None,
    imports: Callable[[C], None] | None = None,
) -> int:
    """Run ``serve(config, stop)`` with the configuration from the command line; returns the exit status.

    0: stopped in order; 1: ended by a logged fault; 2: the configuration is wrong, with a message on stderr.
    ``arguments`` are the arguments of the process by default.  ``imports`` loads the modules for this
    configuration alone, before a step of theirs is armed.
    """
    options = _parser(name, description, default_config).parse_args(arguments)
    if options.list_checkpoints:
        sys.stdout.write("".join(f"{step}\n" for step in checkpoints.checkpoint_names()))
        return 0
    try:
        config = load_config(config_class, options.config)
        logs.setup(config.log_level)
        if imports is not None:
            imports(config)
        with about(options.config):
            _arm(config.faults.kill_at)
    except (Fault, ValueError) as fault:
        sys.stderr.write(f"{name}: {fault}\n")
        return 2
    return lifecycle.run_until_signal(functools.partial(_serve_until_stop, serve, config, options.config))


async def _serve_until_stop(
    serve: Callable[[C, asyncio.Event], Awaitable[None]], config: C, path: Path, stop: asyncio.Event
) -> None:
    """Serve; errors of the configuration on this host name its file."""
    with about(path):
        await serve(config, stop)


def _arm(kill_at: str) -> None:
    try:
        checkpoints.arm(kill_at)
    except Fault as fault:
        raise WrongKey("faults.kill_at", str(fault)) from fault


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add ``--version`` to a command: prints its name and the version of xenpod from ``pyproject.toml``."""
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="print the version, and exit")


class _ShowVersion(argparse.Action):
    """Like argparse's own, but reads the version from files only on request."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.exit(0, f"{parser.prog} {version('xenpod')}\n")


def _parser(name: str, description: str, default_config: Path) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name, description=description)
    add_version(parser)
    parser.add_argument("--config", type=Path, default=default_config, metavar="FILE")
    parser.add_argument(
        "--list-checkpoints",
        action="store_true",
        help="print the steps that [faults] kill_at knows, and exit",
    )
    return parser
