"""Detect the language of a text, and reduce words to their stems. The module also lists the function words, negations
and number words of each language.

The detected language decides which stemmer is used. Detection uses the script of the text, its function words
(articles, pronouns, prepositions, auxiliaries), its letters, and the endings of its words. It needs no model, but only
a word list of a few kilobytes.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import NamedTuple

import Stemmer

from agentformer.text.language_files import language_files, lists
from agentformer.text.normalize import normalized

# The name of the Snowball stemmer of each language that has one.
STEMMERS: Mapping[str, str] = MappingProxyType(
    {code: file["stemmer"] for code, file in language_files().items() if "stemmer" in file}
)

_local = threading.local()
_SAMPLE = 4000  # code points read: several hundred words are enough for any language
_PRIOR_BONUS = 2.0  # votes for the document's language: a chunk gets another one only on clear evidence
# Pairs (votes, lead over the second language) that are sufficient: about one word of this language, or less if hardly
# any word belongs to another language.
_ENOUGH = ((1.0, 1.1), (0.5, 2.0))
_REPEATS = 3  # most votes of one repeated word
_NAME_WEIGHT = 0.3  # weight of a capitalised word, which is usually a name
_ENDING_VOTE = 0.35  # an ending is weaker evidence than a word
_CACHED_WORDS = 16_384
_CACHED_LENGTH = 40  # letters of a cached word; a text without spaces is one word of thousands of letters
_CACHED_TEXTS = 4_096  # a search asks for the language of its query several times
_CACHED_VOTES = 64  # recent texts whose evidence is kept: a query is judged with and without a prior
_CACHED_TEXT = 400  # code points; the language of a longer text is not cached
_LETTER_VOTE = 0.6  # votes for a word with a letter that few languages use

# Scripts in the order of testing. A script of one language decides at once; other scripts need votes.
_SCRIPTS: tuple[tuple[str, str, str], ...] = (
    ("kana", "\u3040-\u30ff\uff66-\uff9f", "ja"), ("hangul", "\u1100-\u11ff\uac00-\ud7af", "ko"),
    ("han", "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff", "zh"), ("hebrew", "\u0590-\u05ff", "he"),
    ("thai", "\u0e00-\u0e7f", "th"), ("lao", "\u0e80-\u0eff", "lo"), ("khmer", "\u1780-\u17ff", "km"),
    ("myanmar", "\u1000-\u109f", "my"), ("greek", "\u0370-\u03ff\u1f00-\u1fff", "el"),
    ("armenian", "\u0530-\u058f", "hy"), ("georgian", "\u10a0-\u10ff", "ka"), ("tamil", "\u0b80-\u0bff", "ta"),
    ("bengali", "\u0980-\u09ff", "bn"), ("telugu", "\u0c00-\u0c7f", "te"), ("kannada", "\u0c80-\u0cff", "kn"),
    ("malayalam", "\u0d00-\u0d7f", "ml"), ("gujarati", "\u0a80-\u0aff", "gu"), ("gurmukhi", "\u0a00-\u0a7f", "pa"),
    ("sinhala", "\u0d80-\u0dff", "si"), ("ethiopic", "\u1200-\u137f", "am"),
    ("devanagari", "\u0900-\u097f", "hi ne"), ("cyrillic", "\u0400-\u052f", "ru uk bg sr"),
    ("arabic", "\u0600-\u06ff\u0750-\u077f", "ar fa"), ("latin", "A-Za-z\u00c0-\u024f\u1e00-\u1eff", ""),
)  # fmt: skip
_SCRIPT = re.compile("|".join(f"(?P<{name}>[{chars}]+)" for name, chars, _ in _SCRIPTS))
_LETTER = re.compile("[" + _SCRIPTS[-1][1] + "]")
# A character that may be a letter of another script: the exact ranges of these scripts take 6 ms to compile.
_NOT_LATIN = re.compile(r"[^\x00-\u036f\u1e00-\u1eff\u2000-\u303f\U00010000-\U0010ffff]")
_SCRIPT_LANGUAGES = {name: tuple(languages.split()) for name, _, languages in _SCRIPTS}
_IDEOGRAPHIC = frozenset({"kana", "hangul", "han"})
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|[¿¡]|[\u0900-\u097f]+")
_ASCII_WORD = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)?")  # the same for ASCII, and faster


def _folded(text: str) -> str:
    return normalized("NFKC", text.casefold())


def word_list(kind: str) -> dict[str, frozenset[str]]:
    """Return the words of a kind for each language, in lower case. `words` in `en.toml` explains the kinds."""
    return {language: frozenset(map(_folded, items)) for language, items in lists("words", kind).items()}


def _shared(vote: float, *lists: Mapping[str, Iterable[str]]) -> dict[str, tuple[tuple[str, float], ...]]:
    """Return a dictionary: item (a word, an ending or a letter) -> the languages that have this item, each with its
    votes. If n languages have the item, each of them gets `vote` / n votes."""
    owners: dict[str, dict[str, None]] = {}
    for items_of in lists:
        for language, items in items_of.items():
            for item in items:
                owners.setdefault(item, {})[language] = None
    return {item: tuple((owner, vote / len(by)) for owner in by) for item, by in owners.items()}


FUNCTION_WORDS: Mapping[str, frozenset[str]] = MappingProxyType(word_list("words"))
# Greetings show the language of a chat, so they have votes. People search for greetings, so a query keeps them.
_WORD_VOTES = _shared(1.0, FUNCTION_WORDS, word_list("greetings"))
_ENDING_VOTES = _shared(_ENDING_VOTE, word_list("endings"))
_LETTER_VOTES = _shared(_LETTER_VOTE, lists("words", "letters"))
_OWN_SCRIPT = {language for _, _, languages in _SCRIPTS for language in languages.split()}
_LATIN = tuple(language for language in FUNCTION_WORDS if language not in _OWN_SCRIPT or language == "sr")
_LONGEST_ENDING = max(map(len, _ENDING_VOTES))
# Languages so similar that a short sentence fits all of them, and spellings that distinguish them a little.
_ALIKE = {code: re.compile(file["spelling"]) for code, file in sorted(language_files().items()) if "spelling" in file}
_FINNISH = re.compile(
    r"(?<![a-zäö])(?=[a-zäö]*?y)[a-zäö]*?[äö]"
)  # both in one word; Estonian, which has nearly the same endings, has no y
_SPELLING_VOTE = 0.1
_SOME, _LEAD = 0.5, 1.1  # votes that the most probable language needs, and its lead over all others


@lru_cache(maxsize=8_192)
def _script_of(letter: str) -> str:
    match = _SCRIPT.match(letter)
    return (match and match.lastgroup) or ""


def _script(sample: str) -> str:
    """Return the name of the main script of the sample, or "" if the sample has no letters. The script of a text with
    ideographs and some kana is "kana", because such a text is Japanese."""
    if sample.isascii() or not _NOT_LATIN.search(sample):  # a fast path for most texts
        return "latin" if _LETTER.search(sample) else ""
    counts: Counter[str] = Counter()
    for letter, times in Counter(sample).items():
        if name := _script_of(letter):
            # An ideograph counts like a short word, so that a few Latin product names do not outvote a sentence.
            counts[name] += times * (3 if name in _IDEOGRAPHIC else 1)
    if counts["kana"] and counts["kana"] * 20 >= counts["han"]:
        counts["kana"] += counts.pop("han", 0)
    return counts.most_common(1)[0][0] if counts else ""


def _votes(sample: str, candidates: tuple[str, ...]) -> dict[str, float]:
    """Return the votes of the words of `sample`, of their endings and of their letters for each candidate language."""
    votes = dict.fromkeys(candidates, 0.0)
    for word, weight in _weighted_words(sample).items():
        for language, vote in _word_votes(word) if len(word) <= _CACHED_LENGTH else _word_votes.__wrapped__(word):
            if language in votes:
                votes[language] += vote * weight
    return votes


@lru_cache(maxsize=_CACHED_WORDS)
def _word_votes(word: str) -> tuple[tuple[str, float], ...]:
    """Return languages with the votes that a lower-case word gives to them. The ending of the word gives votes only if
    the word itself gives none. Rare letters give votes too."""
    plain = word.isascii()
    votes = _WORD_VOTES.get(word if plain else _folded(word), ())
    if not votes:
        for size in range(min(_LONGEST_ENDING, len(word) - 2), 1, -1):
            if votes := _ENDING_VOTES.get(word[-size:], ()):
                break
    if plain or len(word) <= 2:  # a single letter is usually a label and not a word
        return votes
    return (*votes, *(vote for letter in dict.fromkeys(word) for vote in _LETTER_VOTES.get(letter, ())))


def _weighted_words(sample: str) -> dict[str, float]:
    """Return the words of the sample in lower case with their weights. The weight is the number of occurrences, but at
    most `_REPEATS`. A capitalised word after the first word has a lower weight, because it is usually a name, and a
    name such as "Los Angeles" does not show the language."""
    if sample.isupper():
        sample = sample.lower()
    weights: dict[str, float] = {}
    words = (_ASCII_WORD if sample.isascii() else _WORD).findall(sample)
    for n, (word, times) in enumerate(Counter(words).items()):
        weight: float = times if times < _REPEATS else _REPEATS
        if word.islower() and word.isalpha():  # most words
            small = word
        else:
            small = _small(word) if len(word) <= _CACHED_LENGTH else _small.__wrapped__(word)
            if word[0].isupper():
                weight = _NAME_WEIGHT if n else 1.0
        weights[small] = weights.get(small, 0.0) + weight
    return weights


@lru_cache(maxsize=_CACHED_WORDS)
def _small(word: str) -> str:
    """Return the word in lower case. For a word with an apostrophe, return the form that is in the word list, such as
    "dont" or "'s". If no form is in the list, return the part before the apostrophe, such as "l'"."""
    small = word.lower().replace("’", "'")
    head, _, tail = small.partition("'")
    if not tail:
        return small
    return next((part for part in (head + tail, "'" + tail) if part in _WORD_VOTES), head + "'")


def detect_language(text: str, prior: str = "") -> str:
    """Return the ISO 639-1 code of the language of the text, or `prior` if there is not enough evidence. `prior` is the
    language of the document that contains the text. It is preferred if two languages are almost equally probable, so
    that a chunk of names and numbers gets the language of its neighbours. Only the start of a long text is read."""
    return _detected(text, prior) if len(text) <= _CACHED_TEXT else _detected.__wrapped__(text[:_SAMPLE], prior)


@lru_cache(maxsize=_CACHED_TEXTS)
def _detected(text: str, prior: str) -> str:
    return _recent_votes(text).language(prior)


class LanguageVotes(NamedTuple):
    """The evidence for the language of a text: the name of its script, the languages that have votes, and whether the
    spelling can be Finnish but not Estonian. The method `language` needs only this evidence and not the text."""

    script: str
    votes: Mapping[str, float]
    finnish: bool

    def language(self, prior: str = "", bonus: float = _PRIOR_BONUS) -> str:
        """Return the language of the text, as `detect_language` does. `bonus` are the votes that the language `prior`
        gets: with more of them, another language needs clearer evidence."""
        if not self.script:
            return prior
        candidates = _SCRIPT_LANGUAGES[self.script] or _LATIN
        if len(candidates) == 1:
            return candidates[0]
        votes = {**dict.fromkeys(candidates, 0.0), **self.votes}
        if prior in votes:
            votes[prior] += bonus
        *_, second, most = sorted(votes.values())
        best = next(name for name, votes_of in votes.items() if votes_of == most)  # the first of equal languages
        if best == "et" and self.finnish:
            del votes["et"]
            if max(votes, key=votes.__getitem__) == "fi":
                return "fi"
        for votes_needed, lead in _ENOUGH:
            if most >= votes_needed and most >= second * lead:
                return best
        return prior if prior in candidates or self.script == "latin" else candidates[0]


def language_votes(text: str) -> LanguageVotes:
    """Return the evidence for the language of a text. Only the start of a long text is read."""
    sample = normalized("NFKC", text[:_SAMPLE])
    script = _script(sample)
    candidates = (_SCRIPT_LANGUAGES[script] or _LATIN) if script else ()
    votes = _votes(sample, candidates) if len(candidates) > 1 else {}
    finnish = "et" in votes and not sample.isascii() and _FINNISH.search(sample) is not None
    return LanguageVotes(script, {name: vote for name, vote in votes.items() if vote}, finnish)


_recent_votes = lru_cache(maxsize=_CACHED_VOTES)(language_votes)
_WRITTEN_FORMS = {"nb": "no", "nn": "no"}
_KNOWN = _OWN_SCRIPT | FUNCTION_WORDS.keys()


def language_code(value: object) -> str:
    """Return the code that `detect_language` returns for a language. `value` is the language as a caller writes it,
    such as "fi", "FI" or "sv-SE". Return "" for an unknown language."""
    code = re.split(r"[-_]", value.strip().lower(), maxsplit=1)[0] if isinstance(value, str) else ""
    code = _WRITTEN_FORMS.get(code, code)
    return code if code in _KNOWN else ""


def likelier_of_alike(text: str) -> str:
    """Return the most probable of Danish, Norwegian and Swedish if the text is certainly in one of them, else "".
    `detect_language` may return no language for such a text, because these languages are similar. Use this function
    where a wrong choice does little harm."""
    sample = normalized("NFKC", text[:_SAMPLE])
    if _script(sample) != "latin":
        return ""
    votes = _votes(sample, _LATIN)
    most = max(votes.values())
    if most < _SOME or any(vote * _LEAD > most for language, vote in votes.items() if language not in _ALIKE):
        return ""
    words = sample.lower()
    return max(_ALIKE, key=lambda language: votes[language] + _SPELLING_VOTE * bool(_ALIKE[language].search(words)))


@lru_cache(maxsize=131072)
def stem(word: str, language: str) -> str:
    """Return the stem of a folded word by the Snowball stemmer of the language, or the word if there is no stemmer."""
    return str(_stemmer(language).stemWord(word)) if language in STEMMERS else word


@cache
def function_stems(language: str) -> frozenset[str]:
    """Return the stems of the function words of a language, in the form of terms, such as "en~the"."""
    return frozenset(f"{language}~{stem(word, language)}" for word in FUNCTION_WORDS.get(language, ()))


def _stemmer(language: str) -> Stemmer.Stemmer:
    # A Snowball stemmer has state that threads must not share.
    stemmers: dict[str, Stemmer.Stemmer] = _local.__dict__.setdefault("stemmers", {})
    if language not in stemmers:
        stemmers[language] = Stemmer.Stemmer(STEMMERS[language])
    return stemmers[language]


# A word with another meaning in another language ("en" negates in Finnish and is an article in Swedish) counts only in
# its own language.
NEGATIONS: Mapping[str, frozenset[str]] = word_list("negations")
NUMBER_WORDS: Mapping[str, Mapping[str, str]] = {
    language: {word: str(number) for number, word in enumerate(words, 2)}
    for language, words in lists("words", "numbers").items()
}

# For a sentence of unknown language: the words of all languages, except words that are common in another language.
_COMMON = "en et ette no ej utan inga none to fire sex ti ni elf acht ten"
_DOUBTFUL = frozenset(_COMMON.split())
ANY_NEGATION = frozenset().union(*NEGATIONS.values()) - _DOUBTFUL
ANY_NUMBER_WORD: Mapping[str, str] = {
    word: number for words in NUMBER_WORDS.values() for word, number in words.items() if word not in _DOUBTFUL
}
