"""Permission for pulls: by name, and by verifiers, which are real programs here."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest

from daemonkit.config import Seconds
from daemonkit.faults import Denied, Refused
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from images.image_errors import Rejected
from images.image_settings import ImageSettings, PolicySettings
from images.manager import ImageManager
from images.policy.verifiers import MOST_VERIFIERS
from images.registry import names
from images.registry.credentials import ANONYMOUS
from images.rpc.service import add_image_services
from tests.support.images.image_manager import running
from tests.support.images.images import Layer, build, digest, index_of, packed
from tests.support.images.registry import INDEX, LyingRegistry, content
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2, runtime_pb2_grpc

IMAGE = build([packed(Layer().file("f", b"x" * 5000).tar(), "")])
MANIFEST = "/v2/app/manifests/1"


@asynccontextmanager
async def managing(directory: Path, **policy: object) -> AsyncIterator[ImageManager]:
    settings = ImageSettings(
        directory / "state",
        directory / "certs.d",
        policy=PolicySettings(**policy),  # type: ignore[arg-type]
    )
    async with running(settings) as manager:
        yield manager


def _verifier(directory: Path, name: str, script: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)
    return directory


@pytest.mark.parametrize(
    ("lists", "allowed"),
    [
        ({}, True),
        ({"deny": ("{host}/app:*",)}, False),
        ({"deny": ("{host}/app",)}, False),
        ({"deny": ("{host}/ap",)}, True),
        ({"deny": ("*:1",), "allow": ("*",)}, False),
        ({"allow": ("{host}/*",)}, True),
        ({"allow": ("{host}/app",)}, True),
        ({"allow": ("{host}/app:2", "docker.io/*")}, False),
    ],
)
async def test_name_patterns_allow_or_refuse_a_pull(
    tmp_path: Path, lists: dict[str, tuple[str, ...]], allowed: bool
) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        policy = {
            key: tuple(text.format(host=registry.netloc) for text in value) for key, value in lists.items()
        }
        async with managing(tmp_path, **policy) as manager:
            pulling = manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS)
            if allowed:
                assert (await pulling).id == IMAGE.id
            else:
                with pytest.raises(Denied, match=r"images\.policy\."):
                    await pulling
                assert registry.requests == []


@pytest.mark.parametrize("by", ["1", digest(IMAGE.manifest)])
async def test_a_denied_repository_cannot_be_had_by_digest(tmp_path: Path, by: str) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path, deny=(f"{registry.netloc}/app",)) as manager:
            at = "@" if ":" in by else ":"
            with pytest.raises(Denied):
                await manager.pull(names.parse(f"{registry.netloc}/app{at}{by}"), ANONYMOUS)


@pytest.mark.parametrize("pattern", ["", "a b", "x" * 2000])
def test_unmatchable_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="no pattern"):
        PolicySettings(deny=(pattern,))


async def test_verifier_gets_name_digest_and_descriptor(tmp_path: Path) -> None:
    told = tmp_path / "told"
    script = f'printf "%s\\n" "$@" > {told}; cat >> {told}; pwd >> {told}; echo fine'
    directory = _verifier(tmp_path / "verifiers", "one", script)
    index = index_of([IMAGE.descriptor])
    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[MANIFEST] = content(index, INDEX)
        async with managing(tmp_path, verifier_dir=directory) as manager:
            await manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS)
    lines = told.read_text().splitlines()
    assert lines[:4] == ["-name", f"{registry.netloc}/app:1", "-digest", digest(index)]
    assert lines[4:6] == ["-stdin-media-type", "application/vnd.oci.descriptor.v1+json"]
    descriptor, folder = lines[6].rsplit("}", 1)
    assert json.loads(descriptor + "}") == {"mediaType": INDEX, "digest": digest(index), "size": len(index)}
    assert folder == "/"


VERDICTS = {
    "no": ("echo 'not signed by us' >&1; echo secret >&2; exit 1", "two: not signed by us"),
    "silent": ("exit 3", "no reason given"),
    "killed": ("echo words; kill -9 $$", "ended by signal 9: words"),
    "slow": ("exec sleep 600", "did not answer within 5 s"),
    "many words": ("yes endless | head -c 3000000; exit 1", "endless"),
    "control characters": ("printf 'a\\033[31m\\nb\\000c'; exit 1", "a [31m b c"),
    "deaf": ("exec 0<&-; echo deaf; exit 1", "deaf"),
}


@pytest.mark.parametrize(("script", "words"), VERDICTS.values(), ids=VERDICTS.keys())
async def test_denial_of_a_verifier_fails_the_pull(tmp_path: Path, script: str, words: str) -> None:
    timeout = Seconds(5 if "sleep" in script else 60)
    directory = _verifier(tmp_path / "verifiers", "one", "echo one says yes")
    _verifier(directory, "two", script)
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path, verifier_dir=directory, verifier_timeout=timeout) as manager:
            with pytest.raises(Rejected) as caught:
                await manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS)
            assert words in str(caught.value)
            assert "secret" not in str(caught.value)
            assert len(str(caught.value)) < 1500
            assert manager.store.images() == []
        assert registry.paths() == [MANIFEST]


async def test_unexecutable_verifier_fails_the_pull(tmp_path: Path) -> None:
    directory = _verifier(tmp_path / "verifiers", "one", "exit 0")
    (directory / "readme").write_text("no program")
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path, verifier_dir=directory) as manager:
            with pytest.raises(Rejected, match="readme: cannot be run: Permission denied"):
                await manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS)


async def test_missing_or_overfull_verifier_directory_fails_the_pull(tmp_path: Path) -> None:
    empty, missing, full = tmp_path / "empty", tmp_path / "missing", tmp_path / "full"
    empty.mkdir()
    for number in range(MOST_VERIFIERS + 1):
        _verifier(full, str(number), "exit 0")
    with LyingRegistry("app", "1", IMAGE) as registry:
        name = names.parse(f"{registry.netloc}/app:1")
        async with managing(tmp_path, verifier_dir=empty) as manager:
            assert (await manager.pull(name, ANONYMOUS)).id == IMAGE.id
        for directory in (missing, full):
            async with managing(tmp_path, verifier_dir=directory) as manager:
                with pytest.raises(Refused, match="list image verifiers"):
                    await manager.pull(name, ANONYMOUS)


async def test_a_verifier_ends_with_its_children(tmp_path: Path) -> None:
    """The child keeps the pipes open: the verdict does not wait for it."""
    pid = tmp_path / "pid"
    directory = _verifier(tmp_path / "verifiers", "one", f"sleep 600 & echo $! > {pid}; echo done")
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path, verifier_dir=directory, verifier_timeout=Seconds(300)) as manager:
            async with asyncio.timeout(100):
                await manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS)
    await _ended(int(pid.read_text()))


async def test_verifier_ends_with_its_caller(tmp_path: Path) -> None:
    told = tmp_path / "told"
    os.mkfifo(told)
    directory = _verifier(tmp_path / "verifiers", "one", f"echo $$ > {told}; exec sleep 60")
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path, verifier_dir=directory, verifier_timeout=Seconds(50)) as manager:
            pulling = asyncio.create_task(manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS))
            pid = int(await asyncio.wait_for(asyncio.to_thread(told.read_text), 60))
            pulling.cancel()
            with suppress(asyncio.CancelledError):
                await pulling
            async with asyncio.timeout(30):
                await manager.pulls.drain()
    await _ended(pid)


async def _ended(pid: int) -> None:
    """Wait until a killed process has gone."""
    await until(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_unverified_and_denied_pulls_have_different_codes(tmp_path: Path) -> None:
    """The kubelet tells these errors from others by the first words of an UNKNOWN."""
    directory = _verifier(tmp_path / "verifiers", "one", "echo not signed; exit 1")
    socket = tmp_path / "s"
    with LyingRegistry("app", "1", IMAGE) as registry:
        deny = (f"{registry.netloc}/denied",)
        async with (
            managing(tmp_path, verifier_dir=directory, deny=deny) as manager,
            serve_unix(socket, lambda server: add_image_services(server, manager), name="test", grace=0.1),
            channel(socket) as link,
        ):
            stub = runtime_pb2_grpc.ImageServiceStub(link)
            for repository, code, words in (
                ("app", grpc.StatusCode.UNKNOWN, "SignatureValidationFailed: pull"),
                ("denied", grpc.StatusCode.PERMISSION_DENIED, "pull"),
            ):
                spec = runtime_pb2.ImageSpec(image=f"{registry.netloc}/{repository}:1")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.PullImage(runtime_pb2.PullImageRequest(image=spec))
                assert caught.value.code() is code
                assert (caught.value.details() or "").startswith(words)
                if repository == "app":
                    assert (caught.value.details() or "").endswith("one: not signed")
