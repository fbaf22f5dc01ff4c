"""Read what a text states: its words, with their kinds. `replacement_features.py` compares the words of two statements.

The words that matter are in the sections `statements` and `comparison` of the files of the languages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from agentformer.text.dates.notation import months, weekdays
from agentformer.text.facts.numbers_and_dates import LABEL, is_year, number_values
from agentformer.text.language_files import items_of, language_files, sections
from agentformer.text.languages.detection import FUNCTION_WORDS, NEGATIONS, NUMBER_WORDS, detect_language, stem
from agentformer.text.normalize import normalized
from agentformer.text.splitting import sentence_spans

MAX_FACT_LENGTH = 300  # code points of an entry; a longer entry contains more than one fact
_WORDS = 80  # number of words of a text that are read
_KEY = 4  # letters of a word in a key; its forms have them in common
_CACHED = 16_384  # texts whose statements a process keeps
PHRASE = 3  # maximum number of words of a phrase in the files of the languages
_CODES = {"en": ("en",), "fi": ("fi",), "sv": ("sv", "no", "da"), "de": ("de",), "ja": ("ja",), "fr": ("fr",)}
_CODES["es"] = ("es",)
_GROUP_OF = {code: group for group, codes in _CODES.items() for code in codes}
_WORD = re.compile(r"[^\W_]+(?:[.,:/@'’+-][^\W_]+)*")
_EAST_WORD = re.compile(r"[a-z][a-z.\d]*|\d+(?:[.:,]\d+)*|[\u30a0-\u30ff]+|[\u3400-\u9fff々]+", re.IGNORECASE)
_EAST_TIME = re.compile(r"[月火水木金土日]曜?日?|[年月日時分]")
_EAST_NEGATION = re.compile("ません|ない")
_LABELLED = re.compile(r"\s*[^\n:：]{2,60}[:：]\s")
CLASSES = frozenset({"home", "work", "use", "marital", "diet"})  # kinds of words of one property
_NONE = frozenset[str]()
_SKIPPED = frozenset({"i", "changes", "now", "negations"})  # kinds of words that are no words of the topic
_SAME = {"new": "now", "we": "i", "my": "i"}  # kinds that a comparison does not distinguish


class Statement(NamedTuple):
    """What a text states. `words` are the stems of its words in their order, without function words and words of
    change. `types` has a letter for each of them: "w" a word, "n" a name, "#" a number, "t" a time. `kinds` are the
    lists of the language that have words of the text. `first` is the first word as written, `number` the number of the
    thing ("12" in "Room 12 is free"), and `labelled` is True for a line such as "Phone: 040 123". A question states
    nothing; `asks` is True if the text has one."""

    words: tuple[str, ...]
    types: str
    kinds: frozenset[str]
    first: str
    number: str
    labelled: bool
    asks: bool


def language_group(older: str, newer: str, languages: tuple[str, str]) -> str:
    """Return the group of the language of two texts, or "" if it is unknown. `languages` are those of the texts (ISO
    639-1), or "". The detected language of a short text may be wrong, so if they differ, both texts are read at once.
    """
    one, other = (_GROUP_OF.get(language, "") for language in languages)
    return one if one and one == other else _GROUP_OF.get(detect_language(f"{older}\n{newer}"), one or other)


@lru_cache(maxsize=_CACHED)
def statement(content: str, group: str) -> Statement:
    """Return what a text states. `group` is a group of languages, or "": then the words of all languages count."""
    whole = normalized("NFKC", content)
    text = _stated(whole)
    words: list[str] = []
    types: list[str] = []
    kinds = set[str]()
    if group == "ja":
        kinds.update(*(found for phrase, found in _words_of(group).items() if phrase[0] in text))
        if _EAST_NEGATION.search(text):
            kinds.add("negations")
        for word in _EAST_WORD.findall(text)[:_WORDS]:
            if _words_of(group).get((word,), _NONE).isdisjoint(_SKIPPED):
                words.append(word.casefold())
                types.append("#" if word[0].isdecimal() else "t" if _EAST_TIME.fullmatch(word) else "n")
    else:
        written = _WORD.findall(text.replace("’", "'"))[:_WORDS]
        folded = [word.casefold() for word in written]
        for at, found in _phrases(folded, group):
            kinds |= found
            name = at > 0 and written[at][0].isupper() and group != "de"
            if value := _value(folded[at], group, found, name):
                words.append(value[0])
                types.append(value[1])
    start, number = _WORD.search(text.casefold()), LABEL.match(text)
    first, labelled = start[0] if start else "", _LABELLED.match(text) is not None
    thing = number[1] if number else ""
    return Statement(tuple(words), "".join(types), frozenset(kinds), first, thing, labelled, text != whole)


def _stated(text: str) -> str:
    """Return a text without its questions."""
    if "?" not in text:
        return text
    sentences = (text[start:end] for start, end in sentence_spans(text))
    return " ".join(sentence for sentence in sentences if not sentence.rstrip().endswith("?"))


def is_long(content: str) -> bool:
    """Return whether a text is too long to be compared with others: it has more than `MAX_FACT_LENGTH` code points."""
    return len(content) > MAX_FACT_LENGTH


def keys(content: str, language: str) -> tuple[str, ...]:
    """Return the keys of what a text states: the beginnings of its words, and "~home" for words such as "lives" and
    "moved" (see `CLASSES`). Two texts with a common key may be about the same property. `language` is ISO 639-1, or ""
    if unknown. A text of more than `MAX_FACT_LENGTH` code points has none."""
    if is_long(content):
        return ()
    found = statement(content, _GROUP_OF.get(language, ""))
    words = (word[:_KEY] for word, kind in zip(found.words, found.types, strict=True) if kind != "t")
    classes = (f"~{kind}" for kind in sorted(found.kinds & CLASSES) if found.words)
    return tuple(dict.fromkeys((*words, *classes)))


def phrase_kinds(added: str, codes: Iterable[str]) -> dict[tuple[str, ...], frozenset[str]]:
    """Return the kinds of each phrase of the languages `codes`: the lists of the sections `statements` and `added` that
    have it, and "negations" for a negation. The key of a phrase that ends with any letters ends with "*"."""
    phrases: dict[tuple[str, ...], frozenset[str]] = {}
    for code in codes:
        listed = [*sections("statements").get(code, {}).items(), *sections(added).get(code, {}).items()]
        found = [(kind, item) for kind, text in listed for item in items_of(text)]
        for kind, item in (*found, *(("negations", word) for word in NEGATIONS.get(code, ()))):
            phrase = tuple(item.casefold().split())
            phrases[phrase] = phrases.get(phrase, _NONE) | {kind}
    return phrases


@cache
def _words_of(group: str) -> dict[tuple[str, ...], frozenset[str]]:
    known = phrase_kinds("comparison", _CODES.get(group, language_files()))
    return {phrase: frozenset(_SAME.get(kind, kind) for kind in kinds) for phrase, kinds in known.items()}


@cache
def _first_words(group: str) -> frozenset[str]:
    return frozenset(phrase[0] for phrase in _words_of(group) if len(phrase) > 1)


@cache
def _function_words(group: str) -> frozenset[str]:
    return _NONE.union(*(FUNCTION_WORDS.get(code, _NONE) for code in _CODES.get(group, FUNCTION_WORDS)))


def _phrases(folded: Sequence[str], group: str) -> Iterator[tuple[int, frozenset[str]]]:
    """Yield the position of each word, and the kinds of the longest known phrase that contains it."""
    known, first_words = _words_of(group), _first_words(group)
    at = 0
    while at < len(folded):
        size, kinds = 1, _kinds_of(folded[at], group)
        if folded[at] in first_words:
            for length in range(min(PHRASE, len(folded) - at), 1, -1):
                if found := known.get(tuple(folded[at : at + length])):
                    size, kinds = length, found
                    break
        for place in range(at, at + size):
            yield place, kinds
        at += size


@lru_cache(maxsize=_CACHED)
def _kinds_of(word: str, group: str) -> frozenset[str]:
    known = _words_of(group)
    beginnings = (known.get((f"{word[:length]}*",), _NONE) for length in range(len(word), 2, -1))
    found = known.get((word,), _NONE) | next(filter(None, beginnings), _NONE)
    return found | {"negations"} if word.endswith("n't") else found


@lru_cache(maxsize=_CACHED)
def _value(word: str, group: str, kinds: frozenset[str], name: bool) -> tuple[str, str] | None:
    """Return the stem or the number of a folded word, and its type, or None for a word that does not name the topic."""
    if word[0].isdecimal() and not any(map(str.isalpha, word)):
        value = " ".join(sorted(number_values(word))) or word
        return value, "t" if is_year(value) else "#"
    if months(word) or weekdays(word.rstrip("s")):
        return stem(word, group), "t"
    if word in _function_words(group) or kinds & _SKIPPED:
        return None
    numbers = (NUMBER_WORDS[code][word] for code in _CODES.get(group, ()) if word in NUMBER_WORDS.get(code, {}))
    if number := next(numbers, ""):
        return number, "#"
    code = any(map(str.isdecimal, word))
    return stem(word.removesuffix("'s"), group), "n" if name or code else "w"
