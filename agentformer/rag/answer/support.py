"""The comparison of a model's text with the passages that it cites. If a sentence has a number, a date, a name or a
quotation that its passages do not contain, the sentence is reported. Other words are not compared. If the text has no
citations, the module adds a citation to each sentence whose words agree with a passage."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property

from agentformer.rag.answer.passages import Passage
from agentformer.rag.answer.prompts import CITING_WORDS
from agentformer.text.analysis import QueryTerms
from agentformer.text.dates.notation import months
from agentformer.text.facts import unsupported_claims as claims
from agentformer.text.facts.numbers_and_dates import find_numbers
from agentformer.text.facts.quantities import names_same, numbered_things
from agentformer.text.languages.detection import ANY_NUMBER_WORD, detect_language, likelier_of_alike
from agentformer.text.normalize import letters_and_digits
from agentformer.text.prompt_quoting import strip_hidden
from agentformer.text.splitting import sentence_spans
from agentformer.types import UnsupportedSentence

_MARKERS = re.compile(r"(?<![ \t])(?:[ \t]*+\[(\d{1,3})\])+")
_MARKER = re.compile(r"\[(\d{1,3})\]")
_LEADING = re.compile(rf"\s*{_MARKERS.pattern}[ \t]*[.!?]?")
# "passage 2" refers to a passage like the marker "[2]".
_NAMED_PASSAGE = re.compile(rf"\b{CITING_WORDS}\d{{1,3}}\b", re.IGNORECASE)
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_ESCAPES = re.compile(r"\x1b?\[[\d;]{0,8}m")  # terminal colors, also without the control character
_QUOTATION = re.compile(r"“([^“”\n]+)”|„([^„“”\n]+)[“”]|«([^«»\n]+)»|\"([^\"\n]+)\"|「([^「」\n]+)」")
_MIN_QUOTED = 3  # words, or 8 letters without spaces; shorter text in quotation marks is a title or a stressed word
_MIN_QUOTED_LETTERS = 8
_ELLIPSIS = re.compile(r"\[?(?:…|\.\.\.)\]?")
_WORD = re.compile(r"[^\W\d_]+")
_SHOWN = 3  # sentences that a warning quotes
_SHOWN_LENGTH = 80  # code points of each
_ENDS = ".!?。！？…:;"
_PERCENTAGE = re.compile(r"\d[\d.,]{0,40}+\s?%")  # in a question, it is a condition ("more than 20%")
_QUARTER = re.compile(r"\bQ[1-4](?=(?:FY)?(?:19|20)?\d\d\b)")  # "Q22023" is the second quarter of 2023
_DIGITS = re.compile(r"\d+")
_DECADE = re.compile(r"(?<!\d)(\d0)(?=['’]?s\b|er\b)")  # "the 80s", "die 80er"
_ALIKE = frozenset({"da", "no", "sv"})  # languages in which names are spelled alike
_SHORTEST_NAME = 3  # letters; "FY" and "UN" are often written out
_FIRST_LINES = 2  # lines with the digits of a number that are read before all others
_LINKING = 3  # an abbreviation may leave out words of at most this many letters: "of", "and"
_UNITS = {"celsius": "°c", "fahrenheit": "°f"}
_LONG_QUESTION = 25  # words; nothing in a longer question is compared
_AGREED = 0.6  # a passage is cited for a sentence if it contains this share of the sentence's terms
_MIN_TERMS = 2  # minimum terms of a sentence to which a citation is added


def unsupported_sentences(text: str, passages: Sequence[Passage], question: str) -> tuple[UnsupportedSentence, ...]:
    """Return the sentences of a model's text that state a number, date, name or quotation which the cited passages do
    not contain. `[n]` in `text` cites `passages[n - 1]`. A sentence without a citation is compared with all passages.
    Numbers and names from the question are allowed. Names are compared only if the sentence has the language of a
    passage, because other languages may spell them differently."""
    reader = _Reader(passages, question, text)
    found = []
    for sentence, cited in _cited_sentences(text):
        numbers = tuple(n for n in dict.fromkeys(cited) if 1 <= n <= len(passages))
        if missing := reader.missing(sentence, numbers):
            found.append(UnsupportedSentence(" ".join(_MARKERS.sub("", sentence).split()), tuple(missing), numbers))
    return tuple(found)


def unknown_in_question(question: str, passages: Sequence[Passage]) -> list[str]:
    """Return the numbers, dates and names of the question that no passage contains, for example "number 909" or "name
    Tesla". Return an empty list for a question of more than 25 words.

    The title, the headings, the file name and the speaker of a passage count as parts of the passage. If the question
    names the date of a passage, the words for this date also count as a part of it. A name of several words counts as
    contained if one of its words or a similar word is contained. An abbreviation counts as contained if a passage
    writes it out, and "the 80s" if a passage has a year such as 1984. The first word of a sentence is not compared."""
    return _Reader(passages, "", question).unknown()


def all_unknown_in_question(question: str, passages: Sequence[Passage]) -> bool:
    """Return whether the question contains numbers, dates or names, and the passages contain none of them. They are
    compared as in `unknown_in_question`."""
    return _Reader(passages, "", question).all_unknown()


def names_of_question(question: str, passages: Sequence[Passage]) -> tuple[list[str], list[str]]:
    """Return the names in the question, and those that no passage contains, compared as in `unknown_in_question`."""
    return _Reader(passages, "", question).names()


def finding(unsupported: Sequence[UnsupportedSentence]) -> str:
    """Return the message that reports the unsupported sentences to the model and asks for another answer."""
    lines = "\n".join(f"- {', '.join(each.claims)}: {each.sentence}" for each in unsupported)
    return (
        f"These parts of your answer are not in the passages that it cites:\n{lines}\n"
        "Write the answer again. State only what the passages say, and cite the passage after each statement. "
        "If the passages do not hold the answer, write NO_ANSWER and nothing else."
    )


def warnings(unsupported: Sequence[UnsupportedSentence]) -> Iterator[str]:
    """Yield a warning for each of the first three unsupported sentences, and one with the number of the others."""
    for each in unsupported[:_SHOWN]:
        text = each.sentence
        shown = f"{text[: _SHOWN_LENGTH - 1]}…" if len(text) > _SHOWN_LENGTH else text
        place = "cited passages" if each.citations else "passages"
        yield f"not in the {place}: {', '.join(each.claims)} (in the sentence “{shown}”)"
    if len(unsupported) > _SHOWN:
        yield f"further sentences that state what is not in the passages: {len(unsupported) - _SHOWN}"


def with_citations(text: str, passages: Sequence[Passage]) -> str:
    """Return the text with a marker `[n]` at the end of each sentence that the passage n supports: the passage contains
    most terms of the sentence, and all its numbers, dates and names. Other sentences, and code, are unchanged."""
    reader = _Reader(passages, "", text)
    code = [match.span() for match in _CODE.finditer(text)]
    parts, end = [], 0
    for span in sentence_spans(text):
        sentence = text[span.start : span.end]
        is_code = any(start < span.end and span.start < stop for start, stop in code)
        if not is_code and (number := reader.agreeing(sentence)):
            at = span.start + len(sentence.rstrip().rstrip(_ENDS).rstrip())
            parts += [text[end:at], f" [{number}]"]
            end = at
    return "".join([*parts, text[end:]])


class _Reader:
    """Compares the numbers, dates and names of a text with those of the passages. `text` is an answer of a model or a
    question. Passages that a sentence cites together are read once and cached."""

    def __init__(self, passages: Sequence[Passage], question: str, text: str) -> None:
        self._passages = passages
        self._question = question
        self._text = text
        self._letters = cache(self._letters_of)
        self._stated = cache(self._stated_of)
        self._all = tuple(range(1, len(passages) + 1))
        self._languages = {passage.language for passage in passages}
        common = next((passage.language for passage in passages if passage.language), "")
        self._language = detect_language(text) or detect_language(question, common)

    @cached_property
    def _vocabulary(self) -> claims.Vocabulary:
        return claims.Vocabulary(self._all_sources, self._language)

    @cached_property
    def _all_sources(self) -> list[str]:
        return self._sources(self._all)

    def missing(self, sentence: str, cited: tuple[int, ...]) -> list[str]:
        """Return the claims of a sentence (numbers, dates, names and quotations) that none of the passages with the
        numbers `cited` contains. If `cited` is empty, the sentence is compared with all passages."""
        numbers = cited or self._all
        plain = _NAMED_PASSAGE.sub(" ", _MARKERS.sub(" ", _CODE.sub(" ", _ESCAPES.sub("", sentence))))
        language = detect_language(plain, self._language)
        found = claims.unsupported_claims(" ".join(plain.split()), self._stated(numbers, language), language)
        if language not in self._languages:
            found = [claim for claim in found if not claim.startswith("name ")]
        return [*found, *self._missing_quotations(plain, numbers)]

    def unknown(self) -> list[str]:
        """Return the numbers, dates and names of the text that no passage contains. Call only if the text is a
        question."""
        text = self._compared_text()
        figures = self._not_named(self._unknown_figures(text), text)
        return figures + [f"name {name}" for name in self.names()[1]]

    def names(self) -> tuple[list[str], list[str]]:
        """Return two lists: the names of the text, and those of them that no passage contains. Call only if the text is
        a question."""
        text = self._compared_text()
        names = self._compared_names(text)
        return names, [name for name in names if self._is_unknown_name(name, text)]

    def _not_named(self, figures: list[str], text: str) -> list[str]:
        """Return the claims `figures` without the numbers of things that a passage names: if a passage names the berths
        10 to 15, the number of berth 12 is left out."""
        if not figures:
            return []
        things = numbered_things(text, self._language)
        named = [thing for source in self._all_sources for thing in names_same(things, source, self._language)]
        return [figure for figure in figures if figure not in {f"number {thing.numbers}" for thing in named}]

    def all_unknown(self) -> bool:
        """Return whether the text contains numbers, dates or names, and no passage contains one of them. Call only if
        the text is a question. Return False for a language that writes every noun with a capital letter, because few
        names are recognised in it."""
        if self._language in claims.CAPITAL_NOUNS:
            return False
        text = self._compared_text()
        names = self._compared_names(text)
        if not all(self._is_unknown_name(name, text) for name in names):
            return False
        # Compared with nothing, every number and date of the text is missing. So these are all of them.
        figures = self._figures(text, claims.Stated.of((), self._language, whole=True), names_month=False)
        return bool(names or figures) and len(self._not_named(self._unknown_figures(text), text)) >= len(figures)

    def _compared_text(self) -> str:
        text = _QUARTER.sub(" ", _PERCENTAGE.sub(" ", self._text))
        return text if len(_WORD.findall(text)) <= _LONG_QUESTION else ""

    def _compared_names(self, text: str) -> list[str]:
        prior = "" if "" in self._languages else self._language
        language = detect_language(text) or likelier_of_alike(text) or prior
        alike = _ALIKE if language in _ALIKE else {language}
        if self._languages.isdisjoint({*alike, ""}) or text.isupper():
            return []
        known = self._vocabulary if language in claims.CAPITAL_NOUNS else None
        names = claims.inner_names(text, language, known)
        return [name for name in names if len(name) >= _SHORTEST_NAME and not months(name)]

    def _unknown_figures(self, text: str) -> list[str]:
        """Return the numbers and dates of the text that no passage contains. To save time, only a few lines of the
        passages with the same digits are read at first. If they do not contain all numbers, all lines with these digits
        are read. If these do not contain all numbers either, or if the text names a month, all lines of the passages
        are read."""
        names_month = any(months(word) for word in _WORD.findall(text))
        if not names_month and not any(find_numbers(text)):
            return []
        if not names_month:
            lines = [line for source in self._all_sources for line in source.splitlines()]
            near = [[line for line in lines if digits in line] for digits in set(_DIGITS.findall(text))]
            for most in (_FIRST_LINES, len(lines)):
                read = dict.fromkeys(line for each in near for line in each[:most])
                if not self._figures(text, claims.Stated.of([*read], self._language, whole=True), names_month):
                    return []
        return self._figures(text, self._stated(self._all, self._language, whole=True), names_month)

    def _figures(self, text: str, stated: claims.Stated, names_month: bool) -> list[str]:
        decades = {number[2:] for number in stated.numbers if len(number) == 4}  # "80" for the year 1980
        text = _DECADE.sub(lambda match: " " if match[1] in decades else match[0], text)
        if not names_month:
            return claims.unsupported_figures(text, stated)
        found = claims.unsupported_claims(text, stated, self._language)  # a month without a day is read as a name
        return [claim for claim in found if not claim.startswith("name ")]

    def _is_unknown_name(self, name: str, text: str) -> bool:
        if letters_and_digits(name) in self._letters(self._all):
            return False
        words = self._vocabulary
        if words.has_part(name) or self._is_written_out(name):
            return False
        # "Anarchy" in "The Mark of Anarchy": a passage with this name need not contain the name "Mark".
        owners = re.findall(rf"\b{re.escape(name)}(?: of(?: the)?| de| von| av) ([A-ZÄÖÅ]\w+)", text)
        return not any(words.has_part(owner) for owner in owners)

    def _is_written_out(self, name: str) -> bool:
        """Return whether a passage contains another form of `name`: the full words if `name` is an abbreviation, or the
        symbol, such as "km", if it is the name of a unit."""
        texts = [passage.content for passage in self._passages]
        if unit := _UNITS.get(name.casefold()):
            return any(unit in text.casefold() for text in texts)
        return name.isupper() and any(name in _initials(text) for text in texts)

    def agreeing(self, sentence: str) -> int:
        """Return the number of the passage that supports a sentence, or 0 if none supports it."""
        terms = QueryTerms.of(sentence)
        best, share = 0, 0.0
        for number, passage in enumerate(self._passages, 1):
            stems = frozenset(terms.terms([passage.language]).stems)
            own = len(stems & passage.stems) / len(stems) if len(stems) >= _MIN_TERMS else 0.0
            if own > share:
                best, share = number, own
        return best if share >= _AGREED and not self.missing(sentence, (best,)) else 0

    def _missing_quotations(self, sentence: str, numbers: tuple[int, ...]) -> Iterator[str]:
        for match in _QUOTATION.finditer(sentence):
            quotation = next(filter(None, match.groups()))
            parts = [letters_and_digits(part) for part in _ELLIPSIS.split(quotation)]
            short = len(quotation.split()) < _MIN_QUOTED
            if short and (" " in quotation or len(parts[0]) < _MIN_QUOTED_LETTERS or parts[0].isascii()):
                continue
            if not all(part in self._letters(numbers) for part in parts):
                yield f"quotation “{quotation}”"

    def _stated_of(self, numbers: tuple[int, ...], language: str, *, whole: bool = False) -> claims.Stated:
        moments = [self._passages[n - 1].hit.entry.occurred_at for n in numbers]
        sources = self._all_sources if numbers == self._all else self._sources(numbers)
        return claims.Stated.of(sources, language, filter(None, moments), whole=whole)

    def _sources(self, numbers: Iterable[int]) -> list[str]:
        """Return the texts that state facts: the question, and the texts of the passages with these numbers."""
        sources = [self._question]
        for passage in (self._passages[n - 1] for n in numbers):
            entry = passage.hit.entry
            name = f"{entry.source.name}\n{entry.source.label}" if entry.source else ""
            sources += [strip_hidden(passage.content), entry.context, entry.title, entry.speaker, name]
            sources += passage.named_dates
        return [*sources, _spelled_numbers(sources)]

    def _letters_of(self, numbers: tuple[int, ...]) -> str:
        return letters_and_digits("\n".join([*(self._passages[n - 1].content for n in numbers), self._question]))


def _cited_sentences(text: str) -> Iterator[tuple[str, list[int]]]:
    """Yield the sentences of a text, each with the numbers of the passages that it cites. Markers directly after the
    end of a sentence belong to this sentence."""
    text = claims.without_list_numbers(text)
    sentence, cited = "", list[int]()
    for span in sentence_spans(text):
        part = text[span.start : span.end]
        if sentence and (leading := _LEADING.match(part)):
            cited += _numbers(leading[0])
            part = part[leading.end() :].strip()
            if not part:
                continue
        if sentence:
            yield sentence, cited
        sentence, cited = part, _numbers(part)
    if sentence:
        yield sentence, cited


def _numbers(text: str) -> list[int]:
    return [int(number) for number in _MARKER.findall(text)]


def _spelled_numbers(texts: Iterable[str]) -> str:
    """Return the numbers that are written as words, as digits: "three cats" gives "3"."""
    words = {word for text in texts for word in _WORD.findall(text.casefold())}
    return " ; ".join(sorted(ANY_NUMBER_WORD[word] for word in words & ANY_NUMBER_WORD.keys()))


def _initials(text: str) -> str:
    """Return the initials of the capitalised words of a text, to find the words for which an abbreviation stands. Long
    words without a capital letter become a space, and short ones, such as "of", are left out."""
    words = _WORD.findall(text)
    return "".join(word[0] if word[0].isupper() else " " if len(word) > _LINKING else "" for word in words)
