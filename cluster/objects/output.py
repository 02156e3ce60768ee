"""Everything that ``protect generate`` can make, as objects and as texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.objects import chart, classes, daemonset, driver, kyverno, labeller, nodes, policies, yamltext
from cluster.objects.claims import granules, templates
from cluster.objects.claims.policy import claim_policy
from cluster.objects.classes import Object
from cluster.objects.platforms import NodePlatform
from cluster.objects.versions import Version

FOR_CLUSTER = ("classes", "assign-class", "keep-off-host", "keep-off-delegate")
"""Objects for ``kubectl apply`` that every cluster can have."""

FOR_SOME = ("labeller", "driver", "claims", "claim-templates", "granules", "cluster-api")
"""Objects for clusters that have their requirements: our image, claims of resources, or Cluster API."""

FOR_NODES = ("labels", "kubelet-flags", "cloud-init", "chart-values")
"""Texts for shells, kubelets, new machines and Helm."""

WHAT = (*FOR_CLUSTER, *FOR_SOME, *FOR_NODES)


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """The wanted objects, and the releases. ``kyverno`` None: use the API server's own policies."""

    what: Sequence[str] = FOR_CLUSTER
    kubernetes: Version = Version(1, 36)
    kyverno: Version | None = None
    cluster_api: str = nodes.CLUSTER_API[0]
    nodes: Sequence[str] = field(default=())
    image: str = field(default_factory=labeller.image_name)
    namespace: str = daemonset.NAMESPACE
    claim_sizes: Sequence[int] = templates.SIZES
    claim_namespaces: Sequence[str] = ("default",)
    granule: int = granules.GRANULE


def objects(platforms: Sequence[NodePlatform], wanted: GenerateOptions) -> list[Object]:
    """The wanted objects, in the order of ``WHAT``. Invalid: the release does not support an object."""
    found: list[Object] = []
    if "classes" in wanted.what:
        claimed = not {"claims", "granules"}.isdisjoint(wanted.what)
        found += classes.runtime_classes(platforms, claimed=claimed)
    if "assign-class" in wanted.what and wanted.kyverno:
        found.append(kyverno.assign(wanted.kyverno))
    elif "assign-class" in wanted.what:
        found += policies.assign(wanted.kubernetes)
    if "keep-off-host" in wanted.what:
        found += policies.keep_off_host(platforms)
    if "keep-off-delegate" in wanted.what:
        found += policies.keep_off_delegate(platforms)
    if "labeller" in wanted.what:
        found += labeller.labeller(platforms, wanted.image, wanted.namespace)
    found += _claims(platforms, wanted)
    if "cluster-api" in wanted.what:
        found += [nodes.kubeadm_config_template(one, wanted.cluster_api) for one in platforms]
    return found


def _claims(platforms: Sequence[NodePlatform], wanted: GenerateOptions) -> list[Object]:
    found: list[Object] = []
    if "driver" in wanted.what and "granules" in wanted.what:
        found += driver.counting(platforms, wanted.image, wanted.namespace, wanted.granule)
    elif "driver" in wanted.what:
        found += driver.driver(platforms, wanted.image, wanted.namespace)
        found.append(templates.device_class(wanted.kubernetes))
    if "granules" in wanted.what:
        found += granules.granule_policy(platforms, wanted.granule, wanted.kubernetes, wanted.kyverno)
    if "claims" in wanted.what:
        found += claim_policy(platforms, wanted.claim_sizes, wanted.kubernetes, wanted.kyverno)
    if "claim-templates" in wanted.what:
        found += templates.claim_templates(wanted.kubernetes, wanted.claim_namespaces, wanted.claim_sizes)
    return found


def texts(platforms: Sequence[NodePlatform], wanted: GenerateOptions) -> dict[str, str]:
    """The wanted texts, by the name of their file."""
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
    """All objects as one text for ``kubectl apply -f -``: YAML documents, or a JSON list."""
    if output == "json":
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": found}, indent=2) + "\n"
    return yamltext.documents(found)


def files_by_kind(found: Sequence[Object], output: str) -> dict[str, str]:
    """The objects as one file for each kind, by the file's name."""
    kinds: dict[str, list[Object]] = {}
    for one in found:
        kinds.setdefault(one["kind"], []).append(one)
    return {f"{kind.lower()}.{output}": stream(of_kind, output) for kind, of_kind in kinds.items()}
