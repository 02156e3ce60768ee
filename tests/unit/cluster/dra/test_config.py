"""The configuration file of xenpod-dra: values that cannot work are refused, with the file and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.dra.config import DraConfig
from daemonkit.config import load_config
from daemonkit.faults import Invalid

PATH = ("'relative'", "''", "3")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("driver", value) for value in ("''", "'Zones.dev'", "'a_b'", "'-a'", f"'{'a' * 64}'", "3")),
        *(("instance", value) for value in ("'a/b'", f"'{'a' * 41}'", "true")),
        *((key, v) for key in ("kubeconfig", "protect_socket", "plugins_dir", "registry_dir") for v in PATH),
        *((key, f"'/{'x' * 200}'") for key in ("protect_socket", "plugins_dir", "registry_dir")),
        *(
            (key, v)
            for key in ("write_interval", "split_interval", "check_interval")
            for v in ("0", "-1", "'soon'", "nan")
        ),
        ("log_level", "'loud'"),
        *(("metrics.address", value) for value in ("'9468'", "'localhost:9468'", "'10.0.0.1:9468'", "3")),
        ("node", "3"),
        *(("mode", value) for value in ("'both'", "''", "3")),
        *(
            (f"sizes.{key}", v)
            for key in ("minimum", "step", "default", "minimum_device")
            for v in ("0", "-1", "'lots'")
        ),
        ("sizes.default", "'16MiB'"),
        ("dom0_memory", "-1"),
        *(("granules.size", value) for value in ("-1", "1000", "'lots'")),
        *(("granules.resource", value) for value in ("'memory'", "'a/B'", "'/x'", "3")),
        *(("granules.devices_dir", value) for value in (*PATH, f"'/{'x' * 200}'")),
        ("sizes.step", "'5MiB'"),
        ("sizes.minimum", "1048577"),
        ("other", "1"),
    ],
)
def test_an_impossible_value_is_refused(tmp_path: Path, key: str, value: str) -> None:
    path = tmp_path / "dra.toml"
    path.write_text(f"{key} = {value}\n")
    with pytest.raises(Invalid) as caught:
        load_config(DraConfig, path)
    table = key.rpartition(".")[0]
    text = str(caught.value)
    assert text.startswith(f"read configuration {path}: ") and (f"'{key}'" in text or f"'{table}." in text)


def test_instances_have_sockets_of_their_own() -> None:
    one, other = DraConfig(), DraConfig(instance="b")
    assert one.plugin_socket != other.plugin_socket
    assert one.registration_socket != other.registration_socket
    assert one.registration_socket.name == "zones.xenpod.dev-reg.sock"
