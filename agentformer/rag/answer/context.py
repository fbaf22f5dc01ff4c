"""The context for a language model: the parts of the search hits that fit a budget of tokens, best first.

The method is "small to big". First, each of the best hits gives its best part, so that evidence on a lower rank is not
left out. Then, while tokens remain, the parts grow in the order of their ranks: to the whole chunk, to the section, and
to the page. Parts of a page that touch or overlap are joined, so no text occurs twice. A passage never crosses pages,
so each position in a passage has a position in its page.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from agentformer.rag.answer import prompts
from agentformer.search.pipeline import EXTRA_HITS, for_answer
from agentformer.search.reading import all_entries
from agentformer.search.relevance import EntryLanguages
from agentformer.text.analysis import QueryTerms, analyze_query, text_terms
from agentformer.text.languages.detection import detect_language
from agentformer.text.normalize import letters_and_digits
from agentformer.text.places import label_of_part, lines_of
from agentformer.text.question_types import ratio_items
from agentformer.text.splitting import sentence_spans, windows
from agentformer.types import Citation, Hit, Hits, MemoryBackend, MemoryEntry, Query, Scope, Shown, Source, Span

# Only hits with at least this share of the best score, and at most `_MOST`, share the budget: a much better hit gets
# more tokens. Chosen on the even questions about filings (similar hits) and encyclopedias (different hits);
# bench/log/documents.md.
_NEAR = 0.5  # share of the best score
_MOST = 6
_FRAME = 30  # tokens of the number and the source of a passage (estimated)
_SMALLEST = 8  # tokens of the smallest useful part
_READ = 20_000  # code points of a hit that are read at first; no chunk of a document has more
_LONG_TOKEN = 20  # code points; a text with more per token of the budget is not counted, because it does not fit
_MESSAGE = "message"
_ASKS = ("?", "？", "؟")  # at the end of a question
_CLOSERS = " \t\n\"'”’»)]*_"


@dataclass(frozen=True, slots=True)
class ContextPassage:
    """A passage of a context. The passage of a document is a part of one page: `text` is equal to
    `page.text[start:end]`, and `entry_ids` are the chunks with this text, in order. For an entry that belongs to no
    document, `text` is a part of the content of the entry. `score` is the score of the best hit in the passage."""

    number: Annotated[int, Shown("The number with which an answer cites the passage, such as 1 for `[1]`.")]
    document: str
    document_id: str
    page: int | None
    label: str
    start: int
    end: int
    text: str
    tokens: Annotated[int, Shown("The number of tokens of `text`, as the embedding model counts them.")]
    score: float
    entry_ids: Annotated[tuple[str, ...], Shown("The ids of the chunks with this text.")]


@dataclass(frozen=True, slots=True)
class PassageContext:
    """The passages for a question, best first. `text` contains the passages as a prompt shows them, with numbers and
    sources. Tags and template tokens in the passages are escaped, so that a model reads the passages as data. `tokens`
    is the number of tokens of `text`, and `budget` is the limit for this number."""

    text: Annotated[str, Shown("The passages with their numbers and sources, as a part of a prompt.")]
    passages: tuple[ContextPassage, ...]
    tokens: Annotated[int, Shown("The number of tokens of `text`, at most `budget`.")]
    budget: int
    warnings: tuple[str, ...] = ()  # warnings of the search
    hits: tuple[Hit, ...] = ()  # a hit for each passage, whose content is the text of the passage
    chunks: tuple[tuple[tuple[str, Span], ...], ...] = ()  # for each passage: chunk ids with their spans in the page

    def located(self, citation: Citation) -> Citation:
        """Return a copy of the citation with the id of the chunk that contains its quote. The citation must cite one of
        these passages."""
        chunks = self.chunks[citation.number - 1]
        inside = (id_ for id_, (start, end) in chunks if start <= citation.start and citation.end <= end)
        return dataclasses.replace(citation, entry_id=next(inside, citation.entry_id))


@dataclass(frozen=True, slots=True)
class PassageBuilder:
    """Builds contexts. `backend` contains the pages of the hits. `token_spans` returns the spans of the tokens of a
    text, as the language model counts them."""

    backend: MemoryBackend
    token_spans: Callable[[str], list[Span]]
    candidates: ClassVar[int] = 30  # hits of a search that may be in a context

    def search(self, query: Query, session_id: str | None) -> Hits:
        """Search for the passages and memories that can answer a question, best first. A message that only asks a
        question is left out, such as the same question in an earlier conversation. Messages of the session `session_id`
        are left out, too, because the caller already has them."""
        hits = self.backend.search(dataclasses.replace(query, limit=query.limit + EXTRA_HITS))
        return for_answer(hits, query, lambda hit: _answers(hit, query.text, session_id))

    def items(self, question: str) -> tuple[str, ...]:
        """Return the items of financial statements from which the ratios in the question are computed, such as "gross
        profit" and "total revenue" for the gross margin. The caller searches for them, because a report often does not
        state the ratio itself. Return () if the question names no ratio."""
        return ratio_items(question, detect_language(question))

    def build(self, question: str, hits: Hits, budget: int) -> PassageContext:
        """Return a context for the question with at most `budget` tokens. `hits` are the hits of a search for the
        question, best first. Equal calls on an unchanged memory give equal contexts.

        First, the best part of each near hit is added; a hit is near if its score is at least `_NEAR` of the best one.
        Then these parts grow. Weaker hits get only the tokens that are left, and all parts grow again at the end."""
        query, chosen = analyze_query(question), hits[: self.candidates]
        near = sum(hit.score >= _NEAR * chosen[0].score for hit in chosen[:_MOST])
        draft = _Draft(_Texts(self.backend, chosen), lambda text: len(self.token_spans(text)), budget)
        limit = max(_SMALLEST, budget // max(near, 1) - _FRAME)
        for n, hit in enumerate(chosen):
            if n == near:
                draft.grow()
            added = draft.add(hit, best_part(hit, query, self.token_spans, limit))
            # a part may have more tokens in the prompt than alone; a context with no part at all would be useless
            while not (added or draft.parts) and limit > _SMALLEST:
                limit = limit * 3 // 4
                added = draft.add(hit, best_part(hit, query, self.token_spans, limit))
        draft.grow()
        return draft.context(hits.warnings)


def best_part(hit: Hit, query: QueryTerms, token_spans: Callable[[str], list[Span]], limit: int) -> Span:
    """Return the part of the hit's content with at most `limit` tokens that matches the query best. This is the whole
    content if it is short enough, or else the part that the vector search found. If this part is also too long, return
    the piece of it with the rarest terms of the query. At most `_READ` code points are read."""
    content = hit.entry.content
    if len(content) <= _READ and len(token_spans(content)) <= limit:
        return Span(0, len(content))
    found = hit.span or Span(0, len(content))
    found = Span(found.start, min(found.end, found.start + _READ))
    text = content[found.start : found.end]
    pieces = windows(text, token_spans, limit)
    if len(pieces) < 2:
        return found
    language = EntryLanguages().of(hit.entry)
    wanted = set(query.terms([language]).stems)
    stems = [wanted.intersection(text_terms(text[start:end], language).stems) for start, end in pieces]
    holders = Counter(term for held in stems for term in held)
    scores = [sum(math.log(1 + len(pieces) / holders[term]) for term in held) for held in stems]
    best = pieces[scores.index(max(scores))]
    return Span(found.start + best.start, found.start + best.end)


@dataclass(frozen=True)
class _Text:
    """A page with its chunks, or the content of an entry. `offset` is the position of the text in its page."""

    content: str
    offset: int
    chunks: tuple[MemoryEntry, ...]

    def span_of(self, entry: MemoryEntry, part: Span) -> Span:
        """Return the position in this text of a part of an entry. `part` is the position in the entry's content."""
        start = entry.source.start - self.offset if entry.source else 0
        return Span(start + part.start, start + part.end)

    def around(self, span: Span) -> Iterator[Span]:
        """Yield the larger parts that contain `span`: the chunks, the section and the page."""
        spans = [self.span_of(chunk, Span(0, len(chunk.content))) for chunk in self.chunks]
        held = [n for n, (start, end) in enumerate(spans) if start < span.end and span.start < end]
        if not held:
            return
        first, last = held[0], held[-1]
        yield Span(spans[first].start, spans[last].end)
        while first and self.chunks[first - 1].context == self.chunks[first].context:
            first -= 1
        while last + 1 < len(spans) and self.chunks[last + 1].context == self.chunks[last].context:
            last += 1
        yield Span(spans[first].start, spans[last].end)
        yield Span(spans[0].start, spans[-1].end)


