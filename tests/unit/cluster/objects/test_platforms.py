"""Platforms from a file, from cri.toml, and from Status; errors name the file and the key."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import Enum
from pathlib import Path

import pytest

import cri.config
from cluster.objects import platforms, syntax
from cluster.objects.platforms import DelegateRules, NodePlatform
from cluster.objects.syntax import Taint
from daemonkit.config import Bytes, load_config
from daemonkit.faults import Invalid, Missing

SHIPPED = Path(__file__).resolve().parents[4] / "packaging/cri.toml"
ZONES_TAINT = Taint("xenpod.dev/zones", "true", "NoSchedule")


def written(folder: Path, text: str) -> Path:
    path = folder / "platforms.toml"
    path.write_text(text)
    return path


def test_a_platform_with_every_key_is_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        [platforms.metal]
        handlers = ["fast", "xenpod"]
        labels = {"example.com/pool" = "metal", on = ""}
        taints = ["example.com/zones=true:NoSchedule", "busy:NoExecute"]
        overhead = {memory = "112Mi", cpu = "50m"}
        overheads = {fast = {memory = "64Mi"}}
        own_namespaces = ["fast"]
        cri_socket = "/run/other.sock"
        """,
    )
    assert platforms.of_file(path) == [
        NodePlatform(
            name="metal",
            handlers=("fast", "xenpod"),
            labels={"example.com/pool": "metal", "on": ""},
            taints=(Taint("example.com/zones", "true", "NoSchedule"), Taint("busy", "", "NoExecute")),
            overhead={"memory": "112Mi", "cpu": "50m"},
            cri_socket=Path("/run/other.sock"),
            overheads={"fast": {"memory": "64Mi"}},
            own_namespaces=frozenset({"fast"}),
        )
    ]


def test_classes_have_the_platforms_name_and_the_first_is_the_default(tmp_path: Path) -> None:
    path = written(tmp_path, '[platforms.metal]\nhandlers = ["fast", "xenpod"]\n[platforms.cloud]\n')
    metal, cloud = platforms.of_file(path)
    assert metal.classes == {"fast-metal": "fast", "xenpod-metal": "xenpod"}
    assert metal.default_class == "fast-metal"
    assert (cloud.classes, cloud.default_class) == ({"xenpod-cloud": "xenpod"}, "xenpod-cloud")


def test_a_platform_without_keys_has_the_defaults(tmp_path: Path) -> None:
    (found,) = platforms.of_file(written(tmp_path, "[platforms.metal]\n"))
    assert found == NodePlatform(
        name="metal",
        handlers=("xenpod",),
        labels={"xenpod.dev/platform": "metal"},
        taints=(ZONES_TAINT,),
        overhead={"memory": "96Mi"},
        cri_socket=Path("/run/xenpod/cri.sock"),
    )


def test_a_platform_without_taints_and_overhead(tmp_path: Path) -> None:
    (found,) = platforms.of_file(written(tmp_path, "[platforms.m]\ntaints = []\noverhead = {}\n"))
    assert (found.taints, found.overhead) == ((), {})


