"""Kubernetes' own conformance specs, on a cluster whose only runtime is xenpod, and with containerd."""

from __future__ import annotations

import re

import pytest

from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import needs_node
from tests.support.delegate.containerd import needs_containerd
from tests.support.e2e.ginkgo import Suite, cluster_suite, node_suite
from tests.support.e2e.judged import judged_specs
from tests.support.e2e.known import HOST_NETWORK
from tests.support.e2e.rig import CACHE, RUNTIMES, Rig, RuntimeName, needs_node_suite, needs_suite

pytestmark = [
    pytest.mark.root,
    needs_node,
    needs_kubernetes,
    needs_suite,
    pytest.mark.timeout(6 * 3600),
    pytest.mark.asyncio(loop_scope="session"),
]

SIGS = {
    "node": 3,
    "network": 3,
    "storage": 3,
    "apps": 3,
    "api-machinery": 3,
    "cli": 3,
    "scheduling": 1,
    "instrumentation": 2,
    "architecture": 1,
    "auth": 2,
}
"""The special interest groups, whose names begin the names of specs, and the number of specs at once.

ginkgo runs specs marked [Serial] alone, after the others.
"""


@pytest.mark.parametrize("sig", SIGS)
@pytest.mark.parametrize("suite_rig", RUNTIMES, indirect=True)
async def test_conformance_specs_pass_but_known_failures(suite_rig: Rig, sig: str) -> None:
    suite = cluster_suite(suite_rig.kubeconfig)
    await check_specs(suite_rig, f"sig-{sig}", suite, rf"\[sig-{sig}\].*\[Conformance\]", SIGS[sig])


@needs_containerd
@pytest.mark.parametrize("suite_rig", [RuntimeName.MIXED], indirect=True)
async def test_specs_of_the_hosts_network_pass_with_a_delegate(suite_rig: Rig) -> None:
    names = "|".join(map(re.escape, HOST_NETWORK))
    suite = cluster_suite(suite_rig.kubeconfig)
    await check_specs(suite_rig, "host-network", suite, rf"({names}).*\[Conformance\]", 2)


@needs_node_suite
@pytest.mark.parametrize("node_rig", RUNTIMES, indirect=True)
async def test_node_specs_pass_but_known_failures(node_rig: Rig) -> None:
    suite = node_suite(node_rig.api, node_rig.nodes[0])
    await check_specs(node_rig, "node-suite", suite, r"\[NodeConformance\]", 3)


async def check_specs(made: Rig, group: str, suite: Suite, focus: str, at_once: int) -> None:
    folder = CACHE / "reports" / made.runtime / group
    result = await judged_specs(made, folder, suite, focus, at_once=at_once)
    summary = f"{len(result.complaints)} of {len(result.specs)} specs; log: {folder}"
    assert not result.complaints, "\n".join([summary, *result.complaints])
