"""Find the numbers, dates and names in a text that the sources of the text do not state. Other words of the text are
not checked. Small numbers that are written as words ("five") are not compared. A name is recognized by its capital
letters, so in scripts without capital letters only numbers and dates are checked.

`numbers_and_dates.py` decides which numbers are equal. With `Stated.whole`, `quantities.whole_numbers` finds the
numbers.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from difflib import get_close_matches
from functools import cache, cached_property
from typing import NamedTuple

from agentformer.text.dates.notation import Day, Mention, day_of_moment, find_dates, is_given, months, strip_accents
from agentformer.text.dates.relative import phrase_tables
from agentformer.text.facts.numbers_and_dates import all_values, ascii_digits, find_numbers
from agentformer.text.facts.quantities import whole_numbers, whole_values
from agentformer.text.language_files import with_trait
from agentformer.text.languages.detection import FUNCTION_WORDS, stem, word_list
from agentformer.text.splitting import sentence_spans

_LIST_ITEM = re.compile(r"^[ \t]*(\d{1,2})[.)][ \t]+", re.MULTILINE)
_MAX_CLAIMS = 20  # at most this many claims are reported
_LETTER = r"[^\W\d_\u3005-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # a name in Latin letters ends where Japanese begins
_WORD = re.compile(rf"{_LETTER}(?:{_LETTER}|[\u0300-\u036f])*")
_JOINED = re.compile(r"[-'’ ]|(?<=\b\w)\. ?|(?<=\b\w\w)\. ?")  # between the words of one name
# Text before a capital that begins a sentence, quotation or list item, not a name.
_OPENING = re.compile(r"[:;•*\-–—\"“”„«»‘‹(\[「『#>|]\s*$|\n\s*$")
_SHORTEST = 2  # least number of letters of a name
# Languages in which names take at most an "s". In all others, and in unknown ones, names may have endings. Swedish is
# not listed, because a few words of Finnish are detected as Swedish.
_UNINFLECTED = with_trait("no inflection of names")
_SHORT_STEMS = frozenset({"cs", "lt", "pl", "ru", "sr"})  # languages in which "Anna" and "Annu" share only "An"
# Languages that write every noun with a capital.
CAPITAL_NOUNS = with_trait("capital nouns")
# In these languages, a word is a name if one of the words below precedes it ("von Edison"), and if it has no ending of
# ordinary nouns.
_BEFORE_NAMES = re.compile(
    r"\b(?:ab|als|an|auf|aus|bei|bis|durch|für|gegen|genannt|hatte|heißt|hieß|in|ist|laut|mit|nach|namens|oder|seit|sind"
    r"|über|um|und|unter|von|vor|war|waren|wie|wurden?|zwischen) $"
    r"|\A(?i:wann|warum|wo|wohin|woher|wie \w+) \w+ $"  # after the verb of a question: "Wann zog Petra"
)
_NOUN_ENDING = re.compile(
    r"(?:\w{3}[aeikn]nz|ei(?:en)?|e(?:l?n|rn?|s)?|[hk]eit(?:en)?|ik|is(?:mus)?|lein|chen|ling|ment|nis(?:se)?|schaft(?:en)?"
    r"|[st]ion(?:en)?|tum|tät(?:en)?|ung(?:en)?)$"
)
_WITHOUT_ARTICLE = frozenset({"ankunft", "ansicht", "bezug", "form", "hilfe", "teil", "zeit"})  # "in Bezug auf"
_SIDE = 3  # words on a side of a gap that are compared
_ALIKE = 5  # a word with the same first letters as a word of the sources is not a new name
_SIMILAR = 0.8  # share of letters that a name and its other spelling have in common
_SHORTEST_SIMILAR = 3  # least number of letters of such a spelling: "in" is no spelling of "Tin"
_COMMON = 4  # least number of letters that two forms of a name have in common
_ENDING = 7  # largest number of letters of an ending
_ENDING_OF_NAME = re.compile(
    r"[aeiouyäö]{0,2}(?:n|s|sa|sä|sta|stä|la|lä|lta|ltä|le|ksi|na|nä|ta|tä|a|ä|h[aeiouyäö]n|iden|ien|ja|jä)?"
    r"(?:ni|si|nsa|nsä|me|ne)?(?:kin|kan|kän|ko|kö)?"
)
# The ends of Finnish names and of their stems, after `_graded`: "Virtanen", "Virtasen"; "Borealis", "Borealiksen".
_STEM_CHANGES = (("nen", "se"), ("i", "e"), ("si", "te"), ("s", "kse"), ("us", "ute"), ("ne", "nte"), ("re", "rte"))
_GRADED = str.maketrans("bdg", "ptk")
_MAX_SHORT = 5  # letters; only longer words are recognized as ordinary by their ending
_NAMELIKE = frozenset({"nen", "inen", "isen"})  # endings of Finnish surnames as well
_ABBREVIATIONS = frozenset().union(*word_list("abbreviations").values())
_FOLDED_FUNCTIONS = {language: frozenset(map(strip_accents, words)) for language, words in FUNCTION_WORDS.items()}
_OPENERS = frozenset().union(
    *(map(strip_accents, words) for words in word_list("openers").values()),
    *_FOLDED_FUNCTIONS.values(),
    *word_list("greetings").values(),
)
_ENDINGS = {
    language: tuple(ending for ending in endings if len(ending) > 2 and ending not in _NAMELIKE)
    for language, endings in word_list("endings").items()
}


class Stated(NamedTuple):
    """The facts that the sources state: numbers, days and years. `words` are the words of the sources, in which names
    are searched. If `whole` is True, the parts of a number do not count as numbers: "04:30" does not state 30."""

    numbers: frozenset[str]
    days: frozenset[Day]
    years: frozenset[int]
    words: Vocabulary
    whole: bool = False

    @classmethod
    def of(
        cls, sources: Sequence[str], language: str, moments: Iterable[datetime] = (), *, whole: bool = False
    ) -> Stated:
        """Return the facts in the texts `sources`. `language` is the language of the text that is checked, because its
        names have the endings of this language. The sources also state the date and the time of each moment."""
        numbers: set[str] = set()
        days: set[Day] = set()
        for source in sources:
            plain = ascii_digits(source)
            mentions = find_dates(plain, loose=True)
            numbers.update(whole_values(plain, mentions) if whole else all_values(find_numbers(plain)))
            days.update(reading for mention in mentions for reading in mention.readings)
        for moment in moments:
            days.add(day_of_moment(moment))
            numbers.add(f"at {moment.hour}:{moment.minute:02}")
        years = {day.year for day in days} | {int(number) for number in numbers if re.fullmatch(r"\d{4}", number)}
        numbers.update(str(day.year) for day in days if day.year)
        return cls(frozenset(numbers), frozenset(days), frozenset(years), Vocabulary(sources, language), whole)


def unsupported_claims(text: str, stated: Stated, language: str) -> list[str]:
    """Return the numbers, dates and names in `text` that are not in `stated`, in the order of the text, for example
    "number 7", "date 8 June 2023" or "name Robert". The numbers of a numbered list are not checked."""
    text = without_list_numbers(text)
    return _distinct([*_unsupported_figures(text, stated), *_unsupported_names(text, stated, language)])


def unsupported_figures(text: str, stated: Stated) -> list[str]:
    """Return only the numbers and dates of `unsupported_claims`, without months that have neither a day nor a year."""
    return _distinct(_unsupported_figures(without_list_numbers(text), stated))


def _distinct(claims: Iterable[tuple[int, str]]) -> list[str]:
    return list(dict.fromkeys(claim for _, claim in sorted(claims)))[:_MAX_CLAIMS]


def without_list_numbers(text: str) -> str:
    """Return the text with the numbers of a numbered list replaced by spaces. The length does not change."""
    items = list(_LIST_ITEM.finditer(text))
    if [int(item[1]) for item in items] != list(range(1, len(items) + 1)):
        return text
    for item in items:
        text = text[: item.start(1)] + " " * (item.end() - item.start(1)) + text[item.end() :]
    return text


def _unsupported_figures(text: str, stated: Stated) -> Iterator[tuple[int, str]]:
    """Yield the dates and numbers in `text` that no source states, each with its position in `text`. Numbers that
    belong to a date are not checked separately."""
    supported: dict[Day, bool] = {}
    numbers_of = whole_numbers if stated.whole else find_numbers
    position = 0
    for row in text.splitlines(keepends=True):
        plain = ascii_digits(row)
        dates = []
        for mention in find_dates(plain):
            for day in mention.readings:
                if day not in supported:
                    supported[day] = is_given(day, stated.days, stated.years)
            is_supported = any(supported[day] for day in mention.readings)
            if is_supported or mention.sure:  # any other possible date is checked as a number
                dates.append(mention)
            if mention.sure and not is_supported:
                yield position + mention.start, f"date {row[mention.start : mention.end].strip()}"
        for number in numbers_of(plain):
            if not overlaps(number.start, number.end, dates) and not number.within(stated.numbers):
                yield position + number.start, f"number {row[number.start : number.end].strip()}"
        position += len(row)


def _unsupported_names(text: str, stated: Stated, language: str) -> Iterator[tuple[int, str]]:
    dates = find_dates(ascii_digits(text))
    stated_months = {day.month for day in stated.days}
    for name in _unknown_names(text, stated.words, language):
        month = months(name.text)  # a month alone: "in June"
        if not (month & stated_months or overlaps(name.start, name.end, dates)):
            yield name.start, f"{'date' if month else 'name'} {name.text}"


def overlaps(start: int, end: int, mentions: Sequence[Mention]) -> bool:
    """Return whether a date overlaps the positions `[start, end)`. The dates are in order, without overlap."""
    index = bisect_right(mentions, start, key=lambda mention: mention.end)
    return index < len(mentions) and mentions[index].start < end


class _Name(NamedTuple):
    """A name of one or more neighboring capitalized words, at the positions `[start, end)` of a text."""

    start: int
    end: int
    text: str


class Vocabulary:
    """The words of some texts in one language. A word is found even if it has another ending in these texts. The texts
    are read when a word is first searched."""

    def __init__(self, texts: Iterable[str], language: str) -> None:
        self._texts, self._language = list(texts), language

    @cached_property
    def _written(self) -> set[str]:
        return {word for text in self._texts for word in _WORD.findall(text)}

    @cached_property
    def _words(self) -> set[str]:
        return set(map(_folded, self._written))

    @cached_property
    def lowercase(self) -> set[str]:
        """The words that occur without a capital letter, folded."""
        return {_folded(word) for word in self._written if word[0].islower()}

    @cached_property
    def _around(self) -> set[tuple[str, ...]]:
        """The words on both sides of one or two words that begin with a capital letter."""
        if self._language not in CAPITAL_NOUNS:
            return set()
        return {sides for text in self._texts for sides in _surroundings(text)}

    @cached_property
    def _stems(self) -> set[str]:
        return {_stemmed(word, self._language) for word in self._words}

    @cached_property
    def _beginnings(self) -> dict[str, set[str]]:
        beginnings: dict[str, set[str]] = defaultdict(set)
        for word in () if self._language in _UNINFLECTED else self._words:
            beginnings[_graded(word)[:2]].add(_graded(word))
        return beginnings

    def has(self, word: str) -> bool:
        """Return whether the texts contain this word, possibly with another ending."""
        folded = _folded(word)
        if folded in self._words or folded.removesuffix("s") in self._words:
            return True
        if _stemmed(folded, self._language) in self._stems:
            return True
        graded = _graded(folded)  # in an uninflected language, `_beginnings` is empty
        return any(_may_be_same(graded, other) for other in self._beginnings.get(graded[:2], ()))

    def has_alike(self, word: str) -> bool:
        """Return whether a word of the texts may be a form or a compound of `word`: both begin with the same letters,
        or one contains the other."""
        folded = _folded(word)
        others = (other for other in self._words if len(other) >= _COMMON)
        return any(other in folded or folded in other or folded[:_ALIKE] == other[:_ALIKE] for other in others)

    def has_other(self, name: _Name, text: str) -> bool:
        """Return whether `name` seems to replace a word of the texts: between the same words, the texts have another
        word. For example, "am Ufer der Elbe bei" and "am Ufer der Weser bei". Always False for a language that does not
        write every noun with a capital."""
        before = [_folded(word) for word in _WORD.findall(text[: name.start])][-_SIDE:]
        after = [_folded(word) for word in _WORD.findall(text[name.end :])][:_SIDE]
        return not self._around.isdisjoint(_sides(before, after))

    def has_part(self, name: str) -> bool:
        """Return whether the texts contain a word of this name, or a similar one: "German" for "Germany"."""
        return any(self.has(word) or self._has_similar(_folded(word)) for word in _WORD.findall(name))

    def _has_similar(self, word: str) -> bool:
        letters, size = frozenset(word), len(word)
        near = [  # a quick test: most words have not enough letters in common
            other
            for other in self._words
            if len(other) >= _SHORTEST_SIMILAR
            and 2 * sum(map(letters.__contains__, other)) / (size + len(other)) >= _SIMILAR
        ]
        return bool(get_close_matches(word, near, 1, _SIMILAR))


def _unknown_names(text: str, known: Vocabulary, language: str) -> Iterator[_Name]:
    """Yield the names in `text` whose words are not in `known`, in the order of the text. In a language that writes
    every noun with a capital letter, only these count as names: two capitalized words in a row, a word before a colon,
    a word after a preposition without an article, and a word that replaces another word in a phrase of `known`."""
    for name in _joined(_candidates(text, known, language), text):
        marked = " " in name.text or text[name.end : name.end + 1] == ":" or _is_bare(name, text, known)
        if language not in CAPITAL_NOUNS or marked or known.has_other(name, text):
            yield name


def _surroundings(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the words around each possible name, in the form that `_sides` yields and `has_other` looks up. A possible
    name is a capitalized word, or a capitalized word and the word after it."""
    words = _WORD.findall(text)
    folded = [_folded(word) for word in words]
    for n, word in enumerate(words):
        for end in (n + 1, n + 2) if word[0].isupper() else ():
            yield from _sides(folded[max(0, n - _SIDE) : n], folded[end : end + _SIDE])


