"""Kubernetes' own conformance specs, on a cluster whose only runtime is xenpod, and with containerd."""

from __future__ import annotations

import pytest

from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import needs_node
from tests.support.e2e.ginkgo import cluster_suite, run_specs
from tests.support.e2e.known import KNOWN
from tests.support.e2e.rig import CACHE, RUNTIMES, Rig, needs_suite
from tests.support.e2e.verdict import verdict

pytestmark = [
    pytest.mark.root,
    needs_node,
    needs_kubernetes,
    needs_suite,
    pytest.mark.timeout(6 * 3600),
    pytest.mark.asyncio(loop_scope="session"),
]

SIGS = {"node": 3, "network": 3, "auth": 2}
"""The special interest groups, whose names begin the names of specs, and the number of specs at once."""


@pytest.mark.parametrize("sig", SIGS)
@pytest.mark.parametrize("suite_rig", RUNTIMES, indirect=True)
async def test_conformance_specs_pass_but_known_failures(suite_rig: Rig, sig: str) -> None:
    focus = rf"\[sig-{sig}\].*\[Conformance\]"
    folder = CACHE / "reports" / suite_rig.runtime / sig
    found = await run_specs(folder, cluster_suite(suite_rig.kubeconfig), focus, at_once=SIGS[sig])
    suite_rig.check()
    complaints = verdict(found, KNOWN[suite_rig.runtime])
    assert not complaints, "\n".join([f"{len(complaints)} of {len(found)} specs; log: {folder}", *complaints])
