"""The checks of the stored data that the console starts: one run at a time, and the last results are kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentformer.console import page as console
from agentformer.console.page import CheckRuns
from agentformer.errors import StoreBusy
from agentformer.types import Check
from tests.edges.running import wait_until


def ended(runs: CheckRuns) -> dict[str, Any]:
    wait_until(lambda: runs.state()["state"] != "running")
    return runs.state()


def test_a_second_start_during_a_run_starts_nothing() -> None:
    go, begun = threading.Event(), list[int]()

    def verify() -> Sequence[Check]:
        begun.append(1)
        assert go.wait(60)
        return [Check("records", "each entry has its rows", 3, found=2, mended=1)]

    runs = CheckRuns(verify)
    never = runs.state()
    assert (never["state"], never["started_at"], never["well"], never["checks"]) == ("never", None, None, [])
    for _ in range(3):
        runs.start()
        running = runs.state()
        assert (running["state"], running["finished_at"], running["well"]) == ("running", None, None)
    go.set()
    done = ended(runs)
    assert (done["state"], done["well"], len(done["checks"]), begun) == ("done", False, 1, [1])
    assert done["started_at"] <= done["finished_at"]
    runs.start()
    assert ended(runs)["state"] == "done" and begun == [1, 1]


@pytest.mark.parametrize(
    ("error", "problem"), [(StoreBusy("the store is busy"), "the store is busy"), (OSError("x"), console._FAILED)]
)
def test_a_run_that_fails_keeps_the_results_of_the_last_one(error: Exception, problem: str) -> None:
    calls: list[Callable[[], Sequence[Check]]] = [lambda: [Check("records", "each entry has its rows", 3)]]

    def verify() -> Sequence[Check]:
        if calls:
            return calls.pop()()
        raise error

    runs = CheckRuns(verify)
    runs.start()
    assert ended(runs)["well"] is True
    runs.start()
    failed = ended(runs)
    assert (failed["state"], failed["well"], len(failed["checks"])) == ("failed", True, 1)
    assert failed["problem"] == problem
