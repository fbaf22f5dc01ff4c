"""Calls in any order, on every backend, against a model of plain dictionaries: they never come to differ."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import AgentFormerError, Conflict, InvalidInput, NotFound
from agentformer.memory.backends.cosmos_db.backend import CosmosMemoryBackend
from agentformer.memory.backends.cosmos_db.container import CosmosAddress
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend
from agentformer.records.duplicates import is_duplicate
from agentformer.testing import admits, by_words, make_entry
from agentformer.types import Link, MemoryBackend, MemoryEntry, Scope, Use
from tests.backends.cosmos_emulator import KEY, Emulator
from tests.backends.postgres_server import open_store
from tests.faults.long_form import LONG, long_form

pytestmark = pytest.mark.slow

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # to shrink a failure takes minutes
MOMENT = datetime(2026, 11, 20, tzinfo=UTC)
WORDS = ("numbat", "kakapo", "axolotl", "dugong")
NAMESPACES = ("default", "other")

contents = st.lists(st.sampled_from(WORDS), min_size=1, max_size=2).map(" ".join)
namespaces = st.sampled_from(NAMESPACES)
sessions = st.sampled_from(("s", "t", None))
pick = st.integers(0, 10**6)  # which of the entries there are; larger memories keep the same choice
LONG_AFTER = MOMENT + timedelta(days=36_500)
TIMES = ("valid_from", "valid_to", "expires_at")
times = st.sampled_from(  # the values of TIMES, each as old as the store or far from now
    (
        *((None, None, None), (MOMENT, None, None), (LONG_AFTER, None, None), (None, LONG_AFTER, None)),
        *((None, MOMENT, None), (MOMENT, MOMENT, None), (MOMENT, LONG_AFTER, LONG_AFTER), (None, None, MOMENT)),
    )
)
picks = st.lists(pick, min_size=1, max_size=3)
drafts = st.fixed_dictionaries(
    {"content": contents, "namespace": namespaces, "session_id": sessions},
    optional={
        "kind": st.sampled_from(("fact", "message", "summary", "document")),
        "title": st.sampled_from(("", "a heading")),
        "metadata": st.sampled_from(({"k": 1}, {"k": True}, {})),
        "parent": pick,
        "user_id": st.sampled_from(("aino", None)),
        "times": times,
    },
)
scopes = st.builds(
    Scope,
    namespaces,
    session_id=st.sampled_from(("s", "t")),
    kinds=st.sampled_from(((), ("fact",), ("message", "summary"))),
    metadata=st.sampled_from(({}, {}, {"k": 1})),
)


class Model:
    """What a backend owes, said as shortly as dictionaries can say it. A call that raises has changed nothing."""

    def __init__(self) -> None:
        self.entries: dict[str, MemoryEntry] = {}
        self.former: dict[str, list[MemoryEntry]] = {}
        self.freed: set[str] = set()  # what was found again, at a time that only the store knows

    def put(self, entry: MemoryEntry, **changes: Any) -> None:
        self.entries[entry.id] = dataclasses.replace(entry, **changes)

    def around(self, entry: MemoryEntry) -> list[MemoryEntry]:
        """The two messages before and the two after a message of a session."""
        if entry.kind != "message" or entry.session_id is None or entry.superseded_by is not None:
            return []
        there = (e for e in self.entries.values() if e.kind == "message" and speakers(e) == speakers(entry))
        session = sorted(
            (e for e in there if e.superseded_by is None), key=lambda e: (e.occurred_at or e.created_at, e.id)
        )
        at = session.index(entry)
        return [*session[max(0, at - 2) : at], *session[at + 1 : at + 3]]

    def store(self, new: Sequence[MemoryEntry], unique: bool, replacing: Sequence[Scope]) -> list[str]:
        entries = dict(self.entries)
        doomed = self.doomed(e.id for scope in replacing for e in entries.values() if admits(scope, e))
        standing = []
        for entry in new:
            known = sorted(e.id for e in entries.values() if unique and e.id not in doomed and is_duplicate(entry, e))
            if known:
                told = entries[known[0]]
                entries[told.id] = dataclasses.replace(
                    told, repeat_count=told.repeat_count + 1, access_count=told.access_count + 1
                )
            elif entry.id in entries:
                raise Conflict("taken")
            else:
                entries[entry.id] = entry
            standing.append(known[0] if known else entry.id)
        self.entries = entries
        self.drop(doomed)
        while lost := [e.id for e in new if e.id in self.entries and self.is_lost(e.id)]:
            self.put(self.entries[lost[0]], superseded_by=None)
        return standing

    def is_lost(self, entry_id: str) -> bool:
        """Would nobody be led from this superseded entry to one that can be found, or that has a summary?"""
        entry = self.entries[entry_id]
        chain = [entry_id]
        while (following := self.entries[chain[-1]].superseded_by) in self.entries:
            if following in chain:
                return following == entry_id
            if owner(self.entries[following]) != owner(entry):
                break
            chain.append(following)
        if entry.superseded_by is None:
            return False
        return all(archived_alone(self.entries[i]) for i in chain[1:])

    def free(self, gone: Iterable[str]) -> None:
        """What one of these superseded is found again."""
        for entry in list(self.entries.values()):
            if entry.superseded_by in gone:
                end = self.former_end(entry)
                self.former.setdefault(entry.id, []).append(entry)
                self.put(entry, superseded_by=None, valid_to=end, version=entry.version + 1)
                self.freed.add(entry.id)
                self.free_if_archived(entry.id)

    def former_end(self, entry: MemoryEntry) -> datetime | None:
        """Until when the entry held before it was superseded."""
        ends = [version.valid_to for version in self.former.get(entry.id, []) if version.superseded_by is None]
        end = ends[-1] if ends else None
        return max(end, entry.valid_from) if end and entry.valid_from else end

    def free_if_archived(self, entry_id: str) -> None:
        """An entry that nobody finds hides no other."""
        if self.entries[entry_id].superseded_by is None and archived_alone(self.entries[entry_id]):
            self.free({entry_id})

    def update(self, entry_id: str, changes: Mapping[str, Any], version: int | None) -> None:
        entry = self.entries.get(entry_id)
        if entry is None:
            raise NotFound("gone")
        if version not in (None, entry.version):
            raise Conflict("stale")
        parted = "archived_at" in changes or changes.get("namespace", entry.namespace) != entry.namespace
        if parted and (entry.archived_by or self.originals(entry_id)):
            raise InvalidInput("archived_at", "would part a summary from its originals")
        changed = dataclasses.replace(entry, **changes, version=entry.version + 1)
        if (by := changes.get("superseded_by")) is not None:
            if by not in self.entries:
                raise NotFound("gone")
            if by == entry_id or owner(changed) != owner(self.entries[by]):
                raise InvalidInput("superseded_by", "not of the same owner")
            if entry.superseded_by or self.entries[by].superseded_by or self.entries[by].archived_at:
                raise Conflict("superseded or archived")
            told = [time for time in (self.entries[by].occurred_at, self.entries[by].created_at) if time]
            end = min(filter(None, (changed.valid_to, self.entries[by].valid_from or min(told))))
            changed = dataclasses.replace(changed, valid_to=max(end, changed.valid_from or end))
        moved = owner(changed) != owner(entry)
        if entry.superseded_by and (moved or ("superseded_by" in changes and by is None)) and "valid_to" not in changes:
            changed = dataclasses.replace(changed, valid_to=self.former_end(changed))
        self.former.setdefault(entry_id, []).append(entry)
        if moved:
            self.put(dataclasses.replace(changed, superseded_by=by))
            self.free({entry_id})
        else:
            self.put(changed)
            self.free_if_archived(entry_id)

    def touch(self, uses: Iterable[Use]) -> None:
        for use in uses:
            if entry := self.entries.get(use.id):
                self.put(
                    entry,
                    match_count=entry.match_count + use.matches,
                    read_count=entry.read_count + use.reads,
                    access_count=entry.access_count + use.matches + use.reads + use.others,
                    last_accessed=max(entry.last_accessed or use.at, use.at),
                )

    def consolidate(self, summary: MemoryEntry, ids: Sequence[str], versions: Mapping[str, int]) -> None:
        for entry_id in ids:
            entry = self.entries.get(entry_id)
            if entry is None or entry.archived_at or entry.superseded_by or self.originals(entry_id):
                raise Conflict("not to be summed up")
            if entry.namespace != summary.namespace:
                raise Conflict("not to be summed up")
            if versions.get(entry_id, entry.version) != entry.version:
                raise Conflict("changed meanwhile")
        if summary.id in self.entries:
            raise Conflict("taken")
        for entry_id in ids:
            self.put(self.entries[entry_id], archived_at=MOMENT, archived_by=summary.id)
        self.put(summary)

    def restore(self, summary_id: str) -> list[str]:
        summary = self.entries.get(summary_id)
        if summary is None:
            raise NotFound("gone")
        originals = self.originals(summary_id)
        if not originals:
            restored = summary.kind == "summary" and summary.archived_at
            raise Conflict("restored") if restored else InvalidInput("summary_id", "no summary")
        for entry_id in originals:
            self.put(self.entries[entry_id], archived_at=None, archived_by=None)
        self.put(summary, archived_at=MOMENT)
        self.free_if_archived(summary_id)
        return originals

    def originals(self, summary_id: str) -> list[str]:
        return sorted(entry.id for entry in self.entries.values() if entry.archived_by == summary_id)

    def doomed(self, ids: Iterable[str]) -> set[str]:
        """All that goes with these."""
        doomed = set(ids) & self.entries.keys()
        while True:
            places = {(i, *owner(self.entries[i]), self.entries[i].project) for i in doomed}
            more = {e.id for e in self.entries.values() if (e.parent_id, *owner(e), e.project) in places}
            more |= {by for i in doomed if (by := self.entries[i].archived_by)}
            for entry in self.entries.values():
                restored = entry.kind == "summary" and entry.archived_at
                if restored and doomed & {link.id for link in entry.derived_from}:
                    more.add(entry.id)
            if more <= doomed:
                return doomed
            doomed |= more

    def drop(self, doomed: set[str]) -> int:
        for entry in list(self.entries.values()):
            if entry.archived_by in doomed:
                self.put(entry, archived_at=None, archived_by=None)
        for entry_id in doomed:
            del self.entries[entry_id]
            self.former.pop(entry_id, None)
        self.free(doomed)
        return len(doomed)


def owner(entry: MemoryEntry) -> tuple[str, str | None]:
    return entry.namespace, entry.user_id


def timed(draft: Mapping[str, Any]) -> dict[str, Any]:
    """The draft with its times by their names."""
    values = dict(draft)
    return values | dict(zip(TIMES, values.pop("times", ()), strict=False))


def archived_alone(entry: MemoryEntry) -> bool:
    return entry.archived_at is not None and entry.archived_by is None


def speakers(entry: MemoryEntry) -> tuple[str | None, ...]:
    """Messages with the same values are neighbors."""
    return *owner(entry), entry.agent_id, entry.project, entry.session_id


class Machine(RuleBasedStateMachine):
    """Makes each call on a backend and on the model, and compares all that can be seen of them."""

    open: Callable[[Path], MemoryBackend]
    neighbours: ClassVar[bool] = False  # is a message found by what was said around it?
    done: ClassVar[Counter[str]]  # how often each call was made and not refused

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.model = Model()
        self.ever: list[str] = []
        self.steps = 0

    @initialize(batch=st.lists(drafts, min_size=4, max_size=8))
    def begin(self, batch: list[dict[str, Any]]) -> None:
        self.backend = type(self).open(self.folder)
        self.store(batch, False, [])

    def teardown(self) -> None:
        """At the end, entries are summed up, and every summary is undone: how often hypothesis draws a rule depends on
        the constants in all modules that are imported."""
        if hasattr(self, "backend"):
            for namespace in NAMESPACES:
                self.consolidate_what_can_be(namespace, {"content": WORDS[0], "session_id": None}, 2)
            for summary_id in self.standing():
                self.bring_back(summary_id)
            self.records_agree()
            self.histories_agree(self.ever)
            self.words_agree(*WORDS)
            self.backend.close()
        shutil.rmtree(self.folder)

    def id_of(self, n: int) -> str:
        """An entry that is there, or now and then one that is not, or is no more."""
        ids = sorted(self.model.entries)
        if n % 10 == 9 or not ids:
            return self.ever[n % len(self.ever)] if self.ever and n % 20 == 19 else "missing"
        return ids[n % len(ids)]

    def both(self, name: str, expected: Callable[[], Any], call: Callable[[], Any]) -> tuple[Any, Any] | None:
        """What the model and the backend return, or None when both raise the same kind of error."""
        try:
            result = expected()
        except AgentFormerError as error:
            with pytest.raises(type(error)):
                call()
            return None
        self.done[name] += 1
        return result, call()

    def adopt(self, entry: MemoryEntry, *names: str) -> None:
        """Take over a time that only the store can have set."""
        mine = self.model.entries[entry.id]
        for name in names:
            former, value = getattr(mine, name), getattr(entry, name)
            assert value is not None and (former is None or name == "archived_at" or value >= former)
            mine = dataclasses.replace(mine, **{name: value})
        self.model.entries[entry.id] = mine

    def entry(self, draft: Mapping[str, Any], **more: Any) -> MemoryEntry:
        values = {"created_at": MOMENT, "updated_at": MOMENT, **timed(draft), **more}
        if (parent := values.pop("parent", None)) is not None:
            values["parent_id"] = self.id_of(parent)
        entry = make_entry(**values)
        self.ever.append(entry.id)
        return entry

    @rule(batch=st.lists(drafts, min_size=1, max_size=3), unique=st.booleans(), replacing=st.lists(scopes, max_size=1))
    def store(self, batch: list[dict[str, Any]], unique: bool, replacing: list[Scope]) -> None:
        self.store_entries([self.entry(draft) for draft in batch], unique, replacing)

    @rule(draft=drafts)
    def store_unique(self, draft: dict[str, Any]) -> None:
        self.store_entries([self.entry(draft), self.entry(draft)], True, [])

    @rule(draft=drafts, n=pick, unique=st.booleans())
    def store_under_an_id(self, draft: dict[str, Any], n: int, unique: bool) -> None:
        self.store_entries([self.entry(draft), self.entry(draft, id=self.id_of(n))], unique, [])

    def store_entries(self, new: list[MemoryEntry], unique: bool, replacing: list[Scope]) -> None:
        done = self.both(
            "store",
            lambda: self.model.store(new, unique, replacing),
            lambda: self.backend.store(new, unique=unique, replacing=replacing),
        )
        if done:
            assert [entry.id for entry in done[1]] == done[0]
            for entry in done[1]:
                if entry.repeat_count:
                    self.adopt(entry, "last_accessed")

    @rule(n=pick, draft=drafts, stale=st.sampled_from((None, None, 0, 1)), salience=st.sampled_from((0.0, 0.5, 1.0)))
    def update(self, n: int, draft: dict[str, Any], stale: int | None, salience: float) -> None:
        entry_id = self.id_of(n)
        known = self.model.entries.get(entry_id)
        version = None if stale is None else (known.version if known else 1) - stale
        changes = {name: value for name, value in timed(draft).items() if name != "parent"}
        self.change(entry_id, {**changes, "salience": salience}, version)

    @rule(old=pick, new=pick)
    def supersede(self, old: int, new: int) -> None:
        self.change(self.id_of(old), {"superseded_by": self.id_of(new)})

    @rule(old=pick, new=pick)
    def supersede_what_can_be(self, old: int, new: int) -> None:
        live = [entry for entry in self.model.entries.values() if not entry.superseded_by and not entry.archived_at]
        pairs = [(a.id, b.id) for a in live for b in live if a.id != b.id and owner(a) == owner(b)]
        if pairs:
            first, second = sorted(pairs)[old % len(pairs)]
            self.change(first, {"superseded_by": second})

    @rule(n=pick)
    def supersede_no_more(self, n: int) -> None:
        if superseded := sorted(entry.id for entry in self.model.entries.values() if entry.superseded_by):
            self.change(superseded[n % len(superseded)], {"superseded_by": None})

    @rule(n=pick, by=pick, draft=drafts)
    def store_superseded(self, n: int, by: int, draft: dict[str, Any]) -> None:
        """As an import does: one entry leads to another, which may be missing, or leads back."""
        first, second = self.entry(draft), self.entry(draft)
        targets = [second.id, self.id_of(n)]
        first = dataclasses.replace(first, superseded_by=targets[n % 2])
        second = dataclasses.replace(second, superseded_by=[first.id, self.id_of(by), None][by % 3])
        self.store_entries([first, second], False, [])

    @rule(n=pick, at=st.sampled_from((None, MOMENT)))
    def archive_or_revive_by_hand(self, n: int, at: datetime | None) -> None:
        self.change(self.id_of(n), {"archived_at": at})

    def change(self, entry_id: str, changes: dict[str, Any], version: int | None = None) -> None:
        done = self.both(
            "update",
            lambda: self.model.update(entry_id, changes, version),
            lambda: self.backend.update(entry_id, changes, version),
        )
        if done:
            self.adopt(done[1], "updated_at")
            assert done[1] == self.model.entries[entry_id]

    @rule(ns=picks)
    def remove_ids(self, ns: list[int]) -> None:
        ids = [self.id_of(n) for n in ns]
        assert self.backend.remove(ids) == self.model.drop(self.model.doomed(ids))

    @rule(scope=scopes)
    def remove_scope(self, scope: Scope) -> None:
        everything = dataclasses.replace(scope, include_archived=True)
        doomed = self.model.doomed(e.id for e in self.model.entries.values() if admits(everything, e))
        assert self.backend.remove(scope) == self.model.drop(doomed)

    @rule(ns=picks, draft=drafts, stale=st.sampled_from((None, 0, 0, 1)))
    def consolidate(self, ns: list[int], draft: dict[str, Any], stale: int | None) -> None:
        ids = list(dict.fromkeys(self.id_of(n) for n in ns))
        if ns and ns[0] % 4 and ids[0] in self.model.entries:  # a summary has the namespace of its originals
            draft = {**draft, "namespace": self.model.entries[ids[0]].namespace}
        self.sum_up(ids, draft, stale)

    @rule(namespace=namespaces, draft=drafts, size=st.integers(1, 4))
    def consolidate_what_can_be(self, namespace: str, draft: dict[str, Any], size: int) -> None:
        live = [
            entry.id
            for entry in self.model.entries.values()
            if admits(Scope(namespace), entry) and not self.model.originals(entry.id)
        ]
        if live:
            self.sum_up(sorted(live)[:size], {**draft, "namespace": namespace}, 0)

    def sum_up(self, ids: list[str], draft: dict[str, Any], stale: int | None) -> None:
        known = {i: self.model.entries[i].version for i in ids if i in self.model.entries}
        versions = None if stale is None else {i: version - stale for i, version in known.items()}
        summary = self.entry({**draft, "kind": "summary"}, derived_from=tuple(Link(i) for i in ids))
        done = self.both(
            "consolidate",
            lambda: self.model.consolidate(summary, ids, versions or {}),
            lambda: self.backend.consolidate(summary, ids, versions=versions),
        )
        if done:
            assert done[1] == summary
            for entry in self.backend.get(ids):
                self.adopt(entry, "archived_at")

    @rule(n=pick)
    def restore(self, n: int) -> None:
        self.bring_back(self.id_of(n))

    @rule(n=pick)
    def restore_a_summary(self, n: int) -> None:
        if summaries := self.standing():
            self.bring_back(summaries[n % len(summaries)])

    def standing(self) -> list[str]:
        return sorted({entry.archived_by for entry in self.model.entries.values() if entry.archived_by})

    def bring_back(self, summary_id: str) -> None:
        done = self.both("restore", lambda: self.model.restore(summary_id), lambda: self.backend.restore(summary_id))
        if done:
            assert list(done[1]) == [self.model.entries[entry_id] for entry_id in done[0]]
            for entry in self.backend.get([summary_id]):
                self.adopt(entry, "archived_at")

    @rule(ns=picks, hours=st.integers(-50, 50), counts=st.tuples(*[st.integers(0, 2)] * 3))
    def touch(self, ns: list[int], hours: int, counts: tuple[int, int, int]) -> None:
        uses = [Use(self.id_of(n), MOMENT + timedelta(hours=hours + i), *counts) for i, n in enumerate(ns)]
        self.backend.touch(uses)
        self.model.touch(uses)

    @rule()
    def reopen(self) -> None:
        self.backend.close()
        self.backend = type(self).open(self.folder)

    @invariant()
    def nothing_is_hidden_for_good(self) -> None:
        assert not any(map(self.model.is_lost, self.model.entries))

    @invariant()
    def records_agree(self) -> None:
        if not hasattr(self, "backend"):
            return
        for entry in self.backend.get(sorted(self.model.freed & self.model.entries.keys())):
            self.adopt(entry, "updated_at")
        self.model.freed.clear()
        entries = self.model.entries
        for namespace in NAMESPACES:
            other = (
                *(Scope(namespace, as_of=MOMENT), Scope(namespace, as_of=LONG_AFTER)),
                Scope(namespace, session_id="s", include_summarized=True),
            )
            for scope in (Scope(namespace), Scope(namespace, include_archived=True), *other):
                expected = [entries[i] for i in sorted(entries) if admits(scope, entries[i])]
                assert list(self.backend.list(scope, limit=1000)) == expected
                assert self.backend.count(scope) == len(expected)
        there = [entries[entry_id] for entry_id in self.ever if entry_id in entries]
        assert list(self.backend.get(self.ever)) == there
        self.histories_agree(self.ever[-20:][self.steps % 4 :: 4])  # a quarter after each step, all after the last
        assert list(self.backend.namespaces()) == sorted({entry.namespace for entry in there})

    def histories_agree(self, ids: Sequence[str]) -> None:
        for entry_id in ids:
            assert list(self.backend.history(entry_id)) == self.model.former.get(entry_id, [])

    @invariant()
    def a_word_agrees(self) -> None:
        """After each step one word is searched, in turn; after the last step, every word."""
        if hasattr(self, "backend"):
            self.steps += 1
            self.words_agree(WORDS[self.steps % len(WORDS)])

    def words_agree(self, *words: str) -> None:
        for namespace in NAMESPACES:
            for word in words:
                scope = Scope(namespace, include_archived=word == WORDS[0], as_of=MOMENT if word == WORDS[1] else None)
                expected = [
                    entry.id
                    for entry in self.model.entries.values()
                    if admits(scope, entry) and word in self.findable(entry).split() and entry.kind != "document"
                ]
                assert by_words(self.backend, word, scope) == sorted(expected)

    def findable(self, entry: MemoryEntry) -> str:
        """What an entry is found by: its content, and what was said around a message."""
        said = self.model.around(entry) if self.neighbours else []
        return " ".join([entry.content, *(other.content for other in said)])

    @invariant()
    def a_summary_or_its_originals_are_live(self) -> None:
        entries = self.model.entries
        for entry in entries.values():
            if entry.archived_by is not None:
                assert entry.archived_at is not None
                summary = entries[entry.archived_by]
                assert (summary.archived_at, summary.namespace) == (None, entry.namespace)


def run(opened: Callable[[Path], MemoryBackend], examples: int, *, around: bool = False) -> None:
    class Opened(Machine):
        open = staticmethod(opened)
        neighbours = around
        done: ClassVar[Counter[str]] = Counter()

    run_state_machine_as_test(
        Opened, settings=settings(max_examples=examples, stateful_step_count=25, deadline=None, phases=PHASES)
    )
    assert all(Opened.done[name] > examples // 4 for name in ("store", "update", "consolidate", "restore")), Opened.done


def test_faiss_does_what_the_model_does() -> None:
    run(lambda folder: FaissMemoryBackend(folder, HashingEmbedder()), 20 if LONG else 4, around=True)


def test_local_json_does_what_the_model_does() -> None:
    run(LocalJsonMemoryBackend, 25 if LONG else 5)


@pytest.mark.process
def test_postgres_does_what_the_model_does(postgres_url: str) -> None:
    run(lambda folder: open_store(folder, HashingEmbedder()), 20 if LONG else 4, around=True)


@long_form
@pytest.mark.process
def test_cosmos_does_what_the_model_does(emulator: Emulator, tmp_path: Path) -> None:
    def opened(folder: Path) -> MemoryBackend:
        address = CosmosAddress(emulator.url, KEY, folder.name.replace("_", "-"), discover=False)
        return CosmosMemoryBackend(tmp_path / uuid.uuid4().hex, HashingEmbedder(), address)

    run(opened, 12, around=True)
