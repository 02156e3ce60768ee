"""The driver's figures, as Prometheus gets the figures from the process."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.dra import dra_metrics
from cluster.dra.config import DraConfig
from cluster.dra.model import ZoneMemory
from cluster.dra.slices.document import devices
from daemonkit.config import load_config
from daemonkit.faults import Exhausted
from daemonkit.observe.exposition import serving_metrics
from daemonkit.observe.observe_settings import MetricsConfig
from tests.support.cluster.programs import free_ports
from tests.support.dra.api_server import Cluster
from tests.support.dra.api_server import serving as api
from tests.support.dra.claims import allocated
from tests.support.dra.kubelet import DraKubelet, kubelet
from tests.support.labels.api_server import NAME, kubeconfig
from tests.support.protect.daemons import Daemon, toml
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.served import served
from tests.support.waiting import until

MIB = 1 << 20
Figures = dict[tuple[str, ...], float]


def parsed(text: str) -> Figures:
    """Samples by name and the values of their labels, in the order of the labels' names."""
    return {
        (sample.name.removeprefix("xenpod_dra_"), *(value for _, value in sorted(sample.labels.items()))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as reply:
        return str(reply.read().decode())


async def scrape(address: str) -> Figures:
    return parsed(await asyncio.to_thread(_page, address))


async def scraped(address: str, what: Callable[[Figures], bool]) -> Figures:
    """Scrape until the figures satisfy the condition: the figures."""
    found: Figures = {}

    async def satisfied() -> bool:
        nonlocal found
        with suppress(OSError):
            found = await scrape(address)
        return what(found)

    await until(satisfied, what=lambda: found)
    return found


@pytest.fixture
def address() -> str:
    (port,) = free_ports(1)
    return f"127.0.0.1:{port}"


async def test_the_real_process_is_scraped(short_path: Path, address: str) -> None:
    cluster = Cluster()
    with api(cluster) as url:
        settings: dict[str, object] = {
            "node": NAME,
            "kubeconfig": str(kubeconfig(short_path / "kubeconfig", url)),
            "protect_socket": str(short_path / "protect.sock"),
            "plugins_dir": str(short_path / "p"),
            "registry_dir": str(short_path / "r"),
            "write_interval": "1ms",
            "metrics": {"address": address},
        }
        path = short_path / "dra.toml"
        path.write_text(toml(settings))
        config = load_config(DraConfig, path)
        daemon = Daemon("cluster.dra", path, config.plugin_socket, short_path / "dra.log")
        async with served(short_path, MemoryToolstack()):
            starting = asyncio.create_task(daemon.start())
            try:
                async with kubelet(config) as asked:
                    await asked.registered()
                    await starting
                    await _watched(cluster, asked, address)
            finally:
                await daemon.stop()
        assert "prometheus" not in daemon.tail().lower()


async def _watched(cluster: Cluster, asked: DraKubelet, address: str) -> None:
    before = await scraped(address, lambda found: found.get(("slice_writes_total",)) == 1)
    assert before[("protectd_up",)] == 1 and before[("claims",)] == 0
    assert before[("capacity_bytes",)] == before[("free_bytes",)] == 4096 * MIB
    assert before[("call_seconds_count", "prepare")] == 0
    good, bad = ("good", "uid-good"), ("bad", "uid-bad")
    (device,) = devices(cluster.slice)
    for (name, uid), size in ((good, "512Mi"), (bad, "64Gi")):
        cluster.claims[f"default/{name}"] = allocated(name, uid, size, device=device["name"])
    await asked.prepare(good, bad, ("gone", "uid-gone"))
    found = await scraped(address, lambda found: found.get(("claims",)) == 1)
    assert found[("claimed_bytes",)] == found[("reserved_bytes",)] == 512 * MIB
    assert found[("free_bytes",)] == 3584 * MIB
    assert found[("call_seconds_count", "prepare")] == 3
    assert found[("call_seconds_bucket", "prepare", "+Inf")] == 3
    assert found[("errors_total", "prepare claim", "exhausted")] == 1
    assert found[("errors_total", "prepare claim", "missing")] == 1
    assert found[("errors_total", "read claim", "missing")] == 1
    assert found[("api_requests_total", "read claim")] == 3
    await asked.unprepare(good)
    after = await scraped(address, lambda found: found.get(("claims",)) == 0)
    assert after[("call_seconds_count", "unprepare")] == 1
    assert after[("slice_writes_total",)] == 1, "claims write nothing"
    assert after[("process_resident_memory_bytes",)] > 0


async def test_names_of_claims_make_no_series(address: str) -> None:
    async with serving_metrics(MetricsConfig(address), "xenpod-dra"):
        before = errors(await scraped(address, bool))
        for name in ("a", "b"):
            with pytest.raises(Exhausted), dra_metrics.measured_call("prepare"):
                raise Exhausted("prepare claim", name, f"no room for {name}")
            with pytest.raises(ZeroDivisionError), dra_metrics.measured_call("unprepare"):
                raise ZeroDivisionError(name)
        after = errors(await scraped(address, bool))
    new = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}
    assert new == {("prepare claim", "exhausted"): 2, ("unprepare claim", "bug"): 2}


def errors(found: Figures) -> Figures:
    return {key[1:]: value for key, value in found.items() if key[0] == "errors_total" and len(key) == 3}


async def test_last_figures_of_protectd_stay_during_its_absence(address: str) -> None:
    async with serving_metrics(MetricsConfig(address), "xenpod-dra"):
        dra_metrics.host(ZoneMemory(8, 8, 5, 3, 4, 2))
        dra_metrics.host(None)
        found = await scraped(address, bool)
    names = ("protectd_up", "claims", "capacity_bytes", "reserved_bytes", "claimed_bytes", "free_bytes")
    assert [found[(name,)] for name in names] == [0, 2, 8, 5, 4, 3]
