"""Facts that have one value at a time, such as "Anna lives in Oslo" and "Phone: 040 123". Two texts contradict each
other if they state such a fact with different values.

The comparison uses words and does not understand their meaning. Therefore it uses only verbs and labels that have one
value at a time, such as "lives in" and "costs", but not "likes". If the value is a number, the words after the number
must also be equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from agentformer.text import data_lines
from agentformer.text.dates import months, weekdays
from agentformer.text.languages import FUNCTION_WORDS, NEGATIONS
from agentformer.text.splitting import sentence_spans

MAX_LENGTH = 300  # code points of an entry; a longer entry contains more than one fact
SENTENCES = 3  # number of sentences of an entry that are read
_SUBJECT_WORDS = 6  # maximum number of words before the verb
_VALUE_WORDS = 3  # number of words of a value that are compared
_LABEL_WORDS = 4  # maximum number of words before a colon
_WORDS_BETWEEN = 2  # maximum number of function words between the verb and the value
_ALIKE = ("sv", "no", "da")  # a short sentence may belong to any of these languages
_WORD = re.compile(r"[^\W_]+(?:[-.,:/@'’+][^\W_]+)*")
_LABELLED = re.compile(r"\s*([^\n:]{2,60}):\s+(\S[^\n]{0,80})")
_ARTICLES = frozenset(
    {"a", "an", "the", "my", "your", "his", "her", "our", "their", "en", "ett", "ei", "et", "den", "det", "de"}
    | {"ein", "eine", "einen", "einem", "einer", "der", "die", "das", "dem"}
)
# Subjects that mean a different person or thing in each text.
PRONOUNS = frozenset(
    {"he", "she", "it", "they", "this", "that", "who", "hän", "se", "ne", "joka", "han", "hon", "hun", "ho", "det"}
    | {"den", "de", "dette", "som", "er", "sie", "es", "dies", "das", "der", "die"}
)
_PREPOSITIONS = frozenset({"in", "at", "i"})  # words between a copula and a location
_CAPITAL_NOUNS = frozenset({"de"})  # languages that capitalize nouns
_ENDINGS = ("ssa", "ssä", "lla", "llä")  # Finnish case endings of places; Finnish uses them instead of prepositions


def _phrases(kind: str) -> dict[str, frozenset[tuple[str, ...]]]:
    """Return the phrases of a kind in `single_values.txt` for each language. A phrase is a tuple of words."""
    lines = [line.split() for line in data_lines(Path(__file__).with_name("single_values.txt"))]
    return {own[0]: frozenset(tuple(phrase.split("_")) for phrase in own[2:]) for own in lines if own[1] == kind}


_VERBS, _COPULAS, _NOW = map(_phrases, ("verbs", "copulas", "now"))
_LABELS = frozenset[tuple[str, ...]]().union(*_phrases("labels").values())


class _Statement(NamedTuple):
    """A fact in a text: the words of its subject and verb, or of its label, and the words of its value."""

    about: tuple[str, ...]
    value: tuple[str, ...]


def current_facts(
    content: str, language: str, *, labels: bool
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], str]]:
    """Yield the facts of a text that have one value at a time. Each fact consists of the words that two contradicting
    facts share (subject and verb, or label), the words of its value, and the sentence. A text of more than `MAX_LENGTH`
    code points gives no facts. `language` is the language of the text (ISO 639-1); lines with a label are read if
    `labels` is True."""
    if len(content) > MAX_LENGTH:
        return
    candidates = _ALIKE if language in _ALIKE else (language,) if language in _VERBS else tuple(_VERBS)
    for start, end in sentence_spans(content)[:SENTENCES]:
        sentence = content[start:end].strip()
        if sentence.endswith(("?", "？")):
            continue
        labelled = _LABELLED.fullmatch(sentence) if labels else None
        words = _WORD.findall(sentence)
        read = (_labelled(labelled),) if labelled else (_stated(words, language) for language in candidates)
        if statement := next(filter(None, read), None):
            yield statement.about, statement.value, sentence


def _labelled(match: re.Match[str]) -> _Statement | None:
    """Return the fact in a line that consists of a label and a value, such as "Phone: 040 123". Return None if the
    label is not known to have one value at a time."""
    label, value = (tuple(_WORD.findall(part.casefold())) for part in match.groups())
    known = label[-1:] in _LABELS or label[-2:] in _LABELS
    if len(label) <= _LABEL_WORDS and 0 < len(value) <= _VALUE_WORDS and known:
        return _Statement((*label, ":", "#" * value[0][0].isdecimal()), value)
    return None


def _stated(written: Sequence[str], language: str) -> _Statement | None:
    written = [word for word in written if (word.casefold(),) not in _NOW[language]]
    words = [word.casefold() for word in written]
    if any(word in NEGATIONS[language] or word.endswith(("n't", "n’t")) for word in words):
        return None
    for at in range(min(_SUBJECT_WORDS + 1, len(words))):
        for size in (3, 2, 1):
            verb = tuple(words[at : at + size])
            if verb in _VERBS[language] or verb in _COPULAS[language]:
                return _with_value(words[:at], verb, written[at + size :], language)
    return None


def _with_value(subject: Sequence[str], verb: tuple[str, ...], rest: Sequence[str], language: str) -> _Statement | None:
    """Return the fact that consists of the subject, the verb, and the name or number in `rest`, the words after the
    verb. Return None if there is no such name or number."""
    function_words = FUNCTION_WORDS[language]
    first = next((n for n, word in enumerate(rest) if word.casefold() not in function_words), len(rest))
    if first > _WORDS_BETWEEN or first == len(rest):
        return None
    between, value = [word.casefold() for word in rest[:first]], [word.casefold() for word in rest[first:]]
    copula = verb in _COPULAS[language]
    if PRONOUNS.intersection(subject[-1:]) or (copula and all(word in function_words for word in subject)):
        return None  # "she lives in Turku", "here is 5 euros"
    if value[0][0].isdecimal():
        return _Statement((*subject, *verb, *between, "#", *value[1:]), (value[0],))
    if not _ARTICLES.isdisjoint(between):
        return None  # "in a big house" may be in Turku, too
    ending = next((ending[:2] for ending in _ENDINGS if value[0].endswith(ending)), "") if language == "fi" else ""
    if copula and not ending and (language in _CAPITAL_NOUNS or not _PREPOSITIONS.intersection(between)):
        return None  # "Anna is tall" and "Anna is a nurse" both hold
    named = tuple(word.casefold() for word in takewhile(_is_name, rest[first : first + _VALUE_WORDS]))
    return _Statement((*subject, *verb, *between, ending), named) if named else None


def _is_name(word: str) -> bool:
    """Return whether a word begins with a capital letter and is not a month or a weekday. Months are excluded because
    "in Turku" and "in May" would otherwise be two contradicting places."""
    return word[0].isupper() and not months(word) and not weekdays(word)
