"""``protect image ...``: requests to xenpod-cri, over xenpod.images.v1."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator

from daemonkit.rpc.channels import channel
from protectctl import show
from protectctl.command_errors import CheckFailed, CommandFailed
from protectctl.image import export
from protectctl.image import show as show_images
from xenpod_proto.images.v1 import images_pb2 as pb
from xenpod_proto.images.v1 import images_pb2_grpc

_TIMEOUT_SECONDS = 60.0
_LONG_SECONDS = 3600.0


@contextlib.asynccontextmanager
async def _images(options: argparse.Namespace) -> AsyncIterator[images_pb2_grpc.ImagesAsyncStub]:
    async with channel(options.cri_socket) as link:
        yield images_pb2_grpc.ImagesStub(link)


async def image_list(options: argparse.Namespace) -> None:
    async with _images(options) as images:
        answer = await images.List(pb.ListRequest(filters=options.filter), timeout=_TIMEOUT_SECONDS)
    if options.filter and not answer.filtered:
        raise CommandFailed("xenpod-cri is older than this command, and knows no filters")
    if options.quiet and options.output == "table":
        show_images.ids(answer.images)
    else:
        show_images.images(answer, answer.images, options.output)


async def image_pull(options: argparse.Namespace) -> None:
    """Pull an image.  Progress bars go to stderr if it is a terminal; stdout has only the answer."""
    from protectctl.image.bars import Bars  # imports rich, a slow import

    request = pb.PullRequest(name=options.name, username=options.username, password=options.password)
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
    """Import images.  xenpod-cri reads the file itself: the path is absolute."""
    async with _images(options) as images:
        request = pb.ImportRequest(path=options.path, name=options.name)
        show_images.imported(await images.Import(request, timeout=_LONG_SECONDS), options.output)


async def image_export(options: argparse.Namespace) -> None:
    async with _images(options) as images:
        request = pb.ExportRequest(images=options.images)
        await export.write_export(images.Export(request), options.path, options.directory)


async def image_tag(options: argparse.Namespace) -> None:
    async with _images(options) as images:
        request = pb.TagRequest(image=options.image, name=options.name)
        show_images.tagged(await images.Tag(request, timeout=_TIMEOUT_SECONDS), options.output)


async def image_untag(options: argparse.Namespace) -> None:
    async with _images(options) as images:
        for name in options.names:
            answer = await images.Untag(pb.UntagRequest(name=name), timeout=_TIMEOUT_SECONDS)
            show_images.untagged(answer, options.output)


async def image_remove(options: argparse.Namespace) -> None:
    async with _images(options) as images:
        for name in options.images:
            answer = await images.Remove(pb.RemoveRequest(image=name), timeout=_TIMEOUT_SECONDS)
            show_images.removed(answer, options.output)


async def image_inspect(options: argparse.Namespace) -> None:
    async with _images(options) as images:
        answer = await images.Inspect(pb.InspectRequest(image=options.image), timeout=_TIMEOUT_SECONDS)
        show_images.inspected(answer, options.output)


async def image_verify(options: argparse.Namespace) -> None:
    """Verify images, one line each as results arrive.  CheckFailed: an image is damaged, and not repaired."""
    sound = True
    request = pb.VerifyRequest(
        images=options.images,
        repair=options.repair,
        username=options.username,
        password=options.password,
    )
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
        answer = await images.Collect(pb.CollectRequest(dry_run=options.dry_run), timeout=_LONG_SECONDS)
        show_images.collected(answer, options.dry_run, options.output)


async def image_prune(options: argparse.Namespace) -> None:
    async with _images(options) as images:
        request = pb.PruneRequest(filters=options.filter, all=options.all, dry_run=options.dry_run)
        show_images.collected(
            await images.Prune(request, timeout=_LONG_SECONDS), options.dry_run, options.output
        )


async def image_list_kernels(options: argparse.Namespace) -> None:
    """List kernel images.  The first search of an image reads the whole image, and may take long."""
    async with _images(options) as images:
        answer = await images.ListKernels(pb.ListKernelsRequest(), timeout=_LONG_SECONDS)
        show_images.kernels(answer, options.output)


async def image_watch(options: argparse.Namespace) -> None:
    """Show pulls until interrupted, or until xenpod-cri ends."""
    async with _images(options) as images:
        async for event in images.WatchPulls(pb.WatchPullsRequest()):
            show_images.pulls(event, options.output)
