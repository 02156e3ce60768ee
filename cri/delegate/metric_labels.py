"""Pod metrics of both runtimes under one list of descriptors.

A metric carries only the values of its labels; its descriptor has their names, in the same order.  If both
runtimes have a metric with different label orders, the delegate's values are put into our order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from cri.delegate.kinds import parsed
from cri.delegate.link import RUNTIME, Delegate, Metadata, error_text, passed_on, remaining
from cri.delegate.lists import lacks
from cri.delegate.untrusted import read_message
from daemonkit.faults import Fault
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Order: TypeAlias = tuple[int, ...] | None
"""For each of our labels the index of the delegate's value (-1: none); None: the metric is left out."""

_METHOD = "ListMetricDescriptors"
_MOST_DESCRIPTORS = 4096


class MetricLabels:
    """Merges the descriptors of both runtimes, and adapts the delegate's metrics to them."""

    def __init__(self, delegate: Delegate, servicer: Any) -> None:
        self._delegate = delegate
        self._servicer = servicer
        self._orders: Mapping[str, Order] = {}
        self._known = -1
        """The introduction at the time of ``_orders``: a returning delegate may be another release."""

    async def descriptors(self, raw: bytes, context: _Context) -> cri.ListMetricDescriptorsResponse:
        """ListMetricDescriptors: each name once, ours first."""
        request = parsed(_METHOD, cri.ListMetricDescriptorsRequest, raw)
        metadata = passed_on(context)
        reply: cri.ListMetricDescriptorsResponse = await self._servicer.ListMetricDescriptors(
            request, context
        )
        if self._delegate.trouble:
            return reply
        theirs = await self._learn(raw, self._delegate.reads(remaining(context)), metadata)
        known = {one.name for one in reply.descriptors}
        for one in theirs:
            if one.name not in known:
                known.add(one.name)
                reply.descriptors.append(one)
        return reply

    async def adapted(self, items: Sequence[Any]) -> Sequence[Any]:
        """The delegate's pod metrics with our labels; ``items`` itself when nothing has to change."""
        if not items:
            return items
        if self._known != self._delegate.introductions:
            await self._learn(b"", self._delegate.timeout, ())
        if not self._orders:
            return items
        return [_adapted(one, self._orders) for one in items]

    async def _learn(self, raw: bytes, timeout: float, metadata: Metadata) -> Sequence[Any]:
        """Ask the delegate for its descriptors, and note the order of labels; empty on failure."""
        introduction = self._delegate.introductions
        try:
            answer = await self._delegate.call(RUNTIME + _METHOD, raw, timeout, metadata)
            _, reply = read_message(cri.ListMetricDescriptorsResponse, answer)
        except (grpc.aio.AioRpcError, Fault, DecodeError) as error:
            if not lacks(error):
                log.warning("the delegate has no descriptors of metrics: %s", error_text(error))
            return ()
        theirs: Sequence[Any] = reply.descriptors[:_MOST_DESCRIPTORS]
        own = await self._servicer.ListMetricDescriptors(cri.ListMetricDescriptorsRequest(), None)
        self._orders = _orders({one.name: one.label_keys for one in own.descriptors}, theirs)
        self._known = introduction
        return theirs


def _orders(ours: Mapping[str, Sequence[str]], theirs: Iterable[Any]) -> dict[str, Order]:
    """The label order of each metric that both runtimes have under different labels."""
    found: dict[str, Order] = {}
    for one in theirs:
        keys, wanted = list(one.label_keys), list(ours.get(one.name, one.label_keys))
        if keys == wanted or one.name in found:
            continue
        # Without a distinguishing label, several samples would have the same labels.
        fits = set(keys) <= set(wanted)
        found[one.name] = tuple(keys.index(key) if key in keys else -1 for key in wanted) if fits else None
    return found


def _adapted(pod: Any, orders: Mapping[str, Order]) -> Any:
    changed = cri.PodSandboxMetrics()
    changed.CopyFrom(pod)
    parts: list[Any] = [changed, *changed.container_metrics]
    for part in parts:
        kept = [_ordered(one, orders[one.name]) if one.name in orders else one for one in part.metrics]
        metrics = [one for one in kept if one is not None]
        del part.metrics[:]
        part.metrics.extend(metrics)
    return changed


def _ordered(metric: Any, order: Order) -> Any:
    """The metric with the values in our order; None: the metric does not fit."""
    values = list(metric.label_values)
    if order is None or len(values) <= max(order, default=-1):
        return None
    metric.label_values[:] = [values[at] if at >= 0 else "" for at in order]
    return metric