LONG = "a" * 64


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "key 'platforms' is missing"),
        ("[platforms]", "key 'platforms': it is empty"),
        ("[platform.a]", "unknown key 'platform'; known here: platforms"),
        ("[platforms.A]", "key 'platforms': 'A' is not a DNS label"),
        ("[platforms.a]\nhandler = 'x'", "unknown key 'platforms.a.handler'"),
        ("[platforms.a]\nhandlers = []", "key 'platforms.a.handlers': it is empty"),
        ("[platforms.a]\nhandlers = 'x'", "key 'platforms.a.handlers': want an array, got a string"),
        ("[platforms.a]\nhandlers = ['x', 'X']", "key 'platforms.a.handlers[1]': 'X' is not a DNS label"),
        ("[platforms.a]\nhandlers = ['x', 'x']", "key 'platforms.a.handlers[1]': 'x' is there twice"),
        ("[platforms.a]\nlabels = {'a b' = 'c'}", "key 'platforms.a.labels': 'a b' is not a label key"),
        (
            "[platforms.a]\nlabels = {'A/b' = 'c'}",
            "key 'platforms.a.labels': 'A/b' is not a label key: its prefix",
        ),
        (
            "[platforms.a]\nlabels = {'/b' = 'c'}",
            "key 'platforms.a.labels': '/b' is not a label key: its prefix",
        ),
        (
            f"[platforms.a]\nlabels = {{{LONG} = 'c'}}",
            f"key 'platforms.a.labels': '{LONG}' is not a label key",
        ),
        ("[platforms.a]\nlabels = {b = '-c'}", "key 'platforms.a.labels': '-c' is not a label value"),
        ("[platforms.a]\nlabels = {b = 3}", "key 'platforms.a.labels.b': want a string, got an integer"),
        ("[platforms.a]\ntaints = ['a=b']", "key 'platforms.a.taints': 'a=b' is not KEY[=VALUE]:EFFECT"),
        (
            "[platforms.a]\ntaints = ['a:Never']",
            "key 'platforms.a.taints': 'a:Never' is not KEY[=VALUE]:EFFECT",
        ),
        ("[platforms.a]\ntaints = ['=b:NoExecute']", "key 'platforms.a.taints': '' is not a label key"),
        (
            "[platforms.a]\ntaints = ['a=b=c:NoExecute']",
            "key 'platforms.a.taints': 'b=c' is not a label value",
        ),
        (
            "[platforms.a]\ntaints = ['a=b:NoExecute', 'a:NoExecute']",
            "key 'platforms.a.taints': a:NoExecute is there twice",
        ),
        ("[platforms.a.overhead]\nmemory = '96MiB'", "key 'platforms.a.overhead': '96MiB' is not a quantity"),
        ("[platforms.a.overhead]\nmemory = '-1'", "key 'platforms.a.overhead': '-1' is not a quantity"),
        ("[platforms.a.overhead]\nmemory = '100m'", "key 'platforms.a.overhead': '100m' of memory is finer"),
        ("[platforms.a.overhead]\ncpu = '100u'", "key 'platforms.a.overhead': '100u' of cpu is finer"),
        ("[platforms.a.overhead]\nmemory = '9Ei'", "key 'platforms.a.overhead': '9Ei' is more than"),
        (
            "[platforms.a.overhead]\ndisk = '1Gi'",
            "key 'platforms.a.overhead': 'disk' is not one of cpu, memory",
        ),
        (
            "[platforms.a]\ndelegate = {namespaces = ['Kube']}",
            "key 'platforms.a.delegate.namespaces': 'Kube' is no pattern of namespaces",
        ),
        (
            "[platforms.a]\ndelegate = {default = 'runc'}",
            "key 'platforms.a.delegate.default': 'runc' is not one of delegate, xenpod",
        ),
        (
            "[platforms.a]\ndelegate = {host_network = 'zone'}",
            "key 'platforms.a.delegate.host_network': 'zone' is not one of refuse, classless, delegate",
        ),
        (
            "[platforms.a]\nown_namespaces = ['fast']",
            "key 'platforms.a.own_namespaces': 'fast' is not one of handlers",
        ),
        (
            "[platforms.a.overheads]\nfast = {}",
            "key 'platforms.a.overheads': 'fast' is not one of handlers",
        ),
        (
            "[platforms.a.overheads.xenpod]\ncpu = 'x'",
            "key 'platforms.a.overheads.xenpod': 'x' is not a quantity",
        ),
        (
            "[platforms.a]\ncri_socket = 'cri.sock'",
            "key 'platforms.a.cri_socket': 'cri.sock' is not an absolute",
        ),
        (
            f"[platforms.{'p' * 60}]",
            f"key 'platforms.{'p' * 60}': its class xenpod-{'p' * 60} is longer than 63",
        ),
        (
            "[platforms.a-b]\nhandlers = ['x']\n[platforms.b]\nhandlers = ['x-a']",
            "key 'platforms.b': platforms.a-b has the class x-a-b, too",
        ),
    ],
)
def test_an_error_names_file_and_key(tmp_path: Path, text: str, cause: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(Invalid) as caught:
        platforms.of_file(path)
    assert str(caught.value).startswith(f"read configuration {path}: {cause}")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="none.toml: no such file"):
        platforms.of_file(tmp_path / "none.toml")


def test_the_shipped_cri_toml_equals_the_defaults(tmp_path: Path) -> None:
    empty = tmp_path / "cri.toml"
    empty.write_text("")
    assert platforms.of_config(SHIPPED) == platforms.of_config(empty)
    assert platforms.of_config(empty) == NodePlatform(
        name="",
        handlers=("xenpod",),
        labels={"xenpod.dev/zones": "true"},
        taints=(ZONES_TAINT,),
        overhead={"memory": "96Mi"},
        cri_socket=cri.config.CriConfig().listen,
    )


