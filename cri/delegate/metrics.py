"""Metrics of two runtimes under one list of descriptors.

A metric has the values of its labels alone; their names, in this order, are in its descriptor.  For a metric
that both runtimes have, under names in another order, the delegate's values are put into our order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from cri.delegate.kinds import parsed
from cri.delegate.link import RUNTIME, Delegate, Metadata, passed_on, remaining, said
from cri.delegate.lists import lacks
from cri.delegate.untrusted import read
from daemonkit.faults import Fault
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Order: TypeAlias = tuple[int, ...] | None
"""For each label of ours the place of the delegate's value, -1: it has none.  None: it cannot be shown."""

_METHOD = "ListMetricDescriptors"
_DESCRIPTORS = 4096


class MetricLabels:
    """Descriptors of both, and the delegate's metrics as they fit these."""

    def __init__(self, delegate: Delegate, servicer: Any) -> None:
        self._delegate = delegate
        self._servicer = servicer
        self._orders: Mapping[str, Order] = {}
        self._known = -1
        """The introduction since which ``_orders`` holds: a delegate that was away may be another release."""

    async def descriptors(self, raw: bytes, context: _Context) -> cri.ListMetricDescriptorsResponse:
        """ListMetricDescriptors: by name once, ours first."""
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
        """Pods' metrics of the delegate as our descriptors have them; ``items`` itself if they fit."""
        if not items:
            return items
        if self._known != self._delegate.introductions:
            await self._learn(b"", self._delegate.timeout, ())
        if not self._orders:
            return items
        return [_adapted(one, self._orders) for one in items]

    async def _learn(self, raw: bytes, timeout: float, metadata: Metadata) -> Sequence[Any]:
        """The delegate's descriptors; none where it does not say."""
        introduction = self._delegate.introductions
        try:
            answer = await self._delegate.call(RUNTIME + _METHOD, raw, timeout, metadata)
            _, reply = read(cri.ListMetricDescriptorsResponse, answer)
        except (grpc.aio.AioRpcError, Fault, DecodeError) as error:
            if not lacks(error):
                log.warning("the delegate has no descriptors of metrics: %s", said(error))
            return ()
        theirs: Sequence[Any] = reply.descriptors[:_DESCRIPTORS]
        own = await self._servicer.ListMetricDescriptors(cri.ListMetricDescriptorsRequest(), None)
        self._orders = _orders({one.name: one.label_keys for one in own.descriptors}, theirs)
        self._known = introduction
        return theirs


def _orders(ours: Mapping[str, Sequence[str]], theirs: Iterable[Any]) -> dict[str, Order]:
    """Of the metrics that both have under different labels."""
    found: dict[str, Order] = {}
    for one in theirs:
        keys, wanted = list(one.label_keys), list(ours.get(one.name, one.label_keys))
        if keys == wanted or one.name in found:
            continue
        # Without a label that tells its samples apart, several would be the same.
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
    """The metric with our labels; None when it cannot have them."""
    values = list(metric.label_values)
    if order is None or len(values) <= max(order, default=-1):
        return None
    metric.label_values[:] = [values[at] if at >= 0 else "" for at in order]
    return metric
