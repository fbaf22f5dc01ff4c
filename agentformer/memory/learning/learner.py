"""`Learner`: reads the messages of users in sessions, stores the facts that they state, and records what was read."""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from agentformer.errors import AgentFormerError, Conflict, InvalidInput, InvalidReply, NotFound, PromptTooLong
from agentformer.lazy import Lazy
from agentformer.memory.backends import all_entries, is_live
from agentformer.memory.background import JobQueue, PeriodicThread
from agentformer.memory.learning import FACT, LearningReport, LearntFact, Proposal
from agentformer.memory.learning.asking import ask
from agentformer.memory.learning.checking import entry_of, problem
from agentformer.memory.learning.journal import Journal, session_messages
from agentformer.memory.learning.profile import Profile, build_profile
from agentformer.memory.memory_cleaner import MessageCounter
from agentformer.memory.recall import Recall
from agentformer.memory.summaries import sort_by_time
from agentformer.records import fields
from agentformer.records.offers import leases_of
from agentformer.search.newest_facts import FactComparison, moment, owner
from agentformer.search.relevance import EntryLanguages
from agentformer.text.analysis import MAX_QUERY
from agentformer.text.dates.notation import months, weekdays
from agentformer.text.facts.personal_facts import facts_told
from agentformer.text.facts.unsupported_claims import inner_names
from agentformer.text.languages.detection import detect_language
from agentformer.types import Condition, LanguageModel, MemoryBackend, MemoryEntry, Query, Scope, new_id

log = logging.getLogger("agentformer")

_MODEL_MESSAGES, _MODEL_TOKENS = 20, 3_000  # limits of a batch for a model: one call reads it well, and costs a cent
_MESSAGES = 200  # limit of a batch without a model: one short transaction
_KNOWN, _NEAREST = 30, 5  # known facts in a prompt: of all messages together, and of each message
_IN_FILTER = 490  # values of one filter
_ATTEMPTS = 3  # attempts of a batch while other callers change its session


@dataclass(frozen=True, slots=True)
class LearningOptions:
    """The settings of a `Learner`. A session is read each time it has `every` new messages; 0 means never. All sessions
    are read every `interval` seconds; 0 means never. A lease reserves a session for one learner, and ends after
    `lease_seconds`."""

    every: int = 0
    interval: float = 0.0
    lease_seconds: float = 300.0


