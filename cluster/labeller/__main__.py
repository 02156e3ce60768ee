"""``xenpod-labels``: labels this node with its capabilities, for schedulers.

Exit status: 0 stopped or done, 1 failure (with --once or --remove), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.labeller import keeper, source
from cluster.labeller.features import DIRECTORY, FeatureFile
from cluster.labeller.keeper import LabelSink
from cluster.labeller.node import NodeLabels
from daemonkit import lifecycle, logs
from daemonkit.config import duration
from daemonkit.daemon import add_version

_CRI_SOCKET = Path("/run/xenpod/cri.sock")
_SHORTEST_SECONDS = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    options = parser().parse_args(arguments)
    logs.setup(options.log_level)
    sink: LabelSink
    if options.to == "nfd":
        sink = FeatureFile(options.directory)
    else:
        sink = NodeLabels(options.name, options.kubeconfig)
    return lifecycle.run_until_signal(functools.partial(_serve_labels, options, sink))


async def _serve_labels(options: argparse.Namespace, sink: LabelSink, stop: asyncio.Event) -> None:
    read = functools.partial(source.read_labels, options.cri_socket)
    if options.remove:
        await keeper.remove_labels(sink)
    elif options.once:
        await keeper.once(read, sink)
    else:
        await keeper.keep_labels(read, sink, options.interval, stop)


def parser() -> argparse.ArgumentParser:
    text = "Labels this node with what it can do, and keeps the labels up to date."
    top = argparse.ArgumentParser(prog="xenpod-labels", description=text)
    add_version(top)
    common = argparse.ArgumentParser(add_help=False)
    text = "socket of xenpod-cri"
    common.add_argument("--cri-socket", type=Path, default=_CRI_SOCKET, metavar="PATH", help=text)
    text = "time between two readings of what the node can do; default: 30s"
    common.add_argument("--interval", type=_interval, default=30.0, metavar="TIME", help=text)
    common.add_argument("--log-level", choices=logs.LEVELS, default="info")
    what = common.add_mutually_exclusive_group()
    what.add_argument("--once", action="store_true", help="write the labels once, and end")
    what.add_argument("--remove", action="store_true", help="remove the labels, and end")
    ways = top.add_subparsers(required=True, metavar="WHERE", dest="to")
    text = "writes labels into a file that Node Feature Discovery reads"
    nfd = ways.add_parser("nfd", parents=[common], help=text, description=f"{text[0].upper()}{text[1:]}.")
    text = f"folder of the file; default: {DIRECTORY}"
    nfd.add_argument("--directory", type=Path, default=DIRECTORY, metavar="PATH", help=text)
    text = "labels the Node object through the Kubernetes API"
    node = ways.add_parser("node", parents=[common], help=text, description=f"{text[0].upper()}{text[1:]}.")
    text = "name of the node; default: $NODE_NAME, or the host's name"
    node.add_argument("--name", default=_node_name(), help=text)
    text = "credentials for the API; default: the pod's service account"
    node.add_argument("--kubeconfig", type=Path, metavar="PATH", help=text)
    return top


def _node_name() -> str:
    """The name of the node in Kubernetes."""
    return os.environ.get("NODE_NAME") or socket.gethostname().lower()


def _interval(text: str) -> float:
    try:
        seconds = duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds < _SHORTEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is less than {_SHORTEST_SECONDS:g}s")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
