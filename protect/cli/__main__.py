"""``protect``: shows zones, workloads and images, manages images, and makes a cluster's objects.

Exit status: 0 done, 1 refused, failed or damaged, 2 wrong usage, 3 no daemon answers, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio

from daemonkit.observe.audit import command as audit
from protect.cli import devices, generate, resize, show
from protect.cli.commands import COMMANDS
from protect.cli.errors import CheckFailed, CommandFailed
from protect.cli.images import password

_PROTECT_SOCKET = Path("/run/protect/protect.sock")
_CRI_SOCKET = Path("/run/xenpod/cri.sock")
_INTERRUPTED = 130
_PROBE = 5.0
_USERNAME = "user at the registry; the password is asked for, or read from stdin"
_ID = "the id, or an unambiguous prefix of it"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        if "username" in options:
            # Outside the event loop, in which Ctrl-C would not interrupt the prompt.
            options.password = password(options)
        asyncio.run(COMMANDS[options.command](options))
    except CheckFailed:
        return 1
    except CommandFailed as error:
        sys.stderr.write(f"protect: {show.plain(str(error))}\n")
        return 1
    except grpc.aio.AioRpcError as error:
        return _explain(error, options)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, as in ``protect watch | head``.
        sys.stderr.close()
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="protect", description="Zones, workloads and images of this host.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--socket", type=Path, default=_PROTECT_SOCKET, metavar="PATH", help="socket of protectd"
    )
    common.add_argument("--output", choices=("table", "json"), default="table")
    nouns = top.add_subparsers(required=True, metavar="COMMAND")
    text = "list, inspect, resize, destroy, adopt zones; their consoles"
    zone = nouns.add_parser("zone", help=text).add_subparsers(required=True)
    listing = _verb(zone, common, "zone list", "every zone")
    text = "instead the domains that no record accounts for: other virtual machines, and lost zones"
    listing.add_argument("--strangers", action="store_true", help=text)
    inspecting = _verb(zone, common, "zone inspect", "one zone, and what it says of itself")
    inspecting.add_argument("id", help=_ID)
    text = "what a zone wrote to its console: of a dead one, its last lines"
    reading = _verb(zone, common, "zone console", text)
    reading.add_argument("id", help=_ID)
    reading.add_argument("--lines", "-n", type=_count, default=50, help="how many; 0: all (default: 50)")
    reading.add_argument("--follow", "-f", action="store_true", help="and what comes, until the zone ends")
    destroying = _verb(zone, common, "zone destroy", "end zones and what runs in them")
    destroying.add_argument("ids", nargs="+", metavar="id", help=_ID)
    _lost_zones(zone, common)
    resize.add_arguments(_verb(zone, common, resize.COMMAND, "change a zone's size while it runs"), _ID)
    workload = nouns.add_parser("workload", help="list, inspect workloads").add_subparsers(required=True)
    listing = _verb(workload, common, "workload list", "every workload")
    listing.add_argument("--zone", default="", metavar="ID", help="only workloads of this zone")
    _verb(workload, common, "workload inspect", "one workload").add_argument("id", help=_ID)
    text = "list, attach, detach devices of the host"
    device = nouns.add_parser("device", help=text).add_subparsers(required=True)
    devices.add_parsers(lambda command, text: _verb(device, common, command, text))
    _reservations(nouns, common)
    showing = _verb(nouns, common, "host", "the host: toolstack, memory, handlers, notices")
    _cri_socket(showing)
    _verb(nouns, common, "watch", "everything there is, then each change")
    _images(nouns)
    generate.add_parser(nouns, _CRI_SOCKET)
    audit.add_parsers(nouns)
    return top


def _lost_zones(
    zone: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the verbs for when records are lost, and for when the host goes."""
    for command, text in (
        ("zone adopt", "make zones again of domains whose records are lost"),
        ("zone remove", "end domains of zones whose records are lost"),
    ):
        verb = _verb(zone, common, command, text)
        verb.add_argument("uuids", nargs="+", metavar="uuid", help="as zone list --strangers shows it")
    ending = _verb(zone, common, "zone shutdown", "end all zones, in order, since the host shuts down")
    text = "seconds for all of it; workloads that do not end by themselves are killed before"
    ending.add_argument("--deadline", type=float, default=90.0, metavar="SECONDS", help=text)


