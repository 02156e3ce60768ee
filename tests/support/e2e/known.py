"""Specs of the suite that fail on this cluster, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.support.e2e.rig import RuntimeName
from tests.support.e2e.verdict import Known

_HOST_NETWORK = "a pod uses the host's network, which zones cannot reach; with a delegate such pods run there"

EVERYWHERE: Sequence[Known] = ()
"""Failures of the cluster itself: the specs fail with every runtime."""

HOST_NETWORK = (
    "KubeletManagedEtcHosts should test kubelet managed /etc/hosts file",
    "Pods should function for node-pod communication: http",
    "Pods should function for node-pod communication: udp",
    "HostPort validates that there is no conflict between pods",
)
"""Parts of the names of the specs whose pods use the host's network."""
_ZONES = (*EVERYWHERE, *(Known(name, _HOST_NETWORK) for name in HOST_NETWORK))

KNOWN: Mapping[RuntimeName, Sequence[Known]] = {
    RuntimeName.XENPOD: _ZONES,
    RuntimeName.XEN: _ZONES,
    RuntimeName.MIXED: EVERYWHERE,
    RuntimeName.CONTAINERD: EVERYWHERE,
}
