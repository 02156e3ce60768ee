"""Debian's Prometheus with a test's targets, and the metrics' address in a daemon's log."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.support.waiting import until

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs Prometheus (make setup)",
)

_SERVED = re.compile(r"serving metrics address=(127\.0\.0\.1:\d+)")


def metrics_address(log: Path) -> str:
    """Address of the daemon's metrics since its last start, by its log."""
    *_, last = _SERVED.finditer(log.read_text())
    return last[1]


class Prometheus:
    """Answers queries."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api/v1"

    async def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer; OSError: the request is refused, or the server is not there yet."""

        def ask() -> Any:
            with urlopen(f"{self._base}/{path}?{urlencode(parameters)}", timeout=10) as reply:
                return json.load(reply)["data"]

        return await asyncio.to_thread(ask)

    async def answers(self) -> bool:
        try:
            await self.get("query", query="1")
        except OSError:
            return False
        return True

    async def result(self, expression: str) -> list[Any]:
        """The series of an expression, now."""
        found: list[Any] = (await self.get("query", query=expression))["result"]
        return found

    async def until_any(self, expression: str) -> list[Any]:
        """The series of an expression, once a series has a number."""
        found: list[Any] = []

        async def any_found() -> bool:
            found[:] = _numbers(await self.result(expression))
            return bool(found)

        await until(any_found)
        return found


def _numbers(series: list[Any]) -> list[Any]:
    return [one for one in series if one["value"][1] != "NaN"]


@asynccontextmanager
async def prometheus(folder: Path, targets: Mapping[str, str], rules: Path) -> AsyncIterator[Prometheus]:
    """A Prometheus that scrapes ``targets``, addresses by job, each second."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    jobs = [
        {"job_name": job, "static_configs": [{"targets": [address], "labels": {"node": "here"}}]}
        for job, address in targets.items()
    ]
    config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config | {"rule_files": [str(rules)]}))
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        served = Prometheus(port)
        await until(served.answers)
        yield served
    finally:
        process.kill()
        await process.wait()
