"""Takes images over from another store on this host; what it lacks comes from the registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemonkit.faults import Denied, Refused
from images.policy.policy import Policy
from images.pull.progress import Progress
from images.pull.pull import Puller
from images.registry.credentials import ANONYMOUS, Credentials
from images.registry.manifests import Descriptor
from images.registry.names import Reference
from images.registry.sources import ImageSource
from images.store.catalogue import StoredImage
from images.store.store import ImageStore


@dataclass(frozen=True)
class OfferedImage:
    """An image as another store names it; all of it is checked as if it came from a registry.

    id: the digest of its configuration; target: the manifest or index that its names stand for; names: those
    it has there, the one it is asked for by first; credentials: for the registry of a name, and no other.
    """

    id: str
    target: Descriptor
    names: tuple[Reference, ...]
    source: ImageSource
    credentials: Callable[[Reference], Credentials] = lambda _: ANONYMOUS


class Taker:
    """Takes images over through the puller, with the same policy, limits and checks."""

    def __init__(self, puller: Puller, store: ImageStore) -> None:
        self._puller = puller
        self._store = store

    async def run(self, offered: OfferedImage, progress: Progress) -> StoredImage:
        """The image in the store, under those of its names that the policy allows and no other image has."""
        allowed = _allowed(self._puller.policy, offered)
        if allowed:
            await self._puller.policy.check_content(allowed[0], offered.target)
        name = allowed[0] if allowed else None
        secret = ANONYMOUS if name is None else offered.credentials(name)
        puller = self._puller
        async with puller.candidates(name, secret, progress, offered.source) as candidates:
            document = await puller.resolver.read(offered.target, candidates)
            image = await puller.resolver.resolve(document, candidates)
            if image.id != offered.id:
                cause = f"for this platform it is {image.id} by {offered.target.digest}"
                raise Refused("take over image", offered.id, cause, "pull it for this pod")
            names = (*(one.at(offered.target.digest) for one in allowed), *self._free(allowed, image.id))
            return await puller.keep(image, tuple(dict.fromkeys(names)), candidates, progress)

    def _free(self, names: Sequence[Reference], image_id: str) -> list[str]:
        """The tags that mean no other image here, since only a pull moves a tag."""
        tags = [str(one) for one in names if one.tag is not None]
        known = {tag: self._store.find(tag) for tag in tags}
        return [tag for tag, other in known.items() if other is None or other.id == image_id]


def _allowed(policy: Policy, offered: OfferedImage) -> list[Reference]:
    """The names that the policy allows; Denied when it allows none of them."""
    if not offered.names:
        policy.check_nameless(offered.id)
    allowed: list[Reference] = []
    denied: Denied | None = None
    for name in offered.names:
        try:
            policy.check_name(name, "take over image")
            allowed.append(name)
        except Denied as fault:
            denied = denied or fault
    if denied is not None and not allowed:
        raise denied
    return allowed
