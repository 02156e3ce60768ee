"""A bundle has only harmless parts of configuration files: no secret, in any place."""

from __future__ import annotations

import copy
import io
import json
import string
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import FoldedScalarString, LiteralScalarString

import cri.config
from hostsetup.doctor import bundle, keys
from hostsetup.doctor.keep import ANY, GONE, Form, Rule, kept, rules_of
from tests.support.protect.throw_away import ThrowAway, healthy_host

SHIPPED = Path(__file__).resolve().parents[4] / "packaging"
LANGUAGES: Mapping[str, tuple[str, Rule]] = {
    "protectd.toml": ("TOML", keys.PROTECTD),
    "cri.toml": ("TOML", keys.CRI),
    "hosts.toml": ("TOML", keys.REGISTRY),
    "kubelet": ("YAML", keys.KUBELET),
    "cni": ("JSON", keys.CNI),
    "result": ("JSON", keys.RESULT),
}
SECRETS = st.text(string.ascii_letters + string.digits + "-_/+=.:@", min_size=12, max_size=40).map(
    lambda text: f"hunter2{text}"
)
NAMES = st.sampled_from([
    "password", "psk", "client-key-data", "token", "auth", "note", "name", "x-own", "command", "env", "args",
])  # fmt: skip


@pytest.fixture
def host(short_path: Path) -> Iterator[ThrowAway]:
    with healthy_host(short_path) as made:
        yield made


def document(rule: Rule) -> st.SearchStrategy[Any]:
    """Possible values of a file with these keys."""
    if isinstance(rule, Mapping):
        tables = {"name" if key == ANY else key: document(one) for key, one in rule.items()}
        return st.fixed_dictionaries({}, optional=tables)
    if rule is Form.FLAG:
        return st.booleans()
    if isinstance(rule, Form):
        return st.sampled_from([1, "256MiB", "10s", "10.0.0.0/16", "1.0.0", "https://r.example"])
    return st.sampled_from(["", "other", *sorted(rule)])


