"""ListPodSandboxMetrics: metrics of every running pod, its containers, and its network."""

from __future__ import annotations

from cri.state.container import Container
from cri.state.pod_records import PodRecords
from cri.state.records import Records
from cri.state.sandbox import Sandbox, SandboxPhase
from cri.stats import descriptors as known
from cri.stats.pods import zone_rows
from cri.stats.values import value
from cri.zones.client import Zones
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

_POD = "POD"  # the kubelet's name for figures of the pod itself


async def metrics(records: PodRecords, zones: Zones) -> list[cri.PodSandboxMetrics]:
    """Metrics of every running pod, except for silent zones."""
    ready = [sandbox for sandbox in records.sandboxes.visible() if sandbox.phase is SandboxPhase.READY]
    rows = await zone_rows(records.sandboxes, zones, ready, details=True)
    return [_pod(records.containers, sandbox, rows[sandbox.id]) for sandbox in ready if sandbox.id in rows]


def _pod(containers: Records[Container], sandbox: Sandbox, row: pb.ZoneStatsRow) -> cri.PodSandboxMetrics:
    live = [(containers.get(one.id), one) for one in row.workloads if containers.has(one.id)]
    return cri.PodSandboxMetrics(
        pod_sandbox_id=sandbox.id,
        metrics=[*_network(sandbox, row), *_whole(sandbox, row)],
        container_metrics=[_container(sandbox, container, one) for container, one in live if container.live],
    )


def _container(sandbox: Sandbox, container: Container, row: pb.WorkloadStatsRow) -> cri.ContainerMetrics:
    meta = sandbox.config.metadata
    base = (
        container.config.metadata.name,
        f"/{sandbox.id}/workloads/{container.id}",
        container.config.image.user_specified_image or container.config.image.image,
        container.id,
        meta.namespace,
        meta.name,
    )
    return cri.ContainerMetrics(
        container_id=container.id,
        metrics=[
            _metric(metric.name, metric.kind, row.timestamp_ns, (*base, *labels), number)
            for metric in known.METRICS
            for labels, number in metric.read(row, container)
        ],
    )


def _network(sandbox: Sandbox, row: pb.ZoneStatsRow) -> list[cri.Metric]:
    base = _of_pod(sandbox, _POD)
    return [
        _metric(name, cri.COUNTER, row.timestamp_ns, (*base, one.name), getattr(one, field))
        for one in row.interfaces
        for name, _, field in known.NETWORK
    ]


def _whole(sandbox: Sandbox, row: pb.ZoneStatsRow) -> list[cri.Metric]:
    base = _of_pod(sandbox, "")
    return [
        _metric(name, known.KINDS[name], row.timestamp_ns, (*base, *labels), getattr(row, field) // divisor)
        for name, field, divisor, labels in known.POD
    ]


def _of_pod(sandbox: Sandbox, container: str) -> tuple[str, ...]:
    meta = sandbox.config.metadata
    return container, f"/{sandbox.id}", "", sandbox.id if container else "", meta.namespace, meta.name


def _metric(
    name: str, kind: cri.MetricType.ValueType, when: int, labels: tuple[str, ...], number: int
) -> cri.Metric:
    return cri.Metric(name=name, timestamp=when, metric_type=kind, label_values=labels, value=value(number))
