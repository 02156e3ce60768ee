"""VOLUMEs of images: writable directories of a container's own, with the image's content."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.cri.conformance import SuiteStage, linux, refused
from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.events import PATIENCE
from tests.support.waiting import until
from tools.localnode import images, layers, registry
from tools.localnode.cri_client import Pod
from tools.localnode.images import PushedImage
from tools.localnode.layers import LayerEntry
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="session")]
MIB = 1 << 20
HOST = "volumes.test"
FIRST, LENGTH = 655_360, 65_536
CONTENT = layers.layer(
    LayerEntry("vol", 0o750, uid=1000, gid=1001),
    LayerEntry("vol/seed", 0o640, b"seed\n", uid=1000, gid=1001),
    LayerEntry("vol/deep", 0o700, uid=1000, gid=1001),
    LayerEntry("empty", 0o1777),
    LayerEntry("plain", 0o644, b"a file\n"),
)
VOLUMES: Mapping[str, tuple[str, ...]] = {
    "usual": ("/vol", "/new/path", "empty/"),
    "nested": ("/vol/deep", "/vol"),
    "file": ("/plain",),
    "root": ("/",),
}
LOOK = "stat -c '%n %a %u %g' /vol /vol/seed /new/path /empty; cat /vol/seed"
SEEN = "/vol 750 1000 1001\n/vol/seed 640 1000 1001\n/new/path 755 0 0\n/empty 1777 0 0\nseed"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pulled(session_stage: SuiteStage, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Images with one more layer than the usual, and the VOLUMEs of the table."""
    client, made = session_stage.client, {}
    async with registry.serve_registry(tmp_path_factory.mktemp("volumes")) as address:
        registry.mirror(session_stage.node.certs, HOST, address)
        for name, paths in VOLUMES.items():
            run = {"Cmd": ["sh"], "Volumes": {path: {} for path in paths}}
            images.push(address, f"{name}:1", PushedImage([layers.busybox(), CONTENT], run))
            made[name] = await client.pull(f"{HOST}/{name}:1")
    return made


def of_image(image: str, **fields: Any) -> dict[str, Any]:
    return {"image": cri.ImageSpec(image=image), **fields}


async def used(stage: SuiteStage, container: str) -> int:
    request = cri.ContainerStatsRequest(container_id=container)
    reply = await stage.runtime.ContainerStats(request, timeout=PATIENCE)
    return int(reply.stats.writable_layer.used_bytes.value)


@pytest.mark.parametrize("readonly", [False, True])
async def test_volume_is_writable_and_begins_as_in_the_image(
    stage: SuiteStage, shared_pod: Pod, pulled: Mapping[str, str], readonly: bool
) -> None:
    asked = of_image(pulled["usual"], linux=linux(readonly_rootfs=readonly))
    container = await stage.started(shared_pod, **asked)
    assert await stage.output(container, LOOK) == SEEN
    writes = "echo more >> /vol/seed; mv /vol/seed /vol/moved; touch /new/path/a /empty/b; cat /vol/moved"
    assert await stage.output(container, writes) == "seed\nmore"
    code, text = await stage.says(container, "touch /new/beside")
    assert ("Read-only" in text) is readonly and (code != 0) is readonly
    # The kubelet's record of mounts has no other mounts than its own.
    assert not (await stage.status(container)).mounts


async def test_every_container_has_new_volumes(
    stage: SuiteStage, shared_pod: Pod, pulled: Mapping[str, str]
) -> None:
    first = await stage.started(shared_pod, **of_image(pulled["usual"]))
    beside = await stage.started(shared_pod, **of_image(pulled["usual"]))
    await stage.output(first, "rm /vol/seed; touch /new/path/mine /vol/mine")
    assert await stage.output(beside, LOOK + "; ls /new/path") == SEEN
    await stage.client.remove_container(first)
    stage.made.remove(first)
    restarted = await stage.started(shared_pod, **of_image(pulled["usual"]))
    assert await stage.output(restarted, LOOK + "; ls /new/path") == SEEN


async def test_owner_of_a_volume_who_is_not_root_can_write(
    stage: SuiteStage, shared_pod: Pod, pulled: Mapping[str, str]
) -> None:
    user = cri.Int64Value(value=1000)
    container = await stage.started(
        shared_pod, **of_image(pulled["usual"], linux=linux(run_as_user=user, readonly_rootfs=True))
    )
    assert await stage.output(container, "echo mine > /vol/mine && stat -c %u /vol/mine") == "1000"
    code, text = await stage.says(container, "touch /new/path/x")
    assert code != 0 and "Permission denied" in text


