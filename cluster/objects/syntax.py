"""Checks names, labels, taints and quantities as the Kubernetes API does.

Each check raises ValueError with what is wrong with the value.  Sources: apimachinery's validation of names
and labels (RFC 1123), its ``resource.Quantity``, and the API reference of Node and RuntimeClass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from daemonkit.quantity import LARGEST, exact

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

_LABEL_LIMIT = 63
_SUBDOMAIN_LIMIT = 253
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_DNS_LABEL.pattern}(\.{_DNS_LABEL.pattern})*")
_WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_IMAGE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._/:-]{{0,254}}(:{_TAG}|@[a-z0-9]+:[a-f0-9]{{32,128}})")
_FINEST = {"memory": Decimal(1), "cpu": Decimal("1e-3")}
"""The resources that an overhead may have, and the smallest step of each."""

_KUBELET_MAY = frozenset({
    "kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch",
    "beta.kubernetes.io/os", "beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone", "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
})  # fmt: skip
_KUBELET_OWNS = ("kubelet.kubernetes.io", "node.kubernetes.io")


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node; a ``value`` of "" is none."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        """The form for kubectl and the kubelet's flag."""
        return f"{self.key}{'=' if self.value else ''}{self.value}:{self.effect}"


def dns_label(text: str) -> None:
    """Check a DNS label (RFC 1123), which runtime handlers and most names are."""
    if not _DNS_LABEL.fullmatch(text) or len(text) > _LABEL_LIMIT:
        raise ValueError(f"{text!r:.80} is not a DNS label: 1 to 63 of [a-z0-9-], no - at either end")


def dns_subdomain(text: str) -> None:
    """Check DNS labels joined by dots (RFC 1123), which names of nodes are."""
    if not _SUBDOMAIN.fullmatch(text) or len(text) > _SUBDOMAIN_LIMIT:
        raise ValueError(f"{text!r:.80} is not a DNS name: 1 to 253 of [a-z0-9.-]")


def check_image(text: str) -> None:
    """Check the name of an image. A name without a tag or a digest means a moving tag, and is invalid."""
    if not _IMAGE.fullmatch(text):
        raise ValueError(f"{text!r:.80} is not an image name with a tag or a digest")


def label_key(text: str) -> None:
    """Check the key of a label or taint: ``name`` or ``prefix/name``."""
    prefix, slash, name = text.rpartition("/")
    if not _WORD.fullmatch(name) or len(name) > _LABEL_LIMIT:
        raise ValueError(f"{text!r:.80} is not a label key: its name is not 1 to 63 of [A-Za-z0-9_.-]")
    if slash:
        try:
            dns_subdomain(prefix)
        except ValueError:
            raise ValueError(f"{text!r:.80} is not a label key: its prefix is not a DNS name") from None


def label_value(text: str) -> None:
    """Check the value of a label or taint, which may be empty."""
    if text and (not _WORD.fullmatch(text) or len(text) > _LABEL_LIMIT):
        raise ValueError(f"{text!r:.80} is not a label value: it is not up to 63 of [A-Za-z0-9_.-]")


def labels(found: Mapping[str, str]) -> None:
    """Check all keys and values of labels."""
    for key, value in found.items():
        label_key(key)
        label_value(value)


def label(text: str) -> tuple[str, str]:
    """Read a label: ``KEY=VALUE``."""
    key, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"{text!r:.80} is not KEY=VALUE")
    labels({key: value})
    return key, value


def taint(text: str) -> Taint:
    """Read a taint: ``KEY=VALUE:EFFECT`` or ``KEY:EFFECT``."""
    rest, separator, effect = text.rpartition(":")
    if not separator or effect not in EFFECTS:
        raise ValueError(f"{text!r:.80} is not KEY[=VALUE]:EFFECT, with one of {', '.join(EFFECTS)}")
    key, _, value = rest.partition("=")
    labels({key: value})
    return Taint(key, value, effect)


def taints(texts: Iterable[str]) -> tuple[Taint, ...]:
    """Read several taints, of which no two may have the same key and effect."""
    found: dict[tuple[str, str], Taint] = {}
    for one in map(taint, texts):
        if found.setdefault((one.key, one.effect), one) is not one:
            raise ValueError(f"{one.key}:{one.effect} is there twice")
    return tuple(found.values())


def overhead(found: Mapping[str, str]) -> None:
    """Check resources and quantities of a RuntimeClass's ``overhead.podFixed``."""
    for resource, text in found.items():
        if resource not in _FINEST:
            raise ValueError(f"{resource!r:.80} is not one of {', '.join(sorted(_FINEST))}")
        number = quantity(text)
        if number % _FINEST[resource]:
            raise ValueError(f"{text!r:.80} of {resource} is finer than Kubernetes counts")


def quantity(text: str) -> Decimal:
    """Read a quantity, which is not negative: ``96Mi``, ``100m``, ``0.5``, ``1e3``."""
    try:
        number = exact(text)
    except ValueError:
        number = Decimal(-1)
    if number < 0:
        raise ValueError(f"{text!r:.80} is not a quantity of Kubernetes such as 96Mi or 250m")
    if number > LARGEST:
        raise ValueError(f"{text!r:.80} is more than Kubernetes can count")
    return number


def kubelet_label(key: str) -> None:
    """Check that a kubelet may set this label on its node, by the rules for Kubernetes' domains (KEP-279)."""
    prefix = key.rpartition("/")[0]
    own = any(prefix == domain or prefix.endswith(f".{domain}") for domain in ("kubernetes.io", "k8s.io"))
    given = any(prefix == domain or prefix.endswith(f".{domain}") for domain in _KUBELET_OWNS)
    if own and not given and key not in _KUBELET_MAY:
        raise ValueError(f"a kubelet may not give its node the label {key}")
