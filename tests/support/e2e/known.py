"""Specs of the suite that fail on this cluster, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.support.e2e.rig import RuntimeName
from tests.support.e2e.verdict import Known

_HOST_NETWORK = "a pod uses the host's network, which zones cannot reach; with a delegate such pods run there"
_GROWTH = "a zone without configured headroom cannot grow in place"

EVERYWHERE: Sequence[Known] = ()
"""Failures of the cluster itself: the specs fail with every runtime."""

KNOWN: Mapping[RuntimeName, Sequence[Known]] = {
    RuntimeName.XENPOD: (
        *EVERYWHERE,
        Known("KubeletManagedEtcHosts should test kubelet managed /etc/hosts file", _HOST_NETWORK),
        Known("Pods should function for node-pod communication: http", _HOST_NETWORK),
        Known("Pods should function for node-pod communication: udp", _HOST_NETWORK),
        Known("HostPort validates that there is no conflict between pods", _HOST_NETWORK),
        Known("resize pod via the replace endpoint", _GROWTH),
        Known(
            "3 containers - increase cpu & mem on c1, c2, decrease cpu & mem on c3 - net increase", _GROWTH
        ),
        Known("3 containers - increase: CPU (c1,c3), memory (c2, c3) ; decrease: CPU (c2)", _GROWTH),
        Known("6 containers - various operations performed (including adding limits and requests)", _GROWTH),
    ),
    RuntimeName.CONTAINERD: (*EVERYWHERE,),
}
