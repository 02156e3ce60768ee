"""The keys of configuration files whose values may stay in a bundle; ``keep`` has the rules for the values.

A bundle leaves out keys that this table lacks: a new key costs a line of the bundle, and no secret.
"""

from __future__ import annotations

from hostsetup.doctor.keep import ANY, Form, Rule, rules_of
from protect.config import ProtectdConfig

_NUMBER, _FLAG = Form.NUMBER, Form.FLAG


def _words(*words: str) -> frozenset[str]:
    return frozenset(words)


def _numbers(keys: str) -> dict[str, Rule]:
    return dict.fromkeys(keys.split(), Form.NUMBER)


def _flags(keys: str) -> dict[str, Rule]:
    return dict.fromkeys(keys.split(), Form.FLAG)


PROTECTD: Rule = rules_of(ProtectdConfig)

# xenpod-cri's classes cannot be imported here; a test compares this table with the classes.
CRI: Rule = {
    "state_dir": _words("/var/lib/xenpod"),
    "run_dir": _words("/run/xenpod"),
    "guest_dir": _words("/usr/lib/xenpod/guest"),
    "protect_socket": _words("/run/protect/protect.sock"),
    "log_level": _words("info"),
    "cni": {
        **_numbers("timeout"),
        "conf_dir": _words("/etc/cni/net.d"),
        "bin_dirs": _words("/opt/cni/bin", "/usr/lib/cni"),
        "netns_dir": _words("/run/netns"),
    },
    "container": {
        **_numbers("nofile pids_limit shm_size"),
    },
    "zone": {
        **_numbers("memory_overhead cpu_overhead"),
    },
    "images": {
        **_numbers(
            "compression_level part_size downloads_per_image conversions connect_timeout stall_timeout "
            "pull_timeout pull_stall_timeout tries_per_host retry_delay longest_retry_delay "
            "unfinished_size unfinished_time"
        ),
        "certs_dir": _words("/etc/xenpod/certs.d"),
        "compression": _words("zstd"),
        "policy": {
            **_numbers("verifier_timeout"),
        },
        "limits": {
            **_numbers(
                "manifest_bytes config_bytes layers layer_bytes unpacked_bytes memory_bytes path_steps "
                "cpu_seconds ratio unpacked_floor_bytes entries index_bytes header_bytes account_file_bytes"
            ),
        },
    },
    "kernels": {
        **_numbers("image_bytes addons_bytes initramfs_bytes"),
    },
    "streaming": {
        **_numbers("url_lifetime handshake_timeout stream_timeout idle_timeout connections"),
        "address": _words("127.0.0.1:0"),
    },
    "delegate": {
        **_numbers("timeout keep"),
        "endpoint": _words(""),
        "default": _words("delegate", "xenpod"),
        "host_network": _words("classless", "delegate", "refuse"),
        "namespaces": _words("kube-system"),
    },
    "metrics": {
        "address": _words(""),
    },
    "traces": {
        **_numbers("sampling"),
        "endpoint": _words(""),
    },
    "audit": {
        **_numbers("file_size files"),
        "to": _words("file", "journald", "off"),
        "commands": _FLAG,
    },
    "handlers": {
        ANY: {
            **_numbers(
                "memory memory_min memory_max vcpus vcpus_max memory_headroom vcpus_headroom empty_dir_size "
                "scratch_size ingress_bandwidth egress_bandwidth disk_read_rate disk_write_rate "
                "disk_read_operations disk_write_operations"
            ),
            "profile": _words("default"),
            "mode": _words("auto", "profile", "pv", "pvh"),
            "kernel": _words(""),
            "seclabel": _words(""),
            "host_namespaces": _words("refuse", "zone"),
            "reserve": _words("limit", "request"),
            "memory_policy": _words("dynamic", "static"),
            "cpupool": _words(""),
            "spoof_check": _FLAG,
            "empty_dir": _words("host", "zone"),
            "annotations": _words("xenpod.dev/kernel"),
        },
    },
}