async def test_nested_volumes_are_separate_mounts(
    stage: SuiteStage, shared_pod: Pod, pulled: Mapping[str, str]
) -> None:
    container = await stage.started(shared_pod, **of_image(pulled["nested"]))
    script = "touch /vol/a /vol/deep/b; ls /vol/deep; stat -c '%a %u' /vol/deep; cut -d' ' -f2 /proc/mounts"
    said = (await stage.output(container, script)).splitlines()
    assert said[:2] == ["b", "700 1000"] and said.index("/vol") < said.index("/vol/deep")


async def test_mounts_of_the_pod_replace_and_nest_in_volumes(
    stage: SuiteStage, shared_pod: Pod, pulled: Mapping[str, str], tmp_path: Path
) -> None:
    folders = {name: tmp_path / name for name in ("at", "below", "above")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "host").write_text("x")
    at = cri.Mount(container_path="/vol/", host_path=str(folders["at"]))
    below = cri.Mount(container_path="/new/path/in/it", host_path=str(folders["below"]))
    above = cri.Mount(container_path="/new", host_path=str(folders["above"]))
    container = await stage.started(shared_pod, **of_image(pulled["usual"], mounts=[at, below]))
    assert await stage.output(container, "ls /vol; ls /new/path; ls /new/path/in/it") == "host\nin\nhost"
    await stage.output(container, "touch /vol/written /new/path/beside")
    assert (folders["at"] / "written").exists()
    container = await stage.started(shared_pod, **of_image(pulled["usual"], mounts=[above]))
    assert await stage.output(container, "touch /new/path/a && ls /new /new/path") == (
        "/new:\nhost\npath\n\n/new/path:\na"
    )
    assert not (folders["above"] / "path/a").exists()


async def test_volumes_in_a_user_namespace_have_the_image_s_owners(
    stage: SuiteStage, pulled: Mapping[str, str]
) -> None:
    ids = (cri.IDMapping(container_id=0, host_id=FIRST, length=LENGTH),)
    options = cri.NamespaceOption(
        pid=cri.CONTAINER, userns_options=cri.UserNamespace(mode=cri.POD, uids=ids, gids=ids)
    )
    security = cri.LinuxSandboxSecurityContext(namespace_options=options)
    async with stage.pod("volumes", linux=cri.LinuxPodSandboxConfig(security_context=security)) as pod:
        for readonly in (False, True):
            own = linux(namespace_options=options, readonly_rootfs=readonly)
            container = await stage.started(pod, **of_image(pulled["usual"], linux=own))
            assert await stage.output(container, LOOK) == SEEN
            script = "echo x >> /vol/seed && touch /vol/a /new/path/a && stat -c %u /vol/a /vol/seed"
            assert await stage.output(container, script) == "0\n1000"


@pytest.mark.parametrize("handler", ["", "scratch"])
async def test_bytes_in_volumes_count_in_the_writable_layer(
    stage: SuiteStage, pulled: Mapping[str, str], handler: str
) -> None:
    async with stage.pod("counted", handler=handler) as pod:
        container = await stage.started(pod, **of_image(pulled["usual"]))
        before = await used(stage, container)
        await stage.output(
            container, "for v in vol new/path; do dd if=/dev/zero of=/$v/big bs=1M count=4; done"
        )

        async def counted() -> bool:
            return 8 * MIB <= await used(stage, container) - before < 8.2 * MIB

        await until(counted, PATIENCE)


async def test_impossible_volume_of_an_image_is_refused(
    stage: SuiteStage, shared_pod: Pod, pulled: Mapping[str, str]
) -> None:
    with refused("FAILED_PRECONDITION", "volume of the image: /plain: not a directory"):
        await stage.create(shared_pod, **of_image(pulled["file"]))
    with refused("INVALID_ARGUMENT", "VOLUME '/' of image"):
        await stage.create(shared_pod, **of_image(pulled["root"]))
    at = cri.Mount(container_path="/plain", host_path="/etc/hostname")
    container = await stage.started(shared_pod, **of_image(pulled["file"], mounts=[at]))
    assert await stage.output(container, "test -f /plain && echo replaced") == "replaced"


async def test_overlays_can_be_mounted_in_a_volume_without_content(
    stage: SuiteStage, shared_pod: Pod, pulled: Mapping[str, str]
) -> None:
    """As Docker in a container does below /var/lib/docker."""
    container = await stage.started(shared_pod, **of_image(pulled["usual"], linux=linux(privileged=True)))
    for volume in ("/new/path", "/empty"):
        made = f"cd {volume} && mkdir lower upper work merged && touch lower/a"
        mount = "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged"
        assert await stage.output(container, f"{made} && {mount} && touch merged/b && ls merged upper") == (
            "merged:\na\nb\n\nupper:\nb"
        )