def places(found: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all tables and values."""
    yield at
    if isinstance(found, dict):
        for key, value in found.items():
            yield from places(value, (*at, key))


def placed(found: Any, at: tuple[str, ...], value: object) -> Any:
    """The document with another value at a path."""
    made = copy.deepcopy(found)
    inner = made
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return made


def toml(found: dict[str, object]) -> str:
    """The document with all tables below the first inline."""
    return "".join(f"{json.dumps(key)} = {_inline(value)}\n" for key, value in found.items())


def _inline(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)


def yaml(found: object) -> str:
    text = io.StringIO()
    YAML().dump(found, text)
    return text.getvalue()


SHAPES: tuple[Callable[[str], object], ...] = (
    lambda secret: secret,
    lambda secret: [secret],
    lambda secret: {"inline": secret},
    lambda secret: [{"inline": [secret]}],
    lambda secret: f"https://user:{secret}@r.example/x",
    lambda secret: f"-----BEGIN X PRIVATE KEY-----\n{secret}\n-----END X PRIVATE KEY-----\n",
)
WRITERS: Mapping[str, Callable[[Any], str]] = {"TOML": toml, "JSON": json.dumps, "YAML": yaml}


@pytest.mark.parametrize("file", LANGUAGES)
@given(data=st.data(), secret=SECRETS)
def test_no_secret_stays_at_any_place_of_a_file(file: str, data: st.DataObject, secret: str) -> None:
    language, rule = LANGUAGES[file]
    found = data.draw(document(rule))
    above = data.draw(st.sampled_from([at for at in places(found) if isinstance(_at(found, at), dict)]))
    known = [*_at(found, above)] or ["name"]
    key = data.draw(NAMES | st.sampled_from(known))
    value: Any = data.draw(st.sampled_from(SHAPES))(secret)
    if language == "YAML" and isinstance(value, str):
        block = data.draw(st.sampled_from([str, LiteralScalarString, FoldedScalarString]))
        value = block(value)
    text = WRITERS[language](placed(found, (*above, key), value))
    assert secret in text.replace("\n", "").replace(" ", "") or "\\" in text, "it is in the file"
    cut = data.draw(st.none() | st.integers(0, len(text)))
    said = bundle.shown(text[:cut], language, rule)
    assert secret not in (said if isinstance(said, str) else said.decode())


def _at(found: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        found = found[key]
    return found


LEAKED_BEFORE = {
    "etc/kubernetes/kubelet.conf.d/90-own.conf": "users:\n- user:\n    client-key-data: hunter2-a\n",
    "etc/cni/net.d/calico-kubeconfig": "users:\n- user: {token: >-\n    hunter2-b}\n",
    "etc/cni/net.d/20-vpn.conflist": '{"plugins": [{"type": "wireguard", "psk": "hunter2-c"}]}',
    "etc/xenpod/certs.d/r.example/hosts.toml": (
        '[host."https://r.example"]\nheader = { X-Own = ["hunter2-d"] }\nclient = [["/c", "hunter2-e"]]\n'
    ),
    "var/lib/cni/results/net-1-eth0": '{"kind": "cniCacheV1", "config": "aHVudGVyMi1m"}',
    "var/lib/kubelet/config.yaml": "note: |\n  first\n  hunter2-g\n",
    "etc/default/grub.d/50-own.cfg": "GRUB_PASSWORD=hunter2-h\n",
}


def test_formerly_leaked_secrets_are_gone(host: ThrowAway, tmp_path: Path) -> None:
    """Of kubeconfigs, PSKs, block scalars, inline tables, and the configuration in CNI's results."""
    for name, text in LEAKED_BEFORE.items():
        host.file(name, text)
    parts = dict(bundle.collect(host.machine, host.settings))
    said = "".join(one if isinstance(one, str) else one.decode() for one in parts.values())
    assert "hunter2" not in said and "aHVudGVyMi1m" not in said
    assert "left out" in str(parts["files/etc/cni/net.d/calico-kubeconfig"])


def test_an_unreadable_file_is_left_out_with_a_note() -> None:
    for language, text in (("TOML", "a = "), ("JSON", "{"), ("YAML", "a: [\n"), ("JSON", "[" * 100_000)):
        assert bundle.shown(text, language, keys.CRI) == f"it cannot be read as {language}, and is left out"


def test_of_the_shipped_files_all_numbers_and_choices_stay() -> None:
    for name, rule in (("cri.toml", keys.CRI), ("protectd.toml", keys.PROTECTD)):
        said = bundle.shown((SHIPPED / name).read_text(), "TOML", rule)
        assert isinstance(said, bytes)
        assert f': "{GONE}"' not in said.decode(), "only keys without any harmless value are missing"


def test_known_values_stay_and_other_keys_are_counted() -> None:
    text = 'state_dir = "/srv/x"\nown = "a"\n[delegate]\ndefault = "xenpod"\ntimeout = "7s"\n'
    said = bundle.shown(text, "TOML", keys.CRI)
    assert json.loads(said) == {
        "state_dir": GONE,
        "delegate": {"default": "xenpod", "timeout": "7s"},
        GONE: "1 other keys",
    }


def test_the_details_of_another_runtime_are_left_out() -> None:
    """containerd's details have the passwords of its registries."""
    info = {"config": '{"state_dir": "hunter2", "zone": {"cpu_overhead": 7}}', "delegate.config": "hunter2"}
    said = bundle.of_status({"status": {"conditions": []}, "info": info})
    assert said == {
        "status": {"conditions": []},
        "info": {"config": {"state_dir": GONE, "zone": {"cpu_overhead": 7}}},
    }


def test_the_table_of_cri_toml_allows_no_more_than_its_types() -> None:
    """A new key is left out until the table names the key; a named key is harmless by its type."""

    def within(rule: Rule, most: Rule, at: str) -> None:
        if isinstance(rule, Mapping):
            assert isinstance(most, Mapping), at
            assert rule.keys() <= most.keys(), f"{at}: {sorted(rule.keys() - most.keys())} are no keys"
            for key, one in rule.items():
                within(one, most[key], f"{at}.{key}")
        elif isinstance(rule, frozenset):
            assert isinstance(most, frozenset) and rule <= most, at
        else:
            assert rule is most, at

    within(keys.CRI, rules_of(cri.config.CriConfig), "cri.toml")


@pytest.mark.parametrize(
    "value", ["12345678", "1ab", "5mm", "256MiBhunter2", "fe80::1%hunter2", "1.2.3.hunter"]
)
@pytest.mark.parametrize("form", Form)
def test_a_form_is_the_whole_value(form: Form, value: str) -> None:
    assert kept(value, form) == GONE
