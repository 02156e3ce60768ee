"""A sample of Kubernetes' conformance specs on Xen: control plane and kubelet in dom0, pods in zones."""

from __future__ import annotations

import re

import pytest

from tests.support.cluster.programs import needs_kubernetes
from tests.support.e2e.ginkgo import cluster_suite
from tests.support.e2e.judged import judged_specs
from tests.support.e2e.rig import RuntimeName, needs_suite, rig
from tests.xen.machine import SHARE

pytestmark = [pytest.mark.root, pytest.mark.slow, needs_kubernetes, needs_suite]

SPECS = (
    # volumes
    "EmptyDir volumes should support (non-root,0644,default)",
    "EmptyDir volumes should support (root,0666,tmpfs)",
    "EmptyDir volumes pod should support shared volumes between containers",
    "ConfigMap updates should be reflected in volume",
    "Projected combined should project all components that make up the projection API",
    "Secrets should be consumable from pods in volume as non-root with defaultMode and fsGroup set",
    "Subpath Atomic writer volumes should support subpaths with configmap pod with mountPath",
    "Variable Expansion should allow substituting values in a volume subpath",
    "ImageVolume should succeed with pod and pull policy of Always",
    # networks
    "Networking Granular Checks: Pods should function for intra-pod communication: http",
    "Services should be able to create a functioning NodePort service",
    "DNS should provide DNS for services",
    # changes of size
    "Pod InPlace Resize Container burstable pods - extended resize with equivalents",
    "Pod InPlace Resize Container resize pod via the replace endpoint",
    # probes and hooks
    "Probing container should be restarted with a /healthz http liveness probe",
    'Probing container should *not* be restarted with a exec "cat /tmp/health" liveness probe',
    "] Container Lifecycle Hook when create a pod with lifecycle hook should execute prestop exec hook",
    # streams, and containers that come later
    "Pods should support remote command execution over websockets",
    "Pods should support retrieving logs from the container over websockets",
    "Ephemeral Containers [NodeConformance] will start an ephemeral container in an existing pod",
)
"""Parts of the names of the specs."""


async def test_sample_of_conformance_specs_passes() -> None:
    focus = rf"({'|'.join(map(re.escape, SPECS))}).*\[Conformance\]"
    async with rig(RuntimeName.XEN, 1, parent="/var/tmp") as made:
        suite = cluster_suite(made.kubeconfig)
        result = await judged_specs(made, SHARE / "results" / "e2e", suite, focus, at_once=1)
    assert not result.complaints, "\n".join(result.complaints)
    assert len(result.specs) == len(SPECS), [spec.name for spec in result.specs]
