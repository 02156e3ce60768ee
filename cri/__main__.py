"""xenpod-cri: the CRI server."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from cri.config import Config
from daemonkit import checkpoints, config, lifecycle, logs
from daemonkit.faults import Fault

log = logging.getLogger(__name__)


def main() -> int:
    """Console script."""
    parser = argparse.ArgumentParser(prog="xenpod-cri", description="CRI server: every pod in its own zone.")
    parser.add_argument("--config", type=Path, default=Path("/etc/xenpod/cri.toml"), metavar="FILE")
    given = parser.parse_args()
    try:
        settings = config.load(Config, given.config)
        logs.setup(settings.log_level)
        checkpoints.arm(settings.faults.kill_at)
    except (Fault, ValueError) as error:
        return lifecycle.fail(f"xenpod-cri: {error}")
    return lifecycle.run(lambda stop: serve(settings, stop))


async def serve(settings: Config, stop: asyncio.Event) -> None:
    """Until ``stop``; pods go on without us."""
    raise NotImplementedError


if __name__ == "__main__":
    sys.exit(main())
