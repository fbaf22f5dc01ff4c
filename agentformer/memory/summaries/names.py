"""Capitalized names in a text, and their comparison with words of other texts. A name is found in every inflected
form."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from agentformer.text.dates.calendar import strip_accents
from agentformer.text.languages import FUNCTION_WORDS, stem, word_list
from agentformer.text.sentences import sentence_spans

_LETTER = r"[^\W\d_\u3005-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # a name in Latin letters ends where Japanese begins
_WORD = re.compile(rf"{_LETTER}(?:{_LETTER}|[\u0300-\u036f])*")
_JOINED = re.compile(r"[-'’ ]|(?<=\b\w)\. ?|(?<=\b\w\w)\. ?")  # between the words of one name
# Text before a capital that begins a sentence, quotation or list item, not a name.
_OPENING = re.compile(r"[:;•*\-–—\"“”„«»‘‹(\[「『#>|]\s*$|\n\s*$")
_SHORTEST = 2  # letters of a name
# Languages in which names take at most an "s". In all others, and in unknown ones, names may have endings. Swedish is
# not listed, because a few words of Finnish are detected as Swedish.
_UNINFLECTED = frozenset({"ca", "da", "de", "en", "es", "fr", "id", "it", "ja", "ko", "nl", "no", "pt", "zh"})
_SHORT_STEMS = frozenset({"cs", "lt", "pl", "ru", "sr"})  # in which "Anna" and "Annu" share only "An"
# Languages that write every noun with a capital.
_CAPITAL_NOUNS = frozenset({"de"})
_COMMON = 4  # letters that two inflected forms of a name share at least
_ENDING = 7  # letters of an ending at most
_ENDING_OF_NAME = re.compile(
    r"[aeiouyäö]{0,2}(?:n|s|sa|sä|sta|stä|la|lä|lta|ltä|le|ksi|na|nä|ta|tä|a|ä|h[aeiouyäö]n|iden|ien|ja|jä)?"
    r"(?:ni|si|nsa|nsä|me|ne)?(?:kin|kan|kän|ko|kö)?"
)
_GRADED = str.maketrans("bdg", "ptk")
# Words that begin sentences of a summary and are not names.
_OPENING_WORDS = """
actually additionally afterwards agreed almost also although always another asked assistant besides best both
conversation currently decided described discussed discussing discussion during earlier even eventually everyone
everything explained expressed few finally first five four furthermore generally good great here however initially
instead key last lastly later main many meanwhile mentioned message messages more moreover most mostly much never
nevertheless next nice nobody none notes often one only originally other overall participants people perhaps planned
planning plans previously recently reported second several shared similarly since some someone something sometimes
soon speaker speakers such summary sure talked that then there therefore these third those three thus today together
tomorrow topics two user users various when whereas while yesterday

aiemmin aluksi ensin jatkossa keskustelijat keskustelu keskustelussa käyttäjä lisäksi lopuksi lopulta molemmat
myöhemmin puhuja samalla siksi toisaalta tiivistelmä viesti viestit yhdessä

användaren båda därefter dessutom efteråt först första inledningsvis samtalet sammanfattning sammantaget senare
slutligen tillsammans

begge brukeren brugeren dessuten derefter deretter desuden først samtalen sammen senere samtidig slutt til

