"""The kinds of attackers on xenpod-cri."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tests.bench.attacks import calls, pulls, stream_clients
from tests.bench.attacks.ground import AttackGround


@dataclass(frozen=True, slots=True)
class AttackKind:
    """``attack`` never returns; ``pods``: True if each attacker has a pod with a running container.

    ``times``: factor of the measured duration, for attacks with a late effect.
    """

    attack: Callable[[AttackGround], Awaitable[None]]
    pods: bool = False
    times: int = 1


KINDS: Mapping[str, AttackKind] = {
    "registry: challenges": AttackKind(pulls.challenges),
    "registry: 100 Continue": AttackKind(pulls.continues),
    "registry: long manifests": AttackKind(pulls.long_manifests),
    "registry: slow manifests": AttackKind(pulls.slow_manifests),
    "registry: layers of others": AttackKind(pulls.hostages),
    "image: many entries": AttackKind(pulls.many_entries, times=4),
    "client: SPDY PING": AttackKind(stream_clients.pings, pods=True),
    "client: SPDY SETTINGS": AttackKind(stream_clients.settings, pods=True),
    "client: empty WebSocket frames": AttackKind(stream_clients.empty_frames, pods=True),
    "client: stdin by bytes": AttackKind(stream_clients.single_bytes, pods=True),
    "client: idle port-forwards": AttackKind(stream_clients.idle, pods=True),
    "pod: output of probes": AttackKind(calls.probes, pods=True),
    "pod: annotations": AttackKind(calls.large_annotations),
}
