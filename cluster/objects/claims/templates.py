"""The class of zone memory, and templates of claims: a template for each size, in each namespace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cluster.objects.classes import Object
from cluster.objects.versions import Version
from daemonkit.faults import Invalid
from daemonkit.quantity import quantity_text as quantity_of

DRIVER = "zones.xenpod.dev"
"""The driver's name, as in packaging/dra.toml."""

CLASS = "zone-memory"
"""The DeviceClass of zone memory."""

SIZES = (*(size for power in range(7, 16) for size in (2**power, 3 * 2 ** (power - 1))), 2**16)
"""Sizes of claims in MiB, from 128 MiB to 64 GiB: a pod gets at most half more than it needs."""

MOST_SIZES = 64
"""Most sizes: each is an object in each namespace, and a number in the policy."""

DOMAIN = 5
"""MiB that Xen takes for a domain with one vCPU, independent of the domain's memory."""

PAGES = 128
"""Xen takes a 128th of the memory besides."""

_GROUP = "resource.k8s.io"
_VERSIONS = ((Version(1, 34), "v1"), (Version(1, 33), "v1beta2"))
_CAPACITY = Version(1, 34)  # older API servers do not know the field
_MIB = 1 << 20


def sizes(found: Iterable[int]) -> tuple[int, ...]:
    """Sizes in MiB, from small to large.

    ValueError: a size is too small for a zone, or the sizes are too many.
    """
    ordered = tuple(sorted(set(found)))
    if not ordered or len(ordered) > MOST_SIZES:
        raise ValueError(f"{len(ordered)} sizes are not 1 to {MOST_SIZES}")
    if room(ordered[0]) < 1 or ordered[-1] > 1 << 30:
        raise ValueError(f"{ordered[0]} to {ordered[-1]} MiB are not all of 8 MiB to 1 PiB")
    return ordered


def room(size: int) -> int:
    """Memory in MiB of the zone of a claim of ``size`` MiB, of which Xen takes a part for the domain."""
    return size - DOMAIN - -(-size // PAGES)


def template_name(size: int) -> str:
    """The name of the template of a size in MiB."""
    return f"xenpod-zone-{size}mi"


def claims_version(kubernetes: Version) -> str:
    """The version of resource.k8s.io in a release. Invalid: as ``device_class``."""
    made: str = device_class(kubernetes)["apiVersion"]
    return made.removeprefix(f"{_GROUP}/")


def device_class(kubernetes: Version) -> Object:
    """The DeviceClass.  Invalid: the release has none that the driver's devices fit."""
    memory = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].kind == "memory"'
    return _object(
        kubernetes, "DeviceClass", {"name": CLASS}, {"selectors": [{"cel": {"expression": memory}}]}
    )


def claim_templates(kubernetes: Version, namespaces: Sequence[str], found: Sequence[int]) -> list[Object]:
    """The ResourceClaimTemplates of the sizes, in each namespace.  Invalid: as ``device_class``."""
    return [
        _object(
            kubernetes,
            "ResourceClaimTemplate",
            {"name": template_name(size), "namespace": namespace},
            {"spec": {"devices": _devices(kubernetes, quantity_of(size * _MIB))}},
        )
        for namespace in namespaces
        for size in found
    ]


def _devices(kubernetes: Version, memory: str) -> Object:
    """A share of a device for several claims, or a device with this much (docs/cluster/dra.md, Modes)."""
    large_enough = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("{memory}")) >= 0'
    request: Object = {"deviceClassName": CLASS, "selectors": [{"cel": {"expression": large_enough}}]}
    if kubernetes >= _CAPACITY:
        request["capacity"] = {"requests": {"memory": memory}}
    parameters = {"apiVersion": "xenpod.dev/v1alpha1", "kind": "ZoneResources", "memory": memory}
    return {
        "requests": [{"name": "zone", "exactly": request}],
        "config": [{"opaque": {"driver": DRIVER, "parameters": parameters}}],
    }


def _object(kubernetes: Version, kind: str, metadata: Object, spec: Object) -> Object:
    version = next((name for since, name in _VERSIONS if kubernetes >= since), None)
    if version is None:
        cause = f"its {_GROUP} is older than {_VERSIONS[-1][1]}, which came with {_VERSIONS[-1][0]}"
        raise Invalid(f"make the {kind} for", f"Kubernetes {kubernetes}", cause, "use a newer one")
    return {"apiVersion": f"{_GROUP}/{version}", "kind": kind, "metadata": metadata, "spec": spec}
