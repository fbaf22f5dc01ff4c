"""Make the quote of a sentence whole: with the sentence that a pronoun refers to, with the lead-in of a list, and with
the beginning of the sentence on the page before."""

from __future__ import annotations

import re
from typing import NamedTuple

from agentformer.rag.answer.features import Sentence
from agentformer.rag.chunks import CARRIED
from agentformer.types import Span

MAX_QUOTE = 600  # code points of a quote; a longer sentence is cut at a word
OMITTED = " … "  # between the lead-in of a list and an item that does not follow it directly
_ITEM = re.compile(r"[ \t]*(?:[-*•–·▪◦‣]\s|\(?\d{1,3}[.)]\s|\(?[a-z][.)]\s)", re.IGNORECASE)
_FRAGMENT, _NAMES = 80, 8  # code points and words of a fragment that lists names
_LEADS_IN = (":", "：")
_CONTINUED = re.compile(r"\w+[\u00ad\ufffe-]$")  # a word that is cut at the end of the page


class Quote(NamedTuple):
    """A quote. `span` is its position in the content of the passage. `lead` is text before it that stands elsewhere:
    the lead-in of a list, or the beginning of the sentence on the page before."""

    span: Span
    lead: str = ""

    def text(self, sentence: Sentence) -> str:
        """Return the text of the quote of this sentence."""
        return self.lead + sentence.passage.content[self.span.start : self.span.end]


def whole_quote(sentence: Sentence) -> Quote:
    """Return the quote of a sentence with the text that a reader needs to understand it. A quote has at most
    `MAX_QUOTE` code points: what does not fit is left out."""
    content, span = sentence.passage.content, sentence.span
    if _ITEM.match(content, span.start):
        return _with_lead_in(sentence)
    if sentence.text.endswith(_LEADS_IN):
        return Quote(Span(span.start, _end_of_list(sentence)))
    span = Span(span.start, _end_of_names(sentence))
    if sentence.leads and sentence.before and span.end - sentence.before.span.start <= MAX_QUOTE:
        return Quote(Span(sentence.before.span.start, span.end))
    return Quote(shortened(content, span), _carried(sentence))


def _end_of_names(sentence: Sentence) -> int:
    """Return the end of the sentence, or of the names behind it that it announces ("It has three keys. Home, Help and
    Stop."): a fragment with a comma, of which most words are capitalised."""
    content = sentence.passage.content
    behind = next((span for span in sentence.passage.sentences if span.start >= sentence.span.end), None)
    if behind is None or behind.end - behind.start > _FRAGMENT or "\n\n" in content[sentence.span.end : behind.start]:
        return sentence.span.end
    names = content[behind.start : behind.end]
    words = [word for word in names.split() if word[:1].isalpha()]
    capitals = sum(word[0].isupper() for word in words)
    if "," in names and 1 < len(words) <= _NAMES and capitals * 2 > len(words) and not _ITEM.match(names):
        return behind.end
    return sentence.span.end


def _with_lead_in(item: Sentence) -> Quote:
    """Return the quote of a list item with the sentence that introduces the list."""
    content, former = item.passage.content, item.before
    while former and _ITEM.match(content, former.span.start):
        former = former.before
    if former is None or not former.text.endswith(_LEADS_IN) or former.span.end - former.span.start > MAX_QUOTE // 2:
        return Quote(shortened(content, item.span))
    if former is item.before and item.span.end - former.span.start <= MAX_QUOTE:
        return Quote(Span(former.span.start, item.span.end))
    return Quote(shortened(content, item.span), former.text + OMITTED)


def _end_of_list(lead_in: Sentence) -> int:
    """Return the end of the items behind a lead-in that fit in a quote, or of the next sentence if no items follow."""
    passage, end = lead_in.passage, lead_in.span.end
    behind = [span for span in passage.sentences if span.start >= end]
    items = [span for span in behind if _ITEM.match(passage.content, span.start)]
    for n, span in enumerate(items if items[:1] == behind[:1] else behind[:1]):
        if span != behind[n] or span.end - lead_in.span.start > MAX_QUOTE:
            break
        end = span.end
    return shortened(passage.content, Span(lead_in.span.start, end)).end


def _carried(sentence: Sentence) -> str:
    """Return the beginning of the sentence if it stands on the page before, else "". The context of a chunk carries it.
    A carried heading is not a beginning: the sentence must go on with a small letter or a script without case."""
    _, marked, carried = sentence.passage.hit.entry.context.partition(CARRIED)
    first = sentence.text[:1]
    goes_on = first.islower() or first.isdigit() or (first.isalpha() and first.lower() == first.upper())
    if not marked or not goes_on or sentence.passage.content[: sentence.span.start].strip():
        return ""
    if len(carried) + len(sentence.text) >= MAX_QUOTE:
        return ""
    if _CONTINUED.search(carried) and first.islower():
        return carried[:-1]
    return carried + ("" if _unspaced(carried[-1:]) else " ")


def _unspaced(letter: str) -> bool:
    return "\u3040" <= letter <= "\u9fff"


def shortened(content: str, span: Span) -> Span:
    """Return the span of a sentence. If the sentence is longer than `MAX_QUOTE`, the span ends earlier, if possible
    between two words."""
    if span.end - span.start <= MAX_QUOTE:
        return span
    end = content.rfind(" ", span.start, span.start + MAX_QUOTE)
    return Span(span.start, end if end > span.start else span.start + MAX_QUOTE)
