"""Specs of the suite that fail on this cluster, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.support.e2e.rig import RuntimeName
from tests.support.e2e.verdict import Known

_HOST_NETWORK = "a pod uses the host's network, which zones cannot reach; with a delegate such pods run there"

EVERYWHERE: Sequence[Known] = ()
"""Failures of the cluster itself: the specs fail with every runtime."""

_ZONES = (
    *EVERYWHERE,
    Known("KubeletManagedEtcHosts should test kubelet managed /etc/hosts file", _HOST_NETWORK),
    Known("Pods should function for node-pod communication: http", _HOST_NETWORK),
    Known("Pods should function for node-pod communication: udp", _HOST_NETWORK),
    Known("HostPort validates that there is no conflict between pods", _HOST_NETWORK),
)

KNOWN: Mapping[RuntimeName, Sequence[Known]] = {
    RuntimeName.XENPOD: _ZONES,
    RuntimeName.XEN: _ZONES,
    RuntimeName.CONTAINERD: EVERYWHERE,
}
