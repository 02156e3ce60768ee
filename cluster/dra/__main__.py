"""``xenpod-dra --config FILE``: the Kubernetes DRA driver of zone memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.dra.config import DraConfig
from cluster.dra.daemon import serve_dra
from daemonkit import daemon

_DEFAULT_CONFIG = Path("/etc/xenpod/dra.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    description = "Publishes zone memory to the scheduler, and reserves what pods claim of it."
    return daemon.main("xenpod-dra", description, DraConfig, _DEFAULT_CONFIG, serve_dra, arguments)


if __name__ == "__main__":
    sys.exit(main())
