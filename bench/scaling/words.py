"""The search by words of `postgres` beside `tsvector` with GIN, on the development sets: quality and time.

`ours` gets the terms of `text.analysis` with the weights of their fields, `parser` the texts with the parser and the
stemmer of PostgreSQL. All words of a question are joined by OR, since AND finds almost nothing.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentformer.evaluation.dataset import Dataset
from agentformer.evaluation.memory_evaluation import Trial
from agentformer.factory import trial
from agentformer.index.scope_masks import ScopeMask
from agentformer.index.words.fields import BOOSTS, AnalyzedEntry, weighted_terms
from agentformer.index.words.query import WordHits
from agentformer.memory.backends.postgres.connection import native
from agentformer.records import entries as records
from agentformer.settings import load_settings
from agentformer.text.analysis import QueryTerms
from agentformer.types import RecordStore, Scope
from bench.quality.sets import load

_LABELS = dict(zip(BOOSTS, "ACB", strict=True))  # the label of each field: stems, surface, parts
_WEIGHTS = "{0, 0.1, 0.6, 1.0}"  # of the labels D, C, B, A
_CONFIGS = {"en": "english", "de": "german", "fi": "finnish", "no": "norwegian", "sv": "swedish", "da": "danish"}
_MOST_POSITIONS = 16_383
_RANKED = """
    SELECT num, {rank} AS score FROM bench_words, (SELECT {query} AS asked) AS q WHERE {column} @@ asked
    ORDER BY score DESC, num LIMIT %s
"""
_ANY = "replace(plainto_tsquery('{config}', %s)::text, '&', '|')::tsquery"


@dataclass(frozen=True)
class Way:
    """A way to rank. `column` is `ours` or `parser`, and `rank` an expression of PostgreSQL."""

    name: str
    column: str
    rank: str


_WAYS = tuple(
    Way(
        f"{function}, {column}, normalization {normalization}",
        column,
        f"{function}({weights}{column}, asked, {normalization})",
    )
    for column, weights in (("ours", f"'{_WEIGHTS}'::float4[], "), ("parser", ""))
    for function in ("ts_rank_cd", "ts_rank")
    for normalization in (0, 1)
)


class TsWords:
    """Words as `search.pipeline` uses them, from `tsvector` columns. `seconds` has the time of each search."""

    def __init__(self, way: Way, languages: Sequence[str]) -> None:
        self._way = way
        self._languages = languages
        self._config = _CONFIGS.get(languages[0], "simple")
        self.seconds: list[float] = []

    def view(self, database: RecordStore, newest: int = -1) -> TsWords:
        self._database = database
        return self

    def search(
        self, query: QueryTerms, scope: Scope, limit: int, allowed: ScopeMask, dates: Sequence[str] = ()
    ) -> WordHits:
        started = time.perf_counter()
        if self._way.column == "ours":
            terms = weighted_terms(query.terms(set(self._languages)), dates)
            asked = " | ".join(f"{_quoted(field, term)}:{_LABELS[field]}" for field, term, _ in terms)
            sql, values = "%s::tsquery", [asked]
        else:
            sql, values = _ANY.format(config=self._config), [query.text]
        statement = _RANKED.format(rank=self._way.rank, query=sql, column=self._way.column)
        with self._database.reading() as connection:
            rows = native(connection).execute(statement, [*values, limit]).fetchall()
        self.seconds.append(time.perf_counter() - started)
        return WordHits([row[0] for row in rows], [row[1] for row in rows])


def compare_words(url: str, names: Sequence[str], sample: int) -> None:
    """Print recall and times of each way on each set."""
    settings = load_settings({"backend": "postgres", "postgres_url": url, "embedder": "hashing"})
    print("| set | ranking | R@5 | R@10 | ms at the median |\n|---|---|---|---|---|")
    for name in names:
        dataset = load(name, sample)
        with trial(settings) as memory:
            memory.load(dataset)
            search: Any = memory.backend._pipeline  # type: ignore[attr-defined]
            search._word_index = timed = _Timed(search._word_index)
            _report(name, "BM25 (agentformer)", memory, dataset, timed.seconds)
            languages = _fill(memory)
            for way in _WAYS:
                search._word_index = words = TsWords(way, languages)
                _report(name, way.name, memory, dataset, words.seconds)


class _Timed:
    """The words of the backend, with the time of each search."""

    def __init__(self, words: Any) -> None:
        self._words = words
        self.seconds: list[float] = []

    def view(self, database: RecordStore, newest: int = -1) -> _Timed:
        self._view = self._words.view(database, newest)
        return self

    def search(self, *arguments: Any) -> WordHits:
        started = time.perf_counter()
        hits: WordHits = self._view.search(*arguments)
        self.seconds.append(time.perf_counter() - started)
        return hits


def _report(name: str, way: str, memory: Trial, dataset: Dataset, seconds: list[float]) -> None:
    found = memory.evaluate(dataset, modes=("lexical",))
    recall = " | ".join(f"{found.figure(f'recall@{k}', 'lexical').value:.3f}" for k in (5, 10))
    print(f"| {name} | {way} | {recall} | {1000 * statistics.median(seconds):.1f} |", flush=True)


def _fill(memory: Trial) -> list[str]:
    """Make the table of `tsvector`s, and return the languages of the entries, the most frequent one first."""
    database = memory.backend._database  # type: ignore[attr-defined]
    with database.statements() as raw:
        rows = raw.execute("SELECT language FROM word_totals WHERE entries > 0 ORDER BY entries DESC", []).fetchall()
        languages = [row[0] for row in rows]
        config = _CONFIGS.get(languages[0], "simple")
        raw.execute("CREATE TABLE bench_words (num bigint PRIMARY KEY, ours tsvector, parser tsvector)", [])
        nums = [row[0] for row in raw.execute("SELECT num FROM word_entries ORDER BY num", [])]
        with database.reading() as connection:
            entries = records.by_num(connection, nums)
        for num, entry in entries.items():
            values = [num, _vector(AnalyzedEntry.of(num, entry)), f"{entry.title} {entry.context} {entry.content}"]
            raw.execute(f"INSERT INTO bench_words VALUES (%s, %s::tsvector, to_tsvector('{config}', %s))", values)
        for column in ("ours", "parser"):
            raw.execute(f"CREATE INDEX ON bench_words USING gin ({column})", [])
        raw.execute("ANALYZE bench_words", [])
    return languages


def _vector(entry: AnalyzedEntry) -> str:
    """Return the text of a `tsvector` with the terms of all fields at their places."""
    parts = []
    for field, terms in entry.terms.items():
        places: dict[str, list[str]] = {}
        for place, term in enumerate(terms, 1):
            places.setdefault(term, []).append(f"{min(place, _MOST_POSITIONS)}{_LABELS[field]}")
        parts += [f"{_quoted(field, term)}:{','.join(found[:255])}" for term, found in places.items()]
    return " ".join(parts)


def _quoted(field: str, term: str) -> str:
    text = json.dumps([field[0], term], ensure_ascii=False)
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