ensemble ensuite finalement puis résumé utilisateur además ambos después finalmente luego resumen usuario
"""
_MAX_SHORT = 5  # letters; only longer words are recognized as ordinary by their ending
_NAMELIKE = frozenset({"nen", "inen", "isen"})  # endings of Finnish surnames as well
_ABBREVIATIONS = frozenset().union(*word_list("abbreviations").values())
_FOLDED_FUNCTIONS = {language: frozenset(map(strip_accents, words)) for language, words in FUNCTION_WORDS.items()}
_OPENERS = frozenset(map(strip_accents, _OPENING_WORDS.split())).union(
    *_FOLDED_FUNCTIONS.values(), *word_list("greetings").values()
)
_ENDINGS = {
    language: tuple(ending for ending in endings if len(ending) > 2 and ending not in _NAMELIKE)
    for language, endings in word_list("endings").items()
}


@dataclass(frozen=True, slots=True)
class Name:
    """One or more neighboring capitalized words at `[start, end)`."""

    start: int
    end: int
    text: str


class Vocabulary:
    """The words of texts in one language. A word is found in every inflected form."""

    def __init__(self, texts: Iterable[str], language: str) -> None:
        self._language = language
        self._words: set[str] = set()
        self.lowercase: set[str] = set()  # words that occur without a capital
        for text in texts:
            for match in _WORD.finditer(text):
                word = match[0]
                self._words.add(_folded(word))
                if word[0].islower():
                    self.lowercase.add(_folded(word))
        self._stems = {_stemmed(word, language) for word in self._words}
        self._beginnings: dict[str, set[str]] = defaultdict(set)
        for word in () if language in _UNINFLECTED else self._words:
            self._beginnings[_graded(word)[:2]].add(_graded(word))

    def has(self, word: str) -> bool:
        """True if the vocabulary has this word, or the same name with another ending."""
        folded = _folded(word)
        if folded in self._words or folded.removesuffix("s") in self._words:
            return True
        if _stemmed(folded, self._language) in self._stems:
            return True
        if self._language in _UNINFLECTED:
            return False
        graded = _graded(folded)
        return any(_may_be_same(graded, other) for other in self._beginnings.get(graded[:2], ()))


def find_unknown_names(text: str, known: Vocabulary, language: str) -> Iterator[Name]:
    """Yield the names in `text`, in order, that `known` does not contain.

    At the beginning of a sentence, a capitalized word counts as a name only if it is not known to be an ordinary word.
    In languages that capitalize every noun, only two capitalized words in a row count as a name.
    """
    for name in _joined(_candidates(text, known, language), text):
        if language not in _CAPITAL_NOUNS or " " in name.text or text[name.end : name.end + 1] == ":":
            yield name


def inner_names(text: str, language: str) -> Iterator[str]:
    """Yield the names in `text`, in order. Words at the beginning of a sentence are left out."""
    starts = {span.start for span in sentence_spans(text)}
    words = _candidates(text, Vocabulary((), language), language)
    for name in _joined((match for match in words if not _opens(match, text, starts)), text):
        if language not in _CAPITAL_NOUNS or " " in name.text:
            yield name.text


def _candidates(text: str, known: Vocabulary, language: str) -> Iterator[re.Match[str]]:
    """Yield the capitalized words that `known` does not contain and that are not ordinary words."""
    starts = {span.start for span in sentence_spans(text)}
    lowercase = Vocabulary([text], language).lowercase | known.lowercase
    for match in _WORD.finditer(text):
        word = match[0]
        if len(word) < _SHORTEST or not word[0].isupper() or known.has(word):
            continue
        if not _is_ordinary(word, _opens(match, text, starts), lowercase, language):
            yield match


def _is_ordinary(word: str, opens: bool, lowercase: Collection[str], language: str) -> bool:
    """True if a capitalized word is not a name. `opens` is True if the word begins a sentence. `lowercase` holds known
    words."""
    folded = _folded(word)
    if (folded in _ABBREVIATIONS or folded in _FOLDED_FUNCTIONS.get(language, ())) and not word.isupper():
        return True
    if not opens:
        return False
    if folded in _OPENERS or folded in lowercase:
        return True
    return len(folded) > _MAX_SHORT and folded.endswith(_ENDINGS.get(language, ()))


def _opens(match: re.Match[str], text: str, starts: set[int]) -> bool:
    """True if the word begins a sentence, a quotation or a line."""
    before = max(0, match.start() - 3)
    return match.start() in starts or _OPENING.search(text, before, match.start()) is not None


def _joined(words: Iterable[re.Match[str]], text: str) -> Iterator[Name]:
    """Join neighboring words to one name: "Jean-Luc", "Anna Virtanen"."""
    start = end = -1
    for match in words:
        if end >= 0 and _JOINED.fullmatch(text, end, match.start()):
            end = match.end()
            continue
        if end >= 0:
            yield Name(start, end, text[start:end])
        start, end = match.span()
    if end >= 0:
        yield Name(start, end, text[start:end])


def _folded(word: str) -> str:
    return strip_accents(word.casefold())


def _stemmed(folded: str, language: str) -> str:
    """Return the stem. If the stem is so short that other words have the same stem, return the word."""
    if "\u0400" <= folded[0] <= "\u04ff" and language != "sr":
        language = "ru"  # short texts do not separate Russian from related languages, which have similar endings
    short = stem(folded, language)
    return short if len(short) > (1 if language in _SHORT_STEMS else 3) else folded


def _graded(folded: str) -> str:
    """Undo consonant gradation, a sound change in inflected forms: "Pekka" and "Pekan", "Helsinki" and "Helsingin"."""
    return re.sub(r"(.)\1", r"\1", folded.translate(_GRADED))


def _may_be_same(one: str, other: str) -> bool:
    """True if two words, as returned by `_graded`, may be forms of one name."""
    short, long = sorted((one, other), key=len)
    for base, form in ((short, long), (long, short)):
        if 2 < len(base) <= len(form) and len(form) - len(base) <= _ENDING and form.startswith(tuple(_bases(base))):
            return True
    common = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(short))
    rests = (one[common:], other[common:])
    if common < _COMMON or 2 * common < len(long):
        return False
    return not one.isascii() or all(_ENDING_OF_NAME.fullmatch(rest) for rest in rests)


def _bases(word: str) -> set[str]:
    """Return the stems of a Finnish or Estonian name: "Virtanen" and "Virtase-", "Turku" and "Turu-"."""
    bases = {word}
    if word.endswith("nen"):
        bases.add(word[:-3] + "se")
    if len(word) > 4 and word[-2] in "kpt" and word[-1] in "aeiouyäö":
        bases.add(word[:-2] + word[-1])
    if len(word) > 4 and word[-1] == "i":
        bases.add(word[:-1] + "e")
    return bases
