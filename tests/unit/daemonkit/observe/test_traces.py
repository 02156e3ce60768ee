"""Traces without daemons: what a collector that does not answer may cost."""

from __future__ import annotations

import asyncio

import pytest

from daemonkit.observe import traces
from daemonkit.observe.settings import TracesConfig
from daemonkit.observe.steps import step
from daemonkit.observe.traces import tracing


async def test_the_end_does_not_wait_for_a_collector_that_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(traces, "_LAST", 0.2)
    held: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with silent:
        async with tracing(TracesConfig(f"http://127.0.0.1:{port}", sampling=1.0), "p"):
            with step("test.step"):
                assert traces.on()
        assert not traces.on() and "are lost" in caplog.text
        for writer in held:
            writer.close()


async def test_without_a_collector_nothing_is_traced() -> None:
    async with tracing(TracesConfig(), "p"):
        assert not traces.on() and traces.interceptors() == []
        with step("test.step"), pytest.raises(ValueError, match="inside"), step("test.fails"):
            raise ValueError("inside")