def test_defaults_equal_the_defaults_of_xenpod_cri() -> None:
    config = cri.config.CriConfig()
    assert platforms.DEFAULT_HANDLER == cri.config.DEFAULT_HANDLER
    assert platforms.ZoneOverhead().memory_overhead == config.zone.memory_overhead


def test_a_node_is_read_from_its_cri_toml(tmp_path: Path) -> None:
    path = tmp_path / "cri.toml"
    path.write_text(
        "run_dir = '/r'\nzone.memory_overhead = '1GiB'\n[handlers.small]\nmemory = '2GiB'\n[handlers.a]\n"
    )
    found = platforms.of_config(path)
    assert found.handlers == ("xenpod", "a", "small")
    assert found.classes == {"xenpod": "xenpod", "a": "a", "small": "small"}
    assert (found.overhead, found.overheads) == ({"memory": "1Gi"}, {"small": {"memory": "2Gi"}})
    assert found.cri_socket == Path("/r/cri.sock")
    path.write_text("socket = '/s/x.sock'\nzone.memory_overhead = 100663297")
    found = platforms.of_config(path)
    assert (found.cri_socket, found.overhead) == (Path("/s/x.sock"), {"memory": "100663297"})


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[handlers.Fast]", "key 'handlers': 'Fast' is not a DNS label"),
        ("zone.memory_overhead = 'lots'", "key 'zone.memory_overhead': 'lots' is not a size"),
        ("handlers = 3", "key 'handlers': want a table, got an integer"),
        ("run_dir = 'r'", "key 'run_dir': 'r' is not an absolute path"),
        ("[zone", "not TOML: "),
    ],
)
def test_an_invalid_cri_toml_is_refused(tmp_path: Path, text: str, cause: str) -> None:
    path = tmp_path / "cri.toml"
    path.write_text(text)
    with pytest.raises(Invalid) as caught:
        platforms.of_config(path)
    assert str(caught.value).startswith(f"read configuration {path}: {cause}")


def _plain(value: object) -> str:
    """Platforms in the form of Status."""
    return str(value.value if isinstance(value, Enum) else value)


def info(handlers: object, **config: object) -> dict[str, str]:
    """The information in Status: the whole configuration, and more than we read."""
    whole = asdict(cri.config.CriConfig()) | config
    return {
        "config": json.dumps(whole, default=_plain),
        "handlers": json.dumps(handlers),
        "versions": "{}",
    }


def test_a_node_is_read_from_its_status() -> None:
    said = {"xenpod": {"profile": "default", "features": {}}, "b": {"error": "no hap"}, "a": {"profile": "p"}}
    found, unusable = platforms.of_status(info(said, zone={"memory_overhead": 64 << 20}))
    assert found == NodePlatform(
        name="",
        handlers=("xenpod", "a"),
        labels={"xenpod.dev/zones": "true"},
        taints=(ZONES_TAINT,),
        overhead={"memory": "64Mi"},
        cri_socket=Path("/run/xenpod/cri.sock"),
    )
    assert unusable == {"b": "no hap"}


def test_a_handler_with_a_size_has_an_overhead_as_large() -> None:
    sized = {name: cri.config.HandlerConfig(memory=Bytes(1 << 30)) for name in "ab"}
    said = info({"xenpod": {}, "a": {}, "b": {"error": "no"}})
    config = asdict(cri.config.CriConfig(handlers=sized))
    found, _ = platforms.of_status(said | {"config": json.dumps(config, default=_plain)})
    assert (found.overhead, found.overheads) == ({"memory": "96Mi"}, {"a": {"memory": "1Gi"}})


def test_a_small_handler_has_the_overhead_of_a_kernel(tmp_path: Path) -> None:
    """xenpod-cri adds a class's overhead to the limits of its pods, instead of its own figure."""
    text = '[handlers.small]\nmemory = "64MiB"\n[zone]\nmemory_overhead = "96MiB"'
    found = platforms.of_config(written(tmp_path, text))
    assert found.overheads.get("small", found.overhead) == {"memory": "96Mi"}


def test_a_handler_with_zone_namespaces_permits_host_namespaces() -> None:
    own = cri.config.HandlerConfig(host_namespaces=cri.config.HostNamespaces.ZONE)
    config = asdict(cri.config.CriConfig(handlers={name: own for name in "ab"}))
    said = info({"xenpod": {}, "a": {}, "b": {"error": "no"}})
    found, _ = platforms.of_status(said | {"config": json.dumps(config, default=_plain)})
    assert found.own_namespaces == {"a"}


