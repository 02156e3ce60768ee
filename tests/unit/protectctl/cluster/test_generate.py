"""``protect generate``: sources of its facts, places of its output, and its errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from ruamel.yaml import YAML

from daemonkit.faults import Unreachable
from daemonkit.rpc.server import serve_unix
from protectctl.__main__ import main
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.cri.v1 import runtime_pb2_grpc

CONFIG = str(Path(__file__).resolve().parents[4] / "packaging/cri.toml")
TWO = '[platforms.metal]\nhandlers = ["xenpod", "fast"]\n[platforms.cloud]\ntaints = []\n'
FOR_CLUSTER = [
    "RuntimeClass",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
]


def generate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout, stderr."""
    try:
        status = main(["generate", *arguments])
    except SystemExit as end:  # of argparse
        assert isinstance(end.code, int)
        status = end.code
    said = capsys.readouterr()
    return status, said.out, said.err


def kinds(text: str) -> list[str]:
    return [one["kind"] for one in documents(text)]


def documents(text: str) -> list[Any]:
    return list(YAML(typ="safe", pure=True).load_all(text))


@pytest.fixture
def two(tmp_path: Path) -> str:
    path = tmp_path / "platforms.toml"
    path.write_text(TWO)
    return str(path)


def test_a_configuration_gives_all_objects_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = generate(capsys, "--config", CONFIG)
    assert (status, err) == (0, "")
    assert kinds(out) == FOR_CLUSTER


def test_json_output_is_a_single_list(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = generate(capsys, "--config", CONFIG, "--output", "json")
    found = json.loads(out)
    assert (status, found["apiVersion"], found["kind"]) == (0, "v1", "List")
    assert found["items"] == documents(generate(capsys, "--config", CONFIG)[1])


def test_a_kind_is_printed_for_all_platforms_or_a_single_platform(
    capsys: pytest.CaptureFixture[str], two: str
) -> None:
    def names(*more: str) -> list[str]:
        _, out, _ = generate(capsys, "classes", "--platforms", two, *more)
        return [one["metadata"]["name"] for one in documents(out)]

    assert names() == ["xenpod-metal", "fast-metal", "xenpod-cloud"]
    assert names("--platform", "cloud") == ["xenpod-cloud"]


def test_the_command_line_overrides_the_nodes_facts(capsys: pytest.CaptureFixture[str]) -> None:
    mine = ["--label", "a=b", "--label", "c=", "--taint", "d:NoExecute", "--overhead", "memory=1Gi"]
    _, out, _ = generate(capsys, "classes", "--config", CONFIG, *mine, "--overhead", "cpu=20m")
    (made,) = documents(out)
    assert made["overhead"] == {"podFixed": {"memory": "1Gi", "cpu": "20m"}}
    measured = documents(generate(capsys, "classes", "--config", CONFIG)[1])[0]["overhead"]["podFixed"]
    _, out, _ = generate(capsys, "classes", "--config", CONFIG, "--overhead", "cpu=20m")
    assert documents(out)[0]["overhead"] == {"podFixed": {**measured, "cpu": "20m"}}
    assert made["scheduling"] == {
        "nodeSelector": {"a": "b", "c": ""},
        "tolerations": [{"key": "d", "operator": "Exists", "effect": "NoExecute"}],
    }
    _, out, _ = generate(capsys, "classes", "--config", CONFIG, "--no-taint")
    assert documents(out)[0]["scheduling"] == {"nodeSelector": {"xenpod.dev/zones": "true"}}


def test_labels_of_nodes_are_printed(capsys: pytest.CaptureFixture[str], two: str) -> None:
    _, out, _ = generate(capsys, "labels", "--config", CONFIG, "--node", "one", "--node", "two")
    assert out == (
        "kubectl label --overwrite nodes one two xenpod.dev/zones=true\n"
        "kubectl taint --overwrite nodes one two xenpod.dev/zones=true:NoSchedule\n"
    )
    _, out, _ = generate(capsys, "labels", "--platforms", two)
    assert out == (
        "# labels-metal\n"
        'kubectl label --overwrite nodes "$NODE" xenpod.dev/platform=metal\n'
        'kubectl taint --overwrite nodes "$NODE" xenpod.dev/zones=true:NoSchedule\n'
        "# labels-cloud\n"
        'kubectl label --overwrite nodes "$NODE" xenpod.dev/platform=cloud\n'
    )


def test_all_objects_are_written_to_a_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, two: str
) -> None:
    every = [
        "classes",
        "assign-class",
        "keep-off-host",
        "cluster-api",
        "labels",
        "kubelet-flags",
        "cloud-init",
    ]
    folder = tmp_path / "a" / "b"
    for _ in range(2):  # a second run replaces the files
        status, out, _ = generate(capsys, *every, "--platforms", two, "--to", str(folder))
        assert status == 0
        assert sorted(out.splitlines()) == sorted(str(path) for path in folder.iterdir())
    assert len(out.splitlines()) == 6 + 2 * 3
    assert kinds((folder / "runtimeclass.yaml").read_text()) == ["RuntimeClass"] * 3
    assert (folder / "cloud-init-cloud.cfg").read_text().startswith("#cloud-config\n")