def _sides(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield tuples of three words around a name, with "" in place of the name. `before` and `after` are the words on
    both sides of the name. One tuple has two words before the name and one word after it; the other has one word before
    it and two words after it. If one side has no words, the only tuple has the three words on the other side."""
    if len(before) > 1 and after:
        yield (*before[-2:], "", after[0])
    if before and len(after) > 1:
        yield (before[-1], "", *after[:2])
    if not after and len(before) == _SIDE:
        yield (*before, "")
    if not before and len(after) == _SIDE:
        yield ("", *after)


def _is_bare(name: _Name, text: str, known: Vocabulary) -> bool:
    """Return whether a name lacks the article that an ordinary noun would have ("von Edison"). Return False if `known`
    has a similar word."""
    folded = name.text.casefold()
    if len(folded) < _COMMON or folded in _WITHOUT_ARTICLE or _NOUN_ENDING.search(folded):
        return False
    return bool(_BEFORE_NAMES.search(text, 0, name.start)) and not known.has_alike(name.text)


def inner_names(text: str, language: str, known: Vocabulary | None = None) -> Iterator[str]:
    """Yield the names in `text`, except at the beginning of a sentence, where every word has a capital letter. In
    German, a single word is a name only if it lacks the article that an ordinary noun would have, and if `known`
    contains no similar word. Without `known`, a single German word is no name."""
    starts = {span.start for span in sentence_spans(text)}
    words = _candidates(text, Vocabulary((), language), language)
    for name in _joined((match for match in words if not _opens(match, text, starts)), text):
        if language not in CAPITAL_NOUNS or " " in name.text or (known and _is_bare(name, text, known)):
            yield name.text


@cache
def _time_units(language: str) -> frozenset[str]:
    """Return the words for days, weeks, months and years in `language`, in lower case."""
    words = phrase_tables().get(language)
    return frozenset(words.units) if words else frozenset()


def _candidates(text: str, known: Vocabulary, language: str) -> Iterator[re.Match[str]]:
    starts = {span.start for span in sentence_spans(text)}
    lowercase = Vocabulary([text], language).lowercase | known.lowercase
    for match in _WORD.finditer(text):
        word = match[0]
        if len(word) < _SHORTEST or not word[0].isupper() or known.has(word):
            continue
        if not _is_ordinary(word, _opens(match, text, starts), lowercase, language):
            yield match


def _is_ordinary(word: str, opens: bool, lowercase: Collection[str], language: str) -> bool:
    """Return whether a capitalized word is an ordinary word and not a name. `opens` is True if the word begins a
    sentence. `lowercase` are words that also occur without a capital letter."""
    folded = _folded(word)
    if folded in _time_units(language):  # "im Jahr 2026"
        return True
    if (folded in _ABBREVIATIONS or folded in _FOLDED_FUNCTIONS.get(language, ())) and not word.isupper():
        return True
    if not opens:
        return False
    if folded in _OPENERS or folded in lowercase:
        return True
    return len(folded) > _MAX_SHORT and folded.endswith(_ENDINGS.get(language, ()))


def _opens(match: re.Match[str], text: str, starts: set[int]) -> bool:
    before = max(0, match.start() - 3)
    return match.start() in starts or _OPENING.search(text, before, match.start()) is not None


def _joined(words: Iterable[re.Match[str]], text: str) -> list[_Name]:
    """Join neighboring words to names such as "Jean-Luc" and "Anna Virtanen". `words` are ordered matches in `text`."""
    spans: list[tuple[int, int]] = []
    for match in words:
        joins = spans and _JOINED.fullmatch(text, spans[-1][1], match.start())
        spans.append((spans.pop()[0] if joins else match.start(), match.end()))
    return [_Name(start, end, text[start:end]) for start, end in spans]


def _folded(word: str) -> str:
    return strip_accents(word.casefold())


def _stemmed(folded: str, language: str) -> str:
    """Return the stem of a word. Return the word itself if the stem is so short that other words have the same stem."""
    if "\u0400" <= folded[0] <= "\u04ff" and language != "sr":
        language = "ru"  # short texts do not separate Russian from related languages, which have similar endings
    short = stem(folded, language)
    return short if len(short) > (1 if language in _SHORT_STEMS else 3) else folded


def _graded(folded: str) -> str:
    """Replace consonants that differ in the forms of a Finnish name, such as "Helsinki" and "Helsingin"."""
    return re.sub(r"(.)\1", r"\1", folded.translate(_GRADED))


def _may_be_same(one: str, other: str) -> bool:
    """Return whether two words may be forms of one name. The words must be results of `_graded`."""
    short, long = sorted((one, other), key=len)
    for base, form in ((short, long), (long, short)):
        if 2 < len(base) <= len(form) and len(form) - len(base) <= _ENDING and form.startswith(tuple(_bases(base))):
            return True
    common = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(short))
    rests = (one[common:], other[common:])
    if common < _COMMON or 2 * common < len(long):
        return False
    return not one.isascii() or all(_ENDING_OF_NAME.fullmatch(rest) for rest in rests)


def _bases(word: str) -> set[str]:
    """Return possible stems of a Finnish or Estonian name. For example, "Virtanen" has the stem "Virtase", "Turku" has
    the stem "Turu", and "Koivurinne" has the stem "Koivurintee"."""
    bases = {
        word,
        *(word.removesuffix(old) + new for old, new in _STEM_CHANGES if len(word) > 4 and word.endswith(old)),
    }
    weak = {base[:-2] + base[-1] for base in bases if len(word) > 4 and base[-2] in "kpt" and base[-1] in "aeiouyäö"}
    return bases | weak
