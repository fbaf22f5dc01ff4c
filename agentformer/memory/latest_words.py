"""Of what there is one value at a time, in words: "lives in", "costs". Of what somebody likes or has bought there are
many, and none of these contradicts another.

Written from general knowledge of each language (ISO 639-1). Verbs stand with the words that make them mean it.
"""

from __future__ import annotations

from collections.abc import Mapping


def _phrases(table: Mapping[str, str]) -> dict[str, frozenset[tuple[str, ...]]]:
    return {
        language: frozenset(tuple(phrase.split()) for phrase in phrases.split(", "))
        for language, phrases in table.items()
    }


VERBS: Mapping[str, frozenset[tuple[str, ...]]] = _phrases(
    {
        "en": "lives in, live in, lives at, live at, resides in, reside in, works at, work at, works for, work for, "
        "works as, work as, studies at, study at, is called, am called, is named, moved to, has moved to, prefers, "
        "prefer, costs, weighs",
        "fi": "asuu, asun, asutaan, työskentelee, työskentelen, opiskelee, opiskelen, muutti, muutin, maksaa, painaa",
        "sv": "bor i, bor på, arbetar på, arbetar som, arbetar hos, jobbar på, jobbar som, jobbar hos, studerar på, "
        "heter, flyttade till, har flyttat till, föredrar, kostar, väger",
        "no": "bor i, bor på, arbeider på, arbeider som, arbeider hos, jobber på, jobber som, jobber hos, studerer på, "
        "heter, flyttet til, har flyttet til, foretrekker, koster, veier",
        "da": "bor i, bor på, arbejder på, arbejder som, arbejder hos, studerer på, hedder, flyttede til, "
        "er flyttet til, foretrækker, koster, vejer",
        "de": "wohnt in, wohne in, lebt in, lebe in, arbeitet bei, arbeite bei, arbeitet als, arbeite als, "
        "studiert in, studiere in, heißt, heiße, zog nach, bevorzugt, bevorzuge, kostet, wiegt",
    }
)
COPULAS: Mapping[str, frozenset[tuple[str, ...]]] = _phrases(
    {"en": "is, are, am", "fi": "on, olen, ovat", "sv": "är", "no": "er", "da": "er", "de": "ist, bin, sind"}
)
ARTICLES = frozenset(
    {"a", "an", "the", "en", "ett", "ei", "et", "den", "det", "de"} | {"ein", "eine", "der", "die", "das"}
)
# What says that something holds now, and nothing else.
NOW: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "en": "now currently nowadays presently actually",
        "fi": "nyt nykyään nykyisin parhaillaan",
        "sv": "nu numera nuförtiden",
        "no": "nå nåtildags",
        "da": "nu nutildags",
        "de": "jetzt nun derzeit inzwischen momentan",
    }.items()
}
ENDINGS = ("ssa", "ssä", "lla", "llä")  # where something is, in Finnish, which has no word before it for this
