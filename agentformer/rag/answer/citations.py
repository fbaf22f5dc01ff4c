"""From a model's text to citations: which numbers it gives, which of them exist, and the sentence behind each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentformer.rag.answer.copied_markers import Borrowed, numbers_of
from agentformer.rag.answer.prompts import CITING, CITING_WORDS
from agentformer.rag.answer.sentences import Evidence, rank_evidence
from agentformer.types import Citation, Hit

# A mark with the space before it; or code, which is left alone.
_CODE = r"(?P<code>```.*?(?:```|\Z)|`[^`\n]*`)"
_SPACE = r"(?P<space>(?<![ \t])[ \t]*)"
_MARK = re.compile(rf"{_CODE}|{_SPACE}{CITING}", re.DOTALL | re.IGNORECASE)
_CITED = re.compile(r"\[(\d{1,3})\]")
_STRAY = "[0]"  # of a mark that points to no passage: no passage has this number
# Neighbouring marks with what joins them to each other and to the words before.
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


@dataclass(frozen=True, slots=True)
class Cited:
    """A text whose every `[n]` outside of code is a citation; `strays` are numbers of no passage, and `borrowed` those
    that came along with the words of another passage. Both are taken out."""

    text: str
    citations: tuple[Citation, ...]
    strays: tuple[int, ...]
    borrowed: tuple[int, ...] = ()


def cite(text: str, hits: Sequence[Hit]) -> Cited:
    """The citations in a model's text, in the order of their first mention; all spellings become `[n]`.

    `hits` are the passages that the model was given, in the order of their numbers from 1.
    """
    strays: set[int] = set()
    borrowed = Borrowed(text, hits)

    def spelled(mark: re.Match[str]) -> str:
        if mark["code"] is not None:
            return mark[0]
        numbers = numbers_of(mark["numbers"])
        strays.update(n for n in numbers if not 1 <= n <= len(hits))
        kept = "".join(
            f"[{n}]" for n in numbers if 1 <= n <= len(hits) and not borrowed.has(n, mark.start(), mark.end())
        )
        return mark["space"] + (kept or _STRAY)

    text = _MARKS.sub(_tidied, _MARK.sub(spelled, text)).strip()
    ranked = ((number, rank_evidence(claim, [hits[number - 1]])) for number, claim in _claims(text).items())
    citations = tuple(citation(number, evidence[0]) for number, evidence in ranked if evidence)
    return Cited(text, citations, tuple(sorted(strays)), borrowed.numbers)


def without_unfinished(text: str) -> str:
    """A text that was cut, without the beginning of a citation at its end."""
    return _UNFINISHED.sub("", text)


def _tidied(run: re.Match[str]) -> str:
    """A run of marks without the strays, and without an "and" or a comma that joined nothing but them."""
    if run["framed"]:
        return ""
    if run["code"] is not None or _STRAY not in run["marks"]:
        return run[0]
    kept = ""
    before, *rest = re.split(r"(\[\d{1,3}\])", run["marks"])
    for mark, after in zip(rest[::2], rest[1::2], strict=True):
        if mark != _STRAY:
            kept += (before if kept else "") + mark
        before = after
    joint = run["joint"] or ""
    if not kept:
        return "" if run["last"] is not None else joint
    return joint + run["space"] + kept


def citation(number: int, evidence: Evidence) -> Citation:
    """Where in its document a sentence stands."""
    entry = evidence.hit.entry
    offset = entry.source.start if entry.source else 0
    return Citation(
        number=number,
        document=entry.source.name if entry.source else "",
        document_id=entry.source.document_id if entry.source else "",
        page=entry.source.page if entry.source else None,
        label=entry.source.label if entry.source else "",
        start=offset + evidence.span.start,
        end=offset + evidence.span.end,
        quote=evidence.quote,
        score=evidence.score,
        entry_id=entry.id,
    )


def _claims(text: str) -> dict[int, str]:
    """Number -> the sentences that cite it, without their marks."""
    said: dict[int, list[str]] = {}
    for sentence in _CLAIM.findall(_MARK.sub(lambda mark: "" if mark["code"] is not None else mark[0], text)):
        for number in dict.fromkeys(map(int, _CITED.findall(sentence))):
            said.setdefault(number, []).append(_CITED.sub("", sentence).strip())
    return {number: " ".join(sentences) for number, sentences in said.items()}
