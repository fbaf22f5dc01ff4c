"""Limits of keys: questions a day, entries and bytes; and what stored keys of other versions say of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import agentformer
from agentformer.access import key_storage
from agentformer.access import keys as keys_module
from agentformer.access import limits as limits_module
from agentformer.access.key_storage import KeyFile
from agentformer.access.keys import KeyStore, _sum
from agentformer.access.limits import DAY, HIGHEST, Allowance, DayCounts, KeyLimits, Limits, Quota, quota_headers
from agentformer.errors import Busy, InvalidInput, KeyFull, StoreBusy, StoreDamaged, Unauthenticated
from agentformer.lazy import Lazy
from agentformer.types import Scope
from tests import forked
from tests.edges.running import wait_until
from tests.narrow_store import narrow

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counts(tmp_path: Path, clock: Clock) -> DayCounts:
    return DayCounts(KeyFile(tmp_path, "questions.json"), clock)


@pytest.fixture
def af(tmp_path: Path) -> Iterator[agentformer.AgentFormer]:
    where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    with agentformer.connect(**where, embedder="hashing", backend="faiss") as af:  # type: ignore[arg-type]
        yield af


def count_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the whole again as soon as a request would be refused."""
    monkeypatch.setattr(limits_module, "_AGAIN", 0)
    monkeypatch.setattr(limits_module, "_SHARE", 0)


def allowed(*namespaces: str, **limits: int) -> Allowance:
    return Allowance("1f2e3d4c", Limits(**limits), namespaces)


