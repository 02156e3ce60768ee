"""Makes missed events of the delegate from its lists, after a break of its stream."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from cri.delegate.link import RUNTIME, Delegate
from cri.delegate.lists import MergedList
from cri.delegate.untrusted import read_message
from daemonkit.logs import fields
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

MOST_EVENTS = 1024
"""Maximum of events made at once; the kubelet lists everything now and then anyway."""
_POD_KINDS = {
    cri.SANDBOX_READY: cri.CONTAINER_STARTED_EVENT,
    cri.SANDBOX_NOTREADY: cri.CONTAINER_STOPPED_EVENT,
}
_KINDS = {
    cri.CONTAINER_CREATED: cri.CONTAINER_CREATED_EVENT,
    cri.CONTAINER_RUNNING: cri.CONTAINER_STARTED_EVENT,
    cri.CONTAINER_EXITED: cri.CONTAINER_STOPPED_EVENT,
}
_States: TypeAlias = dict[str, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class KnownStates:
    """The state and the pod of each pod, and of each container, by id."""

    pods: _States
    containers: _States


class MissedEvents:
    """Compares the known states with the present ones.  An event may come twice without harm."""

    def __init__(self, delegate: Delegate, pods: MergedList, containers: MergedList) -> None:
        self._delegate = delegate
        self._pods = pods
        self._containers = containers

    def known(self) -> KnownStates:
        """The delegate's last known states."""
        assert self._pods.last is not None and self._containers.last is not None
        return KnownStates(self._pods.last.states(), self._containers.last.states())

    async def since(self, before: KnownStates) -> list[bytes]:
        """Encoded events for all later changes, containers first; raises the delegate's errors."""
        await self._pods.refresh()
        await self._containers.refresh()
        after = self.known()
        changes = [
            *_changes(before.containers, after.containers, _KINDS),
            *_changes(before.pods, after.pods, _POD_KINDS),
        ]
        if len(changes) > MOST_EVENTS:
            log.warning("too many events of the delegate were missed", extra=fields(count=len(changes)))
        shown: dict[str, cri.ContainerEventResponse] = {}
        events = []
        for subject, pod, kind in changes[:MOST_EVENTS]:
            if pod not in shown:
                shown[pod] = await self._statuses(pod, after)
            event = cri.ContainerEventResponse(
                container_id=subject, container_event_type=kind, created_at=time.time_ns()
            )
            event.MergeFrom(shown[pod])
            events.append(event.SerializeToString())
        return events

    async def _statuses(self, pod: str, now: KnownStates) -> cri.ContainerEventResponse:
        """The part of an event with a pod and its containers; empty for a removed pod."""
        shown = cri.ContainerEventResponse()
        if pod not in now.pods:
            return shown
        asked = cri.PodSandboxStatusRequest(pod_sandbox_id=pod)
        status = await self._ask("PodSandboxStatus", asked, cri.PodSandboxStatusResponse)
        if status is not None:
            shown.pod_sandbox_status.CopyFrom(status.status)
        for container in [one for one, (_, owner) in now.containers.items() if owner == pod]:
            request = cri.ContainerStatusRequest(container_id=container)
            found = await self._ask("ContainerStatus", request, cri.ContainerStatusResponse)
            if found is not None:
                shown.containers_statuses.append(found.status)
        return shown

    async def _ask(self, method: str, request: Any, kind: Any) -> Any:
        """Ask the delegate for a status; None: its subject is gone, or the answer is malformed."""
        try:
            data = request.SerializeToString()
            answer = await self._delegate.call(RUNTIME + method, data, self._delegate.timeout)
            return read_message(kind, answer)[1]
        except DecodeError:
            return None
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise


def _changes(before: _States, after: _States, kinds: dict[Any, Any]) -> list[tuple[str, str, Any]]:
    """Id, pod and kind of event for each changed item."""
    gone = [(one, pod, cri.CONTAINER_DELETED_EVENT) for one, (_, pod) in before.items() if one not in after]
    return gone + [
        (one, pod, kinds[state])
        for one, (state, pod) in after.items()
        if before.get(one) != (state, pod) and state in kinds
    ]
