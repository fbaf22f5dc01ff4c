"""The search by words. The terms of `text.analysis` are stored in tables of the database, and entries are ranked by
BM25, as in the word index of the backend `faiss`.

The terms of a changed entry are written in the transaction that changes the entry, so a search sees every acknowledged
write. The tables contain the number of entries for each term, and the numbers of entries and terms for each language.
These numbers are counted over the whole store, as in the backend `faiss`, because this gives better ranks in small
namespaces. Other namespaces therefore influence the rarity of a word, but their entries are never read.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from agentformer.index.scope_masks import ScopeMask
from agentformer.index.words.fields import (
    BOOSTS,
    K1,
    AnalyzedEntry,
    B,
    WeightedTerm,
    query_languages,
    rarity,
    stored_length,
    weighted_terms,
    without_common_terms,
)
from agentformer.index.words.query import Scored, WordHits, covered_share, stem_rarities
from agentformer.memory.backends.postgres.connection import PostgresConnection
from agentformer.memory.backends.postgres.searching import SearchReads, scope_condition
from agentformer.records import entries as records
from agentformer.records.change_feed import neighbor_texts
from agentformer.text.analysis import QueryTerms
from agentformer.text.language_extras import PLAIN, Analyzers
from agentformer.types import UNSEARCHED_KINDS, MemoryEntry, RecordStore, Scope

_SMALL_SCOPE = 5_000  # entries; in a smaller scope, only entries of the scope get a score
_MORE = 25  # additional entries that are requested, so that usually no entry with an equal score is cut off
_HEAD = 3  # number of first entries of a result for which `covered` is computed
_FIELDS = tuple(BOOSTS)
_BATCH = 500  # entries analyzed at a time

_SCORES = """
    SELECT p.num, sum(q.weight * p.times / (p.times + %s * (1 - %s + %s * p.length / q.mean))) AS score
    FROM unnest(%s::bigint[], %s::float8[], %s::float8[]) AS q (term, weight, mean)
    JOIN words AS p ON p.namespace = %s AND p.term = q.term
"""
_HELD = """
    SELECT sum(q.weight) FROM unnest(%s::bigint[], %s::float8[]) AS q (term, weight)
    JOIN words AS p ON p.namespace = %s AND p.term = q.term WHERE p.num = ANY(%s::bigint[]) GROUP BY p.num
"""
_ADD = """
    INSERT INTO words (namespace, term, num, times, length) SELECT (%s::text[])[n], t, e, o, l
    FROM unnest(%s::integer[], %s::bigint[], %s::bigint[], %s::integer[], %s::integer[]) AS u (n, t, e, o, l)
"""
_ADD_ENTRIES = """
    INSERT INTO word_entries (num, namespace, language, lengths, terms, digest)
    SELECT n, s, l, h::integer[], t::bigint[], d
    FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bytea[]) AS u (n, s, l, h, t, d)
"""
_REMOVE = """
    DELETE FROM words AS p USING word_entries AS e
    WHERE e.num = ANY(%s) AND p.namespace = e.namespace AND p.term = ANY(e.terms) AND p.num = e.num
"""
_COUNT = """
    INSERT INTO word_counts AS c (term, entries) SELECT t, d FROM unnest(%s::bigint[], %s::bigint[]) AS u (t, d)
    ON CONFLICT (term) DO UPDATE SET entries = c.entries + excluded.entries
"""
_TOTAL = """
    INSERT INTO word_totals AS t VALUES (%s, %s, %s) ON CONFLICT (language) DO UPDATE SET
    entries = t.entries + excluded.entries,
    lengths = ARRAY[t.lengths[1] + excluded.lengths[1], t.lengths[2] + excluded.lengths[2],
        t.lengths[3] + excluded.lengths[3]]
