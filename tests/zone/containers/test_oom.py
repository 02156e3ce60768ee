"""OOM kills: only the kernel's kill of process 1 ends a container by OOM (docs/adr/0068)."""

from __future__ import annotations

import pytest

from tests.support.agent.oom_ends import ENDS, OomEnd
from tests.support.agent.zone_client import Client

pytestmark = pytest.mark.root


@pytest.mark.parametrize("end", ENDS, ids=str)
def test_only_an_oom_kill_of_process_1_ends_its_container_by_oom(client: Client, end: OomEnd) -> None:
    end.check(client, "c1")
