"""CNI configurations and results, good and bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri.cni.conf import ConfDir, parse
from cri.state.attachment import addresses_of
from daemonkit.faults import Refused

GOOD: dict[str, Any] = {
    "cniVersion": "0.4.0",
    "name": "net",
    "plugins": [{"type": "bridge", "capabilities": {"portMappings": True, "x": False}, "runtimeConfig": {}}],
}


def test_a_conflist_is_read() -> None:
    chain = parse(json.dumps(GOOD), "file")
    assert (chain.name, chain.version, chain.source) == ("net", "0.4.0", "file")
    assert chain.capabilities == {"portMappings"}
    assert chain.plugins[0].config == {"type": "bridge"}


def test_a_single_conf_is_a_chain_with_a_single_plugin() -> None:
    chain = parse('{"cniVersion": "0.3.1", "name": "one", "type": "ptp", "mtu": 9000}', "")
    assert [plugin.type for plugin in chain.plugins] == ["ptp"]
    assert chain.plugins[0].config["mtu"] == 9000


BAD: list[tuple[dict[str, Any], str]] = [
    ({"cniVersion": "0.2.0"}, "cniVersion"),
    ({"cniVersion": None}, "cniVersion"),
    ({"name": ""}, "network name"),
    ({"name": "../up"}, "network name"),
    ({"name": 5}, "network name"),
    ({"plugins": []}, "plugins"),
    ({"plugins": "bridge"}, "plugins"),
    ({"plugins": [{}] * 33}, "plugins"),
    ({"plugins": ["bridge"]}, "not a JSON object"),
    ({"plugins": [{"type": "../../bin/sh"}]}, "plugin's name"),
    ({"plugins": [{"type": ""}]}, "plugin's name"),
    ({"plugins": [{"type": "bridge", "capabilities": []}]}, "capabilities"),
]


@pytest.mark.parametrize(("change", "words"), BAD)
def test_wrong_configurations_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(json.dumps(GOOD | change), "")


@pytest.mark.parametrize("version", [[], {}, 1, None])
def test_versions_of_a_wrong_type_are_refused(version: object) -> None:
    with pytest.raises(ValueError, match="cniVersion"):
        parse(json.dumps(GOOD | {"cniVersion": version}), "")


def test_a_too_deep_configuration_is_refused() -> None:
    with pytest.raises(ValueError, match="nested"):
        parse("[" * 100_000, "")


def test_the_first_file_counts_and_changes_are_seen(tmp_path: Path) -> None:
    conf = ConfDir(tmp_path)
    with pytest.raises(Refused, match="no network configuration"):
        conf.load()
    (tmp_path / "20-b.conflist").write_text(json.dumps(GOOD | {"name": "b"}))
    (tmp_path / "00-notes.txt").write_text("not this")
    (tmp_path / "05-dir.conf").mkdir()
    assert conf.load().name == "b"
    assert conf.load() is conf.load()
    (tmp_path / "10-a.conf").write_text(json.dumps(GOOD | {"name": "a"}))
    assert conf.load().name == "a"
    (tmp_path / "10-a.conf").write_text(json.dumps(GOOD | {"name": "longer"}))
    assert conf.load().name == "longer"
    (tmp_path / "10-a.conf").write_text("{")
    with pytest.raises(Refused, match="10-a.conf"):
        conf.load()
    (tmp_path / "10-a.conf").write_bytes(b"\xff\xfe")
    with pytest.raises(Refused, match="10-a.conf"):
        conf.load()


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="No such file"):
        ConfDir(tmp_path / "none").load()


NETNS = Path("/run/netns/x")
INTERFACES = [
    {"name": "br0"},
    {"name": "veth1"},
    {"name": "eth0", "sandbox": str(NETNS)},
    {"name": "eth1", "sandbox": str(NETNS)},
]

RESULTS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"ips": [{"address": "10.0.0.2/24", "interface": 2}], "interfaces": INTERFACES}, ("10.0.0.2",)),
    ({"ips": [{"address": "10.0.0.2/24", "interface": 0}], "interfaces": INTERFACES}, ()),
    ({"ips": [{"address": "10.0.0.2/24", "interface": 3}], "interfaces": INTERFACES}, ()),
    ({"ips": [{"version": "4", "address": "10.0.0.2/24"}]}, ("10.0.0.2",)),
    ({"ips": [{"address": "fd00::2/64"}, {"address": "10.0.0.2/8"}]}, ("10.0.0.2", "fd00::2")),
    ({}, ()),
    ({"ips": None, "interfaces": None}, ()),
]


@pytest.mark.parametrize(("result", "expected"), RESULTS)
def test_addresses_are_read_from_results(result: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert addresses_of(result, NETNS, "eth0") == expected


WRONG: list[dict[str, Any]] = [
    {"ips": "10.0.0.1"},
    {"ips": [5]},
    {"ips": [{}]},
    {"ips": [{"address": "10.0.0.300/24"}]},
    {"ips": [{"address": "10.0.0.1/24"}] * 65},
    {"ips": [{"address": "10.0.0.1/24", "interface": 1}], "interfaces": []},
    {"ips": [{"address": "10.0.0.1/24", "interface": True}], "interfaces": INTERFACES},
    {"ips": [{"address": "10.0.0.1/24", "interface": -1}], "interfaces": INTERFACES},
    {"ips": [{"address": "10.0.0.1/24", "interface": 0}], "interfaces": ["x"]},
]


@pytest.mark.parametrize("result", WRONG)
def test_wrong_results_are_refused(result: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        addresses_of(result, NETNS, "eth0")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(ips=JSON, interfaces=JSON)
def test_any_result_is_read_or_refused(ips: Any, interfaces: Any) -> None:
    try:
        addresses_of({"ips": ips, "interfaces": interfaces}, NETNS, "eth0")
    except ValueError:
        pass


@given(JSON)
def test_any_configuration_is_read_or_refused(value: Any) -> None:
    try:
        parse(json.dumps(value), "")
    except ValueError:
        pass
