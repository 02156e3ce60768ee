"""The verbs that the servicer calls."""

from __future__ import annotations

from dataclasses import dataclass

from cri.container.create_container import CreateContainer
from cri.container.execsync import ExecSync
from cri.container.remove import RemoveContainer
from cri.container.start import StartContainer
from cri.container.stop import StopContainer
from cri.container.update import UpdateContainer
from cri.sandbox.remove import RemoveSandbox
from cri.sandbox.run import RunSandbox
from cri.sandbox.stop import StopSandbox
from cri.sandbox.update import UpdateSandbox


@dataclass(frozen=True, slots=True)
class PodVerbs:
    """The verbs on a pod."""

    run: RunSandbox
    stop: StopSandbox
    remove: RemoveSandbox
    update: UpdateSandbox


@dataclass(frozen=True, slots=True)
class ContainerVerbs:
    """The verbs on a container."""

    create: CreateContainer
    start: StartContainer
    stop: StopContainer
    remove: RemoveContainer
    update: UpdateContainer
    exec_sync: ExecSync