@pytest.mark.unit
def test_questions_are_counted_by_day_and_over_restarts(counts: DayCounts, tmp_path: Path, clock: Clock) -> None:
    assert counts.quota("a", 2) == Quota(2, 2, DAY // 2, DAY)
    assert [counts.take("a", 2)[1] for _ in range(3)] == [True, True, False]
    again = DayCounts(KeyFile(tmp_path, "questions.json"), clock)  # as another process
    assert again.take("a", 2) == (Quota(2, 0, DAY // 2, DAY), False)
    assert again.take("b", 2)[1] and again.take("a", 3)[1], "each key has its own count, and a higher limit holds"
    clock.now += timedelta(hours=12)
    assert counts.take("a", 2) == (Quota(2, 1, DAY, DAY), True)


ASKER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from agentformer.access.limits import DayCounts
from agentformer.access.key_storage import KeyFile
questions = DayCounts(KeyFile(Path(sys.argv[1]), "questions.json"), lambda: datetime(2026, 11, 30, tzinfo=UTC))
print(sum(questions.take("a", 30)[1] for _ in range(20)))
"""


@pytest.mark.process
def test_several_processes_allow_no_question_too_many(tmp_path: Path) -> None:
    askers = [forked.program(ASKER, tmp_path) for _ in range(3)]
    assert sum(int(forked.ended(asker).stdout) for asker in askers) == 30


@pytest.mark.unit
def test_a_question_is_given_back_on_its_day(counts: DayCounts, clock: Clock) -> None:
    day = counts.today()
    for _ in range(2):
        counts.take("a", 2)
    assert counts.give_back("a", 2, day).left == 1
    clock.now += timedelta(days=1)
    counts.take("a", 2)
    for _ in range(3):
        assert counts.give_back("a", 2, day).left == 1, "another day"
    clock.now -= timedelta(days=1)
    assert counts.quota("a", 2).left == 2 and counts.give_back("b", 2, day).left == 2


@pytest.mark.unit
def test_a_clock_that_jumps_gives_no_questions_and_takes_none(counts: DayCounts, clock: Clock) -> None:
    for _ in range(3):
        counts.take("a", 3)
    clock.now += timedelta(days=3_650)
    assert counts.take("a", 3)[1]
    clock.now = NOON + timedelta(seconds=1)
    assert counts.take("a", 3) == (Quota(3, 0, DAY // 2 - 1, DAY), False)
    clock.now = NOON - timedelta(days=1)
    assert counts.quota("a", 3).left == 3
    clock.now = NOON
    assert counts.quota("a", 3).left == 0
    for days in range(1, 20):
        clock.now = NOON + timedelta(days=days)
        assert counts.take("a", 3)[0].left == 2
    assert counts.quota("a", 1).left == 0, "a lower limit leaves none, and not less"


@pytest.mark.unit
@pytest.mark.parametrize(
    "text", ["{", "[]", '{"version": 2, "days": {}}', '{"version": 1, "days": {"2026-11-30": {"a": -5}}}']
)
def test_damaged_counts_refuse_questions(counts: DayCounts, tmp_path: Path, text: str) -> None:
    (tmp_path / "questions.json").write_text(text)
    for call in (counts.take, counts.quota):
        with pytest.raises(StoreDamaged, match=r"questions\.json is damaged"):
            call("a", 1)
    assert (tmp_path / "questions.json").read_text() == text


@pytest.mark.unit
def test_a_held_lock_is_busy(counts: DayCounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "_LOCK_SECONDS", 0)
    with FileLock(tmp_path / "questions.lock"), pytest.raises(Busy, match="counting a question"):
        counts.take("a", 1)
    assert counts.take("a", 1)[1]


@pytest.mark.unit
def test_the_headers_name_each_quota() -> None:
    assert quota_headers({}) == {}
    quotas = {"key": Quota(600, 5, 3), "questions": Quota(9, 8, 60, DAY), "bytes": Quota(100, 0, 0, 0)}
    assert quota_headers(quotas) == {
        "RateLimit-Policy": '"key";q=600;w=60, "questions";q=9;w=86400, "bytes";q=100;qu="content-bytes"',
        "RateLimit": '"key";r=5;t=3, "questions";r=8;t=60, "bytes";r=0',
    }


@pytest.mark.unit
@pytest.mark.parametrize("name", HIGHEST)
@pytest.mark.parametrize("value", [-1, 1.5, True, "9", 10**30, None])
def test_a_limit_is_a_whole_number(tmp_path: Path, name: str, value: Any) -> None:
    store = KeyStore(tmp_path)
    key, _ = store.make("a", **{name: HIGHEST[name]})
    for call in (lambda: store.make("b", **{name: value}), lambda: store.change(key.id, **{name: value})):
        with pytest.raises(InvalidInput, match=name):
            call()
    assert store.all() == (key,) and key.limits == Limits(**{name: HIGHEST[name]})
    with pytest.raises(InvalidInput, match="is not a limit of a key; the limits are requests_per_minute"):
        store.make("b", max_pages=1)


@pytest.mark.unit
def test_limits_are_kept_changed_and_rotated(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    made, _ = store.make("team", requests_per_minute=60, max_entries=10, max_bytes=1_000, questions_per_day=5)
    changed = store.change(made.id, max_bytes=0, questions_per_day=6)
    assert changed.limits == Limits(60, 10, 0, 6)
    key, secret, _ = KeyStore(tmp_path).rotate(made.id)
    assert key.limits == Limits(60, 10, 0, 6)
    allowance = store.grant_of(secret).allowance
    assert allowance is not None and allowance.quotas.keys() == {"key", "questions"}
    assert store.allowance(key.id) == Allowance(key.id, key.limits) and store.allowance("unknown") is None
    assert {name: key.as_json()[name] for name in HIGHEST} == key.limits._asdict()


@pytest.mark.unit
def test_a_file_of_another_version_is_read(tmp_path: Path) -> None:
    store, file = KeyStore(tmp_path), tmp_path / "keys.json"
    key, secret = store.make("team", max_entries=10)
    content = json.loads(file.read_text())
    (record,) = content["keys"]

    def write(values: dict[str, Any]) -> None:
        file.write_text(json.dumps({**content, "keys": [{**values, "checksum": _sum(values)}]}))

    write({name: value for name, value in record.items() if name not in HIGHEST})  # of a former version
    assert store.grant_of(secret).allowance is None
    write({**record, "max_pages": 5})  # of a later one: what is unknown has a checksum, too, and has no effect
    assert store.all() == (key,)
    write({**record, "max_entries": -1})
    with pytest.raises(StoreDamaged):
        store.all()


@pytest.mark.unit
def test_with_many_keys_their_uses_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "_MANY", 3)
    monkeypatch.setattr(keys_module, "_NOTE_SECONDS", math.inf)
    store = KeyStore(tmp_path)
    secrets = [store.make(name)[1] for name in "abcd"]
    for secret in secrets[:3]:
        store.grant_of(secret)
    assert [key.last_used_on is not None for key in store.all()] == [True, False, False, False]
    monkeypatch.setattr(keys_module, "_NOTE_SECONDS", 0)
    store.grant_of(secrets[3])
    assert all(key.last_used_on for key in store.all())


@pytest.mark.unit
def test_a_file_of_keys_is_read_again_only_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, read = [], key_storage.read_file
    monkeypatch.setattr(key_storage, "read_file", lambda path: (reads.append(path), read(path))[1])
    store, path = KeyStore(tmp_path), tmp_path / "keys.json"
    _, secret = store.make("team")
    store.grant_of(secret)  # which stores the day
    reads.clear()
    for _ in range(3):
        store.grant_of(secret)
    assert len(reads) == 3, "a young file may change again within the resolution of its times"
    monkeypatch.setattr(key_storage, "_SETTLED_SECONDS", -1)
    for _ in range(3):
        store.grant_of(secret)
    assert len(reads) == 4
    data, times = path.read_bytes(), path.stat()
    path.write_bytes(data.replace(b'"name": "team"', b'"name": "TEAM"'))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(StoreDamaged):
        store.grant_of(secret)
    path.unlink()
    with pytest.raises(Unauthenticated):
        store.grant_of(secret)


@pytest.mark.unit
def test_a_place_that_does_not_answer_is_remembered(tmp_path: Path) -> None:
    class Place(KeyFile):
        away = False

        def read(self) -> bytes | None:
            if Place.away:
                raise StoreBusy("the database is away")
            return super().read()

    store = KeyStore(Place(tmp_path))
    _, secret = store.make("scraper", ("metrics",))
    view, unread = store.remembering(), KeyStore(Place(tmp_path)).remembering()
    assert view.grant_of(secret).may("metrics")
    Place.away = True
    assert view.grant_of(secret).may("metrics") and view.ever_made
    with pytest.raises(StoreBusy, match="was not read before"):
        unread.grant_of(secret)
    with pytest.raises(Busy):
        view.make("another")
    Place.away = False
    store.revoke(store.all()[0].id)
    assert view.all() == ()


def test_a_key_may_store_what_fits(af: agentformer.AgentFormer, monkeypatch: pytest.MonkeyPatch) -> None:
    count_often(monkeypatch)
    key = allowed("team", max_entries=2)
    af.memory.store("The key is under the mat.", namespace="other")
    for text in ("Anna lives in Turku.", "Anna likes tea."):
        af.limits.require_room(key)
        entry = af.memory.store(text, namespace="team")
    with pytest.raises(KeyFull, match=r"may store 2 entries, and its namespaces contain 2; delete some") as caught:
        af.limits.require_room(key)
    assert caught.value.limit == "max_entries" and not af.limits.has_room(key)
    assert key.quotas == {"entries": Quota(2, 0, 0, 0)}
    assert af.limits.has_room(allowed("other", max_entries=2)) and not af.limits.has_room(allowed(max_entries=3))
    af.backend.remove([entry.id])
    assert af.limits.has_room(key), "what was deleted makes room"
    assert af.limits.has_room(None) and af.limits.has_room(allowed(questions_per_day=1))


def test_requests_at_the_same_time_do_not_take_the_same_room(
    af: agentformer.AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits_module, "_ROOM_SECONDS", 600)

    def add(number: int) -> bool:
        key = allowed("team", max_entries=5)
        try:
            with af.limits.reserve(key):
                left = key.quotas["entries"].left
                af.memory.store(f"Fact {number}.", namespace="team")
        except KeyFull:
            return False
        assert key.quotas["entries"].left < left
        return True

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(add, range(24))) == 5
    assert af.backend.count(Scope("team")) == 5 and not af.limits._reserved


def test_a_request_waits_only_for_earlier_ones_that_may_take_its_room(
    af: agentformer.AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits_module, "_ROOM_SECONDS", 0)
    key = allowed("team", "public", max_entries=3, max_bytes=100)
    with af.limits.reserve(key, 40, 2):
        with af.limits.reserve(key, 60, 1), pytest.raises(Busy, match="what may fill this key") as caught:
            af.limits.reserve(allowed("public", max_entries=3)).__enter__()
        assert caught.value.limit == "max_entries"
        with pytest.raises(Busy) as caught, af.limits.reserve(key, 61, 1):
            pass
        assert caught.value.limit == "max_bytes"
        with af.limits.reserve(allowed("other", max_entries=3), entries=3):
            pass
        with pytest.raises(KeyFull, match="may store 3 entries, and its namespaces contain 0; the request has 4"):
            af.limits.reserve(key, entries=4).__enter__()
    with af.limits.reserve(key, 100, 3):
        pass


def test_what_another_process_stores_counts_at_once_and_the_whole_is_not_counted_again(
    af: agentformer.AgentFormer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, size = [], type(af.backend).size

    def counted(self: Any, namespaces: Any, since: Any = None) -> Any:
        whole.append(since is None)
        return size(self, namespaces, since)

    monkeypatch.setattr(type(af.backend), "size", counted)
    monkeypatch.setattr(limits_module, "_FRESH", math.inf)
    key = allowed("team", max_entries=4)
    assert af.limits.has_room(key)
    where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    with agentformer.connect(**where, embedder="hashing", backend="faiss") as other:  # type: ignore[arg-type]
        for number in range(4):
            assert af.limits.has_room(key)
            other.memory.store(f"Fact {number}.", namespace="team")
    assert whole.count(True) == 1
    count_often(monkeypatch)
    assert not any(af.limits.has_room(key) for _ in range(5))
    assert whole.count(True) == 2, "nothing has changed since the second count"


def test_bytes_are_those_of_texts_and_files(af: agentformer.AgentFormer, monkeypatch: pytest.MonkeyPatch) -> None:
    count_often(monkeypatch)
    text = "Sää on kylmä. " * 20
    document = af.rag.upload(text.encode(), name="sää.txt", namespace="team")
    entries = af.backend.list(Scope("team", include_archived=True), limit=100)
    expected = sum(len(entry.content.encode()) for entry in entries) + document.bytes
    assert document.bytes == len(text.encode())
    assert af.backend.size(["team"]).bytes == expected  # type: ignore[attr-defined]
    key = allowed("team", max_bytes=expected + 100)
    af.limits.require_room(key, 100)
    assert key.quotas == {"bytes": Quota(expected + 100, 100, 0, 0)}
    with pytest.raises(KeyFull, match="the request has 101"):
        af.limits.require_room(key, 101)
    assert not af.limits.has_room(allowed("team", max_bytes=expected))


def test_a_store_without_sizes_is_counted_by_its_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "_FRESH", math.inf)
    store = narrow(tmp_path)
    limits = KeyLimits(store, DayCounts(KeyFile(tmp_path, "questions.json")), Lazy(lambda: None))
    key = allowed("team", max_entries=1)
    assert limits.has_room(key)
    store.store([agentformer.MemoryEntry(id="1", content="Tea.", namespace="team")])
    assert limits.has_room(key), "counted within the last minute"
    count_often(monkeypatch)
    monkeypatch.setattr(limits_module, "_FRESH", 0)
    wait_until(lambda: not limits.has_room(key))  # a thread counts anew
    limits.take_question(allowed(questions_per_day=1))  # no model: nothing is counted
    assert not (tmp_path / "questions.json").exists()
