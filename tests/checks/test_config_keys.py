"""Every key of both configuration files: values that cannot work are refused, with the file and the key."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from cri.config import DEFAULT_HANDLER, CriConfig, HandlerConfig
from daemonkit.config import load_config
from daemonkit.faults import Invalid
from protect.config import ProtectdConfig
from xenpod_proto.channel.v1 import channel_pb2 as channel

PATH = ["'relative/x'", "''", '"/a\\u0000b"', "3"]
SOCKET = [*PATH, f"'/{'x' * 200}'"]
TIME = ["0", "-1", "'soon'", "inf", "nan", "''"]
DELAY = ["-1", "'soon'", "nan"]
SIZE = ["-1", "'lots'", "1.5", str(2**63), "''"]
SOME = [*SIZE, "0"]
RATE = str(2**50 + 1)
COUNT = ["-1", "0", "1.5", "true", "'3'", str(10**30)]
PATTERNS = ["['']", "['two words']", "['busybox']", "['a/[b']", "['a/\u00e9']", "[3]", "'a/b'"]
TEXT = ["3", "true"]
TEXT_OR_NUMBER = ["'yes'", "1"]

OBSERVED: Mapping[str, list[str]] = {
    "metrics.address": ["'127.0.0.1'", "'localhost:1'", "'127.0.0.1:x'", "'127.0.0.1:70000'", "'0.0.0.0:1'",
                        "'192.0.2.1:1'", "':9'", "3"],
    "traces.endpoint": ["'127.0.0.1:4317'", "'http://'", "'http://h'", "'http://h:1/v1/traces'",
                        "'ftp://h:1'", "'http://h:x'", "'http://u:p@h:1'", "3"],
    "traces.sampling": ["-0.1", "1.1", "nan", "'all'"],
    "audit.to": ["'disk'", "''", "true"],
    "audit.dir": PATH,
    "audit.file_size": [*SIZE, "'4KiB'"],
    "audit.files": [*COUNT, "1", "1001"],
    "audit.commands": TEXT_OR_NUMBER,
}  # fmt: skip

CRI: Mapping[str, list[str]] = {
    **OBSERVED,
    "state_dir": PATH,
    "run_dir": SOCKET,
    "socket": SOCKET,
    "guest_dir": PATH,
    "protect_socket": SOCKET,
    "log_level": ["'loud'", "''", "'critical'", "'notset'", "3"],
    "faults.kill_at": TEXT,
    "cni.conf_dir": PATH,
    "cni.bin_dirs": ["[]", "['']", "['bin']", "['/ok', 'bin']", "'/bin'"],
    "cni.netns_dir": PATH,
    "cni.timeout": TIME,
    "cni.conf_template": PATH,
    "container.nofile": ["-1", "1048577", "'all'"],
    "container.pids_limit": ["-1", "4194305"],
    "container.shm_size": SOME,
    "zone.memory_overhead": SIZE,
    "zone.cpu_overhead": ["-1", "102401", "'10%'"],
    "images.certs_dir": PATH,
    "images.private_targets": ["['10.0.0.1/8']", "['a b']", "['']"],
    "images.compression": ["'lzma9'", "''"],
    "images.compression_level": ["0", "23", "-1"],
    "images.part_size": SIZE,
    "images.downloads_per_image": COUNT,
    "images.conversions": COUNT,
    "images.connect_timeout": TIME,
    "images.stall_timeout": TIME,
    "images.pull_timeout": TIME,
    "images.pull_stall_timeout": [*TIME, "'20s'"],
    "images.tries_per_host": COUNT,
    "images.retry_delay": DELAY,
    "images.longest_retry_delay": [*DELAY, "'100ms'"],
    "images.unfinished_size": SIZE,
    "images.unfinished_time": DELAY,
    "images.pinned": PATTERNS,
    "images.policy.allow": PATTERNS,
    "images.policy.deny": PATTERNS,
    "images.policy.verifier_dir": PATH,
    "images.policy.verifier_timeout": TIME,
    "images.limits.*": ["-1", "'many'", "1.5"],
    "kernels.allow": PATTERNS,
    "kernels.image_bytes": SOME,
    "kernels.addons_bytes": SOME,
    "kernels.initramfs_bytes": SOME,
    "streaming.address": ["''", "'127.0.0.1'", "'127.0.0.1:x'", "'127.0.0.1:70000'", "'localhost:0'",
                          "'0.0.0.0:0'", "'192.0.2.1:0'", "'127.0.0.1:-1'"],
    "streaming.url_lifetime": TIME,
    "streaming.handshake_timeout": TIME,
    "streaming.stream_timeout": TIME,
    "streaming.idle_timeout": TIME,
    "streaming.connections": COUNT,
    "streaming.connections_per_pod": COUNT,
    "streaming.tls.certificate": [*PATH, "'/alone.crt'"],
    "streaming.tls.key": [*PATH, "'/alone.key'"],
    "streaming.tls.client_ca": [*PATH, "'/alone.crt'"],
    "delegate.endpoint": ["'/run/x.sock'", "'unix:/x'", "'unix://x'", "'tcp://1.2.3.4:5'", "3",
                          f"'unix:///{'x' * 200}'", '"unix:///a\\u0000b"'],
    "delegate.namespaces": ["'kube-system'", "['']", "['Kube']", "['a|b']", "['a.b']", "[3]"],
    "delegate.default": ["''", "'both'", "true"],
    "delegate.host_network": ["''", "'zone'", "true"],
    "delegate.timeout": TIME,
    "delegate.keep": TIME,
    "handlers.x.profile": ["''", "'Not One'", "3"],
    "handlers.x.kernel": ["'NOT A NAME'", "3"],
    "handlers.x.seclabel": ["'domU_t'", "'a:b'", "'a:b:c d'", "':b:c'", "3"],
    "handlers.x.reserve": ["'request'", "'all'", "3"],
    "handlers.x.memory_headroom": SIZE,
    "handlers.x.vcpus_headroom": ["-1", "1025", "'2'"],
    "handlers.x.memory_policy": ["''", "'auto'", "true"],
    "handlers.x.cpupool": ["'a b'", "3", f"'{'x' * 65}'"],
    "handlers.x.vcpus": ["-1", "'2'", "1.5"],
    "handlers.x.host_namespaces": ["''", "'host'", "true"],
    "handlers.x.memory": SIZE,
    "handlers.x.memory_min": SIZE,
    "handlers.x.memory_max": SIZE,
    "handlers.x.spoof_check": ["'no'", "1"],
    "handlers.x.empty_dir": ["''", "'disk'", "true"],
    "handlers.x.empty_dir_size": SIZE,
    "handlers.x.scratch_size": SIZE,
    "handlers.x.ingress_bandwidth": ["-1", "'1M'"],
    "handlers.x.egress_bandwidth": ["-1", "'1M'"],
    "handlers.x.disk_read_rate": [*SIZE, RATE],
    "handlers.x.disk_write_rate": [*SIZE, RATE],
    "handlers.x.disk_read_operations": ["-1", "'1k'", RATE],
    "handlers.x.disk_write_operations": ["-1", "'1k'", RATE],
    "handlers.x.vcpus_max": ["-1", "1025", "'2'"],
    "handlers.x.mode": ["''", "'hvm'", "true"],
    "handlers.x.annotations": ["['memory']", "['xenpod.dev/memroy']", "'xenpod.dev/memory'", "[3]"],
    "handlers.x.devices": ["'gpu0'", "['GPU 0']", "[3]"],
    "handlers.x.requires": ["['sev-snp']", "['xen>4.17']", "['xen>=4']", "['device:']", "['label:A B']",
                            "'hvm'"],
}  # fmt: skip

PROTECTD: Mapping[str, list[str]] = {
    **OBSERVED,
    "run_dir": SOCKET,
    "state_dir": PATH,
    "guest_dir": PATH,
    "socket": SOCKET,
    "toolstack": ["'qemu'", "''"],
    "log_level": ["'loud'", "''", "3"],
    "memory.total": SIZE,
    "memory.reserve": SIZE,
    "memory.reservations_only": TEXT_OR_NUMBER,
    "profiles.x.mode": ["'hvm'", "''", "true"],
    "profiles.x.memory": [*SOME, "'65GiB'"],
    "profiles.x.memory_min": [*SOME, "'512MiB'"],
    "profiles.x.memory_max": [*SIZE],
    "profiles.x.vcpus": [*COUNT, "65"],
    "profiles.x.vcpus_max": ["1025", "'all'"],
    "profiles.x.scratch": [*SIZE, "'1MiB'", "'2TiB'"],
    "profiles.x.scratch_max": SIZE,
    "scratch.dir": PATH,
    "scratch.reserve": SIZE,
    "scratch.overcommit": ["'no'", "1"],
    "host.labels": ["['SEV']", "['two words']", "['']", "'sev'", "[3]"],
    "host.devices.x.place": ["''", "'gpu'", "'01:00.0'", "3"],
    "host.devices.x.profiles": ["'all'", "[3]"],
    "host.devices.x.readonly": ["'no'", "1"],
    "limits.zones": COUNT,
    "limits.reservations": COUNT,
    "limits.workloads_per_zone": [*COUNT, str(channel.LIMIT_CONTAINERS + 1)],
    "limits.disks_per_zone": [*COUNT, "677"],
    "limits.disk_read_rate": [*SIZE, RATE],
    "limits.disk_write_rate": [*SIZE, RATE],
    "limits.disk_read_operations": ["-1", "'1k'", RATE],
    "limits.disk_write_operations": ["-1", "'1k'", RATE],
    "limits.execs_per_zone": ["-1", str(channel.LIMIT_EXECS + 1)],
    "limits.connections_per_zone": ["-1", str(channel.LIMIT_CONNECTIONS + 1)],
    "timeouts.boot": TIME,
    "timeouts.call": TIME,
    "timeouts.stats": TIME,
    "timeouts.drain": DELAY,
    "timeouts.stop": TIME,
    "timeouts.reconcile": TIME,
    "timeouts.resize": TIME,
    "memory.policy_period": TIME,
    "timeouts.silence": DELAY,
    "timeouts.clock": TIME,
    "libxl.kernel": PATH,
    "libxl.initramfs": PATH,
    "libxl.kernel_arguments": ['"two\\nlines"', f"'{'x' * 513}'", "3"],
    "libxl.console_dir": PATH,
    "libxl.share_memory": ["'1MiB'", "-1", "true", "'x'"],
    "libxl.threads": COUNT,
    "libxl.dom0_weight": ["-1", "65536", "'all'"],
    "libxl.disk_patience": DELAY,
    "libxl.stale_channel": DELAY,
    "fake.memory": SIZE,
    "fake.reserve": SIZE,
    "fake.hvm": TEXT_OR_NUMBER,
    "fake.hap": TEXT_OR_NUMBER,
    "fake.iommu": TEXT_OR_NUMBER,
    "fake.hypervisor_version": ["'4'", "'new'", "4.17"],
    "fake.pci": ["'0000:65:00.0'", "['65:00.0']", "[3]"],
    "fake.seclabels": ["['domU_t']", "[3]", "'a:b:c'"],
    "fake.cpupools": ["'a'", "[3]"],
    "fake.domain_overhead": SIZE,
    "fake.domains_most": ["-1", "'1'"],
    "fake.disk_memory": SIZE,
    "fake.pids_limit": COUNT,
    "fake.launch_seconds": ["0", "-1", "inf", "nan", "'1s'"],
    "faults.kill_at": TEXT,
    "faults.toolstack.foreign_memory": SIZE,
    "faults.toolstack.fault.at": ["'lunch'", "3"],
    "faults.toolstack.fault.kind": ["'bang'"],
    "faults.toolstack.fault.name": TEXT,
    "faults.toolstack.fault.skip": ["-1"],
    "faults.toolstack.fault.times": ["-1"],
    "faults.toolstack.fault.after_ms": ["-1"],
}


def _keys(config: Any, at: str = "") -> Iterator[str]:
    """Every possible key of a file, with ``x`` for free names."""
    hints = typing.get_type_hints(config, include_extras=True)
    for field in fields(config):
        path, kind = f"{at}{field.name}", hints[field.name]
        inner = [kind, *typing.get_args(kind)]
        tables = [one for one in inner if is_dataclass(one)]
        if not tables:
            yield path
        elif typing.get_origin(kind) is tuple or tables[0] is kind:
            yield from _keys(tables[0], f"{path}.")
        else:
            yield from _keys(tables[0], f"{path}.x.")


def _rows(config: Any, table: Mapping[str, list[str]]) -> Iterator[tuple[Any, str, str]]:
    for key in _keys(config):
        for value in _values(table, key):
            yield config, key, value


def _values(table: Mapping[str, list[str]], key: str) -> list[str]:
    return table.get(key) or table.get(f"{key.rpartition('.')[0]}.*", [])


def _text(key: str, value: str) -> str:
    if key.startswith("faults.toolstack.fault."):
        row = {"at": "'create'", "kind": "'fail'"} | {key.rpartition(".")[2]: value}
        return "[[faults.toolstack.fault]]\n" + "".join(f"{name} = {one}\n" for name, one in row.items())
    return f"{key} = {value}\n"


@pytest.mark.parametrize(("config", "table"), [(CriConfig, CRI), (ProtectdConfig, PROTECTD)])
def test_every_key_refuses_some_value(config: Any, table: Mapping[str, list[str]]) -> None:
    known = set(_keys(config))
    assert len(known) > 30
    assert {key for key in table if not key.endswith(".*")} <= known
    assert [key for key in known if not _values(table, key)] == [], "give them a row above"


@pytest.mark.parametrize(
    ("config", "key", "value"), [*_rows(CriConfig, CRI), *_rows(ProtectdConfig, PROTECTD)]
)
def test_an_impossible_value_is_refused(tmp_path: Path, config: Any, key: str, value: str) -> None:
    path = tmp_path / "the.toml"
    path.write_text(_text(key, value))
    with pytest.raises(Invalid) as caught:
        load_config(config, path)
    assert str(caught.value).startswith(
        tuple(f"read configuration {path}: key '{named}" for named in (f"{key}'", f"{key}[", f"{_row(key)}'"))
    )


def _row(key: str) -> str:
    return key.replace("fault.", "fault[0].")


@pytest.mark.parametrize("name", ["''", "'Fast'", "'a_b'", "'-a'", f"'{'a' * 64}'"])
def test_names_of_handlers_and_profiles(tmp_path: Path, name: str) -> None:
    path = tmp_path / "the.toml"
    path.write_text(f"[handlers.{name}]\n")
    with pytest.raises(Invalid, match="key 'handlers'"):
        load_config(CriConfig, path)
    path.write_text(f"[profiles.{name[:-1]}_']\n")
    with pytest.raises(Invalid, match="key 'profiles'"):
        load_config(ProtectdConfig, path)


@pytest.mark.parametrize(
    "line",
    [
        "'A B' = '/dev/null'",
        "gpu = {place = '0000:65:00.0', readonly = true}",
        "gpu = {place = '/dev/null', profiles = ['no-such']}",
    ],
)
def test_impossible_devices_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "the.toml"
    path.write_text(f"[host.devices]\n{line}\n")
    with pytest.raises(Invalid, match=r"key 'host\.devices"):
        load_config(ProtectdConfig, path)
    path.write_text(
        "[host.devices]\ngpu = '0000:65:00.0'\ndisk = {place = '/dev/sdb', profiles = ['default']}\n"
    )
    assert sorted(load_config(ProtectdConfig, path).host.devices) == ["disk", "gpu"]


def test_the_default_handler_is_there_whatever_others_a_file_names(tmp_path: Path) -> None:
    path = tmp_path / "cri.toml"
    path.write_text("[handlers.fast]\nprofile = 'pvh'\n")
    found = load_config(CriConfig, path).handlers
    assert found == {DEFAULT_HANDLER: HandlerConfig(), "fast": HandlerConfig(profile="pvh")}
    path.write_text("[handlers.xenpod]\nprofile = 'small'\n")
    assert load_config(CriConfig, path).handlers == {DEFAULT_HANDLER: HandlerConfig(profile="small")}
