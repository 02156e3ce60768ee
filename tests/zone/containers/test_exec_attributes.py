"""Processes of exec have the attributes of the container's own process.

Not compared: the session keyring.  crun create makes a keyring for a container, and crun exec joins none.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import Client, Stream
from tests.support.agent.zone_specs import CAPABILITIES, config_json, creation
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

_FILES = ("oom_score_adj", "limits", "cgroup", "coredump_filter", "timerslack_ns", "status", "stat")
_SCRIPT = "cd /proc/self; " + "; ".join(f"echo '<{name}>'; cat {name}" for name in _FILES) + "; echo '<end>'"
_STATUS = (
    "Umask Uid Gid Groups CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Seccomp_filters "
    "Cpus_allowed_list Mems_allowed_list SigBlk SigIgn THP_enabled"
).split()
_SCHEDULING = {"priority": 17, "nice": 18, "rt_priority": 39, "policy": 40}
"""Fields of /proc/PID/stat after the name, from 0 (proc_pid_stat(5))."""
_PROCESS: dict[str, object] = {
    "oomScoreAdj": 939,
    "noNewPrivileges": True,
    "rlimits": [
        {"type": "RLIMIT_NOFILE", "soft": 1000, "hard": 2000},
        {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
        {"type": "RLIMIT_STACK", "soft": 1 << 20, "hard": 1 << 21},
    ],
    "user": {"uid": 5, "gid": 6, "umask": 0o27, "additionalGids": [7, 8]},
    "capabilities": dict.fromkeys(
        ("bounding", "effective", "permitted", "ambient", "inheritable"), CAPABILITIES[:2]
    ),
}


def _attributes(output: str) -> dict[str, str]:
    """Each attribute by its name."""
    sections = dict(re.findall(r"<(\w+)>\n(.*?)(?=<\w+>\n)", output, re.DOTALL))
    found = {name: sections[name] for name in _FILES if name not in ("status", "stat")}
    status = dict(line.split(":", 1) for line in sections["status"].splitlines())
    found |= {name: status[name].strip() for name in _STATUS if name in status}
    stat = sections["stat"].rpartition(")")[2].split()
    return found | {name: stat[field - 2] for name, field in _SCHEDULING.items()}


def _started(client: Client, config: object) -> pb.ProcessCreated:
    request = creation("c1", "sh")
    request.config_json = json.dumps(config).encode()
    created = client.call(create_container=request).created
    client.call(start_container=pb.StartContainer(id="c1"))
    return created


def test_an_exec_has_the_attributes_of_the_first_process(client: Client) -> None:
    config = json.loads(config_json("c1", "sh", "-c", f"{_SCRIPT}; sleep 100"))
    config["process"] |= _PROCESS
    config["linux"]["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"]}
    first = _started(client, config)
    output = client.streams.setdefault(first.stdout_stream, Stream(first.stdout_stream))
    client.until(lambda: b"<end>" in output.data, "output")
    process = json.dumps(config["process"] | {"args": ["sh", "-c", _SCRIPT]}).encode()
    name = pb.ProcessRef(container_id="c1", exec_id="e1")
    execution = client.call(exec_process=pb.ExecProcess(process=name, process_json=process)).created
    client.exited("c1", "e1")
    wanted = _attributes(bytes(output.data).decode())
    assert wanted["oom_score_adj"] == "939\n" and wanted["Umask"] == "0027" and wanted["NoNewPrivs"] == "1"
    assert wanted["Seccomp"] == "2" and "1000                 2000" in wanted["limits"]
    assert _attributes(client.output(execution.stdout_stream).decode()) == wanted


@pytest.mark.parametrize("container", [1000, 500])
def test_after_an_exec_the_agent_has_its_own_score_again(zone: Zone, client: Client, container: int) -> None:
    own = Path(f"/proc/{zone.pid}/oom_score_adj")
    before = own.read_text()
    config = json.loads(config_json("c1", "sleep", "100"))
    config["process"]["oomScoreAdj"] = container
    _started(client, config)
    execution = client.execute("c1", "e1", "cat", "/proc/self/oom_score_adj")
    assert client.output(execution.stdout_stream) == b"%d\n" % container
    assert own.read_text() == before
