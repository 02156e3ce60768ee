"""Verbs of ``protect`` over protectd's own services: their effects, and output for people and programs."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from protect.model.statistics import ZoneStats
from protect.zones import stats
from protectctl import find
from protectctl.__main__ import main
from protectctl.command_errors import CommandFailed
from protectctl.host import overhead
from protectctl.host.overhead import HostUse, measured
from protectctl.nouns import NOUNS
from protectctl.tables import columns
from protectctl.usage import schema
from protectctl.usage.arguments import parser
from protectctl.zone.logfile import LogReader
from protectctl.zone.top import compare
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.served import Served, served
from xenpod_proto.protect.v1 import protect_pb2 as pb

MIB = 1 << 20


class Operator:
    """``protect`` against the daemon."""

    def __init__(self, node: Served, capture: pytest.CaptureFixture[str]) -> None:
        self.node, self.error, self._said = node, "", ""
        self._capture = capture

    async def __call__(self, *words: str, status: int = 0) -> str:
        socket = ["--socket", str(self.node.folder / "protect.sock")]
        assert await asyncio.to_thread(main, [*words, *socket]) == status
        out, self.error = self._capture.readouterr()
        out, self._said = self._said + out, ""
        return out

    async def until(self, text: str) -> None:
        """Wait until the running command has printed the text."""
        while text not in self._said:
            await self.node.turns(1)
            self._said += self._capture.readouterr().out


@pytest.fixture
async def protect(
    tmp_path: Path, toolstack: MemoryToolstack, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Operator]:
    async with served(tmp_path, toolstack) as node:
        await node.create_zone("web-1", name="shop/web")
        await node.create_zone("db-1", name="shop/db")
        yield Operator(node, capsys)


def test_every_command_has_a_function_and_the_other_way_round() -> None:
    commands = {command for noun in NOUNS.values() for command in noun.load().COMMANDS}
    assert set(verbs(parser())) == commands
    assert {command.removesuffix(" --strangers") for command in schema.MESSAGES} | set(schema.OWN) <= commands


def test_a_command_is_in_the_module_of_its_noun() -> None:
    for name, noun in NOUNS.items():
        found = noun.load().COMMANDS
        assert {command.partition(" ")[0] for command in found} == {name}
        assert set(verbs(parser(name))) == set(found), "what the parser has that is made for it alone"


def verbs(parsing: Any) -> list[str]:
    found = [parsing.get_default("command")] if parsing.get_default("command") else []
    for action in parsing._actions:
        if hasattr(action, "choices") and isinstance(action.choices, dict) and action.dest != "policy":
            found += [
                one for sub in action.choices.values() if hasattr(sub, "_actions") for one in verbs(sub)
            ]
    return found


@pytest.mark.parametrize(
    "command",
    ["zone list", "zone list --strangers", "zone inspect web", "zone create", "zone resize web --vcpus 1",
     "zone events db-1 --all", "zone top --interval 0.1", "workload list", "device list", "reservation list",
     "host", "host info", "host capacity", "host overhead --zones 2 --idle 0.1"],
)  # fmt: skip
async def test_documents_are_as_their_schema_says(protect: Operator, command: str) -> None:
    watching = asyncio.ensure_future(protect(*command.split(), "--output", "json"))
    if "events" in command:
        await protect.until("db-1")
        await protect.node.clients.zones.DestroyZone(pb.DestroyZoneRequest(id="db-1"))
    known = max((one for one in [*schema.MESSAGES, *schema.OWN] if command.startswith(one)), key=len)
    validator = Draft202012Validator(schema.of_command(known))
    documents = list(read_all(await watching))
    for document in documents:
        validator.validate(document)
    assert documents
    wrong = [{key: [] for key in documents[0]}, {"zones": [{}]}, []]
    assert not all(map(validator.is_valid, wrong[:2])) and not validator.is_valid(wrong[2])


def read_all(text: str) -> Iterator[Any]:
    while text.strip():
        value, end = json.JSONDecoder().raw_decode(text)
        yield value
        text = text[end:].lstrip()


async def test_the_same_as_yaml_and_as_names(protect: Operator) -> None:
    as_json = json.loads(await protect("zone", "list", "-o", "json"))
    assert YAML(typ="safe").load(io.StringIO(await protect("zone", "list", "-o", "yaml"))) == as_json
    assert (await protect("zone", "list", "-o", "name")).split() == ["web-1", "db-1"]


async def test_zone_is_found_by_an_unambiguous_prefix(protect: Operator) -> None:
    for text in ("web-1", "shop/web", "we", "shop/w"):
        assert "web-1" in await protect("zone", "inspect", text, "-o", "name")
    await protect("zone", "inspect", "shop/", status=1)
    assert "db-1 (shop/db), web-1 (shop/web): give more of it" in protect.error


def test_argument_is_an_id_a_name_or_a_prefix() -> None:
    names = {"a1": "one", "a2": "one", "one": "two", "b": "only"}
    assert find.one_of([*names], "one", "zone", names) == "one", "an id goes before names"
    assert find.one_of([*names], "tw", "zone", names) == "one"
    assert find.one_of([*names], "only", "zone", names) == "b"
    assert find.one_of([*names], "none", "zone", names) == "none"
    with pytest.raises(CommandFailed, match="the name of 2 zones"):
        find.one_of(["a1", "a2"], "one", "zone", names)


async def test_selectors_choose_zones(protect: Operator) -> None:
    async def selected(terms: str) -> list[str]:
        return (await protect("zone", "list", "-o", "name", "--selector", terms)).split()

    assert await selected("name=shop/*") == ["web-1", "db-1"]
    assert await selected("name=shop/*,id!=db-*") == ["web-1"]
    assert await selected("state=dead") == []
    with pytest.raises(SystemExit) as ended:
        await protect("zone", "list", "--selector", "colour=red")
    assert ended.value.code == 2


async def test_zones_are_destroyed_by_selector_and_never_all_by_accident(protect: Operator) -> None:
    with pytest.raises(SystemExit) as ended:
        await protect("zone", "destroy")
    assert ended.value.code == 2
    await protect("zone", "destroy", "-l", "name=shop/web")
    assert (await protect("zone", "list", "-o", "name")).split() == ["db-1"]


async def test_zones_are_paused_and_resumed(protect: Operator) -> None:
    await protect("zone", "pause", "db", "shop/web")
    assert (await protect("zone", "list", "-l", "state=paused", "-o", "name")).split() == ["web-1", "db-1"]
    assert "paused" in await protect("zone", "inspect", "db-1")
    await protect("zone", "resume", "-l", "name=*web")
    assert (await protect("zone", "list", "-l", "state=running", "-o", "name")).split() == ["web-1"]
    await protect("zone", "pause", "nobody", status=1)


async def test_a_zone_is_made_by_hand(protect: Operator) -> None:
    made = (await protect("zone", "create", "--memory", "128MiB", "--name", "mine")).strip()
    zone = json.loads(await protect("zone", "list", "-l", "name=mine", "-o", "json"))["zones"][0]
    assert (zone["id"], zone["resources"]["memory_bytes"]) == (made, str(128 * MIB))
    await protect("zone", "create", "web-1", status=1)
    assert "ALREADY_EXISTS" in protect.error


async def test_events_of_a_zone_end_with_the_zone(protect: Operator) -> None:
    watching = asyncio.ensure_future(protect("zone", "events", "shop/db", "--all"))
    await protect.until("db-1 running")
    for zone_id in ("web-1", "db-1"):
        await protect.node.clients.zones.DestroyZone(pb.DestroyZoneRequest(id=zone_id))
    lines = (await watching).splitlines()
    assert lines[-1] == "zone db-1 gone" and not any("web-1" in line for line in lines)


async def test_an_overhead_leaves_no_zones(protect: Operator) -> None:
    protect.node.toolstack.overhead = 5 * MIB
    said = await protect("host", "overhead", "--zones", "2", "--idle", "0.1")
    assert "podFixed:" in said and "5.0 MiB" in said
    assert (await protect("zone", "list", "-o", "name")).split() == ["web-1", "db-1"]


async def test_a_slow_zone_is_asked_again(protect: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "_PAUSE_SECONDS", 0.01)
    real, asked, slow = stats.gather, 0, {1, 3}

    async def gather(*how: Any) -> dict[str, ZoneStats]:
        nonlocal asked
        asked += 1
        return {} if asked in slow else await real(*how)

    monkeypatch.setattr(stats, "gather", gather)
    assert "podFixed:" in await protect("host", "overhead", "--zones", "2", "--idle", "0.1")
    assert asked == 4
    monkeypatch.setattr(overhead, "_PATIENCE_SECONDS", 0.1)
    slow.update(range(1000))
    await protect("host", "overhead", "--zones", "1", "--idle", "0.1", status=1)
    assert "zones do not say what they use: overhead-" in protect.error
    assert (await protect("zone", "list", "-o", "name")).split() == ["web-1", "db-1"]


def test_the_overhead_of_a_zone_has_its_parts() -> None:
    zones = [pb.Zone(id=one, resources=pb.ZoneResources(memory_bytes=256 * MIB)) for one in ("a", "b")]

    def rows(seconds: int, cpu_ms: int) -> dict[str, pb.ZoneStatsRow]:
        return {
            zone.id: pb.ZoneStatsRow(
                timestamp_ns=seconds * 10**9,
                memory_available_bytes=200 * MIB,
                host_cpu_usage_ns=cpu_ms * 10**6,
            )
            for zone in zones
        }

    before = HostUse(promised=100 * MIB, protectd=50 * MIB, processes={1: 9 * MIB})
    after = HostUse(promised=632 * MIB, protectd=54 * MIB, processes={1: 90 * MIB, 2: 6 * MIB})
    found = measured(zones, before, after, rows(0, 0), rows(10, 70))
    assert [size // MIB for _, size in found.parts] == [56, 10, 3, 2]
    assert found.pod_fixed == {
        "memory": "80Mi",
        "cpu": "10m",
    }  # 71 and a tenth; 7


def test_top_computes_rates_from_a_pair_of_readings() -> None:
    zone = pb.Zone(id="a", resources=pb.ZoneResources(vcpus=2))
    before = pb.ZoneStatsRow(timestamp_ns=10**9, host_cpu_usage_ns=10**9,
                             interfaces=[pb.InterfaceStats(rx_bytes=1000, tx_bytes=1)])  # fmt: skip
    now = pb.ZoneStatsRow(timestamp_ns=3 * 10**9, host_cpu_usage_ns=4 * 10**9, host_memory_bytes=64 * MIB,
                          interfaces=[pb.InterfaceStats(rx_bytes=5000, tx_bytes=1)])  # fmt: skip
    (use,) = compare({"a": before}, {"a": now, "gone": now}, {"a": zone})
    assert (use.cpu, use.received, use.sent, use.memory, use.vcpus) == (150.0, 2000.0, 0.0, 64 * MIB, 2)
    assert compare({}, {"a": now}, {"a": zone})[0].cpu == 0, "of a zone that was not there before"


def test_lines_of_a_log_are_parsed(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text(
        "2026-01-01T00:00:01.000000001Z stdout P one \n2026-01-01T00:00:02Z stderr F err\nnonsense\n"
        "2026-01-01T00:00:03Z stdout F and two\n"
    )
    found = [(line.stream, line.text) for line in LogReader(log, "web").lines()]
    assert found == [("stderr", "err"), ("stdout", "one and two")]


def test_a_log_continues_after_the_last_read_and_over_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_text("1 stdout F one\n2 stdout F tw")
    log = LogReader(path, "web")

    def came() -> list[str]:
        return [line.text for line in log.lines()]

    assert (came(), came()) == (["one"], [])
    with path.open("a") as file:
        file.write("o\n")
    assert came() == ["two"]
    with path.open("a") as file:
        file.write("3 stdout F three\n")
    path.rename(tmp_path / "0.log.rotated")
    assert came() == ["three"], "nothing is missed while there is no other file yet"
    path.write_text("4 stdout F four\n")
    assert came() == ["four"]
    log.close()


def test_bash_completes_commands(tmp_path: Path) -> None:
    """In a real bash, by the code that ``protect completion bash`` prints."""
    program = tmp_path / "protect"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m protectctl "$@"\n')
    program.chmod(0o755)
    script = (
        'source <(protect completion bash); COMP_LINE="protect zone ins"; COMP_POINT=${#COMP_LINE}; '
        "COMP_TYPE=9; COMP_WORDS=(protect zone ins); COMP_CWORD=2; _python_argcomplete protect; "
        'echo "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=Path(__file__).parents[4], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["inspect"], done.stderr


def test_columns_cover_every_line() -> None:
    """A cell may have several lines, wide characters count twice, and nothing controls the terminal."""
    rows = [("ID", "NAMES", "AGE"), ("a", "one\ntwo", ""), ("語", "\x1b[31m", "5m")]
    assert columns(rows) == "ID  NAMES     AGE\na   one\n    two\n語  \\x1b[31m  5m\n"