class Learner:
    """Learns facts from messages. Thread-safe. If `model` is None, facts are learnt by the form of the sentences."""

    def __init__(
        self,
        backend: MemoryBackend,
        model: Lazy[LanguageModel | None],
        count_tokens: Callable[[str], int],
        recall: Recall,
        options: LearningOptions | None = None,
    ) -> None:
        self.journal = Journal(backend)
        self._backend = backend
        self._leases = leases_of(backend)
        self._model = model
        self._count_tokens = count_tokens
        self._recall = recall
        self._options = options = options or LearningOptions()
        self._last_error: str | None = None
        self._counter = MessageCounter(backend, options.every)
        self._queue = JobQueue(self._run_job)  # of pairs: namespace and session, or None for all of them
        self._clock = PeriodicThread(options.interval, lambda: self._queue.add((None, None)))

    def learn(self, scope: Scope, ids: Sequence[str] = (), *, dry_run: bool = False) -> LearningReport:
        """Learn from the messages in `scope` that no run has read, and return a report. With `ids`, learn from these
        messages, also if they were read before; facts that were learnt from them and still exist are not learnt again.
        A dry run stores nothing. Raises `NotFound` or `InvalidInput` for an id that is no message in the scope, and
        `LanguageModelUnavailable`; batches that were read before stay learnt."""
        named = self._named(scope, ids) if ids else {}
        sessions = [*named] if ids else [scope.session_id] if scope.session_id else self._sessions(scope)
        report, run = LearningReport(), new_id()
        for session in sessions:
            of_session = replace(scope, session_id=session)
            report += self._learn_session(of_session, named.get(session or ""), run, report.run, dry_run=dry_run)
        return report

    def profile(self, blocks: Sequence[MemoryEntry], *, scope: Scope, max_tokens: int) -> Profile:
        """Return what holds now about the user of `scope`; see `build_profile`."""
        return build_profile(self._backend, self._count_tokens, blocks, scope=scope, max_tokens=max_tokens)

    def message_added(self, entry: MemoryEntry) -> None:
        """Queue the session of a new message if its number of messages has reached a multiple of
        `LearningOptions.every`. No error is raised, because the message is already stored."""
        if self._options.every <= 0 or entry.session_id is None or entry.kind != "message":
            return
        with self._logging_errors():
            if self._counter.reached(entry.namespace, entry.session_id):
                self._queue.add((entry.namespace, entry.session_id))

    def start(self) -> None:
        """Start a thread that reads all sessions every `LearningOptions.interval` seconds, unless this is 0."""
        self._clock.start()

    def close(self, seconds: float = 10.0) -> None:
        """Stop the periodic thread, and wait up to `seconds` until the queued sessions are read. Idempotent."""
        self._clock.close(0)
        if not self._queue.close(seconds):
            log.warning("learning did not finish within %g s; the next run continues it", seconds)

    def status(self) -> dict[str, Any]:
        """Return JSON values: the last error in the background, and the number of queued jobs."""
        return {"last_error": self._last_error, "queued": len(self._queue)}

    def _run_job(self, job: tuple[str | None, str | None]) -> None:
        namespace, session = job
        with self._logging_errors():
            for name in [namespace] if namespace else self._backend.namespaces():
                self.learn(Scope(name, session_id=session))

    @contextmanager
    def _logging_errors(self) -> Iterator[None]:
        try:
            yield
        except AgentFormerError as error:
            self._last_error = str(error)
            log.warning("no facts could be learnt; the next run tries again: %s", error)
        except Exception as error:
            self._last_error = str(error)
            log.exception("no facts could be learnt; the next run tries again")

    def _named(self, scope: Scope, ids: Sequence[str]) -> dict[str, list[MemoryEntry]]:
        """Return the messages with these ids by session."""
        found = {entry.id: entry for entry in self._backend.get(ids)}
        sessions: defaultdict[str, list[MemoryEntry]] = defaultdict(list)
        for entry_id in dict.fromkeys(ids):
            entry = found.get(entry_id)
            owners = ("user_id", "project") if entry is not None else ()
            other = any(getattr(scope, name) not in (None, getattr(entry, name)) for name in owners)
            if entry is None or entry.namespace != scope.namespace or other:
                raise NotFound(f"there is no message {entry_id}")
            if entry.kind != "message" or entry.role != "user" or entry.session_id is None:
                raise InvalidInput("messages", f"{entry_id} is no message of a user; facts are learnt from these only")
            if scope.session_id not in (None, entry.session_id):
                raise InvalidInput("messages", f"{entry_id} is no message of the session {scope.session_id}")
            sessions[entry.session_id].append(entry)
        return sessions

    def _sessions(self, scope: Scope) -> list[str]:
        messages = replace(session_messages(scope.namespace, None), user_id=scope.user_id, project=scope.project)
        return sorted({entry.session_id for entry in all_entries(self._backend, messages) if entry.session_id})

    def _learn_session(
        self, scope: Scope, named: Sequence[MemoryEntry] | None, run: str, stored: str, *, dry_run: bool
    ) -> LearningReport:
        """Learn from one session while holding its lease. `stored` is the id of the run if it has a record already.
        After a conflict, the session is read again, and goes on with the messages that were not yet read. The session
        is reported as busy if another process has the lease, or after `_ATTEMPTS` conflicts."""
        session = scope.session_id or ""
        name, holder = f"learn/{scope.namespace}/{session}", f"{os.getpid()}/{new_id()}"
        if not dry_run and not self._leases.lease(name, holder, self._options.lease_seconds):
            return LearningReport(busy=(session,))
        report, conflicts = LearningReport(run=stored), 0
        try:
            while conflicts < _ATTEMPTS:
                try:
                    for batch, records in self._batches(scope, named, dry_run=dry_run):
                        if not dry_run and not self._leases.lease(name, holder, self._options.lease_seconds):
                            return report + LearningReport(busy=(session,))
                        report += self._learn_batch(batch, records, run, first=not report.run, dry_run=dry_run)
                except Conflict:
                    conflicts += 1  # another caller changed the session: read it again
                    named = named and [*self._backend.get([entry.id for entry in named])]
                    continue
                return replace(report, sessions=int(report.messages > 0))
            return report + LearningReport(busy=(session,))
        finally:
            if not dry_run:
                self._leases.release(name, holder)

    def _batches(
        self, scope: Scope, named: Sequence[MemoryEntry] | None, *, dry_run: bool
    ) -> Iterator[tuple[list[MemoryEntry], set[str]]]:
        """Yield batches of messages of one owner, in order of time, and the ids of the records of the session. The
        caller adds the id of each new record to this set."""
        journal = self.journal.batches(scope.namespace, scope.session_id or "")
        if not dry_run:
            for record in journal:
                self.journal.finish(record)
        if named is None:
            read = {message for record in journal for message in record.metadata.get("messages", ())}
            wanted = session_messages(scope.namespace, scope.session_id)
            wanted = replace(wanted, agent_id=scope.agent_id, user_id=scope.user_id, project=scope.project)
            named = [entry for entry in all_entries(self._backend, wanted) if entry.id not in read]
        records = {record.id for record in journal}
        for batch in self._split(sort_by_time(named)):
            yield batch, records

    def _split(self, messages: Sequence[MemoryEntry]) -> Iterator[list[MemoryEntry]]:
        """Yield the messages in batches. Those of a batch have the same owner, and were stored by the same caller."""
        owned: defaultdict[tuple[object, ...], list[MemoryEntry]] = defaultdict(list)
        for message in messages:
            stored_by = message.metadata.get(fields.STORED_BY_KEY)
            owned[message.agent_id, message.user_id, message.project, stored_by].append(message)
        has_model = bool(owned) and self._model.get() is not None
        for group in owned.values():
            batch, tokens = list[MemoryEntry](), 0
            for message in group:
                size = self._count_tokens(message.content) if has_model else 0
                full = tokens + size > _MODEL_TOKENS or len(batch) == (_MODEL_MESSAGES if has_model else _MESSAGES)
                if batch and full:
                    yield batch
                    batch, tokens = [], 0
                batch.append(message)
                tokens += size
            yield batch

    def _learn_batch(
        self, batch: Sequence[MemoryEntry], records: set[str], run: str, *, first: bool, dry_run: bool
    ) -> LearningReport:
        """Learn from one batch in one transaction. Raises `Conflict` if its session has changed in the meantime."""
        # A message after retrieved text may repeat it, and documents are no facts about a user.
        own = [message for message in batch if not message.metadata.get(fields.AFTER_RETRIEVED_TEXT)]
        proposed, cost = self._proposed(own) if own else ([], LearningReport())
        dropped = Counter(cost.dropped)
        accepted = list[Proposal]()
        learnt = self.journal.learnt(batch)
        for proposal in proposed:
            reason = problem(proposal)
            if not reason and any(_overlap(proposal.quote, fact.raw or "") for fact in learnt[proposal.message.id]):
                reason = "learnt before"
            dropped[reason] += 1
            if not reason:
                accepted.append(proposal)
        del dropped[""]
        entries, pairs = self._entries(accepted, run, dropped)
        new = [entry for entry in entries if entry.superseded_by is None]
        report = replace(cost, messages=len(batch), known=len(entries) - len(new), dropped=dict(dropped))
        if dry_run:
            return replace(report, facts=tuple(_learnt(replace(entry, id=""), pairs.get(entry.id)) for entry in new))
        record = self.journal.record(run, batch, len(new), [(old, fact) for fact, old in pairs.items()], first=first)
        self._backend.store([*entries, record], check=self.journal.check(records, batch))
        records.add(record.id)
        self.journal.finish(record)
        return replace(report, run=run, facts=tuple(_learnt(entry, pairs.get(entry.id)) for entry in new))

    def _proposed(self, batch: Sequence[MemoryEntry]) -> tuple[list[Proposal], LearningReport]:
        """Return the proposals for a batch, and a report with their cost. If the reply of the model cannot be used,
        facts are learnt by the form of the sentences."""
        model = self._model.get()
        if model is None:
            return [*proposals(batch)], LearningReport()
        try:
            asked = ask(model, batch, self._nearest(batch))
        except (InvalidReply, PromptTooLong) as error:
            log.warning("the language model listed no facts, so they are learnt by form: %s", error)
            return [*proposals(batch)], LearningReport(dropped={"reply": 1}, calls=1)
        cost = LearningReport(dropped=asked.dropped, calls=1, tokens_in=asked.tokens_in, tokens_out=asked.tokens_out)
        return asked.proposals, cost

    def _nearest(self, batch: Sequence[MemoryEntry]) -> list[MemoryEntry]:
        """Return the known facts of the owner that are nearest to the messages, best first."""
        own = {name: getattr(batch[0], name) for name in ("namespace", "agent_id", "user_id", "project")}
        best: dict[str, tuple[float, MemoryEntry]] = {}
        for message in batch:
            query = Query(message.content[:MAX_QUERY], Scope(kinds=(FACT,), **own), limit=_NEAREST)
            for hit in self._backend.search(query):
                if all(getattr(hit.entry, name) == value for name, value in own.items()):
                    score = max(hit.score, best.get(hit.entry.id, (0.0, hit.entry))[0])
                    best[hit.entry.id] = score, hit.entry
        return [entry for _, entry in sorted(best.values(), key=lambda item: (-item[0], item[1].id))[:_KNOWN]]

    def _entries(
        self, accepted: Sequence[Proposal], run: str, dropped: Counter[str]
    ) -> tuple[list[MemoryEntry], dict[str, str]]:
        """Return the entries of the accepted facts, and the ids of those that replace a known fact with its id. A fact
        that only repeats another one is superseded by it, so that it holds if the other one is removed."""
        languages = EntryLanguages()
        entries = [entry_of(proposal, run) for proposal in accepted]
        pairs: dict[str, str] = {}
        repeats: dict[str, str] = {}
        for entry, (_, _, _, relation, known) in zip(entries, accepted, strict=True):
            if known is None or relation in ("new", "adds"):
                continue
            if not _may_relate(known, entry, languages):
                dropped["relation"] += 1
            elif relation == "known":
                repeats[entry.id] = known.id
            elif known.id not in pairs.values():
                pairs[entry.id] = known.id
        repeats |= self._equal(entries, {**repeats, **pairs}, languages)
        for fact in repeats.keys() & pairs.keys():
            del pairs[fact]
        return [replace(entry, superseded_by=repeats.get(entry.id)) for entry in entries], pairs

    def _equal(
        self, entries: Sequence[MemoryEntry], related: Mapping[str, str], languages: EntryLanguages
    ) -> dict[str, str]:
        """Return the entries with the text of another fact of the same owner, each with the id of this fact: a stored
        one that still holds, or else the newest one of these entries."""
        stored = {(owner(entry), entry.content): entry for entry in self._with_texts(entries)}
        holders: dict[tuple[object, str], MemoryEntry] = {}
        equal: dict[str, str] = {}
        for n in range(len(entries) - 1, -1, -1):
            entry, key = entries[n], (owner(entries[n]), entries[n].content)
            if entry.id in related:
                continue
            known = stored.get(key)
            if known is not None and not self._no_longer_holds(known, entries[:n], languages):
                equal[entry.id] = known.id
            elif key in holders:
                equal[entry.id] = holders[key].id
            else:
                holders[key] = entry
        return equal

    def _no_longer_holds(self, known: MemoryEntry, newer: Sequence[MemoryEntry], languages: EntryLanguages) -> bool:
        pairs = [(known, entry) for entry in newer if owner(entry) == owner(known)]
        return any(FactComparison(languages).replaced(pairs)) or self._recall.is_replaced(known)

    def _with_texts(self, entries: Sequence[MemoryEntry]) -> Iterator[MemoryEntry]:
        texts = sorted({entry.content for entry in entries})
        for start in range(0, len(texts), _IN_FILTER):
            where = Condition("in", "$content", tuple(texts[start : start + _IN_FILTER]))
            scope = Scope(entries[0].namespace, kinds=(FACT,), where=where)
            yield from filter(is_live, all_entries(self._backend, scope))


