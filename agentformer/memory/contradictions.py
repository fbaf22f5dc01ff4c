"""Contradictions between stored texts: `block_contradictions` compares the sentences of core blocks, and
`FactContradictions` compares facts. Both compare words and do not understand their meaning.

Facts are compared only if they have the same owner, title, source and metadata. Three kinds of contradictions are
detected:

- `value`: the same subject and verb, but another name or number ("Anna lives in Turku", "Anna lives in Oslo"). The
  file `text/facts/single_values.txt` lists the verbs.
- `number`: the same words in the same order, but one number differs ("The office closes at 17", "The office closes at
  18"). Only English sentences in the present tense are compared.
- `negation`: the same words in the same order, but one sentence is negated ("Anna drinks coffee", "Anna doesn't drink
  coffee"), in English, Finnish, Swedish, Norwegian, Danish and German.

Each fact is compared only with the facts that have the same key, so the time is proportional to the number of facts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, pairwise
from typing import NamedTuple

from agentformer.search.newest_facts import EARLIEST, owner, statements
from agentformer.search.relevance import EntryLanguages
from agentformer.text.analysis import query_terms
from agentformer.text.dates import find_dates
from agentformer.text.facts import Facts, conflict, facts_of, find_numbers, is_year, masked, number_values, values_of
from agentformer.text.facts.single_values import MAX_LENGTH, PRONOUNS, SENTENCES
from agentformer.text.languages import FUNCTION_WORDS, NEGATIONS, NUMBER_WORDS, detect_language, stem
from agentformer.text.normalize import normalized
from agentformer.text.splitting import sentence_spans
from agentformer.types import RESERVED_KINDS, MemoryEntry

_MIN_SIMILARITY = 0.6  # minimum Jaccard index of the terms of two sentences about the same subject
_MIN_SIMILARITY_NEGATED = 0.5  # lower, because in Finnish a negation also changes the verb: "pitää", "ei pidä"
_MAX_SENTENCES = 2_000
_MAX_REPORTED = 100
_MAX_SHARED = 200  # sentences that are compared because of one term; a more frequent term does not show the subject
_SAMPLED_BLOCKS = 20  # blocks from whose text the common language is detected
_MAX_LENGTH = 1_000  # at most this many code points of a sentence are compared


def _word_sets(**texts: str) -> dict[str, frozenset[str]]:
    return {language: frozenset(text.split()) for language, text in texts.items()}


_EVENTS = frozenset({"event", "error", "milestone"})  # kinds of entries about a moment: two of them can both be true
_SCANDINAVIAN = ("sv", "no", "da")  # a short sentence in one of these languages is often detected as another of them
_NEGATORS: Mapping[str, frozenset[str]] = _word_sets(
    en="not no never cannot",
    fi="ei en et emme ette eivät",
    sv="inte ej icke aldrig ingen inget inga ikke ikkje aldri",
    de="nicht kein keine keinen keinem keiner nie niemals",
)
# Words that do not change the statement of a sentence: articles, "do" in a negation, and "now".
_DROPPED: Mapping[str, frozenset[str]] = _word_sets(
    en="a an the do does any anymore longer now currently also",
    fi="nyt nykyään enää myös",
    sv="en ett ei et den det nu numera nå längre lenger også också",
    de="ein eine einen einem einer der die das den dem jetzt mehr auch",
)
_BASE = {"has": "have", "goes": "go", "ca": "can", "wo": "will", "sha": "shall", "cannot": "can"}
# Words of sentences about the past. Two such sentences can both be true.
_PAST: frozenset[str] = _word_sets(
    en="was were had did went got made took gave came saw said told met bought sold paid spent sent ran won lost left "
    "found wrote read ate drank slept drove flew swam began broke chose felt heard held kept knew led put sat spoke "
    "stood taught thought wore ago yesterday last"
)["en"]
_PRESENT = frozenset({"is", "are", "am", "has", "have"})
_NUMBER_VERBS = frozenset({"have", "need", "take", "cost", "weigh", "drink", "eat", "own", "pay", "earn", "want"})
_NAMING = frozenset({"bus", "class", "series", "status", "address", "process", "canvas"})  # "bus 5" is a name
_ARTICLES = frozenset({"en", "et"})  # words that are articles in some languages, and negations in Finnish
_MAX_FINNISH = 12  # maximum words of a Finnish sentence that is compared with negated sentences
_CONDITIONS = frozenset({"if", "when", "unless", "whether", "jos", "kun", "om", "när", "hvis", "når", "wenn", "falls"})
_TOKEN = re.compile(r"[#@]|[^\W\d_]+(?:['-][^\W\d_]+)*")


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two sentences of core blocks, or of facts, that contradict each other. `about` says in what they differ:
    `number`, `date`, `negation` or `value`. `ids`, `titles` and `sentences` are pairs in which the older entry comes
    first."""

    about: str
    ids: tuple[str, str]
    titles: tuple[str, str]
    sentences: tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Sentence:
    block: MemoryEntry
    text: str
    facts: Facts
    terms: frozenset[str]


