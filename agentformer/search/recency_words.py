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
        "studies at, study at, is called, am called, is named, moved to, has moved to, costs, weighs",
        "fi": "asuu, asun, asutaan, työskentelee, työskentelen, opiskelee, opiskelen, muutti, muutin, maksaa, painaa",
        "sv": "bor i, bor på, arbetar på, arbetar hos, jobbar på, jobbar hos, studerar på, heter, flyttade till, "
        "har flyttat till, kostar, väger",
        "no": "bor i, bor på, arbeider på, arbeider hos, jobber på, jobber hos, studerer på, heter, flyttet til, "
        "har flyttet til, koster, veier",
        "da": "bor i, bor på, arbejder på, arbejder hos, studerer på, hedder, flyttede til, er flyttet til, koster, "
        "vejer",
        "de": "wohnt in, wohne in, lebt in, lebe in, arbeitet bei, arbeite bei, studiert in, studiere in, heißt, "
        "heiße, zog nach, kostet, wiegt",
    }
)
COPULAS: Mapping[str, frozenset[tuple[str, ...]]] = _phrases(
    {"en": "is, are, am", "fi": "on, olen, ovat", "sv": "är", "no": "er", "da": "er", "de": "ist, bin, sind"}
)
ARTICLES = frozenset(
    {"a", "an", "the", "my", "your", "his", "her", "our", "their", "en", "ett", "ei", "et", "den", "det", "de"}
    | {"ein", "eine", "einen", "einem", "einer", "der", "die", "das", "dem"}
)
# Subjects that are another one in each text.
OTHERS = frozenset(
    {"he", "she", "it", "they", "this", "that", "who", "hän", "se", "ne", "joka", "han", "hon", "hun", "ho", "det"}
    | {"den", "de", "dette", "som", "er", "sie", "es", "dies", "das", "der", "die"}
)
PLACES = frozenset({"in", "at", "i"})  # between a copula and where something is
NOUNS = frozenset({"de"})  # languages whose nouns are written like names
# What one thing or person mostly has one of at a time, as it stands in front of a colon.
LABELS = frozenset().union(
    *_phrases(
        {
            "en": "phone, phone number, telephone, mobile, mobile number, address, email, e-mail, email address, "
            "e-mail address, postcode, zip code, salary, rent, employer",
            "fi": "puhelin, puhelinnumero, osoite, kotiosoite, sähköposti, sähköpostiosoite, postinumero, palkka, "
            "vuokra, työnantaja",
            "sv": "telefon, telefonnummer, mobilnummer, adress, e-post, epost, e-postadress, postnummer, lön, hyra, "
            "arbetsgivare",
            "no": "telefon, telefonnummer, mobilnummer, adresse, e-post, epost, e-postadresse, postnummer, lønn, "
            "husleie, arbeidsgiver",
            "da": "telefon, telefonnummer, mobilnummer, adresse, e-mail, mailadresse, postnummer, løn, husleje, "
            "arbejdsgiver",
            "de": "telefon, telefonnummer, handynummer, adresse, e-mail, e-mail-adresse, postleitzahl, gehalt, miete, "
            "arbeitgeber",
        }
    ).values()
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
