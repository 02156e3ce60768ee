"""The arguments of ``protect``: its nouns, their verbs, and what these take."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TypeAlias

from daemonkit.observe.audit import command as audit
from protect.cli import selector
from protect.cli.host import devices, doctor, overhead
from protect.cli.output import FORMATS
from protect.cli.usage import completion, schema
from protect.cli.usage.values import count
from protect.cli.zone import create, execute, logs, resize, top

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

PROTECT_SOCKET = Path("/run/protect/protect.sock")
CRI_SOCKET = Path("/run/xenpod/cri.sock")
GENERATE = "generate"
_USERNAME = "user at the registry; asks for the password, or reads it from stdin"
_ZONE = "the zone's id or name, or an unambiguous prefix of either"
_ID = "the id, or an unambiguous prefix of it"
_STATUSES = """\
exit status:
  0    done
  1    refused, failed, or found damage (image verify) or a fault (doctor)
  2    wrong usage
  3    no daemon serves the socket
  130  interrupted
  zone exec and workload exec end with the exit status of their command"""


def parser(noun: str = "") -> argparse.ArgumentParser:
    """The parser of all arguments; with ``noun``, the first word of a command, of what this one may have.

    What ``generate`` takes is left out then if the noun is another one: its modules take as long to import as
    all the others together.
    """
    top_level = argparse.ArgumentParser(
        prog="protect",
        description="Zones, workloads and images of this host.",
        epilog=_STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top_level.add_argument("--version", action="version", version=f"protect {_version()}")
    common = _common()
    nouns = top_level.add_subparsers(required=True, metavar="COMMAND")
    _zones(nouns, common)
    _workloads(nouns, common)
    text = "list, attach, detach devices of the host"
    device = nouns.add_parser("device", help=text).add_subparsers(required=True)
    devices.add_parsers(lambda command, text: _verb(device, common, command, text))
    _reservations(nouns, common)
    _host(nouns, common)
    _verb(nouns, common, "watch", "show all zones and workloads, then each change")
    _images(nouns)
    nothing = argparse.ArgumentParser(add_help=False)
    generating = _verb(nouns, nothing, GENERATE, "objects and flags for a cluster with nodes of this kind")
    if noun in ("", GENERATE):
        from protect.cli.cluster import generate

        generate.add_arguments(generating, CRI_SOCKET)
    audit.add_parsers(nouns)
    text = "check what this host needs to run zones, and show how to mend each fault"
    doctor.add_arguments(_both(_verb(nouns, common, "doctor", text)))
    text = "print the code with which a shell completes this command"
    completion.add_arguments(_verb(nouns, nothing, "completion", text))
    text = "print the JSON Schema of a command's JSON and YAML"
    schema.add_arguments(_verb(nouns, nothing, "schema", text))
    return top_level


def _version() -> str:
    from importlib.metadata import version

    return version("xenpod")


def _common(*, inherited: bool = False) -> argparse.ArgumentParser:
    """Arguments of all verbs that ask protectd.  ``inherited``: for a verb whose noun has them already."""

    def default(value: object) -> object:
        return argparse.SUPPRESS if inherited else value

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--socket", type=Path, default=default(PROTECT_SOCKET), metavar="PATH", help="socket of protectd"
    )
    common.add_argument("--output", "-o", choices=FORMATS, default=default("table"))
    return common


def _zones(nouns: Verbs, common: argparse.ArgumentParser) -> None:
    text = "list, inspect, create, pause, resize, destroy, adopt zones; show events, use and logs"
    zone = nouns.add_parser("zone", help=text).add_subparsers(required=True)
    listing = _verb(zone, common, "zone list", "list zones")
    selector.add_selector(listing, selector.ZONE)
    text = "list domains without a record instead: other virtual machines, and lost zones"
    listing.add_argument("--strangers", action="store_true", help=text)
    inspecting = _verb(zone, common, "zone inspect", "show a zone, and what its agent reports")
    inspecting.add_argument("id", help=_ZONE)
    create.add_arguments(_verb(zone, common, "zone create", "create an empty zone, without network"))
    resize.add_arguments(_verb(zone, common, resize.COMMAND, "change a zone's size while it runs"), _ZONE)
    for verb, text in (
        ("zone destroy", "end zones and what runs in them"),
        ("zone pause", "stop everything in zones until they are resumed"),
        ("zone resume", "let paused zones run again"),
    ):
        changing = _verb(zone, common, verb, text)
        changing.add_argument("ids", nargs="*", metavar="id", help=_ZONE)
        selector.add_selector(changing, selector.ZONE)
    executing = _verb(zone, common, "zone exec", "run a command in a zone's workload")
    executing.add_argument("--workload", default="", metavar="ID", help="which workload, if it has several")
    execute.add_arguments(executing, _ZONE)
    text = "show what a zone wrote to its console; of a dead zone, the last lines"
    reading = _verb(zone, common, "zone console", text)
    reading.add_argument("id", help=_ZONE)
    reading.add_argument("--lines", "-n", type=count, default=50, help="how many; 0: all (default: 50)")
    text = "go on with new output, until the zone ends"
    reading.add_argument("--follow", "-f", action="store_true", help=text)
    logs.add_arguments(_both(_verb(zone, common, "zone logs", "show what a zone's containers wrote")), _ZONE)
    happening = _verb(zone, common, "zone events", "show what happens to zones and workloads, from now on")
    happening.add_argument("id", nargs="?", default="", help=f"only one zone, until it is gone: {_ZONE}")
    happening.add_argument("--all", action="store_true", help="first show the present state")
    selector.add_selector(happening, selector.ZONE)
    watching = _verb(zone, common, "zone top", "show the CPU, memory and network use of zones")
    top.add_arguments(watching)
    selector.add_selector(watching, selector.ZONE)
    _lost_zones(zone, common)


def _workloads(nouns: Verbs, common: argparse.ArgumentParser) -> None:
    text = "list, inspect workloads; run commands in them"
    workload = nouns.add_parser("workload", help=text).add_subparsers(required=True)
    listing = _verb(workload, common, "workload list", "list workloads")
    listing.add_argument("--zone", default="", metavar="ID", help="only workloads of this zone")
    selector.add_selector(listing, selector.WORKLOAD)
    _verb(workload, common, "workload inspect", "show a workload").add_argument("id", help=_ID)
    execute.add_arguments(_verb(workload, common, "workload exec", "run a command in a workload"), _ID)


def _lost_zones(zone: Verbs, common: argparse.ArgumentParser) -> None:
    """Add the verbs for lost records, and for the host's shutdown."""
    for command, text in (
        ("zone adopt", "take over domains of zones whose records are lost"),
        ("zone remove", "end domains of zones whose records are lost"),
    ):
        verb = _verb(zone, common, command, text)
        verb.add_argument("uuids", nargs="+", metavar="uuid", help="as zone list --strangers shows it")
    ending = _verb(zone, common, "zone shutdown", "end all zones in order, for the host's shutdown")
    text = "seconds for all of it; workloads that do not end by themselves are killed before that"
    ending.add_argument("--deadline", type=float, default=90.0, metavar="SECONDS", help=text)