def block_contradictions(blocks: Sequence[MemoryEntry]) -> tuple[tuple[Contradiction, ...], tuple[str, ...]]:
    """Return contradictions between sentences of core blocks, and notes. Only sentences whose blocks can be in the same
    context are compared. A note reports that a limit was reached, so that contradictions may be missing."""
    notes: list[str] = []
    sentences = list(islice(_sentences(blocks), _MAX_SENTENCES + 1))
    if len(sentences) > _MAX_SENTENCES:
        notes.append(f"only the first {_MAX_SENTENCES} sentences of the core blocks were searched for contradictions")
    contradictions = list(islice(_contradictions(sentences[:_MAX_SENTENCES]), _MAX_REPORTED + 1))
    if len(contradictions) > _MAX_REPORTED:
        notes.append(f"there are more than {_MAX_REPORTED} contradictions; only the first {_MAX_REPORTED} are listed")
    return tuple(contradictions[:_MAX_REPORTED]), tuple(notes)


def _contradictions(sentences: Sequence[_Sentence]) -> Iterator[Contradiction]:
    for one, other in _candidates(sentences):
        about = conflict(one.facts, other.facts)
        if about and _same_subject(one, other, about):
            ids, titles = (one.block.id, other.block.id), (one.block.title, other.block.title)
            yield Contradiction(about, ids, titles, (one.text, other.text))


def _sentences(blocks: Sequence[MemoryEntry]) -> Iterator[_Sentence]:
    common = detect_language(" ".join(block.content[:_MAX_LENGTH] for block in blocks[:_SAMPLED_BLOCKS]))
    for block in blocks:
        fallbacks = (detect_language(block.content), common)
        for start, end in sentence_spans(block.content):
            text = block.content[start : min(end, start + _MAX_LENGTH)]
            detected = detect_language(text)
            # The first language whose words of negation are known, if there is one.
            language = next((name for name in (detected, *fallbacks) if name in NEGATIONS), detected)
            facts = facts_of(text, language)
            stems = query_terms(facts.rest, [language]).stems if facts.rest else ()
            if terms := frozenset(stem.rpartition("~")[2] for stem in stems):
                yield _Sentence(block, text, facts, terms)


def _candidates(sentences: Sequence[_Sentence]) -> Iterator[tuple[_Sentence, _Sentence]]:
    """Yield the pairs of sentences that have a term in common and whose blocks can be in the same context. The number
    of pairs for a term is limited, because a frequent term does not show that two sentences have the same subject."""
    by_term: defaultdict[str, list[int]] = defaultdict(list)
    for n, sentence in enumerate(sentences):
        shared = {other for term in sentence.terms for other in by_term[term][:_MAX_SHARED]}
        for other in sorted(shared):
            if _share_context(sentences[other].block, sentence.block):
                yield sentences[other], sentence
        for term in sentence.terms:
            by_term[term].append(n)


def _share_context(one: MemoryEntry, other: MemoryEntry) -> bool:
    """Return whether both blocks can be in the same context. This is true if their agent, user and project are equal.
    An agent, user or project that is not set is equal to all others."""
    owners = ((one.agent_id, other.agent_id), (one.user_id, other.user_id), (one.project, other.project))
    return all(first is None or second is None or first == second for first, second in owners)


