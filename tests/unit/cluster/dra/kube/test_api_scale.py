"""What a node's driver asks of the API server at most, in the virtual time of the bench's simulation."""

from __future__ import annotations

import pytest

from cluster.dra.config import DraConfig, SliceMode
from tests.bench.alone.dra_scale import Load, Scenario, simulate

NODES = 60
SECONDS = 120.0
MOST = 60 / (0.8 * DraConfig().write_interval)
"""Writes of a node a minute, in the shared mode."""


def load(mode: SliceMode, without_claim: float = 0.0, away: float = 0.0, nodes: int = NODES) -> Load:
    return simulate(Scenario("", mode, without_claim, away), nodes, pods_a_minute=100, seconds=SECONDS)


def test_claims_of_a_shared_device_write_nothing() -> None:
    found = load(SliceMode.SHARED)
    assert found.writes == 0 and found.node_claims > 50
    assert 0 < found.first_writes < NODES / 2, "drivers that start at once do not write at once"


@pytest.mark.parametrize("without_claim", [0.2, 1.0])
def test_pods_without_claims_are_coalesced(without_claim: float) -> None:
    found = load(SliceMode.SHARED, without_claim)
    assert 0 < found.node_writes <= MOST


def test_a_device_for_each_claim_is_written_at_the_pace_of_its_interval() -> None:
    found = load(SliceMode.SPLIT, nodes=4)
    assert found.node_writes <= 60 / (0.8 * DraConfig().split_interval)
    assert found.node_claims > 30, "each write is for a claim"


def test_an_api_server_is_not_overrun_at_its_return() -> None:
    """While the server is away, and at its return, the drivers do not all ask at once."""
    at_rest, found = load(SliceMode.SHARED, 0.2), load(SliceMode.SHARED, 0.2, away=60.0)
    assert 0 < found.writes < at_rest.writes
    assert found.most_requests <= NODES / 2
