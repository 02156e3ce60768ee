"""``protect``: looks at protectd, and removes what nobody else does.

Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no daemon answers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio

from protect.cli import show
from protect.cli.commands import COMMANDS
from protect.cli.images import CheckFailed

_PROTECT_SOCKET = Path("/run/protect/protect.sock")
_CRI_SOCKET = Path("/run/xenpod/cri.sock")
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        asyncio.run(COMMANDS[options.command](options))
    except CheckFailed:
        return 1
    except grpc.aio.AioRpcError as error:
        return _explain(error, options)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Nobody reads any more, as in ``protect watch | head``.
        sys.stderr.close()
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="protect", description="Zones, workloads and images of this host.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--socket", type=Path, default=_PROTECT_SOCKET, metavar="PATH", help="of protectd")
    common.add_argument("--output", choices=("table", "json"), default="table")
    nouns = top.add_subparsers(required=True, metavar="COMMAND")
    zone = nouns.add_parser("zone", help="list, inspect, destroy zones").add_subparsers(required=True)
    _verb(zone, common, "zone list", "every zone")
    _verb(zone, common, "zone inspect", "one zone, and what it says of itself").add_argument("id")
    _verb(zone, common, "zone destroy", "end zones and what runs in them").add_argument("ids", nargs="+")
    workload = nouns.add_parser("workload", help="list, inspect workloads").add_subparsers(required=True)
    listing = _verb(workload, common, "workload list", "every workload")
    listing.add_argument("--zone", default="", metavar="ID", help="only of this zone")
    _verb(workload, common, "workload inspect", "one workload").add_argument("id")
    _verb(nouns, common, "host", "the host: toolstack, memory, notices")
    _verb(nouns, common, "watch", "everything there is, then each change")
    _images(nouns)
    return top


def _images(nouns: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Images are xenpod-cri's: these verbs have another socket."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--cri-socket", type=Path, default=_CRI_SOCKET, metavar="PATH", help="of xenpod-cri")
    common.add_argument("--output", choices=("table", "json"), default="table")
    text = "list, pull, import, inspect, verify, remove images"
    image = nouns.add_parser("image", help=text).add_subparsers(required=True)
    _verb(image, common, "image list", "every image")
    pulling = _verb(image, common, "image pull", "pull an image, and show how far it has come")
    pulling.add_argument("name")
    pulling.add_argument("--username", default="", help="at the registry; the password comes on stdin")
    importing = _verb(image, common, "image import", "import an OCI layout (directory) or archive (tar)")
    importing.add_argument("path", type=os.path.abspath)
    importing.add_argument("--name", default="", help="name to give it; default: the layout's own")
    removing = _verb(image, common, "image remove", "remove images with all their names")
    removing.add_argument("images", nargs="+", metavar="IMAGE")
    inspecting = _verb(image, common, "image inspect", "one image, and what is stored of it")
    inspecting.add_argument("image")
    verifying = _verb(image, common, "image verify", "read what is stored, and hold it against its digests")
    verifying.add_argument("images", nargs="*", metavar="IMAGE", help="default: all")
    verifying.add_argument("--repair", action="store_true", help="rebuild or fetch again what is damaged")
    verifying.add_argument("--username", default="", help="at the registry; the password comes on stdin")
    collecting = _verb(image, common, "image gc", "remove the images that no container has, save pinned ones")
    collecting.add_argument("--dry-run", action="store_true", help="only show them")
    _verb(image, common, "image list-kernels", "the images that zones can boot from")
    _verb(image, common, "image watch", "what is being pulled, and each change")


def _verb(
    nouns: argparse._SubParsersAction[argparse.ArgumentParser],
    common: argparse.ArgumentParser,
    command: str,
    text: str,
) -> argparse.ArgumentParser:
    verb = nouns.add_parser(command.split()[-1], parents=[common], help=text, description=text)
    verb.set_defaults(command=command)
    return verb


def _explain(error: grpc.aio.AioRpcError, options: argparse.Namespace) -> int:
    socket = options.cri_socket if options.command.startswith("image ") else options.socket
    if error.code() is grpc.StatusCode.UNAVAILABLE and not socket.exists():
        sys.stderr.write(f"protect: nobody serves {socket}: start the daemon, or name its socket\n")
        return 3
    sys.stderr.write(f"protect: {show.plain(error.details() or '')} [{error.code().name}]\n")
    return 3 if error.code() is grpc.StatusCode.UNAVAILABLE else 1


if __name__ == "__main__":
    sys.exit(main())
