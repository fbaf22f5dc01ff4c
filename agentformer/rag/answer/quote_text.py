"""The text of a quote: a sentence with what a reader needs to understand it, such as the lead-in of a list, the
sentence before it, or the beginning of the sentence on the previous page."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from agentformer.rag.answer.features import Link
from agentformer.rag.answer.passages import ITEM, LEAD_IN_ENDS, Sentence
from agentformer.text.question_types import is_question
from agentformer.text.table_rows import TableRow
from agentformer.types import Span

MAX_QUOTE = 600  # code points of a quote; a longer sentence is cut at a word
OMITTED = " … "  # replaces omitted text, such as the items between a lead-in and a list item
# Maximum and minimum code points of a sentence that names a subject, if the sentences after it are omitted.
_NAMED, _LEAST_NAMED = 200, 60
_ITEM_FOLLOWS = re.compile(r"\n\s*+" + ITEM.pattern, re.IGNORECASE)
_ANSWER = 400  # maximum code points of a question and its answer, unless the answer is one longer sentence
_FRAGMENT, _NAMES = 80, 8  # maximum code points and words of a fragment that lists names


class Quote(NamedTuple):
    """The text to quote. `span` is its position in the content of the passage. `lead` is text from another place that
    is shown before it: the lead-in of a list, or the beginning of the sentence on the previous page. `row` is set if
    the quote is a row of a table."""

    span: Span
    lead: str = ""
    row: TableRow | None = None

    def text(self, content: str) -> str:
        """Return the text that a reader is shown: the quote with its lead, or a row whose cells follow their headers.
        `content` is the content of the passage."""
        return self.row.text[:MAX_QUOTE] if self.row else self.lead + content[self.span.start : self.span.end]

    @property
    def headings(self) -> str:
        """The text from other places that belongs to the quote: the headers of a row, or the lead."""
        return self.row.headings if self.row else self.lead.removesuffix(OMITTED).strip()


def whole_quote(sentence: Sentence, links: Mapping[Sentence, Link]) -> Quote:
    """Return the quote of a sentence with the text that a reader needs to understand it. `links` says which sentences
    depend on the sentence before them. Text that would make the quote longer than `MAX_QUOTE` code points is left
    out."""
    content, span = sentence.passage.content, sentence.span
    if sentence.row:
        return Quote(shortened(content, span), row=sentence.row)
    if sentence.answer:
        return Quote(Span(span.start, _end_of_answer(sentence)))
    if ITEM.match(content, span.start):
        return _with_lead_in(sentence)
    if _leads_in(sentence):
        return Quote(Span(span.start, _end_of_list(sentence)))
    end = _end_of_names(sentence)
    start, named = _with_subject(sentence, links, end)
    carried = sentence.passage.carried if start == sentence.passage.sentences[0].start else ""
    fits = len(carried) + end - start < MAX_QUOTE
    return Quote(shortened(content, Span(start, end)), named or (carried if fits else ""))


def _end_of_answer(question: Sentence) -> int:
    """Return the offset at which the quote of a question ends: at the end of the paragraph that answers. The quote ends
    earlier if it would be too long, or before another question."""
    passage, answer = question.passage, question.answer
    assert answer
    end = answer.span.end
    for span in islice(passage.sentences, bisect_left(passage.sentences, answer.span) + 1, None):
        text = passage.content[span.start : span.end]
        if "\n\n" in passage.content[end : span.start] or is_question(text) or span.end > question.span.start + _ANSWER:
            break
        end = span.end
    return shortened(passage.content, Span(question.span.start, end)).end


def _with_subject(sentence: Sentence, links: Mapping[Sentence, Link], end: int) -> tuple[int, str]:
    """Return the offset at which the quote of a sentence begins, and the text that is quoted before it. `end` is the
    end of the quote. If the sentence refers to the previous one ("It was built ..."), the quote begins with the
    previous one. If the previous sentence refers to the sentence before it, the quote begins with that sentence, and so
    on. If the quote would be too long, only the beginning of the sentence that names the subject is quoted before the
    rest. `links` say how a sentence refers to others (see `features.Link`)."""
    leads, refers, naming = links[sentence]
    start, earlier = sentence.span.start, sentence.before if leads else None
    while earlier and end - earlier.span.start <= MAX_QUOTE:
        start, earlier = earlier.span.start, earlier.before if links[earlier].refers else None
    naming = naming if earlier and refers else None  # a sentence is left that did not fit
    if naming is None:
        return start, ""
    content = sentence.passage.content
    for begin in (start, sentence.span.start):  # with the sentences that fit; without them, if no room is left
        room = min(_NAMED, MAX_QUOTE - len(OMITTED) - (end - begin))
        if room >= min(_LEAST_NAMED, naming.span.end - naming.span.start):
            return begin, content[slice(*shortened(content, naming.span, room))] + OMITTED
    return start, ""


def _end_of_names(sentence: Sentence) -> int:
    """Return the offset at which the quote of a sentence ends. If the sentence announces a list of names ("It has three
    keys. Home, Help and Stop."), the quote includes the next sentence. Otherwise, the quote ends with the sentence. A
    list of names is a short fragment with a comma, most of whose words are capitalised."""
    content, spans = sentence.passage.content, sentence.passage.sentences
    following = bisect_left(spans, (sentence.span.end,))
    after = spans[following] if following < len(spans) else None
    if after is None or after.end - after.start > _FRAGMENT or "\n\n" in content[sentence.span.end : after.start]:
        return sentence.span.end
    names = content[after.start : after.end]
    words = [word for word in names.split() if word[:1].isalpha()]
    capitals = sum(word[0].isupper() for word in words)
    if "," in names and 1 < len(words) <= _NAMES and capitals * 2 > len(words) and not ITEM.match(names):
        return after.end
    return sentence.span.end


def _leads_in(sentence: Sentence) -> bool:
    """Return whether a sentence introduces what follows: it ends with a colon, or it ends without punctuation and a
    list item follows."""
    if sentence.text.endswith(LEAD_IN_ENDS):
        return True
    content, end = sentence.passage.content, sentence.span.end
    if sentence.row or not sentence.text[-1:].isalnum() or "\n" in sentence.text:
        return False
    return _ITEM_FOLLOWS.match(content, end) is not None


def _with_lead_in(item: Sentence) -> Quote:
    """Return the quote of a list item with the sentence that introduces the list."""
    content, former = item.passage.content, item.above
    if former is None or not _leads_in(former) or former.span.end - former.span.start > MAX_QUOTE // 2:
        return Quote(shortened(content, item.span))
    if former is item.before and item.span.end - former.span.start <= MAX_QUOTE:
        return Quote(Span(former.span.start, item.span.end))
    return Quote(shortened(content, item.span), former.text + OMITTED)


def _end_of_list(lead_in: Sentence) -> int:
    """Return the offset at which the quote of `lead_in`, the introduction of a list or a table, ends: after the last
    item or row that fits in the quote. If neither follows, return the end of the next sentence."""
    passage, end = lead_in.passage, lead_in.span.end
    is_list = True
    for span in islice(passage.sentences, bisect_left(passage.sentences, (end,)), None):
        if not is_list or (end > lead_in.span.end and span.end - lead_in.span.start > MAX_QUOTE):
            break
        is_part = span in passage.rows or ITEM.match(passage.content, span.start) is not None
        if not is_part and end > lead_in.span.end:
            break
        is_list, end = is_part, span.end
    return shortened(passage.content, Span(lead_in.span.start, end)).end


def shortened(content: str, span: Span, limit: int = MAX_QUOTE) -> Span:
    """Return the span of a sentence, cut at `limit` code points, if possible between two words."""
    if span.end - span.start <= limit:
        return span
    end = content.rfind(" ", span.start, span.start + limit)
    return Span(span.start, end if end > span.start else span.start + limit)
