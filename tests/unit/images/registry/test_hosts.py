"""containerd's hosts.toml: order, defaults, and wrong files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemonkit.faults import Refused
from images.registry.hosts import RegistryHost, hosts_for


def _write(certs: Path, name: str, text: str) -> None:
    (certs / name).mkdir(parents=True)
    (certs / name / "hosts.toml").write_text(text)


def _urls(hosts: tuple[RegistryHost, ...]) -> list[str]:
    return [f"{host.scheme}://{host.netloc}{host.path}" for host in hosts]


@pytest.mark.parametrize(
    ("registry", "url"),
    [
        ("docker.io", "https://registry-1.docker.io/v2"),
        ("registry.k8s.io", "https://registry.k8s.io/v2"),
        ("localhost:5000", "http://localhost:5000/v2"),
        ("127.0.0.1:5000", "http://127.0.0.1:5000/v2"),
        ("[::1]:5000", "http://[::1]:5000/v2"),
        ("127.0.0.1.example.com", "https://127.0.0.1.example.com/v2"),
        ("10.0.0.1:5000", "https://10.0.0.1:5000/v2"),
    ],
)
def test_without_a_file_the_registry_is_the_only_host(tmp_path: Path, registry: str, url: str) -> None:
    assert _urls(hosts_for(registry, tmp_path)) == [url]


def test_hosts_come_in_the_order_of_tables_then_the_server(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "docker.io",
        """
server = "https://upstream.example"
[host."https://zz.example/prefix"]
  capabilities = ["pull"]
[host."http://aa.example:5000"]
  capabilities = ["pull", "resolve"]
  skip_verify = true
[host."https://override.example/a/b"]
  override_path = true
  [host."https://override.example/a/b".header]
    x-one = "1"
    x-two = ["2", "3"]
""",
    )
    hosts = hosts_for("docker.io", tmp_path)
    assert _urls(hosts) == [
        "https://zz.example/prefix/v2",
        "http://aa.example:5000/v2",
        "https://override.example/a/b",
        "https://upstream.example/v2",
    ]
    assert hosts[0].capabilities == {"pull"}
    assert hosts[1].skip_verify and not hosts[0].skip_verify
    assert hosts[2].headers == (("x-one", "1"), ("x-two", "2"), ("x-two", "3"))
    assert all(host.mirror for host in hosts)


def test_no_server_means_the_registry_itself(tmp_path: Path) -> None:
    _write(tmp_path, "docker.io", '[host."https://mirror.example"]\n')
    hosts = hosts_for("docker.io", tmp_path)
    assert _urls(hosts) == ["https://mirror.example/v2", "https://registry-1.docker.io/v2"]
    assert [host.mirror for host in hosts] == [True, False]


def test_docker_io_as_server_is_its_registry(tmp_path: Path) -> None:
    _write(tmp_path, "docker.io", 'server = "https://docker.io"\n')
    assert _urls(hosts_for("docker.io", tmp_path)) == ["https://registry-1.docker.io/v2"]


def test_settings_of_the_server_stand_at_the_top(tmp_path: Path) -> None:
    _write(tmp_path, "r.example", 'server = "https://r.example"\nca = "ca.pem"\nskip_verify = true\n')
    (host,) = hosts_for("r.example", tmp_path)
    assert host.skip_verify
    assert host.ca == (tmp_path / "r.example/ca.pem",)


def test_the_directory_with_the_port_comes_before_the_default(tmp_path: Path) -> None:
    _write(tmp_path, "_default", '[host."http://d.example"]\n')
    _write(tmp_path, "r.example_5000_", '[host."http://p.example"]\n')
    _write(tmp_path, "r.example:6000", '[host."http://c.example"]\n')
    assert _urls(hosts_for("r.example:5000", tmp_path))[0] == "http://p.example/v2"
    assert _urls(hosts_for("r.example:6000", tmp_path))[0] == "http://c.example/v2"
    assert _urls(hosts_for("other.example", tmp_path)) == ["http://d.example/v2", "https://other.example/v2"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ('dial_timeout = "1s"', 1.0),
        ('dial_timeout = "1m30.5s"', 90.5),
        ('dial_timeout = "250ms"', 0.25),
        ('dial_timeout = "2h"', 7200.0),
        # No socket takes more than 292 years.
        ('dial_timeout = "999999999h"', 86400.0),
        ('dial_timeout = "0s"', None),
        ('dial_timeout = ""', None),
        ("", None),
    ],
)
def test_dial_timeout_is_read(tmp_path: Path, text: str, seconds: float | None) -> None:
    _write(tmp_path, "r.example", f'{text}\n[host."https://m.example"]\n{text}\n')
    mirror, server = hosts_for("r.example", tmp_path)
    assert mirror.dial_seconds == server.dial_seconds == seconds


def test_an_unknown_key_is_a_warning_with_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = 'servers = "https://x"\n[host."https://m.example"]\nskip_verfy = true\n'
    _write(tmp_path, "r.example", text + '[host."https://n.example"]\nskip_verfy = true\n')
    for _ in range(3):
        assert len(hosts_for("r.example", tmp_path)) == 3
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 3
    assert all(str(tmp_path / "r.example/hosts.toml") in line for line in warned)
    assert sum("'servers' in the file" in line for line in warned) == 1
    assert sum("'skip_verfy' in [host.\"https://m.example\"]" in line for line in warned) == 1


def test_capabilities_as_containerd_has_them(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "r.example",
        '[host."https://a.example"]\ncapabilities = ["Pull", "referrers"]\n'
        '[host."https://b.example"]\ncapabilities = []\n',
    )
    first, second, _ = hosts_for("r.example", tmp_path)
    assert first.capabilities == {"pull", "referrers"}
    assert {"pull", "resolve"} <= second.capabilities


def test_certificates_are_read(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "r.example",
        """
