"""``xenpod-dra --config FILE``: the Kubernetes DRA driver of zone memory."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from daemonkit import daemon
from dra import daemon as driver
from dra.config import DraConfig
from dra.granules import serve as granules

_DEFAULT_CONFIG = Path("/etc/xenpod/dra.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    description = "Publishes zone memory to the scheduler, and reserves what pods claim of it."
    return daemon.main("xenpod-dra", description, DraConfig, _DEFAULT_CONFIG, _serve, arguments)


async def _serve(config: DraConfig, stop: asyncio.Event) -> None:
    await (granules if config.granules.enabled else driver).serve(config, stop)


if __name__ == "__main__":
    sys.exit(main())