def test_other_files_in_the_folder_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ["--config", CONFIG, "--to", str(tmp_path)]
    assert generate(capsys, "classes", "keep-off-host", "labels", *asked)[2] == ""
    _, _, err = generate(capsys, "classes", *asked)
    others = "validatingadmissionpolicy.yaml, validatingadmissionpolicybinding.yaml"
    assert err == f"{tmp_path} has other files, which kubectl would apply with these: {others}\n"


def test_releases_choose_api_versions(capsys: pytest.CaptureFixture[str]) -> None:
    def version(*more: str) -> str:
        _, out, err = generate(capsys, "assign-class", "--config", CONFIG, *more)
        versions.append(err)
        return str(documents(out)[0]["apiVersion"])

    versions: list[str] = []
    assert version("--kubernetes", "1.34") == "admissionregistration.k8s.io/v1beta1"
    assert versions == [
        "Kubernetes 1.34 needs flags of its API server for the policy:"
        " --feature-gates=MutatingAdmissionPolicy=true"
        " --runtime-config=admissionregistration.k8s.io/v1beta1=true\n"
    ]
    assert version("--kubernetes", "1.31", "--kyverno", "1.17") == "policies.kyverno.io/v1"
    assert versions[1:] == [""]
    status, out, err = generate(capsys, "assign-class", "--config", CONFIG, "--kyverno", "1.16")
    assert (status, out) == (1, "") and "upgrade Kyverno to 1.17" in err
    _, out, _ = generate(capsys, "cluster-api", "--config", CONFIG, "--cluster-api", "v1beta1")
    assert documents(out)[0]["apiVersion"] == "bootstrap.cluster.x-k8s.io/v1beta1"


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (
            ["classs"],
            "argument WHAT: 'classs' is not one of classes, assign-class, keep-off-host, keep-off-delegate, ",
        ),
        (["--overhead", "memory=96MiB"], "argument --overhead: '96MiB' is not a quantity of Kubernetes"),
        (["--overhead", "96Mi"], "argument --overhead: '96Mi' is not one of cpu, memory"),
        (["--label", "a"], "argument --label: 'a' is not KEY=VALUE"),
        (["--label", "a b=c"], "argument --label: 'a b' is not a label key"),
        (["--taint", "a"], "argument --taint: 'a' is not KEY[=VALUE]:EFFECT, with one of NoSchedule, "),
        (
            ["--taint", "a:NoExecute", "--taint", "a=b:NoExecute"],
            "argument --taint: a:NoExecute is there twice",
        ),
        (["--taint", "a:NoExecute", "--no-taint"], "--taint and --no-taint contradict each other"),
        (["claims", "granules"], "granules are for clusters without claims: make one of them"),
        (["--node", "Node_1"], "argument --node: 'Node_1' is not a DNS name"),
        (["--kubernetes", "latest"], "argument --kubernetes: 'latest' is not a release such as 1.36"),
        (["--platform", "metal"], "--platform chooses one of --platforms FILE"),
        (["classes", "labels"], "labels and objects cannot share standard output: use --to"),
        (["labels", "kubelet-flags"], "kubelet-flags and labels cannot share standard output: use --to"),
        (["labels", "--output", "json"], "labels cannot be JSON"),
        (["labeller", "--image", "a"], "argument --image: 'a' is not an image name with a tag or a digest"),
        (["labeller", "--image", "a b:c"], "argument --image: 'a b:c' is not an image name"),
        (["labeller", "--image", "a:1/b"], "argument --image: 'a:1/b' is not an image name"),
        (["labeller", "--namespace", "A"], "argument --namespace: 'A' is not a DNS label"),
    ],
)
def test_wrong_usage_is_an_error(
    capsys: pytest.CaptureFixture[str], arguments: list[str], cause: str
) -> None:
    status, out, err = generate(capsys, "--config", CONFIG, *arguments)
    assert (status, out) == (2, "")
    assert f"error: {cause}" in err


def test_a_node_belongs_to_a_single_platform(capsys: pytest.CaptureFixture[str], two: str) -> None:
    status, out, err = generate(capsys, "labels", "--platforms", two, "--node", "one")
    assert (status, out) == (
        2,
        "",
    ) and "--node has the labels of one platform: name it with --platform" in err
    status, out, _ = generate(capsys, "labels", "--platforms", two, "--platform", "metal", "--node", "one")
    assert status == 0 and "nodes one xenpod.dev/platform=metal" in out


