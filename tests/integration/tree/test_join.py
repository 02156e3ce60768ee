"""docs/cluster/join.md: the product makes and checks the same files, and a kubelet takes the files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cri.config import CriConfig
from hostsetup.doctor.doctor_settings import DoctorSettings
from hostsetup.doctor.kubelet import kubelet as doctor
from hostsetup.doctor.machine import CheckedMachine, CheckVerdict
from protectctl.__main__ import main
from tests.support.cri.cri_daemons import IMAGE, needs_node
from tests.support.cri.kubelet import SHIPPED, kubelet, needs_kubelet
from tests.support.cri.stage import staged
from tests.support.local_run import ROOT
from tests.support.waiting import found
from tools.docgen.blocks import blocks

EXAMPLES = ROOT / "docs/examples"
CONFIG = str(ROOT / "packaging/cri.toml")
OF_THE_HOST = {"authentication", "authorization", "cgroupDriver", "evictionHard", "rotateCertificates"}
"""Keys with a test's own values: the test's kubelet has no cluster, and shares its host."""


def yaml(text: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(text)
    return found


def example(name: str) -> dict[str, Any]:
    return yaml((EXAMPLES / name).read_text())


def generated(capsys: pytest.CaptureFixture[str], what: str) -> dict[str, Any]:
    assert main(["generate", what, "--config", CONFIG]) == 0
    return yaml(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["kubelet.yaml", "kubeadm-join.yaml", "runtimeclass.yaml"])
def test_the_page_shows_the_files(name: str) -> None:
    page = (ROOT / "docs/cluster/join.md").read_text()
    assert (EXAMPLES / name).read_text() in blocks(page, "yaml")


def test_the_kubelets_file_has_all_of_the_drop_in() -> None:
    shipped: Mapping[str, object] = yaml(SHIPPED.read_text())
    assert example("kubelet.yaml").items() >= shipped.items()


def test_doctor_finds_no_mistake_in_the_kubelet_file(tmp_path: Path) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    settings = DoctorSettings(kubelet_file=EXAMPLES / "kubelet.yaml", kubelet_dir=tmp_path / "none")
    machine = CheckedMachine(tmp_path)
    (tmp_path / str(settings.kubelet_file).lstrip("/")).parent.mkdir(parents=True)
    (tmp_path / str(settings.kubelet_file).lstrip("/")).write_text((EXAMPLES / "kubelet.yaml").read_text())
    found = list(doctor(machine, settings))
    assert len(found) == 4 and {one.verdict for one in found} == {CheckVerdict.OK}, found


def test_example_runtime_class_equals_the_generated_class(capsys: pytest.CaptureFixture[str]) -> None:
    assert example("runtimeclass.yaml") == generated(capsys, "classes")


def test_kubeadm_file_agrees_with_the_generated_template(capsys: pytest.CaptureFixture[str]) -> None:
    join = example("kubeadm-join.yaml")["nodeRegistration"]
    template = generated(capsys, "cluster-api")["spec"]["template"]["spec"]
    wanted = template["joinConfiguration"]["nodeRegistration"]
    assert join["criSocket"] == wanted["criSocket"] == f"unix://{CriConfig().listen}"
    assert join["taints"] == wanted["taints"]
    assert all(flag in join["kubeletExtraArgs"] for flag in wanted["kubeletExtraArgs"])
    assert {"name": "config-dir", "value": "/etc/kubernetes/kubelet.conf.d"} in join["kubeletExtraArgs"]


@pytest.mark.root
@needs_node
@needs_kubelet
async def test_kubelet_with_the_file_runs_pods(tmp_path: Path) -> None:
    settings = {name: value for name, value in example("kubelet.yaml").items() if name not in OF_THE_HOST}
    async with (
        staged(tmp_path) as stage,
        kubelet(stage.node, tmp_path / "k", shipped=False, settings=settings) as node,
    ):
        node.run("hello", "while :; do sleep 1; done", IMAGE)

        async def counted() -> dict[str, Any] | None:
            pod = await node.summary("hello")
            return pod if pod.get("process_stats", {}).get("process_count") else None

        pod = await found(counted)
        assert pod["memory"]["usageBytes"] > 0, "figures of the pod's zone, by the feature gate"
