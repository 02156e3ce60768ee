"""``protect image``: its verbs, served by xenpod-cri, with the arguments and the function of each."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from protectctl.command_errors import Command
from protectctl.image import commands
from protectctl.output import FORMATS
from protectctl.usage.verbs import Verbs, add_verb, asks_cri, verbs_of

_USERNAME = "user at the registry; asks for the password, or reads it from stdin"


def add_arguments(noun: argparse.ArgumentParser) -> None:
    verbs = verbs_of(noun)
    _add_transfers(verbs)
    _add_names(verbs)
    _add_views(verbs)
    _add_collection(verbs)


def _add_transfers(verbs: Verbs) -> None:
    """Add the verbs that pull, import and export images."""
    verb = _verb(verbs, "image pull", "pull an image, and show its progress")
    verb.add_argument("name")
    verb.add_argument("--username", default="", help=_USERNAME)
    text = "import an OCI layout (directory) or archive (tar, also with gzip or zstd)"
    verb = _verb(verbs, "image import", text)
    verb.add_argument("path", type=os.path.abspath)
    verb.add_argument("--name", default="", help="name to give it; default: the layout's own")
    verb = _verb(verbs, "image export", "write images to an OCI archive (tar)")
    verb.add_argument("images", nargs="+", metavar="IMAGE")
    verb.add_argument("path", metavar="PATH", help="-: standard output")
    text = "write an OCI layout (directory) instead"
    verb.add_argument("--directory", action="store_true", help=text)


def _add_names(verbs: Verbs) -> None:
    """Add the verbs that tag, untag and remove images."""
    verb = _verb(verbs, "image tag", "give an image one more name")
    verb.add_argument("image", metavar="IMAGE")
    verb.add_argument("name", metavar="NAME")
    verb = _verb(verbs, "image untag", "remove names; the images stay")
    verb.add_argument("names", nargs="+", metavar="NAME")
    verb = _verb(verbs, "image remove", "remove images with all their names")
    verb.add_argument("images", nargs="+", metavar="IMAGE")


def _add_views(verbs: Verbs) -> None:
    """Add the verbs that show and check images."""
    verb = _verb(verbs, "image list", "list images, or those that match all filters")
    _filters(verb)
    verb.add_argument("--quiet", "-q", action="store_true", help="only the ids")
    verb = _verb(verbs, "image inspect", "show an image, and what is stored of it")
    verb.add_argument("image")
    verb = _verb(verbs, "image verify", "read what is stored, and compare it with its digests")
    verb.add_argument("images", nargs="*", metavar="IMAGE", help="default: all")
    verb.add_argument("--repair", action="store_true", help="rebuild or fetch again what is damaged")
    verb.add_argument("--username", default="", help=_USERNAME)
    _verb(verbs, "image list-kernels", "list the images that zones can boot from")
    _verb(verbs, "image watch", "show running pulls, and each change")


def _add_collection(verbs: Verbs) -> None:
    """Add the verbs that remove unused images."""
    text = "remove images that no container and no zone uses, except pinned ones"
    verb = _verb(verbs, "image gc", text)
    verb.add_argument("--dry-run", action="store_true", help="only show them")
    verb = _verb(verbs, "image prune", "remove unused images that have no tag and match all filters")
    _filters(verb)
    verb.add_argument("--all", action="store_true", help="also images with tags")
    verb.add_argument("--dry-run", action="store_true", help="only show them")


def _verb(verbs: Verbs, command: str, text: str) -> argparse.ArgumentParser:
    verb = asks_cri(add_verb(verbs, command, text))
    verb.add_argument("--output", "-o", choices=FORMATS, default="table")
    return verb


def _filters(verb: argparse.ArgumentParser) -> None:
    text = (
        "reference=GLOB, dangling=BOOL, in-use=BOOL, pinned=BOOL, label=KEY[=VALUE], label!=KEY[=VALUE], "
        "larger=SIZE, smaller=SIZE, until=AGE; may be repeated"
    )
    verb.add_argument("--filter", "-f", action="append", default=[], metavar="KEY=VALUE", help=text)


COMMANDS: Mapping[str, Command] = {
    "image list": commands.image_list,
    "image pull": commands.image_pull,
    "image import": commands.image_import,
    "image export": commands.image_export,
    "image tag": commands.image_tag,
    "image untag": commands.image_untag,
    "image remove": commands.image_remove,
    "image inspect": commands.image_inspect,
    "image verify": commands.image_verify,
    "image gc": commands.image_gc,
    "image prune": commands.image_prune,
    "image list-kernels": commands.image_list_kernels,
    "image watch": commands.image_watch,
}
