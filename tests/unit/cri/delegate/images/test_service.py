"""The client of the delegate's ImageService, with a delegate that is slow, hangs, lies, or is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cri.delegate.images.pull_memory import PullMemory
from cri.delegate.images.service import MixedImages
from cri.delegate.images.theirs import DelegateImages
from cri.delegate.link import Delegate
from cri.delegate.untrusted import MOST_ITEMS
from daemonkit.config import Seconds
from daemonkit.faults import Broken, TooLate, Unreachable
from tests.support.cri.mixed_rig import delegate_config
from tests.support.cri.other_runtime import OtherRuntime
from xenpod_proto.cri.v1 import runtime_pb2 as cri

IMAGE = "sha256:" + "a" * 64
NAME = "registry.example/app:1"


class Asked:
    """The context of a call without a deadline."""

    def time_remaining(self) -> None:
        return None

    def invocation_metadata(self) -> tuple[()]:
        return ()


class OurImages:
    """Our ImageService with one image."""

    def __init__(self) -> None:
        self.images = [cri.Image(id=IMAGE, repo_tags=[NAME], size=10)]

    def _named(self, wanted: str) -> list[cri.Image]:
        return [one for one in self.images if wanted in ("", one.id, *one.repo_tags)]

    async def ListImages(self, request: cri.ListImagesRequest, _: Any) -> cri.ListImagesResponse:  # noqa: N802
        return cri.ListImagesResponse(images=self._named(request.filter.image.image))

    async def RemoveImage(self, request: cri.RemoveImageRequest, _: Any) -> cri.RemoveImageResponse:  # noqa: N802
        self.images = [one for one in self.images if one not in self._named(request.image.image)]
        return cri.RemoveImageResponse()


def there(path: Path, **fields: object) -> Delegate:
    """A client of a delegate that has answered."""
    delegate = Delegate(delegate_config(path, **fields))
    delegate.trouble, delegate.ever_answered = "", True
    return delegate


def mixed_images(theirs: DelegateImages, ours: Any, path: Path) -> MixedImages:
    return MixedImages(delegate_config(path), {"xenpod"}, ours, theirs, PullMemory(), lambda _: False)


@pytest.fixture
async def delegate(other: OtherRuntime) -> AsyncIterator[Delegate]:
    made = there(other.path)
    yield made
    await made.close()


async def test_a_removal_takes_as_long_as_its_caller_waits(other: OtherRuntime) -> None:
    """containerd answers when the space is free, possibly far later than a list."""
    delegate = there(other.path, timeout=Seconds(1.0))
    theirs = DelegateImages(delegate, 60)
    other.images[IMAGE] = cri.Image(id=IMAGE)
    try:
        service: Any = mixed_images(theirs, OurImages(), other.path)
        request = cri.RemoveImageRequest(image=cri.ImageSpec(image=IMAGE))
        await service.remove(request.SerializeToString(), Asked())
        assert [seen.remaining for seen in other.asked("RemoveImage")] == [None]
        other.hanging.add("RemoveImage")
        with pytest.raises(TooLate):
            await theirs.remove(IMAGE, 1.0)
        assert not delegate.trouble, "whether it answers, what only reads finds out"
    finally:
        await delegate.close()


async def test_a_list_from_before_a_pull_does_not_hide_the_image(
    other: OtherRuntime, delegate: Delegate
) -> None:
    theirs = DelegateImages(delegate, 60)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def before_the_pull(request: bytes) -> cri.ListImagesResponse:
        asked.set()
        await go_on.wait()
        return cri.ListImagesResponse()

    other.answers["ListImages"] = before_the_pull
    listed = asyncio.ensure_future(theirs.images())
    await asked.wait()
    pull = cri.PullImageRequest(image=cri.ImageSpec(image=IMAGE))
    await theirs.pull(pull.SerializeToString(), None)
    go_on.set()
    await listed
    await other.die()
    with pytest.raises(Unreachable):
        await theirs.images()
    with pytest.raises(Unreachable):
        await theirs.remove(IMAGE, None)


@pytest.mark.parametrize("listed", [True, False])
async def test_an_image_with_a_field_of_another_type_is_no_answer(
    other: OtherRuntime, delegate: Delegate, listed: bool
) -> None:
    """Decoders in Go would refuse the whole list, with our images."""
    lie = cri.Image(id=IMAGE).SerializeToString() + b"\x22\x03abc"
    answer = b"\x0a" + bytes([len(lie)]) + lie
    other.answers["ListImages" if listed else "ImageStatus"] = answer
    theirs = DelegateImages(delegate, 60)
    with pytest.raises(Broken, match="not CRI's"):
        await (theirs.images() if listed else theirs.find(IMAGE))


async def test_more_images_than_there_can_be_are_not_read(other: OtherRuntime, delegate: Delegate) -> None:
    other.answers["ListImages"] = b"\x0a\x00" * (MOST_ITEMS + 1)
    with pytest.raises(Broken, match=f"more than {MOST_ITEMS}"):
        await DelegateImages(delegate, 60).images()


async def test_an_unknown_delegate_has_no_images(other: OtherRuntime) -> None:
    """Under any form of an image's name, not only the id."""
    await other.die()
    delegate = Delegate(delegate_config(other.path))
    ours = OurImages()
    service: Any = mixed_images(DelegateImages(delegate, 60), ours, other.path)
    try:
        asked = cri.ListImagesRequest(filter=cri.ImageFilter(image=cri.ImageSpec(image="nothing")))
        assert not (await service.list_images(asked.SerializeToString(), Asked())).images
        request = cri.RemoveImageRequest(image=cri.ImageSpec(image=NAME))
        await service.remove(request.SerializeToString(), Asked())
        assert ours.images == []
    finally:
        await delegate.close()


async def test_a_pull_ends_when_the_delegate_has_been_away_for_long(other: OtherRuntime) -> None:
    """The kubelet sets no deadline for pulls, and by default waits for each before the next, zones' too."""
    delegate = there(other.path)
    other.hanging.add("PullImage")
    theirs = DelegateImages(delegate, 0.2)
    request = cri.PullImageRequest(image=cri.ImageSpec(image=NAME)).SerializeToString()
    pull = asyncio.ensure_future(theirs.pull(request, None))
    try:
        await until(other, lambda: bool(other.asked("PullImage")))
        delegate.lost("it hangs")
        with pytest.raises(Unreachable, match="it hangs"):
            await asyncio.wait_for(pull, 60)
        await until(other, lambda: other.cancelled == ["PullImage"])
    finally:
        await delegate.close()


async def test_a_long_pull_of_an_answering_delegate_continues(other: OtherRuntime) -> None:
    delegate = there(other.path)
    go_on = asyncio.Event()

    async def slow(request: bytes) -> cri.PullImageResponse:
        await go_on.wait()
        return cri.PullImageResponse(image_ref=IMAGE)

    other.answers["PullImage"] = slow
    theirs = DelegateImages(delegate, 0.01)
    request = cri.PullImageRequest(image=cri.ImageSpec(image=NAME)).SerializeToString()
    pull = asyncio.ensure_future(theirs.pull(request, None))
    try:
        for _ in range(3):
            delegate.lost("it hangs")
            delegate.trouble = ""
            done, _ = await asyncio.wait({pull}, timeout=0.05)
            assert not done
        go_on.set()
        assert cri.PullImageResponse.FromString(await pull).image_ref == IMAGE
    finally:
        await delegate.close()


async def until(other: OtherRuntime, true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            other.changed.clear()
            await other.changed.wait()
