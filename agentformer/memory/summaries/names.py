"""Capitalised names in a text, and whether another text knows them under any ending."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agentformer.text.dates.calendar import strip_accents
from agentformer.text.languages import FUNCTION_WORDS, stem, word_list
from agentformer.text.sentences import sentence_spans

_LETTER = r"[^\W\d_\u3005-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # a name in Latin letters ends where Japanese goes on
_WORD = re.compile(rf"{_LETTER}(?:{_LETTER}|[\u0300-\u036f])*")
_JOINED = re.compile(r"[-'’ ]|(?<=\b\w)\. ?|(?<=\b\w\w)\. ?")  # between the words of one name
# What may stand before a capital that begins something rather than a name.
_OPENING = re.compile(r"[:;•*\-–—\"“”„«»‘‹(\[「『#>|]\s*$|\n\s*$")
_SHORTEST = 2  # letters of a name
# Languages whose names take at most an "s"; all others, and what nobody can tell, may have endings. A few words of
# Finnish pass for Swedish, so that is not among them.
_UNINFLECTED = frozenset({"ca", "da", "de", "en", "es", "fr", "id", "it", "ja", "ko", "nl", "no", "pt", "zh"})
_SHORT_STEMS = frozenset({"cs", "lt", "pl", "ru", "sr"})  # where "Anna" and "Annu" share nothing but "An"
# Those that write every noun with a capital.
_CAPITAL_NOUNS = frozenset({"de"})
_COMMON = 4  # letters that two inflected forms of a name share
_ENDING = 7  # letters of an ending at most
_ENDING_OF_NAME = re.compile(
    r"[aeiouyäö]{0,2}(?:n|s|sa|sä|sta|stä|la|lä|lta|ltä|le|ksi|na|nä|ta|tä|a|ä|h[aeiouyäö]n|iden|ien|ja|jä)?"
    r"(?:ni|si|nsa|nsä|me|ne)?(?:kin|kan|kän|ko|kö)?"
)
_GRADED = str.maketrans("bdg", "ptk")
# Words that begin a summary's sentences, and that nobody is called.
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
_LONG = 5  # letters that an ordinary word with a known ending has more than
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
    """Words with capitals that stand together, at `[start, end)`."""

    start: int
    end: int
    text: str


class Vocabulary:
    """The words of texts in one language, to ask for in any form."""

    def __init__(self, texts: Iterable[str], language: str) -> None:
        self._language = language
        self._words: set[str] = set()
        self.small: set[str] = set()  # written without a capital somewhere
        for text in texts:
            for match in _WORD.finditer(text):
                word = match[0]
                self._words.add(_folded(word))
                if word[0].islower():
                    self.small.add(_folded(word))
        self._stems = {_stemmed(word, language) for word in self._words}
        self._beginnings: dict[str, set[str]] = defaultdict(set)
        for word in () if language in _UNINFLECTED else self._words:
            self._beginnings[_graded(word)[:2]].add(_graded(word))

    def has(self, word: str) -> bool:
        """Is the word, or the same name with another ending, among the texts' words?"""
        folded = _folded(word)
        if folded in self._words or folded.removesuffix("s") in self._words:
            return True
        if _stemmed(folded, self._language) in self._stems:
            return True
        if self._language in _UNINFLECTED:
            return False
        graded = _graded(folded)
        return any(_one_name(graded, each) for each in self._beginnings.get(graded[:2], ()))


def find_unknown_names(text: str, known: Vocabulary, language: str) -> Iterator[Name]:
    """The names in `text`, in order, that `known` does not have.

    A capital at a sentence's beginning makes a name only of a word that is no ordinary one as far as can be
    told. Where every noun has a capital, one word alone tells nothing: there, two in a row make a name.
    """
    own = Vocabulary([text], language)
    starts = {span.start for span in sentence_spans(text)}
    strange = [
        match
        for match in _WORD.finditer(text)
        if _capital(match[0]) and not known.has(match[0]) and not _ordinary(match, text, starts, own, known, language)
    ]
    for name in _together(strange, text):
        if language not in _CAPITAL_NOUNS or " " in name.text or text[name.end : name.end + 1] == ":":
            yield name


def inner_names(text: str, language: str) -> Iterator[str]:
    """The names in `text`, in order, leaving out those that only a sentence's beginning may have given a capital."""
    own, nobody = Vocabulary([text], language), Vocabulary((), language)
    starts = {span.start for span in sentence_spans(text)}
    inner = [
        match
        for match in _WORD.finditer(text)
        if _capital(match[0])
        and not _opens(match, text, starts)
        and not _ordinary(match, text, starts, own, nobody, language)
    ]
    for name in _together(inner, text):
        if language not in _CAPITAL_NOUNS or " " in name.text:
            yield name.text


def _capital(word: str) -> bool:
    return len(word) >= _SHORTEST and word[0].isupper()


def _ordinary(
    match: re.Match[str], text: str, starts: set[int], own: Vocabulary, known: Vocabulary, language: str
) -> bool:
    """Is this word with a capital none that names somebody, although no text knows it?"""
    word, folded = match[0], _folded(match[0])
    if (folded in _ABBREVIATIONS or folded in _FOLDED_FUNCTIONS.get(language, ())) and not word.isupper():
        return True
    if not _opens(match, text, starts):
        return False
    if folded in _OPENERS or folded in own.small or folded in known.small:
        return True
    return len(folded) > _LONG and folded.endswith(_ENDINGS.get(language, ()))


def _opens(match: re.Match[str], text: str, starts: set[int]) -> bool:
    """Does the word begin a sentence, a quotation or a line?"""
    before = max(0, match.start() - 3)
    return match.start() in starts or _OPENING.search(text, before, match.start()) is not None


def _together(words: Iterable[re.Match[str]], text: str) -> Iterator[Name]:
    """Neighbouring words as one name: "Jean-Luc", "Anna Virtanen"."""
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
    """The stem, unless so little is left of the word that others would share it."""
    if "\u0400" <= folded[0] <= "\u04ff" and language != "sr":
        language = "ru"  # a few words do not tell Russian from its neighbours, and their endings are much alike
    short = stem(folded, language)
    return short if len(short) > (1 if language in _SHORT_STEMS else 3) else folded


def _graded(folded: str) -> str:
    """Without what inflection changes in a word's middle: "Pekka" and "Pekan", "Helsinki" and "Helsingin"."""
    return re.sub(r"(.)\1", r"\1", folded.translate(_GRADED))


def _one_name(one: str, other: str) -> bool:
    """May both be forms of one name? Given as `_graded` has them."""
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
    """What stands before the endings of a Finnish or Estonian name: "Virtanen" and "Virtase-", "Turku" and "Turu-"."""
    found = {word}
    if word.endswith("nen"):
        found.add(word[:-3] + "se")
    if len(word) > 4 and word[-2] in "kpt" and word[-1] in "aeiouyäö":
        found.add(word[:-2] + word[-1])
    if len(word) > 4 and word[-1] == "i":
        found.add(word[:-1] + "e")
    return found