def _host(nouns: Verbs, common: argparse.ArgumentParser) -> None:
    showing = _both(_verb(nouns, common, "host", "show the host: toolstack, memory, handlers, notices"))
    inherited = _common(inherited=True)
    host = showing.add_subparsers(metavar="VERB", help="info (the default), capacity, overhead, console")
    verb = _verb(host, inherited, "host info", "show toolstack, memory, handlers, notices")
    verb.add_argument("--cri-socket", type=Path, default=argparse.SUPPRESS, metavar="PATH")
    verb = _verb(host, inherited, "host capacity", "show the memory of zones: promised, free, reserved")
    verb.add_argument("--follow", "-f", action="store_true", help="go on with each change")
    text = "measure what a zone takes beside its pod, and print the overhead of a RuntimeClass"
    overhead.add_arguments(_verb(host, inherited, "host overhead", text))
    verb = _verb(host, inherited, "host console", "show Xen's own console (xl dmesg)")
    verb.add_argument("--lines", "-n", type=count, default=0, help="only the last N; 0: all (default)")


def _reservations(nouns: Verbs, common: argparse.ArgumentParser) -> None:
    text = "list, make, bind, release reservations of memory"
    reservation = nouns.add_parser("reservation", help=text).add_subparsers(required=True)
    listing = _verb(reservation, common, "reservation list", "list reservations and their zones")
    selector.add_selector(listing, selector.RESERVATION)
    making = _verb(reservation, common, "reservation make", "reserve memory for pods; again, it adds pods")
    making.add_argument("id", help="1 to 64 of [a-z0-9-], such as the uid of a resource claim")
    making.add_argument("memory", help='such as "512Mi"')
    making.add_argument("--vcpus", type=int, default=0, metavar="N")
    making.add_argument("--pod", action="append", default=[], metavar="UID", help="a pod that it is for")
    binding = _verb(reservation, common, "reservation bind", "add a pod to a reservation")
    binding.add_argument("id", help=_ID)
    binding.add_argument("pod", metavar="UID")
    releasing = _verb(reservation, common, "reservation release", "release reservations")
    releasing.add_argument("ids", nargs="+", metavar="id", help=_ID)


