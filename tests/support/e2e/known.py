"""Specs of the suite that fail on this cluster, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.support.e2e.rig import RuntimeName
from tests.support.e2e.verdict import Known

EVERYWHERE: Sequence[Known] = ()
"""Failures of the cluster itself: the specs fail with every runtime."""

KNOWN: Mapping[RuntimeName, Sequence[Known]] = {
    RuntimeName.XENPOD: (*EVERYWHERE,),
    RuntimeName.CONTAINERD: (*EVERYWHERE,),
}