def _may_relate(known: MemoryEntry, entry: MemoryEntry, languages: EntryLanguages) -> bool:
    """Return whether a fact may repeat or replace a known one: both have the same owner and speaker and a word in
    common, and the known one is not newer."""
    same = owner(known) == owner(entry) and moment(known)[0] <= moment(entry)[0]
    facts = FactComparison(languages)
    return same and bool({*facts.keys(known)} & {*facts.keys(entry)})


def _overlap(one: str, other: str) -> bool:
    return bool(other) and (one in other or other in one)


def _learnt(entry: MemoryEntry, old: str | None) -> LearntFact:
    at = entry.valid_from or entry.occurred_at
    return LearntFact(entry.id, entry.content, entry.raw or "", entry.parent_id or "", entry.speaker, at, old)


_LANGUAGE_FROM = 1_000  # code points of a message from which its language is detected
_PER_MESSAGE = 5  # facts of one message; a message with more is a list or a story


def proposals(messages: Sequence[MemoryEntry]) -> Iterator[Proposal]:
    """Yield the facts that the messages state by the form of their clauses, in order, without a language model. The
    text of a fact is its quote."""
    common = detect_language(" ".join(message.content[:200] for message in messages))
    languages = [detect_language(message.content[:_LANGUAGE_FROM], common) for message in messages]
    names = {
        word.casefold()
        for message, language in zip(messages, languages, strict=True)
        for name in inner_names(message.content[:_LANGUAGE_FROM], language)
        for word in name.split()
        if not months(word) and not weekdays(word)
    }
    for message, language in zip(messages, languages, strict=True):
        for start, end in facts_told(message.content, language, names)[:_PER_MESSAGE]:
            quote = message.content[start:end]
            yield Proposal(message, quote, quote)
