"""What was asked for, as texts: objects, and what shells, kubelets and new machines read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from protect.generate import chart, classes, kyverno, labeller, nodes, policies, yamltext
from protect.generate.classes import Object
from protect.generate.platforms import NodePlatform
from protect.generate.versions import Version

FOR_CLUSTER = ("classes", "assign-class", "keep-off-host")
"""What ``kubectl apply`` takes, for the cluster in which the nodes are."""

FOR_SOME = ("labeller", "cluster-api")
"""Objects, too: they need what not every cluster has, an image and Cluster API."""

FOR_NODES = ("labels", "kubelet-flags", "cloud-init", "chart-values")
"""Texts, not objects."""

WHAT = (*FOR_CLUSTER, *FOR_SOME, *FOR_NODES)


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """What is to be made, and for which releases.  ``kyverno`` None: the API server's own policies."""

    what: Sequence[str] = FOR_CLUSTER
    kubernetes: Version = Version(1, 36)
    kyverno: Version | None = None
    cluster_api: str = nodes.CLUSTER_API[0]
    nodes: Sequence[str] = field(default=())
    image: str = field(default_factory=labeller.image)
    namespace: str = labeller.NAMESPACE


def objects(platforms: Sequence[NodePlatform], wanted: GenerateOptions) -> list[Object]:
    """What is wanted and an object, in the order of ``WHAT``.  Invalid: a release has no such thing."""
    found: list[Object] = []
    if "classes" in wanted.what:
        found += classes.runtime_classes(platforms)
    if "assign-class" in wanted.what and wanted.kyverno:
        found.append(kyverno.assign(wanted.kyverno))
    elif "assign-class" in wanted.what:
        found += policies.assign(wanted.kubernetes)
    if "keep-off-host" in wanted.what:
        found += policies.keep_off_host(platforms)
    if "labeller" in wanted.what:
        found += labeller.labeller(platforms, wanted.image, wanted.namespace)
    if "cluster-api" in wanted.what:
        found += [nodes.kubeadm_config_template(one, wanted.cluster_api) for one in platforms]
    return found


def texts(platforms: Sequence[NodePlatform], wanted: GenerateOptions) -> dict[str, str]:
    """What is wanted and a text, by the name of its file."""
    found: dict[str, str] = {}
    if "chart-values" in wanted.what:
        found["values.yaml"] = yamltext.document(chart.values(platforms))
    for one in platforms:
        suffix = f"-{one.name}" if one.name else ""
        if "labels" in wanted.what:
            found[f"labels{suffix}.sh"] = nodes.commands(one, wanted.nodes)
        if "kubelet-flags" in wanted.what:
            found[f"kubelet-flags{suffix}.txt"] = nodes.flag_lines(one)
        if "cloud-init" in wanted.what:
            found[f"cloud-init{suffix}.cfg"] = f"#cloud-config\n{yamltext.document(nodes.user_data(one))}"
    return found


def stream(found: Sequence[Object], output: str) -> str:
    """All objects for ``kubectl apply -f -``: YAML documents, or a JSON list."""
    if output == "json":
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": found}, indent=2) + "\n"
    return yamltext.documents(found)


def files(found: Sequence[Object], output: str) -> dict[str, str]:
    """A file for each kind, by its name."""
    kinds: dict[str, list[Object]] = {}
    for one in found:
        kinds.setdefault(one["kind"], []).append(one)
    return {f"{kind.lower()}.{output}": stream(of_kind, output) for kind, of_kind in kinds.items()}
