"""CEL expressions that compute how much memory a pod's zone needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from cluster.objects.classes import Object
from cluster.objects.platforms import NodePlatform
from cluster.objects.policies import has_class_of

_OVERHEAD = "96Mi"  # memory_overhead of cri.toml
_UNLIMITED = "256Mi"  # memory of a zone whose pod has no limits: of protectd's default profile


def variables(platforms: Sequence[NodePlatform], more: Mapping[str, str]) -> list[Object]:
    """CEL variables of a policy; ``more`` may refer to these variables.

    ``ours``: whether the pod has a class of ours. ``need``: MiB for the pod's zone. The remaining variables
    are in bytes.
    """
    overheads = {name: one.overhead.get("memory", _OVERHEAD) for one in platforms for name in one.classes}
    unlimited = {
        name: one.overheads.get(handler, {}).get("memory", _UNLIMITED)
        for one in platforms
        for name, handler in one.classes.items()
    }
    found = {
        # Not a matchCondition: those are not evaluated again after another policy has given a class.
        "ours": has_class_of(platforms),
        "starting": "object.spec.?initContainers.orValue([])",
        "sidecars": f"variables.starting.filter(one, {_SIDECAR}).map(one, {_limit('one')}).sum()",
        "limits": _LIMITS,
        "noted": 'object.metadata.?annotations[?"xenpod.dev/memory"].orValue("")',
        "overhead": _bytes(f"{json.dumps(overheads)}[object.spec.runtimeClassName]"),
        "unlimited": _bytes(f"{json.dumps(unlimited)}[object.spec.runtimeClassName]"),
        "need": _NEED,
        **more,
    }
    return [{"name": name, "expression": expression} for name, expression in found.items()]


def _bytes(quantity: str) -> str:
    return f"int(quantity({quantity}).asApproximateFloat())"


def _limit(container: str) -> str:
    return _bytes(f'{container}.?resources.?limits[?"memory"].orValue("0")')


_SIDECAR = 'one.?restartPolicy.orValue("") == "Always"'
# As the kubelet adds up limits for the sandbox, or a little more where a sidecar starts after others.
_LIMITS = (
    f"{_limit('object.spec')} > 0 ? {_limit('object.spec')} : variables.sidecars + "
    f"[object.spec.containers.map(one, {_limit('one')}).sum(), "
    f"([0] + variables.starting.filter(one, !({_SIDECAR})).map(one, {_limit('one')})).max()].max()"
)
# As in xenpod-cri: an annotation overrides limits, and limits override the size of the handler.
_NEED = (
    f'((variables.noted != "" ? {_bytes("variables.noted")} : '
    "variables.limits > 0 ? variables.limits + variables.overhead : variables.unlimited) + 1048575) / 1048576"
)