def test_the_delegate_of_a_node_comes_from_its_configuration(tmp_path: Path) -> None:
    """xenpod-cri and the policy in the API server have the same namespaces."""
    table = '[delegate]\nendpoint = "unix:///run/c.sock"\nnamespaces = ["kube-system", "calico-*"]\n'
    path = written(tmp_path, table + 'default = "xenpod"\nhost_network = "delegate"')
    config = load_config(cri.config.CriConfig, path)
    wanted = DelegateRules(config.delegate.namespaces, "xenpod", "delegate")
    by_status, _ = platforms.of_status(info({"xenpod": {}}, delegate=asdict(config.delegate)))
    for found in (platforms.of_config(path), by_status):
        rules = found.delegate
        assert rules is not None
        assert DelegateRules(rules.namespaces, rules.default, rules.host_network) == wanted


def test_a_node_without_a_delegate_has_no_rules_for_delegates(tmp_path: Path) -> None:
    assert platforms.of_config(written(tmp_path, '[delegate]\nnamespaces = ["*"]')).delegate is None
    assert platforms.of_config(SHIPPED).delegate is None


def test_the_defaults_of_a_delegate_equal_the_daemons() -> None:
    theirs = cri.config.CriConfig().delegate
    assert DelegateRules() == DelegateRules(
        theirs.namespaces, theirs.default.value, theirs.host_network.value
    )


def test_an_unusable_default_handler_has_no_class() -> None:
    found, unusable = platforms.of_status(info({"xenpod": {"error": "no profile"}, "a": {}}))
    assert (found.handlers, found.default_class, set(unusable)) == (("a",), "a", {"xenpod"})


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ({}, "it has no 'config' (is this xenpod-cri's socket?)"),
        ({"config": "{}"}, "it has no 'handlers'"),
        ({"config": "{", "handlers": "{}"}, "it has no 'config'"),
        ({"config": "[]", "handlers": "{}"}, "it has no 'config'"),
        ({"config": "{}", "handlers": '{"x": 3}'}, "key 'handlers.x': want a table, got an integer"),
        ({"config": "{}", "handlers": '{"X": {}}'}, "key 'handlers': 'X' is not a DNS label"),
        ({"config": '{"run_dir": 3}', "handlers": "{}"}, "key 'run_dir': want a string, got an integer"),
        ({"config": "{}", "handlers": "{}"}, "no handler can be used: there is none"),
        ({"config": "{}", "handlers": '{"x": {"error": "away"}}'}, "no handler can be used: x: away"),
    ],
)
def test_a_foreign_status_is_refused(said: dict[str, str], cause: str) -> None:
    with pytest.raises(Invalid) as caught:
        platforms.of_status(said)
    assert str(caught.value).startswith(f"read status xenpod-cri: {cause}")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("96Mi", 96 << 20),
        ("1.5Gi", 3 << 29),
        ("1e3", 1000),
        ("12E2", 1200),
        ("5.", 5),
        ("2k", 2000),
        ("0", 0),
    ],
)
def test_quantities_are_parsed(text: str, number: int) -> None:
    assert syntax.quantity(text) == number


@pytest.mark.parametrize(
    "text", ["", "Mi", "1 Mi", "1e", "0x10", "1e999", "\N{ARABIC-INDIC DIGIT TWO}", "1\n"]
)
def test_malformed_quantities_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity of Kubernetes such as 96Mi"):
        syntax.quantity(text)


@pytest.mark.parametrize("name", ["", "-a", "a-", "a..b", "A", "a_b", "a" * 254, "a.b\n"])
def test_no_names_of_nodes(name: str) -> None:
    with pytest.raises(ValueError, match="is not a DNS name"):
        syntax.dns_subdomain(name)


@pytest.mark.parametrize(
    "key",
    [
        "zones", "xenpod.dev/zones", "node.kubernetes.io/zones", "a.node.kubernetes.io/x",
        "kubelet.kubernetes.io/x", "kubernetes.io/os", "topology.kubernetes.io/zone", "notkubernetes.io/x",
    ],
)  # fmt: skip
def test_a_kubelet_may_give_permitted_labels(key: str) -> None:
    syntax.kubelet_label(key)


@pytest.mark.parametrize(
    "key",
    ["kubernetes.io/zones", "k8s.io/x", "a.k8s.io/x", "node-role.kubernetes.io/zones",
     "node-restriction.kubernetes.io/zones"],
)  # fmt: skip
def test_labels_forbidden_to_a_kubelet_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match=f"a kubelet may not give its node the label {key}"):
        syntax.kubelet_label(key)
