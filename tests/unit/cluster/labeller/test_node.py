"""Labels on a Node object, through an API server with faults; and the times of new tries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.labeller import keeper, node
from cluster.labeller.labels import Labels
from cluster.labeller.node import NodeLabels
from daemonkit.faults import Broken, Denied, Fault, Invalid, Missing, Unreachable
from tests.support.labels.api_server import NAME, OneNode, kubeconfig, serving

HERE = {"xenpod.dev/toolstack": "fake", "xenpod.dev/handler.xenpod": "true"}


@pytest.fixture
def there() -> OneNode:
    return OneNode(
        {"kubernetes.io/os": "linux", "xenpod.dev/platform": "a", "xenpod.dev/handler.gone": "true"}
    )


@pytest.fixture
def url(there: OneNode) -> Iterator[str]:
    with serving(there) as url:
        yield url


@pytest.fixture
def sink(there: OneNode, url: str, tmp_path: Path) -> NodeLabels:
    return NodeLabels(NAME, kubeconfig(tmp_path / "kubeconfig", url))


async def test_ours_are_made_true_and_others_stay(there: OneNode, sink: NodeLabels) -> None:
    assert await sink.put(HERE)
    assert there.labels == {"kubernetes.io/os": "linux", "xenpod.dev/platform": "a", **HERE}
    assert there.patched() == [{"metadata": {"labels": {"xenpod.dev/handler.gone": None, **HERE}}}]
    assert await sink.put({"xenpod.dev/toolstack": "fake"})
    assert there.patched()[1:] == [{"metadata": {"labels": {"xenpod.dev/handler.xenpod": None}}}]
    assert await sink.remove()
    assert there.labels == {"kubernetes.io/os": "linux", "xenpod.dev/platform": "a"}
    assert not await sink.remove()


async def test_unchanged_labels_cause_no_request_before_the_next_check(
    there: OneNode, sink: NodeLabels, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sink.put(HERE)
    asked = len(there.requests)
    assert not await sink.put(HERE)
    assert len(there.requests) == asked
    del there.labels["xenpod.dev/toolstack"]
    monkeypatch.setattr(node, "CHECK_SECONDS", 0.0)
    assert not await sink.put(HERE)  # until the check was due
    sink._check_at = 0.0
    assert await sink.put(HERE)
    assert there.labels["xenpod.dev/toolstack"] == "fake"


async def test_after_a_failure_the_node_is_read_again(there: OneNode, sink: NodeLabels) -> None:
    """The patch may have been made although its answer was lost."""
    await sink.put(HERE)
    there.body = b"no answer"
    with pytest.raises(Broken):
        await sink.put({"xenpod.dev/toolstack": "fake"})
    there.body = None
    there.labels.pop("xenpod.dev/handler.xenpod")  # the effect of the patch
    assert await sink.put(HERE)
    assert there.labels["xenpod.dev/handler.xenpod"] == "true"


@pytest.mark.parametrize(
    ("refusal", "kind", "says"),
    [
        ((403, 'nodes "node-1" is forbidden'), Denied, "get and patch of nodes"),
        ((404, 'nodes "node-1" not found'), Missing, "--name"),
        ((429, "too many requests"), Unreachable, "too many"),
        ((503, "starting"), Unreachable, "starting"),
        ((422, "invalid label"), Invalid, "invalid label"),
    ],
)
async def test_a_refusal_has_advice(
    there: OneNode, sink: NodeLabels, refusal: tuple[int, str], kind: type[Fault], says: str
) -> None:
    there.refusal = refusal
    with pytest.raises(kind, match=says) as caught:
        await sink.put(HERE)
    assert refusal[1] in str(caught.value) and "label node node-1" in str(caught.value)
    there.refusal = None
    assert await sink.put(HERE)


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b'{"metadata": null}', b"\xff"])
async def test_an_answer_without_a_node_is_an_error(there: OneNode, sink: NodeLabels, body: bytes) -> None:
    there.body = body
    with pytest.raises(Fault, match="label node node-1"):
        await sink.put(HERE)


async def test_a_wrong_token_and_a_missing_server_are_errors(url: str, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "kubeconfig", url, "wrong")
    sink = NodeLabels(NAME, path)
    with pytest.raises(Denied, match="Unauthorized"):
        await sink.put(HERE)
    kubeconfig(path, url)  # as when a token is rotated
    assert await sink.put(HERE)
    kubeconfig(path, "http://127.0.0.1:1")
    with pytest.raises(Unreachable, match="http://127.0.0.1:1: "):
        await sink.remove()


@pytest.mark.parametrize("content", [None, "", "{", "a: [", "- 1", "current-context: none\n", "\x00"])
async def test_a_kubeconfig_of_no_use_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(Invalid, match=f"read credentials from {path}: .+--kubeconfig"):
        await NodeLabels(NAME, path).put(HERE)


async def test_outside_of_a_pod_there_is_no_service_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(Invalid, match="the service account of this pod"):
        await NodeLabels(NAME, None).put(HERE)


class Sink:
    """Fails the given number of times, then takes labels, and stops the keeper after some of them."""

    def __init__(self, stop: asyncio.Event, failures: int, takes: int) -> None:
        self.stop = stop
        self.failures = failures
        self.takes = takes
        self.taken: list[Labels] = []

    async def put(self, labels: Labels) -> bool:
        if self.failures:
            self.failures -= 1
            raise Unreachable("label node", NAME, "away")
        self.taken.append(labels)
        if len(self.taken) == self.takes:
            self.stop.set()
        return True

    async def remove(self) -> bool:
        raise AssertionError("the labels stay when the labeller stops")


async def test_a_failure_is_tried_again_later_and_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    real = asyncio.timeout

    def timeout(delay: float) -> asyncio.Timeout:
        pauses.append(delay)
        return real(0)

    monkeypatch.setattr(asyncio, "timeout", timeout)
    stop = asyncio.Event()
    sink = Sink(stop, failures=12, takes=3)

    async def read() -> Labels:
        return HERE

    await keeper.keep_labels(read, sink, 30.0, stop)
    assert sink.taken == [HERE, HERE, HERE]
    for index, pause in enumerate(pauses[:12]):
        step = min(300.0, 2.0**index)
        assert step / 2 <= pause <= step
    assert all(27 <= pause <= 33 for pause in pauses[12:])
    assert [entry.message for entry in caplog.records if entry.levelname == "WARNING"] == [
        f"label node {NAME}: away"
    ]


async def test_while_nothing_is_known_the_labels_stay() -> None:
    stop = asyncio.Event()
    sink = Sink(stop, failures=0, takes=1)

    async def read() -> Labels:
        stop.set()
        raise Unreachable("ask", "", "xenpod-cri is away")

    await keeper.keep_labels(read, sink, 30.0, stop)
    assert sink.taken == []
