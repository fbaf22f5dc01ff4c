"""Standing instructions: sentences in which a person tells an agent how to act from now on ("Always answer in metric
units.", "From now on, call me Kim."), or what the person prefers ("I prefer short answers"). The words are in
the files of the languages.

Only the form of a sentence is read. A sentence about a habit ("I always take the bus") or a single request ("Please
translate this") is no instruction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from agentformer.text.language_files import lists, sections, with_trait
from agentformer.text.normalize import normalized
from agentformer.text.splitting import ends_with_question, sentence_spans

_MAX_TEXT = 4_000  # code points of a message that are read
_MAX_SENTENCE = 400  # a longer sentence explains something, and says little about how to act
_MOST = 5  # instructions of one message
_NEAR = 3  # first words of a sentence, among which a verb and a word such as "always" stand
_UNSPACED = with_trait("no spaces")
_MARKS = " \t\n-*•–\"'“”‘’(["


def instructions_in(text: str) -> list[str]:
    """Return the sentences of a message that are instructions or preferences, in their order, at most five.

    >>> instructions_in("Thanks! From now on, answer in metric units. What is a mile?")
    ['From now on, answer in metric units.']
    """
    text = text[:_MAX_TEXT]
    sentences = (text[start:end].strip() for start, end in sentence_spans(text))
    return [each for each in sentences if len(each) <= _MAX_SENTENCE and is_instruction(each)][:_MOST]


def is_instruction(sentence: str) -> bool:
    """Return whether a sentence is an instruction or a preference. A question is none, unless it states a preference,
    as in "I prefer trains, can you find one?"."""
    folded = normalized("NFKC", sentence).casefold().replace("’", "'").lstrip(_MARKS)
    if _pattern("prefers").search(folded):
        return True
    if ends_with_question(sentence):
        return False
    if any(
        any(word in folded for word in _items("always", language))
        and any(word in folded for word in _items("acts", language))
        for language in _UNSPACED
    ):
        return True
    plain = _pattern("polite").sub("", folded)
    if _pattern("not").match(plain):
        return False
    return any(_pattern("opens").match(each) for each in (folded, plain)) or _orders(plain)


def _orders(folded: str) -> bool:
    """Return whether a verb of an agent and a word such as "always" of one language are among the first words."""
    first = set(re.findall(r"[^\W\d_]+", folded[:80])[:_NEAR])
    return any(first & _items("acts", name) and first & _items("always", name) for name in _languages() - _UNSPACED)


@cache
def _languages() -> frozenset[str]:
    return frozenset(sections("instructions"))


@cache
def _items(kind: str, language: str) -> frozenset[str]:
    return frozenset(normalized("NFKC", item).casefold() for item in lists("instructions", kind).get(language, ()))


@cache
def _pattern(kind: str) -> re.Pattern[str]:
    """Return the pattern of a kind of phrases in all languages. `polite` matches only at the beginning of a text."""
    spaced = _any_of(item for name in _languages() - _UNSPACED for item in _items(kind, name))
    unspaced = _any_of(item for name in _UNSPACED for item in _items(kind, name))
    if kind == "polite":
        return re.compile(rf"\A(?:(?:{spaced})\b[\s,]{{0,3}})+")
    object_follows = r"(?=\s+\w)" if kind == "prefers" else r"(?!\w)"  # "the ones I prefer" states nothing
    return re.compile(rf"(?<!\w)(?:{spaced}){object_follows}" + (f"|{unspaced}" if unspaced else ""))


def _any_of(items: Iterable[str]) -> str:
    return "|".join(sorted(map(re.escape, items), key=lambda item: (-len(item), item)))
