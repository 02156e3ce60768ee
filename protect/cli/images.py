"""``protect image ...``: asks xenpod-cri, over xenpod.images.v1."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from daemonkit.grpc_server import channel
from protect.cli import show, show_images
from protect.cli.bars import Bars
from xenpod_proto.images.v1 import images_pb2 as pb
from xenpod_proto.images.v1 import images_pb2_grpc

_TIMEOUT = 60.0
_LONG = 3600.0
_MOST_PASSWORD = 1 << 16

Command = Callable[[argparse.Namespace], Coroutine[Any, Any, None]]


class CheckFailed(Exception):
    """The command ran, and found something damaged, which it has shown."""


@contextlib.asynccontextmanager
async def _images(options: argparse.Namespace) -> AsyncIterator[images_pb2_grpc.ImagesAsyncStub]:
    async with channel(options.cri_socket) as link:
        yield images_pb2_grpc.ImagesStub(link)


async def image_list(options: argparse.Namespace) -> None:
    async with _images(options) as images:
        answer = await images.List(pb.ListRequest(), timeout=_TIMEOUT)
        show_images.images(answer, answer.images, options.output)


async def image_pull(options: argparse.Namespace) -> None:
    """Bars go to stderr, and only to a terminal: what is on stdout is the answer."""
    request = pb.PullRequest(name=options.name, username=options.username)
    if options.username:
        request.password = sys.stdin.readline(_MOST_PASSWORD).rstrip("\r\n")
    async with _images(options) as images:
        with Bars() as bars:
            async for event in images.Pull(request):
                if event.HasField("progress"):
                    bars.show(event.progress)
                else:
                    bars.done()
                    image = event.image
        show_images.images(image, [image], options.output)


async def image_import(options: argparse.Namespace) -> None:
    """The file is read by xenpod-cri, hence the absolute path."""
    async with _images(options) as images:
        request = pb.ImportRequest(path=options.path, name=options.name)
        show_images.imported(await images.Import(request, timeout=_LONG), options.output)


async def image_remove(options: argparse.Namespace) -> None:
    async with _images(options) as images:
        for name in options.images:
            answer = await images.Remove(pb.RemoveRequest(image=name), timeout=_TIMEOUT)
            show_images.removed(answer, options.output)


async def image_inspect(options: argparse.Namespace) -> None:
    async with _images(options) as images:
        answer = await images.Inspect(pb.InspectRequest(image=options.image), timeout=_TIMEOUT)
        show_images.inspected(answer, options.output)


async def image_verify(options: argparse.Namespace) -> None:
    """One line for each image, as it comes; CheckFailed when one is damaged, and was not repaired."""
    sound = True
    request = pb.VerifyRequest(images=options.images, repair=options.repair, username=options.username)
    if options.username:
        request.password = sys.stdin.readline(_MOST_PASSWORD).rstrip("\r\n")
    async with _images(options) as images:
        async for event in images.Verify(request):
            show_images.verified(event, options.output)
            sound = sound and not (event.remaining if event.repairs else event.faults)
    if not sound:
        if not options.repair:
            show.note("this host's copies are damaged, not the registry's: --repair mends them")
        raise CheckFailed


async def image_gc(options: argparse.Namespace) -> None:
    async with _images(options) as images:
        answer = await images.Collect(pb.CollectRequest(dry_run=options.dry_run), timeout=_LONG)
        show_images.images(answer, answer.removed, options.output)
        if not options.dry_run:
            show.note(f"freed {show.mib(answer.freed_bytes)}")
        if answer.unfinished_bytes:
            show.note(f"layers of unfinished pulls: {show.mib(answer.unfinished_bytes)}")


async def image_list_kernels(options: argparse.Namespace) -> None:
    """May take long: images that were never looked into are read as a whole."""
    async with _images(options) as images:
        answer = await images.ListKernels(pb.ListKernelsRequest(), timeout=_LONG)
        show_images.kernels(answer, options.output)


async def image_watch(options: argparse.Namespace) -> None:
    """Until interrupted, or until xenpod-cri ends."""
    async with _images(options) as images:
        async for event in images.WatchPulls(pb.WatchPullsRequest()):
            show_images.pulls(event, options.output)


COMMANDS: Mapping[str, Command] = {
    "image list": image_list,
    "image pull": image_pull,
    "image import": image_import,
    "image remove": image_remove,
    "image inspect": image_inspect,
    "image verify": image_verify,
    "image gc": image_gc,
    "image list-kernels": image_list_kernels,
    "image watch": image_watch,
}