def _same_subject(one: _Sentence, other: _Sentence, about: str) -> bool:
    shared = len(one.terms & other.terms)
    least = _MIN_SIMILARITY_NEGATED if about == "negation" else _MIN_SIMILARITY
    return shared / len(one.terms | other.terms) >= (1.0 if shared == 1 else least)


class _Stated(NamedTuple):
    """A sentence of a fact. `value` is a name, a number, or whether the sentence is negated. Sentences that contradict
    each other have different values."""

    at: datetime
    entry_id: str
    title: str
    sentence: str
    value: tuple[str, ...]


class FactContradictions:
    """Collects facts, and finds the contradictions between them. `examined` is the number of facts that are compared,
    and `long` is the number of facts that are not compared because their texts are long."""

    def __init__(self) -> None:
        self._languages = EntryLanguages()
        self._stated: defaultdict[tuple[object, ...], list[_Stated]] = defaultdict(list)
        self.examined = self.long = 0

    def add(self, entry: MemoryEntry) -> None:
        """Add an entry. Entries that are not facts, such as messages and events, are ignored."""
        if entry.kind in RESERVED_KINDS | _EVENTS or entry.tier in ("core", "working"):
            return
        if len(entry.content) > MAX_LENGTH:
            self.long += 1
            return
        self.examined += 1
        group = owner(entry)
        written = entry.occurred_at or entry.created_at or EARLIEST, entry.id, entry.title
        for fact, value, sentence in statements(entry, self._languages):
            value = tuple(" ".join(sorted(number_values(word))) or word for word in value)
            self._stated["value", group, fact].append(_Stated(*written, sentence, value))
        language = self._languages.of(entry)
        for start, end in sentence_spans(entry.content)[:SENTENCES]:
            sentence = entry.content[start:end].strip()
            for about, key, state in _keys(sentence, language):
                self._stated[about, group, key].append(_Stated(*written, sentence, (state,)))

    def find(self) -> tuple[tuple[Contradiction, ...], tuple[str, ...]]:
        """Return the contradictions, newest first, and notes about limits that were reached and facts that were not
        compared."""
        pairs: dict[tuple[str, str], tuple[datetime, Contradiction]] = {}
        for about in ("value", "number", "negation"):  # a pair is reported only as the first of these kinds
            for key in (key for key in self._stated if key[0] == about):
                for one, other in _different(self._stated[key]):
                    ids = (one.entry_id, other.entry_id)
                    titles, sentences = (one.title, other.title), (one.sentence, other.sentence)
                    pairs.setdefault(ids, (other.at, Contradiction(about, ids, titles, sentences)))
        newest = sorted(pairs.values(), key=lambda pair: (pair[0], pair[1].ids), reverse=True)
        notes = []
        if len(newest) > _MAX_REPORTED:
            notes.append(f"{len(newest)} contradictions among facts; only the newest {_MAX_REPORTED} are listed")
        if self.long:
            notes.append(
                f"facts with more than {MAX_LENGTH} characters were not searched for contradictions: {self.long}"
            )
        return tuple(found for _, found in newest[:_MAX_REPORTED]), tuple(notes)


def _different(stated: Sequence[_Stated]) -> Iterator[tuple[_Stated, _Stated]]:
    """Compare each sentence with the next one in order of time, and yield the pairs with different values. A value that
    only adds words is not different: "Oslo, Norway" does not contradict "Oslo"."""
    if len(stated) > 1:
        for one, other in pairwise(sorted(stated, key=lambda each: (each.at, each.entry_id))):
            if one.entry_id != other.entry_id and any(a != b for a, b in zip(one.value, other.value, strict=False)):
                yield one, other


