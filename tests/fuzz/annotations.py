"""Fuzzes a pod's annotations, beside its limits and its runtime handler's bounds.

Any combination gives a size inside the handler's bounds, or a fault with a readable message.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cri.checks import host_devices, sandbox, storage
from cri.checks.fields import PREFIX
from cri.cni.pod import attachment
from cri.config import (
    ANNOTATIONS,
    DEVICES,
    DISK_RATES,
    EMPTY_DIRS,
    EPHEMERAL_STORAGE,
    KERNEL,
    MEMORY,
    MOST_RATE_PER_SECOND,
    VCPUS,
    HandlerConfig,
    Reserve,
)
from cri.sandbox import kernel, sizing
from cri.sandbox.disk_rates import disk_rates
from cri.state.attachment import BandwidthLimits, Chain, Plugin
from daemonkit.config import Bytes
from daemonkit.faults import Denied, Invalid, Refused
from images.image_settings import KernelSettings
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

_NAME = "fuzzed"
_OVERHEAD = 96 << 20
_LONGEST = 4096
"""Bytes of a refusal: a gRPC status fits the 8 KiB of HTTP/2 headers that clients take."""
_MOST_BYTES, _MOST_ENTRIES, _MOST_DEVICES, _MOST_VCPUS = 2**50, 256, 32, 1024
_KERNELS = KernelSettings(allow=("registry.example/kernels/*",))
_ROUND = 500
_BANDWIDTHS = tuple(f"kubernetes.io/{way}-bandwidth" for way in ("ingress", "egress"))
_CHAIN = Chain("net", "1.0.0", (Plugin("bandwidth", {}, frozenset({"bandwidth"})),))


@dataclass(frozen=True, slots=True)
class Asked:
    """A pod, and the handler of its class."""

    config: cri.PodSandboxConfig
    handler: HandlerConfig


def plan(asked: Asked) -> None:
    """Check the pod as RunPodSandbox does.  AssertionError, or any exception but a refusal: a bug."""
    try:
        _check(asked)
    except (Invalid, Refused, Denied) as fault:
        assert len(str(fault).encode()) <= _LONGEST


def _check(asked: Asked) -> None:
    config, handler = asked.config, asked.handler
    sandbox.check_sandbox(config, _NAME, {_NAME: handler})
    sizing.check_size(config, _OVERHEAD, _NAME, handler)
    rates = disk_rates(config, _NAME, handler)
    image = kernel.chosen(config, handler, _KERNELS)
    most = BandwidthLimits(_NAME, handler.ingress_bandwidth, handler.egress_bandwidth)
    wanted = attachment("id", config, _CHAIN, Path("/netns"), most).runtime_config
    ours = {key for key in config.annotations if key.startswith(PREFIX)}
    assert ours <= set(handler.annotations), "an annotation counts that the handler does not list"
    _check_size(config, handler)
    _check_rates(rates or pb.DiskRates(), handler)
    assert image in ("", handler.kernel) or image.startswith("registry.example/kernels/")
    for bandwidth, limit in (("ingressRate", most.ingress), ("egressRate", most.egress)):
        rate = wanted.get("bandwidth", {}).get(bandwidth, 0)  # type: ignore[attr-defined]
        assert 0 <= rate <= (limit or _MOST_BYTES)
    assert len(host_devices.of_pod(config.annotations, handler)) <= _MOST_DEVICES + len(handler.devices)
    for limits in (storage.writable_layers(config.annotations), storage.empty_dirs(config.annotations)):
        assert len(limits) <= _MOST_ENTRIES
        assert all(0 < size <= _MOST_BYTES for size in limits.values())


def _check_size(config: cri.PodSandboxConfig, handler: HandlerConfig) -> None:
    found = sizing.zone_resources(config, _OVERHEAD, handler)
    memory = found.memory_bytes + found.memory_headroom_bytes
    assert found.memory_bytes <= max(_MOST_BYTES, handler.memory)
    if found.memory_bytes:
        assert handler.memory_min <= memory <= (handler.memory_max or memory)
    assert found.vcpus <= _MOST_VCPUS
    if found.vcpus:
        assert found.vcpus + found.vcpus_headroom <= (handler.vcpus_max or 2 * _MOST_VCPUS)
    limit = config.linux.resources.memory_limit_in_bytes
    if limit > 0:
        overhead = config.linux.overhead.memory_limit_in_bytes
        assert found.memory_bytes <= limit + (overhead if overhead > 0 else _OVERHEAD)
    without = cri.PodSandboxConfig()
    without.CopyFrom(config)
    for key in (MEMORY, VCPUS):
        without.annotations.pop(key, None)
    plain = sizing.zone_resources(without, _OVERHEAD, handler)
    if config.linux.resources.cpu_quota > 0 and config.linux.resources.cpu_period > 0:
        assert found.vcpus <= plain.vcpus


def _check_rates(rates: pb.DiskRates, handler: HandlerConfig) -> None:
    for field, limit in (
        (rates.read_bytes, handler.disk_read_rate),
        (rates.write_bytes, handler.disk_write_rate),
        (rates.read_operations, handler.disk_read_operations),
        (rates.write_operations, handler.disk_write_operations),
    ):
        assert field <= (limit or MOST_RATE_PER_SECOND)
        assert field or not limit, "an annotation takes the handler's rate away"


_UNITS = st.sampled_from(["", "k", "M", "Ki", "Mi", "Gi", "Pi", "Ei", "m", "n", "e3", "e18", "e-9", "e99"])
_DIGITS = st.integers(-9, 10**9).map(str) | st.decimals(allow_nan=False).map(str) | st.just("9" * 70)
_QUANTITIES = st.builds(str.__add__, _DIGITS, _UNITS)
_MEBIBYTES = st.integers(1, 1 << 14).map("{}Mi".format)
_WORDS = st.sampled_from(["web", "log-0", "", "../a", "w" * 64, "card", "nic"])
_SIZED = st.sampled_from(["web=1Gi", "web=8Mi,log-0=1", "web=1Pi", ",".join(f"v{n}=1Pi" for n in range(257))])
_LISTS = st.lists(st.builds("{}={}".format, _WORDS, _QUANTITIES) | _WORDS, max_size=5).map(",".join)
_MANY = st.integers(250, 20_000).map(lambda count: ",".join(f"v{number}=1" for number in range(count)))
_IMAGES = st.sampled_from(
    ["registry.example/kernels/gpu:1", "registry.example/other", "busybox", "[::1]:5/a@sha256:" + "0" * 64]
) | st.builds(str.__mul__, st.sampled_from(["a", "a.", "a-", "a/", "_", ":", "@"]), st.integers(1, 100_000))
_VALUES = st.one_of(_QUANTITIES, st.sampled_from(["1", "2", "64Mi"]), _LISTS, _MANY, _IMAGES, st.text())
_FITTING: Mapping[str, st.SearchStrategy[str]] = {
    **dict.fromkeys((MEMORY, *DISK_RATES, *_BANDWIDTHS), _MEBIBYTES | _MEBIBYTES | _QUANTITIES),
    **dict.fromkeys((EPHEMERAL_STORAGE, EMPTY_DIRS), _LISTS | _SIZED),
    VCPUS: st.integers(1, 70).map(str) | st.sampled_from(["1025", "2e0", "+1", "0", "²"]),
    DEVICES: st.sampled_from(["card", "card, nic", "card,card,", ",".join(f"d{n}" for n in range(33))]),
    KERNEL: _IMAGES,
}


@st.composite
def _notes(draw: st.DrawFn) -> dict[str, str]:
    sizes = 3 * (MEMORY, VCPUS)
    keys = st.lists(st.sampled_from((*ANNOTATIONS, *sizes, *_BANDWIDTHS)), max_size=4, unique=True)
    odd = draw(st.integers(0, 3)) == 0
    found = {key: draw(_VALUES if odd else _FITTING[key]) for key in draw(keys)}
    if draw(st.integers(0, 9)) == 0:
        found[draw(st.just("other/key") | st.text().map(PREFIX.__add__) | st.text())] = draw(_VALUES)
    return found


_FIGURES = st.one_of(st.just(0), st.integers(1, 1 << 33), st.integers(-(1 << 63), (1 << 63) - 1))
_ZERO = st.just(0)
_POSITIVE = _ZERO | st.integers(1, 1 << 33)


@st.composite
def _handlers(draw: st.DrawFn) -> HandlerConfig:
    least, usual, most = sorted(draw(st.tuples(*3 * (_POSITIVE,))))
    if draw(st.booleans()):
        least, most = 0, 1 << 40
    vcpus = sorted(draw(st.tuples(st.integers(0, 64), st.integers(0, 64) | st.just(1024))))
    all_of_them = st.just(ANNOTATIONS)
    listed = draw(all_of_them | all_of_them | st.lists(st.sampled_from(ANNOTATIONS), unique=True).map(tuple))
    return HandlerConfig(
        reserve=draw(st.sampled_from(Reserve)) if usual else Reserve.LIMIT,
        memory=Bytes(usual),
        memory_min=Bytes(least),
        memory_max=Bytes(most),
        vcpus=vcpus[0],
        vcpus_max=vcpus[1],
        memory_headroom=Bytes(draw(_POSITIVE)),
        vcpus_headroom=draw(st.integers(0, 64)),
        kernel=draw(st.sampled_from(["", "docker.io/library/kernel:1"])),
        ingress_bandwidth=draw(_POSITIVE),
        egress_bandwidth=draw(_POSITIVE),
        annotations=listed,
        devices=draw(st.sampled_from([(), ("card",)])),
        disk_read_rate=Bytes(draw(_POSITIVE)),
        disk_write_operations=draw(_POSITIVE),
    )


@st.composite
def pods(draw: st.DrawFn) -> Asked:
    """Pods with annotations and limits, and a handler with bounds."""
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="web", namespace="default", uid="uid"),
        annotations=draw(_notes()),
        linux=cri.LinuxPodSandboxConfig(
            resources=cri.LinuxContainerResources(
                memory_limit_in_bytes=draw(st.sampled_from([0, 64 << 20, 64 << 20]) | _FIGURES),
                cpu_quota=draw(st.sampled_from([0, 50_000, 50_000, 200_000]) | _FIGURES),
                cpu_period=draw(st.sampled_from([0, 1000, 100_000, 1_000_000])),
            ),
            overhead=cri.LinuxContainerResources(memory_limit_in_bytes=draw(_ZERO | _ZERO | _FIGURES)),
        ),
    )
    return Asked(config, draw(_handlers()))


def main(seconds: float) -> None:
    """Try pods for the given seconds; raises the first failure in its smallest form."""
    logging.disable()
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:

        @settings(max_examples=_ROUND, deadline=None, database=None)
        @given(pods())
        def tried(asked: Asked) -> None:
            plan(asked)

        tried()
        rounds += 1
        sys.stdout.write(f"{rounds * _ROUND} pods\n")
        sys.stdout.flush()
