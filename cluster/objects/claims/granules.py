"""The policy that makes pods of our classes request granules of zone memory, for clusters without claims."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.objects.claims.changing import add_patch, changing_policy, patches
from cluster.objects.claims.need import variables
from cluster.objects.claims.templates import DOMAIN, PAGES
from cluster.objects.classes import Object
from cluster.objects.platforms import NodePlatform
from cluster.objects.versions import Version

NAME = "xenpod-zone-granules"

RESOURCE = "zones.xenpod.dev/memory"
"""The extended resource, as in packaging/dra.toml."""

ANNOTATION = "zones.xenpod.dev/granules"
"""Annotation of a pod: the policy's decision."""

GRANULE = 64
"""Default size of a granule in MiB."""


def granule_policy(
    platforms: Sequence[NodePlatform], size: int, kubernetes: Version, kyverno: Version | None
) -> list[Object]:
    """The policy by which the first container of a pod requests granules of ``size`` MiB for the zone.

    A pod whose containers request granules keeps its number. Invalid: as ``changing_policy``.
    """
    # The smallest claim that suffices for the zone after Xen's part: see ``templates.room``.
    claim = f"variables.need + {DOMAIN} + (variables.need + {DOMAIN + PAGES - 2}) / {PAGES - 1}"
    more = {
        "asked": f"object.spec.containers.map(one, quantity({_ASKED}).asInteger()).sum()",
        "granules": f"variables.asked > 0 ? variables.asked : ({claim} + {size - 1}) / {size}",
    }
    note = (
        f'string(variables.granules) + " of {size}Mi for " + string(variables.need) + '
        '"Mi; no memory is requested of dom0"'
    )
    # Requests too: when a policy runs, the API server has already set absent requests to the limits.
    asked = " + ".join(_asked(kind) for kind in ("limits", "requests"))
    expression = patches(
        "variables.ours", f"(variables.asked > 0 ? [] : {_RESOURCES} + {asked})", note=(ANNOTATION, note)
    )
    mutation = {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}
    spec = {"variables": variables(platforms, more), "mutations": [mutation]}
    return changing_policy(NAME, spec, kubernetes, kyverno)


_ASKED = f'one.?resources.?limits[?"{RESOURCE}"].orValue("0")'
_FIRST = "/spec/containers/0/resources"
_RESOURCES = f"(has(object.spec.containers[0].resources) ? [] : [{add_patch(_FIRST, '{}')}])"


def _asked(kind: str) -> str:
    """Patches that add the granules to the first container's limits or requests."""
    there = f"object.spec.containers[0].?resources.?{kind}.hasValue()"
    path = f"{_FIRST}/{kind}"
    granules = add_patch(f"{path}/{RESOURCE.replace('/', '~1')}", "string(variables.granules)")
    return f"({there} ? [] : [{add_patch(path, '{}')}]) + [{granules}]"
