"""Pings of users without any right, from containers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.stage import Stage
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]

# busybox pings with a raw socket alone.  Exit 1: no socket; 2: no answer.
_PING = r"""
#include <arpa/inet.h>
#include <netinet/ip_icmp.h>
#include <sys/socket.h>
#include <sys/time.h>

int main(void)
{
    struct sockaddr_in self = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct icmphdr echo = { .type = ICMP_ECHO };
    struct timeval patience = { .tv_sec = 30 };
    int fd = socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP);

    if (fd < 0)
        return 1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (sendto(fd, &echo, sizeof(echo), 0, (struct sockaddr *)&self, sizeof(self)) < 0 ||
        recv(fd, &echo, sizeof(echo), 0) < 0 || echo.type != ICMP_ECHOREPLY)
        return 2;
    return 0;
}
"""


@pytest.fixture(scope="module")
def ping(tmp_path_factory: pytest.TempPathFactory) -> cri.Mount:
    """A program that pings the loopback."""
    folder = tmp_path_factory.mktemp("ping")
    for parent in (folder, *folder.parents):
        parent.chmod(parent.stat().st_mode | 0o011)
    command = ["gcc", "-static", "-Wall", "-x", "c", "-", "-o", str(folder / "ping")]
    subprocess.run(command, input=_PING.encode(), check=True)
    return cri.Mount(host_path=str(folder), container_path="/tools", readonly=True)


def _users(first: int, length: int) -> dict[str, Any]:
    ids = [cri.IDMapping(container_id=0, host_id=first, length=length)]
    return {"userns_options": cri.UserNamespace(mode=cri.POD, uids=ids, gids=ids)}


@pytest.mark.parametrize(
    ("options", "sysctls", "code"),
    [
        ({}, {}, 0),
        (_users(655_360, 65_536), {}, 0),
        ({}, {"net.ipv4.ping_group_range": "0 1233"}, 1),
        ({}, {"net.ipv4.ping_group_range": "1234 1234"}, 0),
    ],
    ids=["defaults", "user namespace", "pod without the group", "pod with the group"],
)
async def test_user_without_rights_pings_unless_the_pod_forbids_it(
    stage: Stage, tmp_path: Path, ping: cri.Mount, options: dict[str, Any], sysctls: dict[str, str], code: int
) -> None:
    names = cri.NamespaceOption(pid=cri.CONTAINER, **options)
    linux = cri.LinuxPodSandboxConfig(
        sysctls=sysctls, security_context=cri.LinuxSandboxSecurityContext(namespace_options=names)
    )
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="ping", uid=str(uuid4()), namespace="default"),
        log_directory=str(tmp_path),
        linux=linux,
    )
    made = await stage.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=config), timeout=60)
    pod = Pod(made.pod_sandbox_id, config)
    rights = cri.LinuxContainerSecurityContext(
        namespace_options=names,
        run_as_user=cri.Int64Value(value=1234),
        run_as_group=cri.Int64Value(value=1234),
        capabilities=cri.Capability(drop_capabilities=["ALL"]),
    )
    container = await stage.started(
        pod, mounts=[ping], linux=cri.LinuxContainerConfig(security_context=rights)
    )
    assert (await stage.says(container, "/tools/ping"))[0] == code
    await stage.client.remove_pod(pod.id)
