"""Ports of the verbs: the image store and the network, as pods and containers need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from cri.oci.values import RootImage
from cri.state.attachment import Attachment, BandwidthLimits, Chain
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb


class Images(Protocol):
    """The image store, as pods and containers need it."""

    def resolve(self, reference: str) -> RootImage:
        """Find an image by id, tag or digest; Missing: no image has this name."""
        ...

    async def mend(self, references: Sequence[str]) -> None:
        """Rebuild damaged images; intact images are ignored.

        Refused if only a pull can mend an image.
        """
        ...

    def hold(self, image_id: str, container_id: str) -> None:
        """Keep an image on the disk until ``release``, even after its removal.

        A container may hold several; the zones of pods hold their kernels (``cri.sandbox.kernel``).
        """
        ...

    def release(self, container_id: str) -> None:
        """Give up all images of the container."""
        ...

    def collect(self) -> None:
        """Delete removed images without a hold.  The starting daemon makes all its holds first."""
        ...

    async def kernel(self, image_id: str) -> pb.ZoneKernel:
        """The files of a held kernel image; they last as long as the hold.

        Refused, Exhausted: no zone can boot from the image.
        """
        ...

    def pulls(self) -> list[dict[str, object]]:
        """The pulls under way and their progress, as JSON."""
        ...


class PodNetwork(Protocol):
    """The network of pods."""

    def check(self) -> Chain:
        """The configuration in force; Refused, with the reason: attaching a pod is impossible now."""
        ...

    def plan(self, sandbox_id: str, config: cri.PodSandboxConfig, most: BandwidthLimits) -> Attachment:
        """Plan a pod's attachment, without doing anything yet.

        Refused: an attachment is impossible.  Denied: the pod asks for more than ``most``.
        """
        ...

    async def attach(self, attachment: Attachment, made: Callable[[], None] = lambda: None) -> Attachment:
        """Attach a pod; returns the attachment with its result.  A failure leaves work for ``detach``.

        ``made`` is called once the namespace exists.
        """
        ...

    async def detach(self, attachment: Attachment) -> None:
        """Detach a pod; parts already gone succeed."""
        ...
