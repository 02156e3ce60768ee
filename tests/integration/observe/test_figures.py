"""Debian's Prometheus scrapes both daemons with a pod running: every panel and every alert has its series."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import grpc.aio
import pytest
from ruamel.yaml import YAML

from tests.support.cri.cri_daemons import CriNode, needs_node
from tests.support.cri.stage import Stage, StageSettings
from tests.support.observe.prometheus import metrics_address, needs_prometheus, prometheus
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, needs_prometheus, pytest.mark.asyncio(loop_scope="module")]

DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "observability"
ON = {"metrics": {"address": "127.0.0.1:0"}}
SERIES = re.compile(r"\b(?:xenpod|grpc_server|process)_\w+(?:\{[^}]*\})?|\bup\{[^}]*\}")
NOT_HERE = ("xenpod_delegate_up", "INTERNAL", '"cni.add"')
"""In series missing on this node: no delegate, no failing plugin, no bug."""


@pytest.fixture(scope="module")
def stage_settings() -> StageSettings:
    return StageSettings(ON, ON)


def panels() -> Iterator[tuple[str, str]]:
    """Title and expression of each query of the dashboard."""
    for panel in json.loads((DEPLOY / "dashboard.json").read_text())["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$node", ".*").replace("$__rate_interval", "1m")


def alerts() -> Iterator[tuple[str, str]]:
    """Name and expression of every alert."""
    for rule in YAML(typ="safe").load(DEPLOY / "alerts.yaml")["groups"][0]["rules"]:
        yield rule["alert"], rule["expr"]


async def use(stage: Stage, name: str) -> None:
    """Use the node: a pod at work, calls and pulls that fail."""
    pod = await stage.client.run_pod(name)
    container = await stage.started(pod, "while true; do echo on; sleep 0.2; done")
    await stage.output(container, "true")
    with pytest.raises(grpc.aio.AioRpcError):
        await stage.client.runtime.ContainerStatus(cri.ContainerStatusRequest(container_id="none"))
    with pytest.raises(grpc.aio.AioRpcError):
        await stage.client.pull("127.0.0.1:9/none:1")


def addresses(node: CriNode) -> dict[str, str]:
    logs = {"protectd": node.protectd.daemon.log, "xenpod-cri": node.daemon.log}
    return {job: metrics_address(log) for job, log in logs.items()}


async def text(address: str) -> str:
    """Result of a scrape."""

    def read() -> str:
        with urlopen(f"http://{address}/metrics", timeout=10) as reply:
            return str(reply.read(), "utf-8")

    return await asyncio.to_thread(read)


async def test_every_panel_and_alert_has_its_series(stage: Stage, tmp_path: Path) -> None:
    targets = addresses(stage.node)
    rules = DEPLOY / "alerts.yaml"
    async with prometheus(tmp_path, targets, rules) as served:
        await served.until_any('xenpod_zones{state="running"}')
        await use(stage, "web")
        await served.until_any('xenpod_step_failures_total{step="image.pull"}')
        await served.until_any('grpc_server_handling_seconds_count{grpc_method="CreateZone"} > 0')
        # A rate needs an earlier value: the first value of a counter gives no rate.
        await use(stage, "other")
        # All at once: the minute of a rate must not have passed for the last query.
        asked = [(title, asyncio.create_task(served.until_any(expression))) for title, expression in panels()]
        assert len(asked) > 20
        await asyncio.wait([task for _, task in asked])
        assert [title for title, task in asked if task.exception()] == []
        held = await served.until_any("sum by (name) (xenpod_zone_memory_bytes)")
        assert {one["metric"]["name"] for one in held} == {"default/web", "default/other"}
        assert all(float(one["value"][1]) > 0 for one in held)
        for alert, expression in alerts():
            # The alert's condition may be false, but its series must be there.
            for series in SERIES.findall(expression):
                if not any(word in series for word in NOT_HERE):
                    assert await served.until_any(series), f"{alert}: {series}"
        groups = (await served.get("rules"))["groups"]
        found = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
        assert found == dict.fromkeys((name for name, _ in alerts()), "ok")
        firing = await served.result('ALERTS{alertstate="firing"}')
        assert [one["metric"]["alertname"] for one in firing] == []
    for address in targets.values():
        page, command = await text(address), ["promtool", "check", "metrics"]
        done = subprocess.run(command, input=page, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


async def test_removed_zone_leaves_no_series_in_the_metrics(stage: Stage) -> None:
    pod = await stage.client.run_pod("short")
    address = addresses(stage.node)["protectd"]
    assert pod.id in await text(address)
    await stage.client.remove_pod(pod.id)
    assert pod.id not in await text(address)


async def test_metrics_show_whether_protectd_is_up(stage: Stage) -> None:
    address = addresses(stage.node)["xenpod-cri"]

    async def shows(line: str) -> bool:
        return f"\n{line}\n" in await text(address)

    await until(partial(shows, "xenpod_protectd_up 1.0"))
    assert "\nxenpod_network_ready 1.0\n" in await text(address)
    await stage.node.protectd.daemon.stop()
    await until(partial(shows, "xenpod_protectd_up 0.0"))
    await stage.node.protectd.daemon.start()
    await until(partial(shows, "xenpod_protectd_up 1.0"))


# By alert, series that make the alert fire: name and labels, values minute by minute (in promtool's syntax).
FIRES: dict[str, dict[str, str]] = {
    "XenpodDaemonDown": {'up{job="protectd"}': "0x60"},
    "XenpodProtectdUnreachable": {"xenpod_protectd_up": "0x60"},
    "XenpodDelegateDown": {"xenpod_delegate_up": "0x60"},
    "XenpodNetworkNotReady": {"xenpod_network_ready": "0x60"},
    "XenpodZonesSilent": {"xenpod_zones_silent": "1x60"},
    "XenpodZoneMemoryFull": {
        'xenpod_ledger_bytes{kind="free"}': "4x60", 'xenpod_ledger_bytes{kind="total"}': "100x60"
    },
    "XenpodZonesNearLimit": {
        'xenpod_zones{state="running"}': "90x60", 'xenpod_zones{state="dead"}': "1x60",
        "xenpod_zones_limit": "100x60",
    },
    "XenpodScratchFull": {
        'xenpod_scratch_bytes{kind="free"}': "1000x60", 'xenpod_scratch_bytes{kind="promised"}': "5000x60"
    },
    "XenpodUnknownDomains": {"xenpod_unknown_domains": "1x60"},
    "XenpodHostNotices": {"xenpod_host_notices": "2x60"},
    "XenpodPodsStartSlowly": {
        'grpc_server_handling_seconds_bucket{grpc_method="RunPodSandbox",le="10"}': "0x60",
        'grpc_server_handling_seconds_bucket{grpc_method="RunPodSandbox",le="30"}': "0+3x60",
        'grpc_server_handling_seconds_bucket{grpc_method="RunPodSandbox",le="+Inf"}': "0+3x60",
    },
    "XenpodCallsFail": {
        'grpc_server_handled_total{job="protectd",grpc_code="INTERNAL"}': "0+1x60",
        'grpc_server_handled_total{job="protectd",grpc_code="OK"}': "0+9x60",
    },
    "XenpodNetworksFail": {'xenpod_step_failures_total{step="cni.add"}': "0+1x60"},
    "XenpodPullsFail": {'xenpod_step_failures_total{step="image.pull"}': "0+1x60"},
    "XenpodChannelViolation": {"xenpod_channel_violations_total": "0x55 1 1 1 1 1"},
    "XenpodEventLoopLag": {
        'xenpod_event_loop_lag_seconds_bucket{le="0.5"}': "0x60",
        'xenpod_event_loop_lag_seconds_bucket{le="1.0"}': "0+9x60",
        'xenpod_event_loop_lag_seconds_bucket{le="+Inf"}': "0+9x60",
    },
    "XenpodAuditLost": {"xenpod_audit_lost_total": "0x55 3 3 3 3 3"},
    "XenpodOpenFiles": {
        'process_open_fds{job="protectd"}': "90x60", 'process_max_fds{job="protectd"}': "100x60"
    },
    "XenpodFiguresUnread": {"xenpod_figures_unread_total": "0+1x60"},
}  # fmt: skip


def test_every_alert_fires_on_its_series(tmp_path: Path) -> None:
    assert set(FIRES) == {name for name, _ in alerts()}
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "1h",
                    "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}],
                }
            ],
        }
        for alert, series in FIRES.items()
    ]
    file = tmp_path / "fires.yaml"
    file.write_text(json.dumps({"rule_files": [str(DEPLOY / "alerts.yaml")], "tests": tests}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