"""


class _Terms(NamedTuple):
    """The terms of one entry in the form in which they are stored. `postings` contains for each term its hash, its
    number of occurrences, and the length of its field."""

    num: int
    namespace: str
    language: str
    lengths: list[int]
    postings: list[tuple[int, int, int]]
    digest: bytes  # of the namespace, language and postings; if it is equal, nothing is written


Prepared = Mapping[str, tuple[MemoryEntry, _Terms]]  # id of an entry -> the entry and its terms
_NOTHING: Prepared = {}


def term_hash(field: str, term: str) -> int:
    """Return the number under which a term of a field is stored."""
    digest = hashlib.blake2b(f"{field}\0{term}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def update_words(
    connection: PostgresConnection, nums: Sequence[int], analyzers: Analyzers, prepared: Prepared = _NOTHING
) -> None:
    """Write the terms of these entries again, and remove those of missing entries. `prepared` contains the terms that
    `prepare` has computed before the transaction."""
    for start in range(0, len(nums), _BATCH):
        _update_batch(connection, nums[start : start + _BATCH], analyzers, prepared)


def prepare(entries: Sequence[MemoryEntry], analyzers: Analyzers) -> Prepared:
    """Analyze entries before the transaction that stores them, because other writers wait for this transaction.
    Messages of a session are left out, because their terms depend on their neighbors."""
    return {
        entry.id: (entry, _terms(0, entry, analyzers, ()))
        for entry in entries
        if entry.kind not in UNSEARCHED_KINDS and not (entry.kind == "message" and entry.session_id is not None)
    }


def differing(connection: PostgresConnection, nums: Sequence[int], analyzers: Analyzers) -> list[int]:
    """Return the numbers of those entries whose stored terms are not the terms of their texts."""
    new = {terms.num: terms.digest for terms in _analyze(connection, nums, analyzers)}
    old = {
        row[0]: bytes(row[1])
        for row in _raw(connection, "SELECT num, digest FROM word_entries WHERE num = ANY(%s)", nums)
    }
    return [num for num in nums if new.get(num) != old.get(num)]


def _update_batch(
    connection: PostgresConnection, nums: Sequence[int], analyzers: Analyzers, prepared: Prepared
) -> None:
    query = "SELECT num, namespace, language, lengths, terms, digest FROM word_entries WHERE num = ANY(%s)"
    old = {row[0]: row for row in _raw(connection, query, nums)}
    new = _analyze(connection, nums, analyzers, prepared)
    current = {terms.num for terms in new if terms.num in old and bytes(old[terms.num][5]) == terms.digest}
    new = [terms for terms in new if terms.num not in current]
    outdated = [num for num in old if num not in current]
    counts: Counter[int] = Counter()  # hash of a term -> change of the number of entries that contain it
    totals: dict[str, list[int]] = {}  # language -> changes of the number of entries and of the length of each field
    for num in outdated:
        _, _, language, lengths, terms, _ = old[num]
        counts.subtract(terms)
        _add(totals, language, -1, lengths)
    for entry in new:
        counts.update(posting[0] for posting in entry.postings)
        _add(totals, entry.language, 1, entry.lengths)
    if outdated:
        connection.execute(_REMOVE, [outdated])
        connection.execute("DELETE FROM word_entries WHERE num = ANY(%s)", [outdated])
    if new:
        _insert(connection, new)
    changed_counts = sorted((term, count) for term, count in counts.items() if count)
    if changed_counts:
        connection.execute(_COUNT, [*map(_array, zip(*changed_counts, strict=True))])
    for language, (entries, *lengths) in sorted(totals.items()):
        if entries or any(lengths):
            connection.execute(_TOTAL, [language, entries, lengths])


def _insert(connection: PostgresConnection, new: Sequence[_Terms]) -> None:
    namespaces = list({entry.namespace for entry in new})
    places = {name: number for number, name in enumerate(namespaces, 1)}
    rows = [(places[e.namespace], term, e.num, times, length) for e in new for term, times, length in e.postings]
    if rows:
        connection.execute(_ADD, [namespaces, *map(_array, zip(*rows, strict=True))])
    arrays = [(_array(e.lengths), _array(posting[0] for posting in e.postings)) for e in new]
    entries = [(e.num, e.namespace, e.language, *array, e.digest) for e, array in zip(new, arrays, strict=True)]
    connection.execute(_ADD_ENTRIES, [list(column) for column in zip(*entries, strict=True)])


def _array(numbers: Iterable[int]) -> str:
    """Return an array as a PostgreSQL literal. Several arrays are sent as a list of literals, because PostgreSQL has no
    arrays of arrays with different lengths. A literal is also faster than a list for psycopg."""
    return f"{{{','.join(map(str, numbers))}}}"


def _add(totals: dict[str, list[int]], language: str, sign: int, lengths: Sequence[int]) -> None:
    sums = totals.setdefault(language, [0] * (1 + len(_FIELDS)))
    sums[:] = [one + sign * other for one, other in zip(sums, (1, *lengths), strict=True)]


def _analyze(
    connection: PostgresConnection, nums: Sequence[int], analyzers: Analyzers, prepared: Prepared = _NOTHING
) -> list[_Terms]:
    """Return the terms of these entries. Entries that do not exist or are never searched are left out."""
    result = []
    for num, entry in records.by_num(connection, nums).items():
        if entry.kind in UNSEARCHED_KINDS:
            continue
        known = prepared.get(entry.id)
        if known is not None and _analyzed_fields(known[0]) == _analyzed_fields(entry):
            result.append(known[1]._replace(num=num))
        else:
            result.append(_terms(num, entry, analyzers, neighbor_texts(connection, entry)))
    return result


def _analyzed_fields(entry: MemoryEntry) -> tuple[Any, ...]:
    """Return the values on which the terms of an entry without neighbors depend."""
    times = entry.occurred_at, entry.created_at
    session = entry.session_id if entry.kind == "message" else None
    return (entry.namespace, entry.kind, entry.content, entry.title, entry.context, entry.metadata, times, session)


def _terms(num: int, entry: MemoryEntry, analyzers: Analyzers, around: Sequence[str]) -> _Terms:
    analyzed = AnalyzedEntry.of(num, entry, analyzers, around)
    lengths = [len(analyzed.terms[name]) for name in _FIELDS]
    postings = sorted(
        (term_hash(name, term), times, stored_length(length))
        for name, length in zip(_FIELDS, lengths, strict=True)
        for term, times in Counter(analyzed.terms[name]).items()
    )
    state = json.dumps([entry.namespace, analyzed.language, postings]).encode()
    digest = hashlib.blake2b(state, digest_size=16).digest()
    return _Terms(num, entry.namespace, analyzed.language, lengths, postings, digest)


class _Statistics(NamedTuple):
    entries: int
    languages: dict[str, int]  # entries of each
    means: dict[str, float]  # field -> mean number of terms per entry


class ServerWords:
    """The words of a store, for searches by BM25. Thread-safe."""

    def __init__(self, reads: SearchReads, analyzers: Analyzers = PLAIN) -> None:
        self._reads = reads
        self._analyzers = analyzers

    def view(self, database: RecordStore, newest: int = -1) -> ServerWords:
        """Return this object. Each search sees every committed change, so `newest` (the number of the last change, if
        the caller knows it) is not used."""
        return self

    def search(
        self, query: QueryTerms, scope: Scope, limit: int, allowed: ScopeMask, dates: Sequence[str] = ()
    ) -> WordHits:
        """Return the best `limit` entries of the scope, best first. Entries with equal scores are sorted by number."""
        with self._reads.reading_in_helper() as connection:
            statistics = _statistics(connection)
            languages = query_languages(statistics.languages, statistics.entries, query.language)
            terms = weighted_terms(query.terms(languages, self._analyzers), dates)
            frequencies = _frequencies(connection, terms)
            language = max(statistics.languages, key=lambda name: statistics.languages[name], default="")
            terms = without_common_terms(terms, frequencies, statistics.entries, language)
            present = [term for term in terms if frequencies[term.field, term.term]]
            limit = min(limit, allowed.count)
            if not present or not limit:
                return WordHits([], [])
            values = _query_values(present, frequencies, statistics, scope.namespace)
            scored = _best(connection, values, scope, limit, small=allowed.count <= _SMALL_SCOPE)
            order = sorted(range(len(scored.entries)), key=lambda i: (-scored.scores[i], scored.entries[i]))[:limit]
            entries = scored.entries[order].tolist()
            hits = WordHits(entries, scored.scores[order].tolist())
            if dates:  # see `View.search`
                return hits
            rarities = stem_rarities(terms, frequencies, statistics.entries)
            # For each of the first entries with a stem, the sum of the rarities; see `CommittedIndex.held`.
            stems = [term_hash("stems", term) for term in rarities]
            values = [stems, [*rarities.values()], scope.namespace, entries[:_HEAD]]
            held = [row[0] for row in connection.execute(_HELD, values)]
        return hits._replace(covered=covered_share(held, rarities, statistics.languages))


def _statistics(connection: PostgresConnection) -> _Statistics:
    rows = connection.execute("SELECT language, entries, lengths FROM word_totals WHERE entries > 0", []).fetchall()
    languages = {row[0]: int(row[1]) for row in rows}
    entries = sum(languages.values())
    sums = [sum(row[2][n] for row in rows) for n in range(len(_FIELDS))]
    means = {name: total / entries if entries else 0.0 for name, total in zip(_FIELDS, sums, strict=True)}
    return _Statistics(entries, languages, means)


def _frequencies(connection: PostgresConnection, terms: Sequence[WeightedTerm]) -> dict[tuple[str, str], int]:
    hashes = {term_hash(field, term): (field, term) for field, term, _ in terms}
    query = "SELECT term, entries FROM word_counts WHERE term = ANY(%s::bigint[])"
    found = dict(connection.execute(query, [list(hashes)]).fetchall())
    return {key: int(found.get(number, 0)) for number, key in hashes.items()}


def _query_values(
    terms: Sequence[WeightedTerm], frequencies: dict[tuple[str, str], int], statistics: _Statistics, namespace: str
) -> list[Any]:
    weights = []
    for field, term, boost in terms:
        weights.append(boost * rarity(frequencies[field, term], statistics.entries) * (1 + K1))
    hashes = [term_hash(field, term) for field, term, _ in terms]
    means = [statistics.means[field] or 1.0 for field, _, _ in terms]
    return [K1, B, B, hashes, weights, means, namespace]


def _best(connection: PostgresConnection, values: list[Any], scope: Scope, limit: int, *, small: bool) -> Scored:
    """Return the best entries of the scope with their scores. All entries with the same score as the last of them are
    included. If `small` is True, only entries of the scope get a score, which is faster if they are few."""
    condition, more = scope_condition(scope)
    if small:
        inside = f"WITH inside AS MATERIALIZED (SELECT num FROM entries WHERE {condition})"
        # IS TRUE prevents a join, which would compare each score with each entry while the server has no statistics
        query = f"{inside} {_SCORES} WHERE (p.num IN (SELECT num FROM inside)) IS TRUE GROUP BY p.num"
        return _scored(connection.execute(query, [*more, *values]).fetchall())
    count = (limit + _MORE) * 2
    ranked = f"SELECT * FROM ({_SCORES} GROUP BY p.num) AS s ORDER BY score DESC, num LIMIT %s"
    # a separate statement: in a join, entries would be read once for each score if statistics are missing
    inside = f"SELECT num FROM entries WHERE num = ANY(%s::bigint[]) AND {condition}"
    while True:
        rows = connection.execute(ranked, [*values, count]).fetchall()
        allowed = {row[0] for row in connection.execute(inside, [[row[0] for row in rows], *more]).fetchall()}
        scored = _scored([row for row in rows if row[0] in allowed])
        least = min((row[1] for row in rows), default=0.0)
        ordered = sorted(scored.scores.tolist(), reverse=True)
        if len(rows) < count or (len(ordered) > limit and least < ordered[limit - 1]):
            return scored
        count *= 4


def _scored(rows: Iterable[Any]) -> Scored:
    rows = list(rows)
    return Scored.of([row[0] for row in rows], [row[1] for row in rows])


def _raw(connection: PostgresConnection, query: str, nums: Sequence[int]) -> list[Any]:
    return list(connection.execute(query, [list(nums)]).fetchall())