def _images(nouns: Verbs) -> None:
    """Add the verbs about images, which ask xenpod-cri instead of protectd."""
    common = argparse.ArgumentParser(add_help=False)
    _cri_socket(common)
    common.add_argument("--output", "-o", choices=FORMATS, default="table")
    text = "list, pull, import, export, tag, inspect, verify, remove images"
    image = nouns.add_parser("image", help=text).add_subparsers(required=True)
    _image_files(image, common)
    listing = _verb(image, common, "image list", "list images, or those that match all filters")
    _filters(listing)
    listing.add_argument("--quiet", "-q", action="store_true", help="only the ids")
    tagging = _verb(image, common, "image tag", "give an image one more name")
    tagging.add_argument("image", metavar="IMAGE")
    tagging.add_argument("name", metavar="NAME")
    untagging = _verb(image, common, "image untag", "remove names; the images stay")
    untagging.add_argument("names", nargs="+", metavar="NAME")
    removing = _verb(image, common, "image remove", "remove images with all their names")
    removing.add_argument("images", nargs="+", metavar="IMAGE")
    inspecting = _verb(image, common, "image inspect", "show an image, and what is stored of it")
    inspecting.add_argument("image")
    verifying = _verb(image, common, "image verify", "read what is stored, and compare it with its digests")
    verifying.add_argument("images", nargs="*", metavar="IMAGE", help="default: all")
    verifying.add_argument("--repair", action="store_true", help="rebuild or fetch again what is damaged")
    verifying.add_argument("--username", default="", help=_USERNAME)
    text = "remove images that no container and no zone uses, except pinned ones"
    collecting = _verb(image, common, "image gc", text)
    collecting.add_argument("--dry-run", action="store_true", help="only show them")
    text = "remove unused images that have no tag and match all filters"
    pruning = _verb(image, common, "image prune", text)
    _filters(pruning)
    pruning.add_argument("--all", action="store_true", help="also images with tags")
    pruning.add_argument("--dry-run", action="store_true", help="only show them")
    _verb(image, common, "image list-kernels", "list the images that zones can boot from")
    _verb(image, common, "image watch", "show running pulls, and each change")


def _image_files(image: Verbs, common: argparse.ArgumentParser) -> None:
    pulling = _verb(image, common, "image pull", "pull an image, and show its progress")
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


def _cri_socket(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--cri-socket", type=Path, default=CRI_SOCKET, metavar="PATH", help="socket of xenpod-cri"
    )


def _filters(verb: argparse.ArgumentParser) -> None:
    text = (
        "reference=GLOB, dangling=BOOL, in-use=BOOL, pinned=BOOL, label=KEY[=VALUE], label!=KEY[=VALUE], "
        "larger=SIZE, smaller=SIZE, until=AGE; may be repeated"
    )
    verb.add_argument("--filter", "-f", action="append", default=[], metavar="KEY=VALUE", help=text)


def _verb(
    nouns: Verbs,
    common: argparse.ArgumentParser,
    command: str,
    text: str,
) -> argparse.ArgumentParser:
    verb = nouns.add_parser(command.split()[-1], parents=[common], help=text, description=text)
    verb.set_defaults(command=command, refuse=verb.error)
    return verb


def _both(verb: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the socket of xenpod-cri to a verb that asks it, too."""
    _cri_socket(verb)
    return verb