_AMOUNTS: Rule = {
    ANY: _NUMBER,
    **_numbers("memory.available nodefs.available nodefs.inodesFree imagefs.available"),
}

KUBELET: Rule = {
    "apiVersion": _words("kubelet.config.k8s.io/v1beta1"),
    "kind": _words("KubeletConfiguration"),
    "containerRuntimeEndpoint": _words("", "unix:///run/xenpod/cri.sock"),
    "cgroupDriver": _words("systemd", "cgroupfs"),
    "cpuManagerPolicy": _words("none", "static"),
    "memoryManagerPolicy": _words("None", "Static"),
    "topologyManagerPolicy": _words("none", "best-effort", "restricted", "single-numa-node"),
    "enforceNodeAllocatable": _words("none", "pods", "system-reserved", "kube-reserved"),
    "featureGates": {
        **_flags(
            "PodAndContainerStatsFromCRI DynamicResourceAllocation EventedPLEG InPlacePodVerticalScaling"
            " UserNamespacesSupport KubeletPodResourcesDynamicResources DRANodeAllocatableResources"
        )
    },
    **_flags(
        "serializeImagePulls cgroupsPerQOS failSwapOn localStorageCapacityIsolation protectKernelDefaults"
        " rotateCertificates serverTLSBootstrap makeIPTablesUtilChains registerNode"
    ),
    **_numbers(
        "maxParallelImagePulls runtimeRequestTimeout maxPods podPidsLimit podsPerCore syncFrequency"
        " nodeStatusUpdateFrequency nodeStatusReportFrequency shutdownGracePeriod"
        " shutdownGracePeriodCriticalPods containerLogMaxSize containerLogMaxFiles imageMinimumGCAge"
        " imageMaximumGCAge imageGCHighThresholdPercent imageGCLowThresholdPercent volumeStatsAggPeriod"
        " evictionPressureTransitionPeriod evictionMaxPodGracePeriod registryPullQPS registryBurst"
    ),
    **dict.fromkeys(
        ("systemReserved", "kubeReserved", "evictionHard", "evictionSoft", "evictionMinimumReclaim"), _AMOUNTS
    ),
}

_PLUGIN: dict[str, Rule] = {
    "type": _words(
        "bridge", "ptp", "macvlan", "ipvlan", "vlan", "loopback", "host-device", "portmap", "bandwidth",
        "firewall", "tuning", "sbr", "flannel", "calico", "cilium-cni", "multus", "kindnet",
    ),
    **_numbers("mtu vlan"),
    **_flags("isGateway isDefaultGateway ipMasq hairpinMode promiscMode forceAddress snat"),
    "capabilities": _flags("portMappings bandwidth ips mac ipRanges aliases dns infinibandGUID"),
    "ipam": {
        "type": _words("host-local", "static", "dhcp", "calico-ipam"),
        "subnet": Form.ADDRESS,
        "gateway": Form.ADDRESS,
        "ranges": {"subnet": Form.ADDRESS, "gateway": Form.ADDRESS},
        "routes": {"dst": Form.ADDRESS, "gw": Form.ADDRESS},
    },
}  # fmt: skip

CNI: Rule = {
    "cniVersion": Form.VERSION,
    **_flags("disableCheck disableGC loadOnlyInlinedPlugins"),
    "plugins": _PLUGIN,
    **_PLUGIN,
}

RESULT: Rule = {
    "kind": _words("cniCacheV1"),
    "ifName": _words("eth0"),
    "result": {
        "cniVersion": Form.VERSION,
        "interfaces": _numbers("mtu"),
        "ips": {"address": Form.ADDRESS, "gateway": Form.ADDRESS, "interface": _NUMBER},
        "routes": {"dst": Form.ADDRESS, "gw": Form.ADDRESS},
    },
}

_HOST: dict[str, Rule] = {
    "capabilities": _words("pull", "resolve", "push"),
    **_flags("skip_verify override_path"),
    "dial_timeout": _NUMBER,
}

REGISTRY: Rule = {"server": Form.ORIGIN, **_HOST, "host": {ANY: _HOST}}
