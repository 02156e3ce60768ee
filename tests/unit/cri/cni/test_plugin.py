"""Calls of plugins: environment and input, bounds of the output, the end of the plugin."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from cri.cni.plugin import Call, Plugins
from daemonkit.faults import Broken, Exhausted, Fault, Invalid, Refused, TooLate, Unreachable
from tests.support.waiting import until


class Plugin:
    """A shell script as plugin ``p``."""

    def __init__(self, folder: Path, script: str, timeout: float = 60) -> None:
        self.folder, self.path = folder, folder / "p"
        self.path.write_text(f"#!/bin/sh\n{script}\n")
        self.path.chmod(0o755)
        self._plugins = Plugins((folder / "none", folder), timeout)

    async def call(self, command: str = "ADD") -> bytes:
        hold, other = os.pipe()
        try:
            environment = {"CNI_CONTAINERID": "c", "OUT": str(self.folder / "out")}
            return await self._plugins.call(Call(command, "p", environment, {"name": "net"}, hold))
        finally:
            os.close(hold)
            os.close(other)


async def test_a_plugin_gets_its_environment_and_input(tmp_path: Path) -> None:
    script = 'echo "$CNI_COMMAND $CNI_PATH $CNI_CONTAINERID"; cat'
    said = (await Plugin(tmp_path, script).call("CHECK")).decode()
    first, second = said.splitlines()
    assert first == f"CHECK {tmp_path / 'none'}:{tmp_path} c"
    assert json.loads(second) == {"name": "net"}


async def test_early_output_of_a_plugin_is_read(tmp_path: Path) -> None:
    """The plugin gets time to end by itself."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    plugin = Plugin(
        tmp_path, f'echo "{{}}"; exec 1>&- 2>&-; : > "$OUT"; read line < {fifo}; echo "$line" > "$OUT"'
    )
    calling = asyncio.create_task(plugin.call())
    with open(os.open(fifo, os.O_RDWR), "w") as writer:
        await until(lambda: (tmp_path / "out").exists())
        for _ in range(100):
            await asyncio.sleep(0)
        writer.write("done\n")
        writer.flush()
        assert await calling == b"{}\n"
    assert (tmp_path / "out").read_text() == "done\n"


async def test_a_plugin_without_reads_still_ends(tmp_path: Path) -> None:
    assert await Plugin(tmp_path, "exec 0<&-; echo fine").call() == b"fine\n"


async def test_too_much_output_of_a_plugin_is_cut(tmp_path: Path) -> None:
    """The output is read to its end, and dropped."""
    said = await Plugin(tmp_path, "head -c 5000000 /dev/zero; echo > $OUT").call()
    assert 1 << 20 < len(said) < (1 << 20) + 100_000
    assert (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        ({"code": 1, "msg": "version"}, Refused, r"p ADD: version \(code 1\)"),
        ({"code": 2, "msg": "field"}, Refused, "field"),
        ({"code": 4, "msg": "env"}, Invalid, "env"),
        ({"code": 7, "msg": "conf"}, Refused, "conf"),
        ({"code": 11, "msg": "later"}, Unreachable, "later"),
        ({"code": 100, "msg": "own", "details": "more"}, Broken, r"own: more \(code 100\)"),
        ({"code": 100, "msg": "no IP addresses available in range set"}, Exhausted, "range set"),
        ({"code": "x", "msg": "own"}, Broken, "exit status 3"),
        ({"msg": "own"}, Broken, "exit status 3"),
        ([], Broken, "exit status 3"),
    ],
)
async def test_faults_reported_by_a_plugin_have_its_message(
    tmp_path: Path, error: object, kind: type[Fault], words: str
) -> None:
    with pytest.raises(kind, match=words) as raised:
        await Plugin(tmp_path, f"echo '{json.dumps(error)}'; exit 3").call()
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo out; echo err >&2; exit 2", "exit status 2: err"),
        ("echo out; exit 2", "exit status 2: out"),
        ("exit 2", "exit status 2: no output"),
        ("kill -9 $$", "exit status -9"),
    ],
)
async def test_a_failed_plugin_without_a_report_has_its_status(
    tmp_path: Path, script: str, words: str
) -> None:
    with pytest.raises(Broken, match=words):
        await Plugin(tmp_path, script).call()


async def test_a_hanging_plugin_is_killed_with_its_children(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, 'sleep 1000 & echo $! $$ > "$OUT"; wait', timeout=1)
    with pytest.raises(TooLate, match="p ADD: no answer in 1 s"):
        await plugin.call()
    pids = (tmp_path / "out").read_text().split()
    await until(lambda: not any(Path("/proc", pid).exists() and "Z" not in _state(pid) for pid in pids))


def _state(pid: str) -> str:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


async def test_missing_plugins_are_named(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, "true")
    plugin.path.chmod(0o644)
    if os.access(plugin.path, os.X_OK):
        pytest.skip("everything is executable here")
    with pytest.raises(Refused, match="it is not in"):
        await plugin.call()