class _Texts:
    """Reads the texts of hits. The first read of a document reads all its pages that the hits need."""

    def __init__(self, backend: MemoryBackend, hits: Sequence[Hit]) -> None:
        self._backend = backend
        self._pages: defaultdict[str, set[int]] = defaultdict(set)
        for source in (hit.entry.source for hit in hits):
            if source and source.page is not None:
                self._pages[source.document_id].add(source.page)
        self._read: dict[str, dict[int, _Text]] = {}

    def of(self, entry: MemoryEntry) -> _Text:
        """Return the text of the entry's page. For an entry without a stored page, return the entry's content."""
        source = entry.source
        if source and source.page is not None:
            if source.document_id not in self._read:
                self._read[source.document_id] = self._read_pages(entry.namespace, source.document_id)
            page = self._read[source.document_id].get(source.page)
            if page and page.content[source.start : source.end] == entry.content:
                return page
        return _Text(entry.content, source.start if source else 0, (entry,))

    def _read_pages(self, namespace: str, document_id: str) -> dict[int, _Text]:
        """Return the pages of a document that hits need, by page number."""
        pages, chunks = {}, defaultdict(list)
        numbers = tuple(sorted(self._pages[document_id]))
        scope = Scope(namespace, kinds=("page", "chunk"), document_id=document_id, pages=numbers)
        for entry in all_entries(self._backend, scope):
            number = entry.source.page if entry.source else None
            if number is not None and entry.kind == "page":
                pages[number] = entry.content
            elif number is not None:
                chunks[number].append(entry)
        return {number: _Text(content, 0, tuple(chunks[number])) for number, content in pages.items()}


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a text. `hit` is the best hit in this part."""

    hit: Hit
    text: _Text
    span: Span

    @property
    def content(self) -> str:
        return self.text.content[self.span.start : self.span.end]

    def touches(self, other: _Part) -> bool:
        """Return whether the parts overlap, or whether only white space is between them."""
        first, last = sorted((self.span, other.span))
        return self.text is other.text and not self.text.content[first.end : last.start].strip()

    def joined(self, other: _Part) -> _Part:
        start, end = min(self.span.start, other.span.start), max(self.span.end, other.span.end)
        return dataclasses.replace(self, span=Span(start, end))

    def chunks(self) -> tuple[tuple[str, Span], ...]:
        """Return the ids of the chunks that the part overlaps, with their positions in the page."""
        spans = [(chunk.id, self.text.span_of(chunk, Span(0, len(chunk.content)))) for chunk in self.text.chunks]
        offset = self.text.offset
        return tuple(
            (id_, Span(offset + start, offset + end))
            for id_, (start, end) in spans
            if start < self.span.end and self.span.start < end
        )

    def _label(self) -> str:
        """Return the label of the part, as citations show it. In source code, the label contains the line numbers."""
        entry = self.hit.entry
        label, start = entry.source.label if entry.source else "", self.text.span_of(entry, Span(0, 0)).start
        if not (lines := lines_of(label)):
            return label
        first = lines[0] - self.text.content.count("\n", self.span.start, start)
        return label_of_part(
            label.replace(f"lines {lines[0]}-", f"lines {first}-"),
            self.text.content[start : self.span.start],
            self.content,
        )

    def as_hit(self) -> Hit:
        """Return a copy of the hit for the prompt and the answer, with only this part as its content."""
        entry, offset = self.hit.entry, self.text.offset
        source = entry.source and dataclasses.replace(
            entry.source, start=offset + self.span.start, end=offset + self.span.end, label=self._label()
        )
        return dataclasses.replace(
            self.hit, entry=dataclasses.replace(entry, content=self.content, source=source), span=None
        )


class _Draft:
    """The chosen parts, in the order of their best hits. The parts have at most `budget` tokens, including their
    numbers and sources."""

    def __init__(self, texts: _Texts, count: Callable[[str], int], budget: int) -> None:
        self._texts = texts
        self._count = count
        self._counted: dict[str, int] = {}
        self.budget = budget
        self.parts: list[_Part] = []

    def add(self, hit: Hit, part: Span) -> bool:
        """Add a part of a hit's content. Return whether the part fits."""
        text = self._texts.of(hit.entry)
        return self._try(_Part(hit, text, text.span_of(hit.entry, part)))

    def grow(self) -> None:
        """Replace parts by larger parts while they fit, step by step. In each step, the best part grows first."""
        for step in range(3):
            for part in list(self.parts):
                if part in self.parts:
                    larger = [*part.text.around(part.span)][step : step + 1]
                    self._try(*(dataclasses.replace(part, span=span) for span in larger))

    def context(self, warnings: tuple[str, ...]) -> PassageContext:
        """Return the context with the parts that fit."""
        while self.parts and self._count(self._text(self.parts)) > self.budget:
            self.parts.pop()  # the joined text can have more tokens than the sum of its parts
        text = self._text(self.parts)
        return PassageContext(
            text,
            tuple(self._passage(n, part) for n, part in enumerate(self.parts, 1)),
            self._count(text),
            self.budget,
            warnings,
            tuple(part.as_hit() for part in self.parts),
            tuple(part.chunks() for part in self.parts),
        )

    def _try(self, *added: _Part) -> bool:
        """Add parts, and join them with the parts that they touch. If the result does not fit, change nothing and
        return False."""
        parts = list(self.parts)
        for new in added:
            touched = [part for part in parts if part.touches(new)]
            joined = new
            for part in touched:
                joined = part.joined(joined)
            at = parts.index(touched[0]) if touched else len(parts)
            joined = dataclasses.replace(joined, hit=touched[0].hit if touched else new.hit)
            parts = [part for part in parts if part not in touched]
            parts.insert(at, joined)
        length = sum(part.span.end - part.span.start for part in parts)
        fits = length <= _LONG_TOKEN * self.budget and self._size(parts) <= self.budget
        if fits:
            self.parts = parts
        return fits

    def _text(self, parts: Sequence[_Part]) -> str:
        return prompts.passages([part.as_hit() for part in parts])

    def _size(self, parts: Sequence[_Part]) -> int:
        total = 0
        for n, part in enumerate(parts, 1):
            text = prompts.passage(n, part.as_hit())
            if text not in self._counted:
                self._counted[text] = self._count(text)
            total += self._counted[text]
        return total

    def _passage(self, number: int, part: _Part) -> ContextPassage:
        source = part.as_hit().entry.source or Source("", "", start=part.span.start, end=part.span.end)
        return ContextPassage(
            number=number,
            document=source.name,
            document_id=source.document_id,
            page=source.page,
            label=source.label,
            start=source.start,
            end=source.end,
            text=part.content,
            tokens=self._count(part.content),
            score=part.hit.score,
            entry_ids=tuple(id_ for id_, _ in part.chunks()),
        )


def _answers(hit: Hit, question: str, session_id: str | None) -> bool:
    entry = hit.entry
    if entry.kind != _MESSAGE or len(entry.content) > _READ:
        return True
    own = session_id is not None and entry.session_id == session_id
    return not own and letters_and_digits(entry.content) != letters_and_digits(question) and not _only_asks(entry)


def _only_asks(entry: MemoryEntry) -> bool:
    spans = sentence_spans(entry.content)
    return bool(spans) and all(entry.content[s.start : s.end].rstrip(_CLOSERS).endswith(_ASKS) for s in spans)
