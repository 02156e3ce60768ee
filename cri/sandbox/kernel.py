"""The kernel image of a pod's zone, and the hold that keeps the image."""

from __future__ import annotations

from cri.checks.fields import RUN
from cri.config import KERNEL, HandlerConfig
from cri.ports import Images
from daemonkit.faults import Denied, Invalid, Missing
from images.globs import Globs
from images.image_settings import KernelSettings
from images.kernels.kernel_images import ZONE
from images.registry import names
from xenpod_proto.cri.v1 import runtime_pb2 as cri


def chosen(config: cri.PodSandboxConfig, handler: HandlerConfig, settings: KernelSettings) -> str:
    """The image's normalised name: the pod's own choice, else its handler's; "": the toolstack's kernel.

    Invalid: not the name of an image; Denied: pods may not choose this image.
    """
    if KERNEL not in config.annotations:
        return str(names.parse(handler.kernel)) if handler.kernel else ""
    try:
        wanted = names.parse(config.annotations[KERNEL])
    except Invalid as fault:
        raise Invalid("read annotation", KERNEL, str(fault)) from None
    if not Globs(settings.allow).matching((str(wanted), wanted.name)):
        hint = "kernels.allow in cri.toml has those they may"
        raise Denied(RUN, config.metadata.name, f"pods may not choose the kernel {wanted}", hint)
    return str(wanted)


def resolve_kernel(images: Images, name: str) -> str:
    """Look an image up; its id ("" for "").  Missing if the store lacks the image: nothing is pulled."""
    if not name:
        return ""
    try:
        return images.resolve(name).id
    except Missing:
        hint = f"protect image pull {name}"
        raise Missing(
            RUN, f"zone kernel {name}", "the image is not here, and is not pulled for it", hint
        ) from None


def hold_kernel(images: Images, image_id: str, sandbox_id: str) -> None:
    """Keep the image until ``release_kernel``; Missing if the image is gone."""
    if image_id:
        images.hold(image_id, ZONE + sandbox_id)


def release_kernel(images: Images, sandbox_id: str) -> None:
    """End the hold, if any, once no zone boots from the image."""
    images.release(ZONE + sandbox_id)