def test_wrong_usage_of_platforms_is_an_error(capsys: pytest.CaptureFixture[str], two: str) -> None:
    for more in (["--label", "a=b"], ["--taint", "a:NoExecute"], ["--no-taint"]):
        status, _, err = generate(capsys, "--platforms", two, *more)
        assert status == 2 and "FILE says what each platform has" in err
    status, _, err = generate(capsys, "cloud-init", "--platforms", two)
    assert status == 2 and "each platform has its own user data: name one with --platform, or use --to" in err
    status, out, _ = generate(capsys, "cloud-init", "--platforms", two, "--platform", "metal")
    assert (status, out[:14]) == (0, "#cloud-config\n")
    assert generate(capsys, "--platforms", two, "--config", CONFIG)[0] == 2


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--platforms", "{0}/none.toml"], "read configuration {0}/none.toml: no such file"),
        (["--platforms", "{0}/bad.toml"],
         "read configuration {0}/bad.toml: key 'platforms.a.taints': 'x' is not KEY"),
        (["--platforms", "{0}/platforms.toml", "--platform", "x"],
         "{0}/platforms.toml has no platform x; there are: metal, cloud"),
        (["--config", "{0}/bad.toml", "--kubernetes", "1.20"],
         "make the policy for Kubernetes 1.20: it has no MutatingAdmissionPolicy, which came with 1.32 (use"),
        (["--config", "{0}/bad.toml", "--to", "{0}/bad.toml"], "write {0}/bad.toml: File exists"),
        (["kubelet-flags", "--config", "{0}/bad.toml", "--label", "kubernetes.io/a=b"],
         "make flags for the kubelet of the node: a kubelet may not give its node the label kubernetes.io/a"),
    ],
)  # fmt: skip
def test_a_failure_has_its_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, two: str, arguments: list[str], cause: str
) -> None:
    (tmp_path / "bad.toml").write_text("[platforms.a]\ntaints = ['x']\n")
    status, out, err = generate(capsys, *(one.format(tmp_path) for one in arguments))
    assert (status, out) == (1, "")
    assert err.startswith(f"protect: {cause.format(tmp_path)}")


class Runtime(runtime_pb2_grpc.RuntimeServiceServicer):
    """Reports itself with the given facts."""

    def __init__(self) -> None:
        self.info: dict[str, str] = {}
        self.trouble = ""

    async def Status(  # noqa: N802
        self,
        request: cri.StatusRequest,
        context: grpc.aio.ServicerContext[cri.StatusRequest, cri.StatusResponse],
    ) -> cri.StatusResponse:
        if self.trouble:
            raise Unreachable("status", "", self.trouble)
        return cri.StatusResponse(info=self.info if request.verbose else {})


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    served = Runtime()

    def add(server: grpc.aio.Server) -> None:
        runtime_pb2_grpc.add_RuntimeServiceServicer_to_server(served, server)

    async with serve_unix(tmp_path / "cri.sock", add, name="test", grace=0.1):
        yield served


async def asked(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run ``generate`` while a runtime serves in this event loop."""
    return await asyncio.to_thread(generate, capsys, *arguments, "--cri-socket", str(folder / "cri.sock"))


async def test_a_nodes_own_facts_are_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, runtime: Runtime
) -> None:
    handlers = {"xenpod": {}, "fast": {"profile": "pvh"}, "hvm": {"error": "the host has no HAP"}}
    config = {"zone": {"memory_overhead": 100 << 20}, "run_dir": "/r", "socket": None, "more": 1}
    runtime.info = {"config": json.dumps(config), "handlers": json.dumps(handlers)}
    status, out, err = await asked(capsys, tmp_path, "classes")
    assert (status, err) == (0, "handler hvm is left out: the host has no HAP\n")
    assert [(one["metadata"]["name"], one["overhead"]["podFixed"]) for one in documents(out)] == [
        ("xenpod", {"memory": "100Mi"}),
        ("fast", {"memory": "100Mi"}),
    ]
    _, out, _ = await asked(capsys, tmp_path, "cluster-api")
    assert "unix:///r/cri.sock" in out


async def test_a_foreign_runtime_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, runtime: Runtime
) -> None:
    runtime.info = {"config": "{}"}
    status, _, err = await asked(capsys, tmp_path)
    assert (status, err) == (
        1,
        "protect: read status xenpod-cri: it has no 'handlers' (is this xenpod-cri's socket?)\n",
    )
    runtime.trouble = "no protectd"
    status, _, err = await asked(capsys, tmp_path)
    assert (status, err) == (1, "protect: status: no protectd [UNAVAILABLE]\n")


def test_missing_daemon_is_named_with_a_hint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, err = generate(capsys, "--cri-socket", str(tmp_path / "cri.sock"))
    assert (status, err) == (
        3,
        f"protect: nobody serves {tmp_path}/cri.sock: start the daemon, or name its socket\n",
    )


@pytest.mark.parametrize("image", ["registry.example:5000/a/b:v1", f"a/b@sha256:{'0' * 64}"])
def test_the_labeller_runs_the_named_image(capsys: pytest.CaptureFixture[str], image: str) -> None:
    arguments = ("labeller", "--config", CONFIG, "--image", image, "--namespace", "zones")
    *_, daemon_set = documents(generate(capsys, *arguments)[1])
    assert daemon_set["metadata"]["namespace"] == "zones"
    assert [one["image"] for one in daemon_set["spec"]["template"]["spec"]["containers"]] == [image]