[host."https://a.example"]
  ca = ["one.pem", "/abs/two.pem"]
  client = [["c.pem", "c.key"], ["both.pem", ""]]
[host."https://b.example"]
  client = "both.pem"
""",
    )
    first, second, _ = hosts_for("r.example", tmp_path)
    here = tmp_path / "r.example"
    assert first.ca == (here / "one.pem", Path("/abs/two.pem"))
    assert [(pair.certificate, pair.key) for pair in first.clients] == [
        (here / "c.pem", here / "c.key"),
        (here / "both.pem", None),
    ]
    assert [(pair.certificate, pair.key) for pair in second.clients] == [(here / "both.pem", None)]


def test_bare_certificates_of_docker(tmp_path: Path) -> None:
    directory = tmp_path / "127.0.0.1_5000_"
    directory.mkdir()
    (directory / "ca.crt").touch()
    (directory / "me.cert").touch()
    (host,) = hosts_for("127.0.0.1:5000", tmp_path)
    assert host.scheme == "https"
    assert host.ca == (directory / "ca.crt",)
    assert host.clients[0].key == directory / "me.key"


@pytest.mark.parametrize(
    "text",
    [
        "server = 5",
        "server = ",
        'server = "ftp://x"',
        'server = "https://x:port"',
        'server = "https://u:p@x"',
        'host = "x"',
        "host = [1]",
        '[host."http://x"]\ncapabilities = "everything"',
        '[host."http://x"]\ncapabilities = [1]',
        '[host."http://x"]\nskip_verify = "yes"',
        '[host."http://x"]\ndial_timeout = 5',
        '[host."http://x"]\ndial_timeout = "5"',
        '[host."http://x"]\ndial_timeout = "-1s"',
        '[host."http://x"]\ndial_timeout = "1s2"',
        '[host."http://x"]\nclient = [["a", "b", "c"]]',
        '[host."http://x"]\nclient = 5',
        '[host."http://x"]\nheader = ["a"]',
        '[host."http://x".header]\n"a b" = "c"',
        '[host."http://x".header]\na = "c\\r\\nd: e"',
        '[host."http://x".header]\na = 5',
        '[host."http://"]',
        "\n".join(f'[host."http://h{n}"]' for n in range(100)),
        "\udcff",
    ],
)
def test_wrong_files_are_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.example").mkdir()
    (tmp_path / "r.example/hosts.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(Refused, match=r"r\.example/hosts\.toml"):
        hosts_for("r.example", tmp_path)


_VALUE = st.recursive(
    st.booleans()
    | st.integers(0, 9)
    | st.sampled_from(["pull", "resolve", "http://h.example", "x:1", "a.pem", "\\u0000"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["ca", "client", "header", "capabilities", "skip_verify", "dial_timeout"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
_KEY = st.sampled_from(
    [
        "server",
        "host",
        "capabilities",
        "ca",
        "client",
        "header",
        "skip_verify",
        "override_path",
        "dial_timeout",
    ]
)
_URL = st.sampled_from(
    ["http://h.example", "h.example:5000", "https://[::1]:5/p", "ftp://x", "http://x:y", "[", ""]
)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {_toml(inner)}' for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(inner) for inner in value) + "]"
    return str(value).lower() if isinstance(value, bool | int) else f'"{value}"'


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.dictionaries(_KEY, _VALUE, max_size=4),
    st.dictionaries(_URL, st.dictionaries(_KEY, _VALUE, max_size=4), max_size=3),
)
def test_any_file_is_read_or_refused(
    tmp_path: Path, top: dict[str, object], tables: dict[str, object]
) -> None:
    text = "".join(f"{key} = {_toml(value)}\n" for key, value in top.items() if key != "host")
    text += f"host = {_toml(tables)}\n"
    (tmp_path / "r.example").mkdir(exist_ok=True)
    (tmp_path / "r.example/hosts.toml").write_text(text)
    try:
        hosts = hosts_for("r.example", tmp_path)
    except Refused:
        return
    assert len(hosts) == len(tables) + 1
    assert all(host.scheme in ("http", "https") and host.netloc for host in hosts)
