"""Kill tests, and an option of pytest that chooses among them.

A kill test has a daemon killed at one checkpoint (daemonkit/checkpoints.py), the parameter ``step``.
``--checkpoints=one`` runs a checkpoint of each verb, as ``make test`` does; ``rest`` runs the remaining
checkpoints; ``all`` (the default) runs every checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import pytest

DANGEROUS = frozenset(
    {
        "create-container.created",
        "device-attach.attached",
        "device-detach.detached",
        "fake-create.launched",
        "fake-destroy.killed",
        "image-pull.filesystem-named",
        "image-remove.unnamed",
        "image-repair.layer-removed",
        "kernel-take.named",
        "network.plugin-added",
        "reconcile.shared",
        "remove-container.deleted",
        "remove-pod.containers-removed",
        "run-pod.zone-created",
        "start-container.started",
        "stop-pod.containers-ended",
        "orphan-remove.domain-destroyed",
        "teardown.zone-destroyed",
        "undo-pod.torn-down",
        "workload-create.disk-attached",
        "workload-delete.disk-detached",
        "workload-exit.drained",
        "workload-start.started",
        "zone-adopt.connected",
        "zone-connect.spliced",
        "zone-create.domain-created",
        "zone-destroy.domain-destroyed",
        "zone-resize.memory-given",
        "zone-shutdown.powered-off",
    }
)
"""The checkpoint of a verb after the side effect and before the record of the side effect.

A test of a verb without an entry here, or of other steps of the verb, runs the middle step.
"""
MODES = ("one", "rest", "all")
_LEFT_OUT = "checkpoints_left_out"
"""How many tests an xdist worker has left out, for the summary."""


def killed_at(steps: Sequence[str]) -> pytest.MarkDecorator:
    """Parametrize a test with ``step``; the steps that ``one_of_each_verb`` does not choose are marked."""
    chosen = one_of_each_verb(steps)
    marks = {step: () if step in chosen else pytest.mark.further for step in steps}
    return pytest.mark.parametrize("step", [pytest.param(step, marks=marks[step]) for step in steps])


def one_of_each_verb(steps: Iterable[str]) -> list[str]:
    """Of the steps of each verb (``verb.step``, ``verb.step:2``) the dangerous step, else the middle step."""
    found = []
    for _, group in groupby(sorted(steps, key=_verb), _verb):
        of_verb = list(group)
        dangerous = [step for step in of_verb if step.partition(":")[0] in DANGEROUS]
        found.append(dangerous[0] if dangerous else of_verb[len(of_verb) // 2])
    return found


def _verb(step: str) -> str:
    return step.partition(".")[0]


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--checkpoints", choices=MODES, default="all", help="which kill tests run")


def configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "further: a kill test that make test leaves out for make test-rest")
    if config.getoption("checkpoints") != "all":
        config.pluginmanager.register(Choice(config), "xenpod-checkpoints")


class Choice:
    """Leaves tests out, and says how many."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._one = config.getoption("checkpoints") == "one"
        self._left_out = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        out = [item for item in items if (item.get_closest_marker("further") is not None) is self._one]
        items[:] = [item for item in items if item not in set(out)]
        self._left_out = len(out)
        self._config.hook.pytest_deselected(items=out)
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_LEFT_OUT] = len(out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Each worker has collected all tests."""
        self._left_out = max(self._left_out, getattr(node, "workeroutput", {}).get(_LEFT_OUT, 0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._one:
            text = f"one of each verb ran; {self._left_out} further kill tests did not (make test-rest)"
        else:
            text = "only the kill tests ran that make test leaves out"
        terminalreporter.write_line(f"CHECKPOINTS: {text}")
