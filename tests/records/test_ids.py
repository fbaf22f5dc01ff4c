from __future__ import annotations

import threading
import time
import uuid

from agentformer.types import new_id


def test_ids_grow_in_order_of_creation_and_never_repeat() -> None:
    ids = [new_id() for _ in range(20_000)]
    assert ids == sorted(set(ids))


def test_ids_are_uuids_of_version_7_and_tell_the_time() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(new_id())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert 0 <= (made.int >> 80) - before < 2000  # milliseconds; the counter may run ahead of the clock


def test_threads_never_share_an_id() -> None:
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.extend([new_id() for _ in range(2000)])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 16_000
