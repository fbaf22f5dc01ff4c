"""Read the form of a sentence that states something: its subject, its verb, and the kinds of its words, as learning and
profiles need them (`personal_facts.py`). The words that matter are in the sections `statements` and `forms` of the
files of the languages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

from agentformer.text.dates.notation import months, weekdays
from agentformer.text.facts.numbers_and_dates import is_year, number_values
from agentformer.text.facts.statement_words import PHRASE, is_long, phrase_kinds
from agentformer.text.languages.detection import FUNCTION_WORDS, NUMBER_WORDS, language_votes, stem, word_list
from agentformer.text.normalize import normalized
from agentformer.text.question_types import question_words
from agentformer.text.splitting import sentence_spans

SENTENCES = 3  # number of sentences of an entry that are read
_WORDS = 30  # number of words of a sentence that are read
_LIKELY = 0.5  # share of the votes for a language that another language needs
_KEY = 3  # letters of a word in a key; its forms have them in common
_CACHED = 16_384  # texts whose statements a process keeps
_SAID, SURE = 1, 2  # a statement says that something holds now, or that something is no longer as it was
LANGUAGES_OF = {"en": ("en",), "fi": ("fi",), "sv": ("sv", "no", "da"), "de": ("de",), "ja": ("ja",)}
_GROUP_OF = {code: group for group, codes in LANGUAGES_OF.items() for code in codes}
_WORD = re.compile(r"[^\W_]+(?:[.,:/@'+][^\W_]+)*")
_CONTRACTED = re.compile(r"(?<=\w)'(m|re|ve|ll|d)\b|(?<=\bit|\bhe)'(s)\b|(?<=that|here)'(s)\b", re.IGNORECASE)
_SPELT = {"m": " am", "re": " are", "ve": " have", "ll": " will", "d": " would", "s": " is"}
_CLAUSES = re.compile(r"[;；]")
_EAST_WORD = re.compile(r"[a-z]+|\d+(?:[.:,]\d+)*|[\u30a0-\u30ff]+|[\u3400-\u9fff々]+|[\u3040-\u309f]+", re.IGNORECASE)
_EAST_TIME = re.compile(r"[月火水木金土日]曜日?|[年月日時分]")
_LABELLED = re.compile(r"\s*([^\n:：]{2,60})[:：]\s+(\S[^\n]{0,80})")
_POSSESSIVE = ("ni", "mme")  # Finnish endings that mean "my" and "our"
_DEFINITE = ("en", "et", "an")  # Scandinavian endings that mean "the"
CLASSES = ("home", "work", "use", "marital", "diet")
VALUES = ("marital", "diet")  # classes whose words are values, of which only one holds
_FREQUENT = frozenset(
    {"a", "the", "my", "i", "we", "they", "with", "one"}
)  # kinds of words that are function words, too
_SHARED = (
    0.5  # weight of "is" and "not" for the language of a text, because they are other words elsewhere ("on", "en")
)
_NONE = frozenset[str]()
_BASE = {"ca": "can", "wo": "will", "sha": "shall"}  # "can't", "won't"
_HALVES = frozenset({"am", "pm", "a.m", "p.m"})


@dataclass(slots=True)
class Statement:
    """A sentence that states something. `words` are the stems of its words, without function words and words of change.
    `kinds` has a letter for each of them: "w" a word, "i" a word that begins the sentence with a capital letter, "n" a
    name, "#" a number, "t" a time, "c" a property that has changed. `before` are the function words directly before
    each word. `verb` is the number of words before the verb, or -1 if the verb is unknown."""

    text: str
    group: str
    words: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)  # all words except articles and words of change
    verb: int = -1
    copula: bool = False
    definite: bool = False  # the subject is a property of one thing ("my dentist"), and no person
    subject: str = ""  # "i", "we" or "they" for a pronoun
    own: bool = False  # the first word is something of the speaker ("my dentist")
    changed: int = 0  # 0, `_SAID` or `SURE`
    negated: bool = False
    many: bool = False
    event: bool = False
    past: bool = False
    kin: bool = False  # the first word is a relative, a friend ...
    topic: str = ""  # the word before a Japanese topic particle
    first: str = ""  # the first word, or "is" if the verb is before it ("I am 34 years old")
    timeless: dict[str, str] = field(default_factory=dict)  # the words without times, and their kinds
    core: frozenset[str] = frozenset()  # the words without times
    times: frozenset[str] = frozenset()


@cache
def _words_of(group: str) -> dict[tuple[str, ...], frozenset[str]]:
    return phrase_kinds("forms", LANGUAGES_OF[group])


@cache
def _function_words(group: str) -> frozenset[str]:
    greetings, often = word_list("greetings"), question_words("often")
    words = (FUNCTION_WORDS.get(code, frozenset()) | greetings.get(code, frozenset()) for code in LANGUAGES_OF[group])
    counted = (often.get(code, frozenset()) for code in LANGUAGES_OF[group])  # "every month" is a value
    return frozenset[str]().union(*words).difference(*counted)


def is_kind(kind: str, word: str, group: str) -> bool:
    """Return whether a word is in the list `kind` of a language."""
    return kind in _words_of(group).get((word,), ())


def words_in(text: str) -> list[str]:
    """Return the words of a text, as they are written."""
    return _WORD.findall(text)


@lru_cache(maxsize=_CACHED)
def language_group(content: str, language: str) -> str:
    """Return the group of the language of a text, or "" if no group is likely. The detected language of a short text
    may be wrong."""
    if language in _GROUP_OF:
        return _GROUP_OF[language]
    weights, votes = group_weights(content), language_votes(content).votes
    group = max(weights, key=weights.__getitem__)
    labelled = _LABELLED.fullmatch(content) is not None  # "Telefon: 040 123" in any language
    likely = not language or labelled or weights[group] >= _LIKELY * max(votes.values(), default=0.0)
    return group if likely else ""


@lru_cache(maxsize=_CACHED)
def group_weights(content: str) -> dict[str, float]:
    """Return the weight of each group of languages: the votes for its language, and its words that are known."""
    votes, written = language_votes(content).votes, _WORD.findall(content)
    weights = {}
    for group, codes in LANGUAGES_OF.items():
        kinds = (kinds_of(word.casefold(), group) - _FREQUENT for word in written)
        known = sum(_SHARED if each <= {"copulas", "negations"} else 1 for each in kinds if each)
        pronouns = written.count("I") if group == "en" else 0
        weights[group] = known + pronouns + max(votes.get(code, 0.0) for code in codes)
    return weights


@cache
def _first_words(group: str) -> frozenset[str]:
    return frozenset(phrase[0] for phrase in _words_of(group) if len(phrase) > 1)


def _phrase(folded: Sequence[str], at: int, group: str) -> tuple[int, frozenset[str]]:
    """Return the size and the kinds of the longest known phrase at a position, or (1, no kinds)."""
    if folded[at] in _first_words(group):
        for size in range(min(PHRASE, len(folded) - at), 1, -1):
            if kinds := _words_of(group).get(tuple(folded[at : at + size])):
                return size, kinds
    return 1, kinds_of(folded[at], group)


@lru_cache(maxsize=_CACHED)
def kinds_of(word: str, group: str) -> frozenset[str]:
    """Return the lists of a language that have a casefolded word."""
    known = _words_of(group)
    beginnings = (known.get((f"{word[:length]}*",), _NONE) for length in range(len(word), 2, -1))
    return known.get((word,), _NONE) | next(filter(None, beginnings), _NONE)


@lru_cache(maxsize=_CACHED)
def _read_word(word: str, group: str) -> tuple[str, str]:
    """Return the kind of a folded word, and its stem or number. The kind is "f" for a function word, "m" for a month,
    "#" for a number word, "t" for a weekday, and "-" for another word. A month may also be a function word ("may")."""
    if months(word):
        return "m", stem(word, group)
    if word in _function_words(group):
        return "f", word
    word = word.removesuffix("'s")
    numbers = (NUMBER_WORDS[code][word] for code in LANGUAGES_OF[group] if word in NUMBER_WORDS.get(code, {}))
    if number := next(numbers, ""):
        return "#", number
    return "t" if weekdays(word) else "-", stem(word, group)


@lru_cache(maxsize=_CACHED)
def statements(content: str, group: str, *, labels: bool) -> tuple[Statement, ...]:
    """Return the statements of a text in a group of languages. A long text (see `is_long`) has none.
    Questions, conditions, and sentences about "it" or "she" are no statements, because they cannot be compared."""
    return tuple(_read(content, group, labels)) if group and not is_long(content) else ()


def _read(content: str, group: str, labels: bool) -> Iterator[Statement]:
    """Yield the statements of each sentence. A sentence with a change or a negation is also read clause by clause."""
    sentences = (content[start:end].strip() for start, end in sentence_spans(content)[:SENTENCES])
    for sentence in (clause for each in sentences for clause in _CLAUSES.split(each)):
        if sentence.endswith(("?", "？")):
            continue
        text = normalized("NFKC", sentence).replace("’", "'")
        text = _CONTRACTED.sub(lambda match: _SPELT[match[match.lastindex or 0].casefold()], text)
        label = _LABELLED.fullmatch(text) if labels and group != "ja" else None
        found = _statement(sentence, [label[1], label[2]] if label else [text], group)
        if found:
            yield found
            clauses = text.split(", ") if (found.changed or found.negated) and group != "ja" else []
            of_clauses = (_statement(sentence, [clause], group) for clause in clauses if len(clauses) > 1)
            yield from filter(None, of_clauses)  # "Anna left, my manager is now Ben"


def _statement(sentence: str, parts: Sequence[str], group: str) -> Statement | None:
    """Read a sentence, or the label and the value of a line. Return None if it cannot be compared."""
    reader = (_EastReader if group == "ja" else _Reader)(sentence, group)
    for part in parts:
        if part is not parts[0] and reader.found.words and not reader.found.changed:
            reader.found.copula = reader.found.definite = True
            reader.found.verb = len(reader.found.words)
        reader.read(part)
    found = reader.finished()
    return found if found.core and found.subject != "they" and not reader.condition else None


class _Reader:
    """Reads the words of a sentence, and gathers a statement."""

    def __init__(self, sentence: str, group: str) -> None:
        self.found = Statement(sentence, group)
        self._known = _words_of(group)
        self._function_words = _function_words(group)
        self.condition = False  # the sentence begins with "if"
        self._before = ""
        self._raw: list[str] = []  # the written form of each word of the statement

    def read(self, text: str) -> None:
        """Read the words of a part of the sentence."""
        written = _WORD.findall(text)[:_WORDS]
        folded = [word.casefold() for word in written]
        at = 0
        while at < len(folded):
            size, kinds = _phrase(folded, at, self.found.group)
            name = at > 0 and written[at][0].isupper() and self.found.group != "de"
            if kinds and not (name and size == 1):
                self._mark(kinds, folded[at : at + size], written[at])
            elif folded[at][0].isdecimal():
                half = folded[at + 1 : at + 2] if folded[at + 1 : at + 2] and folded[at + 1] in _HALVES else []
                self._number(" ".join([folded[at], *half]))
                size = 1 + len(half)
            else:
                self._word(folded[at], written[at], first=not self.found.rest)
            at += size

    def _mark(self, kinds: frozenset[str], phrase: Sequence[str], written: str) -> None:
        """Take account of a phrase of these kinds."""
        found, own = self.found, [kind for kind in CLASSES if kind in kinds]
        changes = SURE if "changes" in kinds else _SAID if kinds & {"now", "new"} else 0
        if found.negated and "negations" not in kinds:
            changes = 0  # "never quit"
        found.changed = max(found.changed, changes)
        found.past |= "past" in kinds
        found.negated |= "negations" in kinds
        if not (found.words or found.subject or self._before):
            found.subject = next((pronoun for pronoun in ("i", "we", "you", "they") if pronoun in kinds), "")
        if not found.words:
            found.kin |= "kin" in kinds
            self.condition |= "if" in kinds
        self._mark_verb(kinds, phrase[0])
        for name in own:
            self._add(f"~{name}", "c" if changes else "w", written)
            if name in VALUES:
                self._add(stem(phrase[0], found.group), "w", written)
        if "times" in kinds:
            self._add(" ".join(phrase), "t", written)
        elif "one" in kinds:
            self._number("1")
        elif not own and kinds.isdisjoint({"changes", "now", "new", "negations"}):
            self._word(" ".join(phrase), written, first=not found.rest)

    def _mark_verb(self, kinds: frozenset[str], word: str) -> None:
        """Take account of a phrase that may be the verb."""
        found, before = self.found, self._known.get((self._before,), _NONE)
        is_verb = not (self._before and before.isdisjoint({"i", "we", "they"})) and not kinds.isdisjoint(CLASSES)
        if before.isdisjoint({"a", "the", "my"}):  # not as in "the support email"
            found.many |= "many" in kinds
            found.event |= "events" in kinds
            is_verb |= "many" in kinds and word in self._function_words  # "Anna has"
        if "copulas" in kinds and not found.copula:
            if (self._before and not found.words and not found.subject) or (self._is_pronoun() and not found.changed):
                found.subject = "they"  # "Das ist", "Anna, that is"
            found.copula = is_verb = True
        if is_verb and found.verb < 0:
            found.verb = len(found.words)

    def _is_pronoun(self) -> bool:
        return "they" in self._known.get((self._before,), ())

    def _word(self, word: str, written: str, *, first: bool) -> None:
        """Take account of a function word or of another word."""
        if word.endswith("n't"):
            self.found.negated = True
            word = word.removesuffix("n't")
            word = _BASE.get(word, word)
        kind, value = _read_word(word, self.found.group)
        if kind == "m" and not written[0].isupper() and self.found.group == "en":
            kind = "f" if word in self._function_words else "-"  # "may", "march"
        if kind == "f":
            kinds = self._known.get((word,), _NONE)
            self.found.own |= "my" in kinds and not self.found.words
            if kinds.isdisjoint({"a", "the", "copulas"}) and word not in ("do", "does"):
                self.found.rest.append(word)
            self._before = word
        elif kind == "#":
            self._number(value)
        elif kind in "mt":
            self._add(value, "t", written)
        else:
            self.found.past |= word.endswith("ed") and self.found.group == "en" and len(word) > 4
            lower = not written[0].isupper() and written.islower()
            self._add(value, "w" if lower else "i" if first else "n", written)

    def _number(self, written: str) -> None:
        value = " ".join(sorted(number_values(written))) or written
        self._add(value, "t" if is_year(value) and "." not in written else "#", written)

    def _add(self, word: str, kind: str, written: str) -> None:
        if self._is_pronoun() and not self.found.subject and self.found.verb < 0 and kind == "w":
            self.found.subject = "they"  # "Anna, that sounds good"
        self.found.words.append(word)
        self.found.kinds.append(kind)
        self.found.before.append(self._before)
        self.found.rest.append(word)
        self._raw.append(written)
        self._before = ""

    def finished(self) -> Statement:
        """Return the statement."""
        found = self.found
        if found.copula and found.verb == len(found.words) > 0 and self._before and found.rest:
            word, self._before = self._before, ""  # "The light is on"
            self._add(word, "w", word)
        if found.changed == SURE:
            found.many = found.event = found.past = False  # "I have moved"
        found.past &= not found.copula  # "is led by"
        if found.copula and not found.definite and 0 < found.verb <= len(found.words):
            found.definite = self._is_definite(0, found.verb)
        self._turn()
        kinds = dict(zip(reversed(found.words), reversed(found.kinds), strict=True))
        found.timeless = {word: kinds[word] for word in found.words if kinds[word] != "t"}
        found.core = frozenset(found.timeless)
        found.times = frozenset(kinds) - found.core
        if found.words:
            found.first = "is" if found.verb == 0 and found.kinds[0] in "#nt" else found.words[0]
        return found

    def _is_definite(self, start: int, end: int) -> bool:
        """Return whether the words of a range name one certain thing, such as "my dentist", and no person."""
        kinds, raw = self.found.kinds[start:end], self._raw[start:end]
        certain = "the" in self._known.get((self.found.before[start],), ())
        last = raw[-1].casefold()
        suffixed = last.endswith(_POSSESSIVE if self.found.group == "fi" else _DEFINITE)
        return certain or kinds[-1] == "w" or (self.found.group in ("fi", "sv") and kinds[-1] == "i" and suffixed)

    def _turn(self) -> None:
        """Change "Kalle is my manager" to the order of "My manager is Kalle"."""
        found = self.found
        if not (found.copula and found.verb == 1 < len(found.words) and found.kinds[0] in ("i", "n")):
            return
        if found.definite or "kin" in kinds_of(self._raw[1].casefold(), found.group):
            return
        if not set(found.kinds[1:]) <= ({"w", "n"} if found.group == "de" else {"w"}):
            return
        owned = "the" in self._known.get((found.before[1],), ()) or (
            found.group == "fi" and self._raw[1].casefold().endswith(_POSSESSIVE)
        )
        if owned:
            for values in (found.words, found.kinds, found.before):
                values.append(values.pop(0))
            found.kinds[-1], found.verb, found.definite, found.subject = "n", len(found.words) - 1, True, ""


class _EastReader(_Reader):
    """Reads the words of a Japanese sentence, which are runs of one script. A run of hiragana is a function word."""

    def read(self, text: str) -> None:
        """Read a sentence, and note what its words say."""
        found = self.found
        phrases = {"".join(phrase): kinds for phrase, kinds in self._known.items()}
        pattern = "|".join(map(re.escape, sorted(phrases, key=len, reverse=True)))
        end = 0
        for match in re.finditer(pattern, text):
            kinds = phrases[match[0]]
            if kinds <= {"copulas", "past", "many", "events"} and not match[0][0].isascii():
                found.many |= "many" in kinds
                found.event |= "events" in kinds
                found.past |= "past" in kinds
                found.copula |= "copulas" in kinds
                continue
            self._plain(text[end : match.start()])
            end = match.end()
            if not kinds.isdisjoint({"i", "we"}):
                found.subject = found.subject or min(kinds)
                continue
            self._mark(kinds, [match[0]], match[0])
        self._plain(text[end:])
        found.definite = found.copula and not found.subject
        found.verb = -1

    def _plain(self, text: str) -> None:
        """Read words between the known phrases. Hiragana are endings and particles: "は" after a word makes this word
        the topic. Other words are times or names."""
        for word in _EAST_WORD.findall(text):
            if "\u3040" <= word[0] <= "\u309f":
                if word.endswith("は") and self.found.words and not self.found.topic:
                    self.found.topic = self.found.words[-1]
                self.found.rest.append(word)
                self.found.negated |= word.endswith(("ません", "ない"))
                self._before = word
            elif word[0].isdecimal():
                self._number(word)
            else:
                self._add(word, "t" if _EAST_TIME.fullmatch(word) else "n", word)
