"""Negations and number words by language (ISO 639-1): the words that make two similar sentences contradict each other.

A word with another meaning in another language ("en" negates in Finnish and is an article in Swedish) counts only in
its own language.
"""

from __future__ import annotations

from collections.abc import Mapping

NEGATIONS: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "en": "not no never none nobody nothing nowhere neither nor cannot without",
        "fi": "ei en et emme ette eivät eikä älä älkää älköön ilman tuskin",
        "sv": "inte ej icke aldrig ingen inget inga ingenting varken utan",
        "no": "ikke ikkje aldri ingen intet inga ingenting verken uten utan",
        "da": "ikke ej aldrig ingen intet ingenting hverken uden",
        "de": "nicht kein keine keinen keinem keiner keines nie niemals nichts niemand weder ohne",
    }.items()
}
NUMBER_WORDS: Mapping[str, Mapping[str, str]] = {
    language: {word: str(number) for number, word in enumerate(words.split(), 2)}
    for language, words in {
        "en": "two three four five six seven eight nine ten eleven twelve",
        "fi": "kaksi kolme neljä viisi kuusi seitsemän kahdeksan yhdeksän kymmenen yksitoista kaksitoista",
        "sv": "två tre fyra fem sex sju åtta nio tio elva tolv",
        "no": "to tre fire fem seks sju åtte ni ti elleve tolv",
        "da": "to tre fire fem seks syv otte ni ti elleve tolv",
        "de": "zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
    }.items()
}

# For a sentence of unknown language: the words of all languages except those that are common in another one.
_COMMON = "en et ette no ej utan inga none to fire sex ti ni elf acht ten"
_DOUBTFUL = frozenset(_COMMON.split())
ANY_NEGATION = frozenset().union(*NEGATIONS.values()) - _DOUBTFUL
ANY_NUMBER_WORD: Mapping[str, str] = {
    word: number for words in NUMBER_WORDS.values() for word, number in words.items() if word not in _DOUBTFUL
}
