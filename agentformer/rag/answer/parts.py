"""The best part of a search hit: the part of a long text that a reader of the answer needs most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from agentformer.search.relevance import EntryLanguages
from agentformer.text.analysis import QueryTerms, text_terms
from agentformer.text.chunking import windows
from agentformer.types import Hit, Span


def best_part(hit: Hit, query: QueryTerms, token_spans: Callable[[str], list[Span]], limit: int) -> Span:
    """Return the part of the hit's content with at most `limit` tokens that matches the query best. This is the part
    that the vectors have found, if it is short enough, or else the part with the rarest terms of the query."""
    content = hit.entry.content
    if len(token_spans(content)) <= limit:
        return Span(0, len(content))
    found = hit.span or Span(0, len(content))
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
