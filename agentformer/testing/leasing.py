"""Leases: one holder at a time, and none for ever."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from agentformer.testing.case import BackendCase
from agentformer.testing.reference import make_entry
from agentformer.types import Scope

_LONG = 3600.0  # seconds; no test waits for its end
_SHORT = 0.01


class Leasing(BackendCase):
    def test_a_second_holder_is_refused_until_the_first_gives_up(self, tmp_path: Path) -> None:
        one, other = self.start(tmp_path), self.start(tmp_path)
        assert one.lease("clean", "A", _LONG) is True
        assert other.lease("clean", "B", _LONG) is False
        assert one.lease("clean", "B", _LONG) is False
        one.release("clean", "A")
        assert other.lease("clean", "B", _LONG) is True
        assert one.lease("clean", "A", _LONG) is False

    def test_the_holder_prolongs_its_lease(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        assert backend.lease("clean", "A", _SHORT)
        assert backend.lease("clean", "A", _LONG)
        time.sleep(3 * _SHORT)
        assert not backend.lease("clean", "B", _LONG)

    def test_a_lease_that_ran_out_is_free(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        assert backend.lease("clean", "dead", _SHORT)
        time.sleep(3 * _SHORT)
        assert backend.lease("clean", "B", _LONG)
        assert not backend.lease("clean", "dead", _LONG)

    def test_a_stranger_cannot_give_up_a_lease(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        backend.lease("clean", "A", _LONG)
        backend.release("clean", "B")
        backend.release("no such lease", "A")
        assert not backend.lease("clean", "B", _LONG)
        assert backend.lease("clean", "A", _LONG)

    def test_leases_of_other_names_are_free(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        names = ("clean", "clean:s1", "siivous ä 日本", "")
        assert all(backend.lease(name, "A", _LONG) for name in names)
        assert not any(backend.lease(name, "B", _LONG) for name in names)
        backend.release("clean:s1", "A")
        assert [backend.lease(name, "B", _LONG) for name in names] == [False, True, False, False]

    def test_a_lease_outlives_the_backend_that_took_it(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        assert backend.lease("clean", "A", _LONG)
        backend.close()
        assert not self.start(tmp_path).lease("clean", "B", _LONG)

    def test_of_many_threads_one_gets_the_lease(self, tmp_path: Path) -> None:
        backends = [self.start(tmp_path), self.start(tmp_path)]
        start = threading.Barrier(8)
        outcomes: list[bool] = []

        def take(n: int) -> None:
            start.wait()
            outcomes.append(backends[n % 2].lease("clean", f"holder {n}", _LONG))

        threads = [threading.Thread(target=take, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == [False] * 7 + [True]

    def test_a_lease_hinders_no_other_call(self, tmp_path: Path) -> None:
        backend = self.start(tmp_path)
        backend.lease("clean", "A", _LONG)
        (entry,) = backend.store([make_entry("a")])
        assert list(backend.list(Scope())) == [entry]
        assert backend.namespaces() == ["default"] and backend.remove(Scope()) == 1
        assert not backend.lease("clean", "B", _LONG)
