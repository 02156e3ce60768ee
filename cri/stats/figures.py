"""Figures of xenpod-cri's pods, images and neighbours at the moment of a Prometheus request.

The figures are about the daemon.  The kubelet gets figures of single pods by ListPodSandboxMetrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from cri.delegate.link import Delegate
from cri.ports import Images, PodNetwork
from cri.state.container import ContainerPhase
from cri.state.pod_records import PodRecords
from cri.state.sandbox import SandboxPhase
from cri.zones.follow import Follower
from daemonkit.faults import Fault


class DaemonFigures:
    """Reads the daemon's figures."""

    def __init__(
        self,
        records: PodRecords,
        images: Images,
        network: PodNetwork,
        follower: Follower,
        delegate: Delegate | None,
    ) -> None:
        self._records = records
        self._images = images
        self._network = network
        self._follower = follower
        self._delegate = delegate

    async def read(self) -> list[Metric]:
        """All figures of one moment."""
        pods = (pod.phase for pod in self._records.sandboxes.all())
        containers = (container.phase for container in self._records.containers.all())
        found = [
            _states("xenpod_pods", "Pods, by the phase of their record.", SandboxPhase, pods),
            _states("xenpod_containers", "Containers, likewise.", ContainerPhase, containers),
            GaugeMetricFamily("xenpod_pulls", "Pulls under way.", len(self._images.pulls())),
            _truth("xenpod_protectd_up", "Whether protectd answers.", not self._follower.trouble),
            _truth("xenpod_network_ready", "Whether pods get a network.", _attachable(self._network)),
        ]
        if self._delegate is not None:
            answers = not self._delegate.trouble
            found.append(_truth("xenpod_delegate_up", "Whether the delegate answers.", answers))
        return found


def _attachable(network: PodNetwork) -> bool:
    try:
        network.check()
    except Fault:
        return False
    return True


def _truth(name: str, text: str, value: bool) -> Metric:
    return GaugeMetricFamily(name, text, int(value))


def _states(name: str, text: str, states: type[Enum], seen: Iterable[Enum]) -> Metric:
    """Count of each state, including states with a count of 0."""
    found, family = Counter(seen), GaugeMetricFamily(name, text, labels=("phase",))
    for state in states:
        family.add_metric((str(state.value),), found[state])
    return family
