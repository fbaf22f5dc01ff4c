"""Citations in the text of a model. A marker such as `[1]` cites the passage with the number 1."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agentformer.rag.answer.passages import Passage
from agentformer.rag.answer.prompts import CITING, CITING_WORDS, MARKER
from agentformer.rag.answer.quotes import RankedSentence, rank_sentences
from agentformer.text.analysis import QueryTerms
from agentformer.text.normalize import letters_and_digits
from agentformer.text.places import label_of_part
from agentformer.text.prompt_quoting import strip_hidden
from agentformer.types import Citation, MemoryEntry

# A marker with the space before it, or code, which is not changed.
_CODE = r"(?P<code>```.*?(?:```|\Z)|`[^`\n]*`)"
_SPACE = r"(?P<space>(?<![ \t])[ \t]*)"
_MARK = re.compile(rf"{_CODE}|{_SPACE}{CITING}", re.DOTALL | re.IGNORECASE)
_CITED = re.compile(r"\[(\d{1,3})\]")
_STRAY = "[0]"  # replaces a marker with an unknown number; no passage has the number 0
# Neighbouring markers with the words that join them to each other and to the words before.
_JOINT = r"(?:[ \t]{0,3}(?:[,;&]|\b(?:and|or|och|eller|og|ja|tai|und|oder|et|ou|y|e|i|en)\b)){1,2}"
_MARKER_RUNS = re.compile(
    rf"{_CODE}|(?P<framed>[ \t]{{0,3}}\((?:see |cf\. )?\[0\]\))"
    rf"|(?P<joint>{_JOINT})?{_SPACE}(?P<marks>\[\d{{1,3}}\](?:(?:{_JOINT})?[ \t]{{0,3}}\[\d{{1,3}}\])*)"
    r"(?P<last>(?=[ \t]{0,3}(?:[.!?,;:)。！？]|\n|\Z)))?",
    re.DOTALL,
)
_UNFINISHED = re.compile(rf"(?<![ \t])[ \t]*[\[【［][ \t]{{0,3}}(?:{CITING_WORDS})?\^?[\d,;\s]*\Z", re.IGNORECASE)
# A sentence with the citations that follow its end.
_CLAIM = re.compile(r".+?(?:(?:[。！？]|[.!?](?=[\s\[]|\Z))(?:[ \t]*\[\d{1,3}\])*|\n|\Z)", re.DOTALL)
_OPENING, _CLOSING = '“„«"「', '”“»"」'
_DOUBLE = frozenset('“”„"')
_COPIED_LETTERS = 8  # a copied marker has the same letters and digits before or after it as its original
_MEANT_LETTERS = 24  # letters on one side of a marker; if the cited passage contains them, the marker is not a copy
_REACH = 200  # characters on each side of a marker from which these letters are taken
_MAX_RANGE = 20  # passages of one range


@dataclass(frozen=True, slots=True)
class CitedText:
    """The text of a model after its citations were checked. In `text`, every `[n]` outside code belongs to one of the
    `citations`. `strays` are the numbers that were removed because no passage has these numbers. `copied` are the
    numbers that were removed because the model copied them from the text of a passage."""

    text: str
    citations: tuple[Citation, ...]
    strays: tuple[int, ...]
    copied: tuple[int, ...] = ()

    def warnings(self) -> Iterator[str]:
        """Yield a warning for the reader if citation numbers were removed from the answer: one for numbers of passages
        that do not exist, and one for references that the model copied from the text of a passage."""
        if self.strays:
            yield f"citations of passages that do not exist were removed: {', '.join(map(str, self.strays))}"
        if self.copied:
            yield f"references that the model copied from a passage were removed: {', '.join(map(str, self.copied))}"


def cite(text: str, passages: Sequence[Passage]) -> CitedText:
    """Check the citations in the text of a model. Return the text with every marker written as `[n]`, and the citations
    in the order of their first marker. `passages` are the passages that the model received, numbered from 1."""
    strays: set[int] = set()
    copied = _CopiedMarkers(text, passages)

    def spell(marker: re.Match[str]) -> str:
        if marker["code"] is not None:
            return marker[0]
        numbers = _numbers(marker["numbers"])
        valid = [n for n in numbers if 1 <= n <= len(passages)]
        strays.update(set(numbers) - set(valid))
        own = "".join(f"[{n}]" for n in valid if not copied.has(n, marker.start(), marker.end()))
        return marker["space"] + (own or _STRAY)

    text = _MARKER_RUNS.sub(_without_strays, _MARK.sub(spell, text)).strip()
    citations = []
    for number, claim in _claims(text).items():
        if sentences := rank_sentences(QueryTerms.of(claim), [passages[number - 1]]):
            citations.append(citation(number, sentences[0]))
    return CitedText(text, tuple(citations), tuple(sorted(strays)), tuple(sorted(copied.numbers)))


def citation(number: int, sentence: RankedSentence) -> Citation:
    """Return the citation of a sentence, with this number and with the position of the sentence in its page."""
    entry, (start, end) = sentence.hit.entry, sentence.span
    offset = entry.source.start if entry.source else 0
    around = entry.content[:start], entry.content[start:end]
    return Citation(
        number=number,
        document=entry.source.name if entry.source else "",
        document_id=entry.source.document_id if entry.source else "",
        page=entry.source.page if entry.source else None,
        label=label_of_part(entry.source.label, *around) if entry.source else "",
        start=offset + start,
        end=offset + end,
        quote=entry.content[start:end],
        headings=sentence.shown.headings,
        score=sentence.score,
        entry_id=entry.id,
        newer=sentence.hit.newer,
        **_origin(entry),
    )


def quoted(sentence: RankedSentence) -> str:
    """Return a ranked sentence as an extractive answer shows it: in quotation marks, or as a row whose cells follow
    their headers."""
    return " ".join(sentence.text.split()) if sentence.row else in_marks(sentence.text)


def in_marks(quote: str) -> str:
    """Return a quote in one line and in quotation marks. If the quote is a whole quotation already, no marks are added.
    If it contains a quotation, other marks are added: «“Stop,” he said.»"""
    text = " ".join(quote.split())
    inside = text[1:-1]
    is_quotation = text[0] in _OPENING and text[-1] in _CLOSING and not set(inside) & set(_OPENING + _CLOSING)
    if is_quotation and len(text) > 1:
        return text
    nested = set(text) & _DOUBLE
    return f"«{text}»" if nested and "«" not in text else f"“{text}”"


def _origin(entry: MemoryEntry) -> dict[str, Any]:
    """Return the fields that describe a cited memory, such as its kind and its speaker. Return {} for a chunk of a
    document, which a citation describes by its document and page."""
    if entry.source:
        return {}
    return {
        "kind": entry.kind,
        "speaker": entry.speaker or entry.role,
        "at": entry.occurred_at or entry.created_at,
        "originals": tuple(link.id for link in entry.derived_from if link.type == "derived_from"),
    }


def without_unfinished(text: str) -> str:
    """Return the text without a marker that was cut off at the end of the text, such as "[1"."""
    return _UNFINISHED.sub("", text)


def _without_strays(run: re.Match[str]) -> str:
    """Return the text of a group of markers, such as "[1] and [2]", without the markers that cite no passage. The words
    between the markers, such as "and", are removed if they no longer join two markers."""
    if run["framed"]:
        return ""
    if run["code"] is not None or _STRAY not in run["marks"]:
        return run[0]
    own = ""
    before, *rest = re.split(r"(\[\d{1,3}\])", run["marks"])
    for marker, after in zip(rest[::2], rest[1::2], strict=True):
        if marker != _STRAY:
            own += (before if own else "") + marker
        before = after
    joint = run["joint"] or ""
    if not own:
        return "" if run["last"] is not None else joint
    return joint + run["space"] + own


def _claims(text: str) -> dict[int, str]:
    """Return a dictionary: number of a passage -> the sentences that cite it, without markers."""
    claims: dict[int, list[str]] = {}
    for sentence in _CLAIM.findall(_MARK.sub(lambda mark: "" if mark["code"] is not None else mark[0], text)):
        for number in dict.fromkeys(map(int, _CITED.findall(sentence))):
            claims.setdefault(number, []).append(_CITED.sub("", sentence).strip())
    return {number: " ".join(sentences) for number, sentences in claims.items()}


def _numbers(marker: str) -> list[int]:
    """Return the numbers in a marker, in order. A range of at most 20 numbers, such as "1-3", is replaced by all its
    numbers. Of a longer range, return only the first and the last number."""
    numbers: list[int] = []
    for part in re.split(r"[,;、，]", marker):
        first, _, last = part.replace("^", "").replace("–", "-").partition("-")
        low, high = int(first), int(last or first)
        numbers += range(low, high + 1) if low <= high < low + _MAX_RANGE else (low, high)
    return list(dict.fromkeys(numbers))


class _CopiedMarkers:
    """The markers that a model copied from a passage, such as the references of a paper. A marker `[n]`
    is a copy if two conditions hold: a passage other than passage n contains `[n]` next to the same words, and
    passage n does not contain these words."""

    def __init__(self, text: str, passages: Sequence[Passage]) -> None:
        self._text = text
        self._passages = passages
        self.numbers: set[int] = set()  # of the copied markers found so far

    def has(self, number: int, start: int, end: int) -> bool:
        """Return whether the model copied the marker `[number]` from a passage. If so, the number is also added to
        `numbers`. The position of the marker in the text of the model is `[start, end)`."""
        if not self._holders:
            return False
        copied = any(
            len(letters) >= _COPIED_LETTERS and self._is_copy(number, side, letters)
            for side, letters in _beside(self._text, start, end)
        )
        if copied:
            self.numbers.add(number)
        return copied

    def _is_copy(self, number: int, side: str, letters: str) -> bool:
        holders = self._holders.get((number, side, _nearest(side, letters)), set())
        return bool(holders - {number}) and letters not in self._letters[number - 1]

    @cached_property
    def _letters(self) -> list[str]:
        return [_letters(passage.content) for passage in self._passages]

    @cached_property
    def _holders(self) -> dict[tuple[int, str, str], set[int]]:
        """A dictionary of the markers in the passages. A key is a number in a marker, a side (`before` or `after`) and
        the nearest letters on this side. A value is the set of the numbers of the passages with such a marker."""
        holders: dict[tuple[int, str, str], set[int]] = {}
        for holder, passage in enumerate(self._passages, 1):
            content = strip_hidden(passage.content)
            for marker in MARKER.finditer(content):
                sides = _beside(content, marker.start(), marker.end())
                for number in _numbers(marker["numbers"]):
                    for side, letters in sides:
                        holders.setdefault((number, side, _nearest(side, letters)), set()).add(holder)
        return holders


def _beside(text: str, start: int, end: int) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the pairs ("before", letters before a marker) and ("after", letters after it). The marker is at `[start,
    end)`. Other markers are left out."""
    before, after = _letters(text[max(0, start - _REACH) : start]), _letters(text[end : end + _REACH])
    return ("before", before[-_MEANT_LETTERS:]), ("after", after[:_MEANT_LETTERS])


def _nearest(side: str, letters: str) -> str:
    return letters[-_COPIED_LETTERS:] if side == "before" else letters[:_COPIED_LETTERS]


def _letters(text: str) -> str:
    """Return the letters and digits of a text. Markers such as `[1]` are left out. A model that copies a text rarely
    changes its letters and digits."""
    return letters_and_digits(MARKER.sub("", text))