def _keys(sentence: str, language: str) -> Iterator[tuple[str, object, str]]:
    """Yield triples for a sentence: a kind of contradiction, a key and a value. Two sentences contradict each other if
    they have the same kind and key, but different values. The key contains the words of the sentence without the value:
    "The office closes at 17" has the value "17". If the language is unknown, as for many short sentences, yield the
    triples for each language."""
    language = "sv" if language in _SCANDINAVIAN else language
    text = normalized("NFKC", sentence).replace("’", "'").replace("#", " ")
    dates = find_dates(text)
    days = frozenset(mention.readings[0] for mention in dates)
    text = masked(text, dates)
    for candidate in [name for name in _NEGATORS if language in (name, "")]:
        words = _words(text, candidate, _NEGATORS[candidate] - (frozenset() if language else _ARTICLES))
        if len(words) > 1 and not text.endswith("?") and words[0].written not in PRONOUNS | _CONDITIONS:
            yield from _negation_keys(words, (candidate, days))
            if candidate == "en" and not _is_past(words):
                yield from _number_keys(words, days)


def _negation_keys(words: Sequence[_Word], prefix: tuple[object, ...]) -> Iterator[tuple[str, object, str]]:
    """Yield the triples of `_keys` of the kind `negation`. The value says whether the sentence is negated, and the key,
    which begins with `prefix` (language and days), is the same with and without a negation. In Finnish, a negation
    changes the verb ("pitää", "ei pidä"), so the key has only the first letters of the verb. In a negated sentence, the
    verb follows the negation. In another sentence, any word may be the verb, so there is a key for each word."""
    texts = [word.text for word in words]
    negated = [n for n, word in enumerate(words) if word.negated]
    if "fi" not in prefix:
        yield "negation", (prefix, *texts), str(bool(negated))
    elif len(words) <= _MAX_FINNISH:
        for n in negated[:1] or range(len(words)):
            yield "negation", (prefix, *texts[:n], f"{texts[n][:2]}~", *texts[n + 1 :]), str(bool(negated))


def _number_keys(words: Sequence[_Word], days: object) -> Iterator[tuple[str, object, str]]:
    texts = [word.text for word in words]
    negated = any(word.negated for word in words)
    for n, word in enumerate(words):
        if word.number and not is_year(word.text) and not (n and _is_named(words[n - 1])):
            yield "number", (days, negated, *texts[:n], "#", *texts[n + 1 :]), word.text


class _Word(NamedTuple):
    """A word of a sentence. `text` is its stem, or the value of a number. `negated` is True if the word follows a
    negation."""

    text: str
    written: str
    number: bool = False
    negated: bool = False


def _words(text: str, language: str, negators: frozenset[str]) -> list[_Word]:
    """Return the words of a sentence, without articles, the words in `negators`, and words such as "now"."""
    parts, end, values = [], 0, []
    for number in find_numbers(text):
        values.append(" ".join(sorted(values_of(text, number))))
        parts += [text[end : number.start], " # "]
        end = number.end
    following = iter(values)
    words: list[_Word] = []
    negated = False
    for match in _TOKEN.findall("".join([*parts, text[end:]]).casefold()):
        word = match.removesuffix("n't") if language == "en" else match
        negated |= word != match or match in negators
        word = _BASE.get(word, word)
        if match == "#" or word in NUMBER_WORDS[language]:
            value = next(following) if match == "#" else NUMBER_WORDS[language][word]
            words.append(_Word(value, word, number=True, negated=negated))
        elif word in negators or word in _DROPPED[language]:
            continue
        else:
            words.append(_Word(stem(word, language), word, negated=negated))
        negated = False
    if negated and words:  # a negation at the end: "Das stimmt nicht"
        words[-1] = words[-1]._replace(negated=True)
    return words


def _is_past(words: Sequence[_Word]) -> bool:
    """Return whether an English sentence is about the past. Two such sentences can both be true although a number
    differs."""
    written = {word.written for word in words}
    if not _PRESENT.isdisjoint(written):
        return False
    return not _PAST.isdisjoint(written) or any(len(word) > 4 and word.endswith("ed") for word in written)


def _is_named(before: _Word) -> bool:
    """Return whether a number names a thing, such as 12 in "room 12". `before` is the word in front of the number."""
    word = before.written
    counts = word in FUNCTION_WORDS["en"] or word in _NUMBER_VERBS or (len(word) > 3 and word.endswith("s"))
    return not counts or word in _NAMING
