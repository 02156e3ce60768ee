"""The tools of a checkout: configuration files, images, networks, processes."""

from __future__ import annotations

import asyncio
import io
import tarfile
import tomllib
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.localnode import layers, network, node, toml
from tools.localnode.processes import Output, ProgramFailed, Readiness, background
from tools.localnode.screen import Screen

# TOML has no null and no surrogates, and TOML integers have 64 bits.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PLAIN = st.one_of(
    TEXT, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
TABLES = st.recursive(
    st.dictionaries(TEXT, st.one_of(PLAIN, st.lists(PLAIN)), max_size=4),
    lambda inner: st.dictionaries(TEXT, st.one_of(PLAIN, inner), max_size=4),
    max_leaves=8,
)


@given(TABLES)
def test_tables_written_as_toml_are_read_back(table: dict[str, object]) -> None:
    assert tomllib.loads(toml.dumps(table)) == table


def test_a_value_without_a_place_is_an_error() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        toml.dumps({"x": None})


def test_the_users_file_wins_table_by_table() -> None:
    over = {"a": 1, "t": {"x": 2}}
    under = {"a": 9, "b": 8, "t": {"x": 7, "y": 6}}
    assert toml.merged(over, under) == {"a": 1, "b": 8, "t": {"x": 2, "y": 6}}


def test_a_folder_gets_missing_files_and_keeps_existing_files(short_path: Path) -> None:
    folder = short_path / "n"
    folder.mkdir()
    (folder / "cri.toml").write_text('log_level = "debug"\n')
    (folder / "cni" / "net.d").mkdir(parents=True)
    (folder / "cni" / "net.d" / "own.conflist").write_text("{}")
    layout = node.prepare(folder, "fake", masquerade=True)
    assert (folder / "cri.toml").read_text() == 'log_level = "debug"\n'
    assert [path.name for path in layout.networks.iterdir()] == ["own.conflist"]
    protectd = tomllib.loads((folder / "protectd.toml").read_text())
    assert protectd["toolstack"] == "fake"
    assert all(str(protectd[key]).startswith(str(folder)) for key in ("run_dir", "state_dir"))


def test_a_folder_too_deep_for_sockets_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed, match="too long for unix sockets"):
        node.prepare(tmp_path / ("d" * 80), "fake", masquerade=True)


def test_bridges_differ_by_owner_and_stay_the_same() -> None:
    one, other = network.bridge_for("/a"), network.bridge_for("/b")
    assert one == network.bridge_for("/a")
    assert one.name != other.name and one.subnet != other.subnet
    assert len(one.name) <= 15  # IFNAMSIZ
    assert one.subnet.subnet_of(IPv4Network("10.64.0.0/10"))


def test_a_routed_subnet_is_stepped_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first = network.bridge_for("/a").subnet
    monkeypatch.setattr(network, "_routed", lambda: [first])
    assert not network.bridge_for("/a").subnet.overlaps(first)


@pytest.mark.skipif(not layers.BUSYBOX.exists(), reason="needs busybox (make setup)")
def test_the_image_is_whole_and_the_same_each_time() -> None:
    made = layers.busybox()
    assert made == layers.busybox()
    with tarfile.open(fileobj=io.BytesIO(made)) as tar:
        members = {member.name: member for member in tar.getmembers()}
    assert members["bin/sh"].linkname == "bin/busybox"
    assert members["tmp"].mode == 0o1777
    for member in members.values():  # a folder comes before its entries
        parent = str(Path(member.name).parent)
        assert parent == "." or members[parent].isdir()


async def test_a_program_is_ready_after_its_message(tmp_path: Path) -> None:
    output = Output(tmp_path / "p.log")
    async with background("sh", "-c", "echo one; echo now ready; exec sleep 60", output=output) as process:
        await output.line_with("ready", 60)
    assert process.returncode == -15
    assert (tmp_path / "p.log").read_text() == "one\nnow ready\n"


async def test_an_early_end_of_a_program_fails_with_its_last_output(tmp_path: Path) -> None:
    output = Output(tmp_path / "p.log")
    async with background("sh", "-c", "echo no disk; exit 3", output=output) as process:
        with pytest.raises(ProgramFailed, match="no disk"):
            await output.line_with("ready", 60)
        with (
            Readiness(tmp_path / "r") as readiness,
            pytest.raises(ProgramFailed, match="ended with status 3"),
        ):
            await readiness.wait(process, output, 60)


async def test_a_silent_program_times_out(tmp_path: Path) -> None:
    output = Output(tmp_path / "p.log")
    async with background("sleep", "60", output=output) as process:
        with Readiness(tmp_path / "r") as readiness, pytest.raises(ProgramFailed, match="not ready in time"):
            await readiness.wait(process, output, 0.1)
        with pytest.raises(ProgramFailed, match="did not say"):
            await output.line_with("x", 0.1)


async def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed, match="no-such-program is not installed"):
        async with background("no-such-program", output=Output(tmp_path / "l")):
            await asyncio.sleep(0)


def test_the_screen_shows_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    with screen.step("work") as done:
        done("outcome")
    screen.block("line\x1b]0;title\x07\nnext" + "x" * 10_000)
    shown = capsys.readouterr().out
    assert "work" in shown and "outcome" in shown and "\x1b" not in shown
    assert len(shown) < 1500
