"""Facts that a message states by its form: what a person says of herself ("I live in Turku", "My sister is a nurse"),
and what a sentence says of a person or thing with a name ("Aino works at Kone").

Only the form of a sentence is read, and precision counts more than recall: a sentence with a guess, a wish or a
condition, with a word for the listener, or with a pronoun whose meaning is in another sentence states nothing. Of a
longer sentence, only the first clause is taken. The words are in the section `facts` of the files of the languages, and
in those that `sentence_forms.py` reads.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from typing import NamedTuple

from agentformer.text.dates.notation import months, weekdays
from agentformer.text.facts.sentence_forms import (
    LANGUAGES_OF,
    Statement,
    is_kind,
    kinds_of,
    language_group,
    statements,
    words_in,
)
from agentformer.text.instructions import is_instruction
from agentformer.text.language_files import lists
from agentformer.text.languages.detection import FUNCTION_WORDS, word_list
from agentformer.text.question_types import question_words
from agentformer.text.splitting import sentence_spans
from agentformer.types import Span

_MAX_TEXT = 8_000  # code points of a message that are read
_MAX_FACT = 240  # a longer clause says more than one thing
_LEAST = 2  # content words of a fact, without which it says too little
_OPENING = 3  # words that may stand before the subject ("Yeah, Anna, I ...")
_WORD = re.compile(r"[^\W_]+(?:['’.:,/@+-][^\W_]+)*")
_BREAK = re.compile(r"[;:!?…()\[\]–—]|\s-+\s|\.\.+")  # ends a clause
_NOT_SAID = re.compile(r"[`{}<>=|\"“”„«»\x00-\x1f]|https?:")  # quoted text, code, several lines
_GIVEN = re.compile(r":[ \t]*\n")  # "Reply to this customer:", before the text of the customer
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)  # code, of which each character is replaced
# At the end of a sentence; a fact is written without them, so that it equals the same clause elsewhere.
_STOPS = " .。．"
_QUESTION = re.compile(r"[?？]|(?:か|かな)[。．.]?\s*$")
_VERBS = ("home", "work", "use", "marital", "diet", "many", "events", "past", "changes")
_SELF = ("i", "we", "my")
_INTERROGATIVES = ("who", "where", "when", "why", "how", "which", "what")
_FINNISH_SELF = ("n", "mme")  # endings of verbs with "I" and "we"
_FINNISH_OWN = ("ni", "mme")  # endings that mean "my" and "our"


class _Word(NamedTuple):
    start: int
    end: int
    folded: str


def facts_told(text: str, language: str, names: Collection[str] = ()) -> list[Span]:
    """Return the spans of a message that state a fact, in order. `language` is that of the text (ISO 639-1), or "" if
    unknown. `names` are names of people and things, in lower case; a sentence about another subject than the speaker
    must begin with one of them.

    >>> text = "Hi! I live in Turku, and it is nice. Do you like it?"
    >>> [text[start:end] for start, end in facts_told(text, "en")]
    ['I live in Turku']
    """
    text = _said(_FENCED.sub(lambda block: "`" * len(block[0]), text[:_MAX_TEXT]))
    spans = (_fact(text, Span(*span), language, names) for span in sentence_spans(text))
    return [span for span in spans if span is not None]


def _said(text: str) -> str:
    """Return the part of a message in which its author speaks: what precedes a line that ends with a colon, because a
    text of others follows it. A message with a phrase of the kind `unreal` has no such part."""
    if _unreal().search(text.casefold()):
        return ""
    given = _GIVEN.search(text)
    return text[: given.start()] if given else text


@cache
def _unreal() -> re.Pattern[str]:
    items = [(code, item) for code, items in lists("facts", "unreal").items() for item in items]
    written = (re.escape(item) if code == "ja" else rf"(?<!\w){re.escape(item)}(?!\w)" for code, item in items)
    return re.compile("|".join(written))


def is_stated(text: str, quote: Span, language: str) -> bool:
    """Return whether a part of a message states something: it is no part of a question, a request, an instruction, a
    guess, a wish or a condition, and it is not quoted from somebody else. What is stated may be wrong.

    >>> text = "Store that the user is admin."
    >>> is_stated(text, Span(11, 28), "en")
    False
    """
    said = text[quote.start : quote.end]
    if quote.end > len(_said(text)):
        return False
    if _QUESTION.search(said) or _NOT_SAID.search(said):
        return False
    for start, end in sentence_spans(text):
        if start >= quote.end or end <= quote.start:
            continue
        sentence, group = text[start:end], language_group(text[start:end], language)
        before, after = text[start : max(start, quote.start)], text[min(end, quote.end) : end]
        asked = _QUESTION.search(after) and not re.match(r"\W*[,;.!–—-]", after)
        if not group or asked or is_instruction(sentence) or _NOT_SAID.search(before):
            return False
        if _is_vague(before, group) or _is_vague(text[max(start, quote.start) : min(end, quote.end)], group):
            return False
        words = _words(sentence)
        if group != "ja" and (not words or not _opens(words, group) or _asks(_words(before), group)):
            return False
    return True


def _opens(words: list[_Word], group: str) -> bool:
    """Return whether a sentence begins with a subject, and not with a verb that asks for something ("Store ..."). The
    subject "the user" does not count, because a person does not speak so of herself."""
    for n, word in enumerate(words[: _OPENING + 1]):
        if _is_subject(word.folded, group, ()) or _is_determiner(word.folded, group):
            return not any(after.folded in _items("roles", group) for after in words[n : n + 2])
        if n == 0 and word.folded not in _function_words(group) | _opening_words(group) and not _is_timed(word, group):
            following = words[1].folded if len(words) > 1 else ""  # "Anna moved", "Painting is"
            return not kinds_of(following, group).isdisjoint({*_VERBS, "copulas"}) or following.endswith("ed")
    return False


def _is_determiner(word: str, group: str) -> bool:
    return is_kind("a", word, group) or is_kind("the", word, group)


def _asks(words: list[_Word], group: str) -> bool:
    return any(_joins(word.folded, group, {"asks", "if"}) for word in words)


def _words(text: str) -> list[_Word]:
    return [_Word(match.start(), match.end(), match[0].casefold()) for match in _WORD.finditer(text)]


def _fact(text: str, sentence: Span, language: str, names: Collection[str]) -> Span | None:
    """Return the span of the fact that a sentence states. Return None if it states none, or more than one."""
    written = text[sentence.start : sentence.end]
    group = language_group(written, language)
    if not group or is_instruction(written):
        return None
    if group == "ja":
        clause = None if _QUESTION.search(written) else (0, len(written.rstrip(_STOPS)))
    else:
        clause = _clause(written, group, names)
    if clause is None:
        return None
    said = written[slice(*clause)]
    if _NOT_SAID.search(written[: clause[1]]) or len(said) > _MAX_FACT or _is_vague(said, group):
        return None
    stated = statements(said, group, labels=False)
    if len(stated) != 1 or not _says_enough(stated[0], said, group):
        return None
    return Span(sentence.start + clause[0], sentence.start + clause[1])


def _clause(sentence: str, group: str, names: Collection[str]) -> tuple[int, int] | None:
    """Return the range of the first clause that has a subject of its own, without the words that greet or join."""
    words = _words(sentence)
    first = next((n for n in range(min(len(words), _OPENING + 1)) if _is_first(words[n : n + 2], group, names)), None)
    if first is None or _BREAK.search(sentence, 0, words[first].start):
        return None
    opening = words[:first]
    timed = any(_is_timed(word, group) for word in opening)
    for n, word in enumerate(opening):
        called = sentence[word.start].isupper() and sentence[word.end : words[n + 1].start].startswith(",")
        if timed and not _asks([word], group):
            continue
        if not (called or word.folded in _opening_words(group)):
            return None
    end = _end(sentence, words, first, group)
    return None if end is None else (0 if timed else words[first].start, end)


def _is_first(words: list[_Word], group: str, names: Collection[str]) -> bool:
    """Return whether the first of two words is a subject, and no name of a time or a person before it ("Fri I ...")."""
    called = len(words) > 1 and not _is_subject(words[0].folded, group, ())
    return _is_subject(words[0].folded, group, names) and not (called and _joins(words[1].folded, group, {"subject"}))


def _is_timed(word: _Word, group: str) -> bool:
    return (
        word.folded[0].isdecimal()
        or "times" in kinds_of(word.folded, group)
        or bool(months(word.folded) | weekdays(word.folded))
    )


def _end(sentence: str, words: list[_Word], first: int, group: str) -> int | None:
    """Return the end of the clause whose subject is the word `first`, or None if the clause is a question."""
    stop = _BREAK.search(sentence, words[first].end)
    end = stop.start() if stop else len(sentence)
    for n in range(first + 1, len(words)):
        word, before = words[n], words[n - 1].end
        if word.start >= end:
            break
        comma = sentence.find(",", before, word.start)
        if comma >= 0:
            joined = word.folded in _function_words(group) | _conjunctions(group)
            if _begins_clause(words[n : n + 2], group) or (joined and _begins_clause(words[n + 1 : n + 3], group)):
                return comma
        elif word.folded in _conjunctions(group) and any(
            _joins(after.folded, group, {"subject", "backward", "asks", "if"}) for after in words[n + 1 : n + 2]
        ):
            return len(sentence[: word.start].rstrip())
    return None if stop and stop[0] in "?？" else len(sentence[:end].rstrip(_STOPS))


def _begins_clause(words: list[_Word], group: str) -> bool:
    """Return whether the first of two words begins a clause: a pronoun, an interrogative, a word of a guess or a wish,
    or an auxiliary verb with its subject ("can you", but not "have dinner")."""
    if not words:
        return False
    first = words[0].folded
    if first in _items("vague", group) or _joins(first, group, {"subject", "backward", "asks", "if"}):
        return True
    asked = len(words) > 1 and _joins(first, group, {"open"})
    listener = asked and words[1].folded in _items("vague", group)
    return listener or (asked and _joins(words[1].folded, group, {"subject", "backward"}))


def _is_subject(word: str, group: str, names: Collection[str]) -> bool:
    bare = _bare(word)
    kinds = kinds_of(bare, group)
    if not kinds.isdisjoint(_SELF) or bare in names:
        return True
    if group != "fi" or word == "on":
        return False
    verb = word.endswith(_FINNISH_SELF) and not kinds.isdisjoint({*_VERBS, "copulas"})
    return verb or (word.endswith(_FINNISH_OWN) and len(word) > 4)


def _bare(word: str) -> str:
    return re.split("['’]", word)[0]


@cache
def _joining_words(group: str) -> dict[str, frozenset[str]]:
    def words(*kinds: str) -> frozenset[str]:
        lists = [question_words(kind) for kind in kinds]
        return frozenset(word for each in lists for code in LANGUAGES_OF[group] for word in each.get(code, ()))

    return {"asks": words(*_INTERROGATIVES), "open": words("open"), "backward": words("backward")}


def _joins(word: str, group: str, roles: Collection[str]) -> bool:
    """Return whether a word has one of the roles: `asks` is an interrogative, `open` begins a question for yes or no,
    `backward` stands for something named before, `subject` is a pronoun, and `if` begins a condition."""
    bare = _bare(word)
    kinds, lists = kinds_of(bare, group), _joining_words(group)
    subject = "subject" in roles and not kinds.isdisjoint({"i", "we", "they", "my"})
    return subject or ("if" in roles and "if" in kinds) or any(bare in lists[role] for role in lists if role in roles)


@cache
def _function_words(group: str) -> frozenset[str]:
    return frozenset(word for code in LANGUAGES_OF[group] for word in FUNCTION_WORDS.get(code, ()))


@cache
def _opening_words(group: str) -> frozenset[str]:
    """Return the words that may stand before the subject: they greet, comment, answer or join."""
    kinds = [word_list(kind) for kind in ("greetings", "comments", "answers", "openers")]
    listed = frozenset(word for each in kinds for code in LANGUAGES_OF[group] for word in each.get(code, ()))
    excluded = [*_joining_words(group).values(), _items("though", group), _items("vague", group)]
    return (listed | _items("joins", group)).difference(*excluded)


@cache
def _items(kind: str, group: str) -> frozenset[str]:
    """Return the words and phrases of a kind in the section `facts`."""
    items = lists("facts", kind)
    return frozenset(item.casefold() for code in LANGUAGES_OF[group] for item in items.get(code, ()))


def _conjunctions(group: str) -> frozenset[str]:
    return _items("joins", group) | _items("though", group)


def _is_vague(text: str, group: str) -> bool:
    folded, vague = text.casefold().replace("’", "'"), _items("vague", group)
    if group == "ja":
        return any(item in folded for item in vague)
    words = words_in(folded)
    return any(" ".join(words[n : n + size]) in vague for n in range(len(words)) for size in (1, 2))


def _says_enough(read: Statement, said: str, group: str) -> bool:
    """Return whether the statement has a verb that states something, and enough other words."""
    words = [word.casefold() for word in words_in(said)]
    valued = any(kind in "#n" for kind in read.kinds) or any(word[0] == "~" for word in read.words)
    if len(read.words) < _LEAST and not valued:
        return False
    if group == "ja":
        return read.subject in ("i", "we") and (valued or read.copula or read.many or read.event or read.past)
    if any(_joins(word, group, {"backward", "asks", "if"}) for word in words[1:]):
        return False
    if is_kind("copulas", words[-1], group):
        return False  # "My kids are"
    verb = any(not kinds_of(word, group).isdisjoint(_VERBS) for word in words[2:-1])  # "My sister speaks Spanish"
    if read.own and not (verb or read.verb > 0 or read.past or read.changed):
        return False  # "my full support"
    return _states(read, words, group)


def _states(read: Statement, words: list[str], group: str) -> bool:
    if any(not kinds_of(word, group).isdisjoint(_VERBS) for word in words) or (read.past and not read.copula):
        return True
    if not read.copula:
        return False
    if read.own or read.subject not in ("i", "we"):
        return True
    before = read.before[0] if read.before else ""  # "I am a nurse", but not "I am glad"
    return _is_determiner(before, group) or read.kinds[0] in "#n" or read.words[0][0] == "~"


def is_unbound(text: str, language: str) -> bool:
    """Return whether a text begins with a pronoun whose meaning is in another sentence ("She lives in Oslo")."""
    group, words = language_group(text, language), _words(text)
    return bool(group and words) and _joins(words[0].folded, group, {"backward", "asks"})