def _reservations(
    nouns: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    text = "list, make, bind, release reservations of memory"
    reservation = nouns.add_parser("reservation", help=text).add_subparsers(required=True)
    _verb(reservation, common, "reservation list", "every reservation, and the zone that has it")
    making = _verb(reservation, common, "reservation make", "reserve memory for pods; again, it adds pods")
    making.add_argument("id", help="1 to 64 of [a-z0-9-], such as the uid of a resource claim")
    making.add_argument("memory", help='such as "512Mi"')
    making.add_argument("--vcpus", type=int, default=0, metavar="N")
    making.add_argument("--pod", action="append", default=[], metavar="UID", help="a pod that it is for")
    binding = _verb(reservation, common, "reservation bind", "add a pod")
    binding.add_argument("id", help=_ID)
    binding.add_argument("pod", metavar="UID")
    releasing = _verb(reservation, common, "reservation release", "take reservations back")
    releasing.add_argument("ids", nargs="+", metavar="id", help=_ID)


def _images(nouns: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verbs about images, which ask xenpod-cri instead of protectd."""
    common = argparse.ArgumentParser(add_help=False)
    _cri_socket(common)
    common.add_argument("--output", choices=("table", "json"), default="table")
    text = "list, pull, import, export, tag, inspect, verify, remove images"
    image = nouns.add_parser("image", help=text).add_subparsers(required=True)
    _image_files(image, common)
    listing = _verb(image, common, "image list", "every image, or those that fit all filters")
    _filters(listing)
    listing.add_argument("--quiet", "-q", action="store_true", help="only the ids")
    tagging = _verb(image, common, "image tag", "give an image one more name")
    tagging.add_argument("image", metavar="IMAGE")
    tagging.add_argument("name", metavar="NAME")
    untagging = _verb(image, common, "image untag", "take names away; the images stay")
    untagging.add_argument("names", nargs="+", metavar="NAME")
    removing = _verb(image, common, "image remove", "remove images with all their names")
    removing.add_argument("images", nargs="+", metavar="IMAGE")
    inspecting = _verb(image, common, "image inspect", "one image, and what is stored of it")
    inspecting.add_argument("image")
    verifying = _verb(image, common, "image verify", "read what is stored, and hold it against its digests")
    verifying.add_argument("images", nargs="*", metavar="IMAGE", help="default: all")
    verifying.add_argument("--repair", action="store_true", help="rebuild or fetch again what is damaged")
    verifying.add_argument("--username", default="", help=_USERNAME)
    collecting = _verb(image, common, "image gc", "remove the images that no container has, save pinned ones")
    collecting.add_argument("--dry-run", action="store_true", help="only show them")
    text = "remove those of them that have no tag, or fit all filters"
    pruning = _verb(image, common, "image prune", text)
    _filters(pruning)
    pruning.add_argument("--all", action="store_true", help="those with tags, too")
    pruning.add_argument("--dry-run", action="store_true", help="only show them")
    _verb(image, common, "image list-kernels", "the images that zones can boot from")
    _verb(image, common, "image watch", "what is being pulled, and each change")


def _image_files(
    image: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    pulling = _verb(image, common, "image pull", "pull an image, and show how far it has come")
    pulling.add_argument("name")
    pulling.add_argument("--username", default="", help=_USERNAME)
    text = "import an OCI layout (directory) or archive (tar, also with gzip or zstd)"
    importing = _verb(image, common, "image import", text)
    importing.add_argument("path", type=os.path.abspath)
    importing.add_argument("--name", default="", help="name to give it; default: the layout's own")
    exporting = _verb(image, common, "image export", "write images to an OCI archive (tar)")
    exporting.add_argument("images", nargs="+", metavar="IMAGE")
    exporting.add_argument("path", metavar="PATH", help="-: standard output")
    text = "write an OCI layout (directory) instead"
    exporting.add_argument("--directory", action="store_true", help=text)


def _count(text: str) -> int:
    count = int(text)
    if not 0 <= count < 1 << 31:
        raise ValueError(text)
    return count


def _cri_socket(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--cri-socket", type=Path, default=_CRI_SOCKET, metavar="PATH", help="socket of xenpod-cri"
    )


def _filters(verb: argparse.ArgumentParser) -> None:
    text = (
        "reference=GLOB, dangling=BOOL, in-use=BOOL, pinned=BOOL, label=KEY[=VALUE], label!=KEY[=VALUE], "
        "larger=SIZE, smaller=SIZE, until=AGE; may be repeated"
    )
    verb.add_argument("--filter", "-f", action="append", default=[], metavar="KEY=VALUE", help=text)


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
    # "host" has both sockets, but fails only for protectd's.
    path = options.socket if "socket" in options else options.cri_socket
    # A daemon also answers UNAVAILABLE, when a registry or a zone does not answer it.
    nobody = error.code() is grpc.StatusCode.UNAVAILABLE and not _is_served(path)
    if nobody and not path.exists():
        sys.stderr.write(f"protect: nobody serves {path}: start the daemon, or name its socket\n")
    else:
        sys.stderr.write(f"protect: {show.plain(error.details() or '')} [{error.code().name}]\n")
    return 3 if nobody else 1


def _is_served(path: Path) -> bool:
    """Whether anything accepts connections on the socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
