"""Opens the logs of workloads."""

from __future__ import annotations

from dataclasses import dataclass

from protect.model.ports import LogFactory
from protect.state.outputs import Outputs
from protect.state.runtime import WorkloadRuntime
from protect.state.zone_dirs import ZoneDirs


@dataclass(frozen=True, slots=True)
class WorkloadLogs:
    """Makes logs, with their journals in the directories of the zones."""

    factory: LogFactory
    dirs: ZoneDirs

    async def open(self, runtime: WorkloadRuntime) -> Outputs:
        """Open the log of a workload at the position in the journal."""
        journal = self.dirs.journal(runtime)
        journal.parent.mkdir(parents=True, exist_ok=True)
        return Outputs(await self.factory(runtime.workload.log_path, journal))
