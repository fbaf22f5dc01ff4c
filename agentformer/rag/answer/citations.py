"""Citations: the markers in the text of a model, and the passages that the markers cite."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from agentformer.rag.answer.passages import Passage, RankedSentence, rank_sentences
from agentformer.rag.answer.prompts import CITING, CITING_WORDS, MARKER
from agentformer.text.analysis import QueryTerms
from agentformer.text.prompt_quoting import strip_hidden
from agentformer.types import Citation

# A marker with the space before it, or code, which is not changed.
_CODE = r"(?P<code>```.*?(?:```|\Z)|`[^`\n]*`)"
_SPACE = r"(?P<space>(?<![ \t])[ \t]*)"
_MARK = re.compile(rf"{_CODE}|{_SPACE}{CITING}", re.DOTALL | re.IGNORECASE)
_CITED = re.compile(r"\[(\d{1,3})\]")
_STRAY = "[0]"  # replaces a marker of no passage: no passage has this number
# Neighbouring markers with the words that join them to each other and to the words before.
_JOINT = r"(?:[ \t]{0,3}(?:[,;&]|\b(?:and|or|och|eller|og|ja|tai|und|oder|et|ou|y|e|i|en)\b)){1,2}"
_MARKS = re.compile(
    rf"{_CODE}|(?P<framed>[ \t]{{0,3}}\((?:see |cf\. )?\[0\]\))"
    rf"|(?P<joint>{_JOINT})?{_SPACE}(?P<marks>\[\d{{1,3}}\](?:(?:{_JOINT})?[ \t]{{0,3}}\[\d{{1,3}}\])*)"
    r"(?P<last>(?=[ \t]{0,3}(?:[.!?,;:)。！？]|\n|\Z)))?",
    re.DOTALL,
)
_UNFINISHED = re.compile(rf"(?<![ \t])[ \t]*[\[【［][ \t]{{0,3}}(?:{CITING_WORDS})?\^?[\d,;\s]*\Z", re.IGNORECASE)
# A sentence with the citations that follow its end.
_CLAIM = re.compile(r".+?(?:(?:[。！？]|[.!?](?=[\s\[]|\Z))(?:[ \t]*\[\d{1,3}\])*|\n|\Z)", re.DOTALL)
_COPIED_LETTERS = 8  # letters and digits beside a marker that a copy shares with its original
_MEANT_LETTERS = 24  # letters beside a marker that the cited passage must hold to be meant
_REACH = 200  # characters beside a marker that are searched for these letters
_MAX_RANGE = 20  # passages of one range


@dataclass(frozen=True, slots=True)
class CitedText:
    """A text in which every `[n]` outside code is a citation. `strays` are removed numbers that no passage has.
    `copied` are removed numbers that the model copied together with words of another passage."""

    text: str
    citations: tuple[Citation, ...]
    strays: tuple[int, ...]
    copied: tuple[int, ...] = ()


def cite(text: str, passages: Sequence[Passage]) -> CitedText:
    """Return the text of a model with all markers written as `[n]`, and its citations in the order of their first
    marker. `passages` are the passages that the model got, numbered from 1."""
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

    text = _MARKS.sub(_without_strays, _MARK.sub(spell, text)).strip()
    citations = []
    for number, claim in _claims(text).items():
        if sentences := rank_sentences(QueryTerms.of(claim), [passages[number - 1]]):
            citations.append(citation(number, sentences[0]))
    return CitedText(text, tuple(citations), tuple(sorted(strays)), tuple(sorted(copied.numbers)))


def citation(number: int, sentence: RankedSentence) -> Citation:
    """Return the citation of a sentence, with the position of the sentence in its document."""
    entry = sentence.hit.entry
    offset = entry.source.start if entry.source else 0
    return Citation(
        number=number,
        document=entry.source.name if entry.source else "",
        document_id=entry.source.document_id if entry.source else "",
        page=entry.source.page if entry.source else None,
        label=entry.source.label if entry.source else "",
        start=offset + sentence.span.start,
        end=offset + sentence.span.end,
        quote=sentence.quote,
        score=sentence.score,
        entry_id=entry.id,
    )


def without_unfinished(text: str) -> str:
    """Return a cut text without an unfinished marker at its end."""
    return _UNFINISHED.sub("", text)


def _without_strays(run: re.Match[str]) -> str:
    """Return a run of markers without strays. Also remove an "and" or a comma that joined only strays."""
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
    """Return for each number the sentences that cite it. Markers are removed from the sentences."""
    claims: dict[int, list[str]] = {}
    for sentence in _CLAIM.findall(_MARK.sub(lambda mark: "" if mark["code"] is not None else mark[0], text)):
        for number in dict.fromkeys(map(int, _CITED.findall(sentence))):
            claims.setdefault(number, []).append(_CITED.sub("", sentence).strip())
    return {number: " ".join(sentences) for number, sentences in claims.items()}


def _numbers(marker: str) -> list[int]:
    """Return the numbers of one marker in order. A range is replaced by all its numbers."""
    numbers: list[int] = []
    for part in re.split(r"[,;、，]", marker):
        first, _, last = part.replace("^", "").replace("–", "-").partition("-")
        low, high = int(first), int(last or first)
        numbers += range(low, high + 1) if low <= high < low + _MAX_RANGE else (low, high)
    return list(dict.fromkeys(numbers))


class _CopiedMarkers:
    """The markers that a model copied together with words of a passage, such as the references of a paper. A copied
    marker occurs in a passage next to the same words, and points to another passage that does not contain these
    words."""

    def __init__(self, text: str, passages: Sequence[Passage]) -> None:
        self._text = text
        self._passages = passages
        self.numbers: set[int] = set()  # of the copied markers found so far

    def has(self, number: int, start: int, end: int) -> bool:
        """Return True if the marker at `[start, end)` of the text is a copy, and record its number."""
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
        """Return the passages that have a marker with this number next to these letters on this side."""
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
    """Return the letters before and after a marker, without spaces, signs and other markers."""
    before, after = _letters(text[max(0, start - _REACH) : start]), _letters(text[end : end + _REACH])
    return ("before", before[-_MEANT_LETTERS:]), ("after", after[:_MEANT_LETTERS])


def _nearest(side: str, letters: str) -> str:
    return letters[-_COPIED_LETTERS:] if side == "before" else letters[:_COPIED_LETTERS]


def _letters(text: str) -> str:
    """Return the letters and digits of a text without markers. A copy rarely changes these characters."""
    return "".join(ch for ch in MARKER.sub("", text).casefold() if ch.isalnum())
