"""The types of questions, from interrogatives, nouns and word order."""

from __future__ import annotations

import pytest

from agentformer.text.languages.detection import STEMMERS
from agentformer.text.question_types import classify, pattern_of, question_words

QUESTIONS = [
    ("Who founded the club?", "en", "who"),
    ("Who may vote at the meeting?", "en", "which"),
    ("Where was the treaty signed?", "en", "where"),
    ("When did the war end?", "en", "when"),
    ("In which year did the war end?", "en", "when"),
    ("What is the name of the founder?", "en", "who"),
    ("What city hosted the games?", "en", "where"),
    ("How many ships were lost?", "en", "many"),
    ("How old is the bridge?", "en", "much"),
    ("What percentage of the voters agreed?", "en", "much"),
    ("Why did the bridge fall?", "en", "why"),
    ("How does the pump work?", "en", "how"),
    ("Which gas do plants need?", "en", "which"),
    ("For what reason was the pier closed?", "en", "why"),
    ("How come the pier is closed?", "en", "why"),
    ("What is the reason for the delay?", "en", "why"),
    ("To whom does the berth belong?", "en", "who"),
    ("Whose boat is this?", "en", "who"),
    ("By whom was it built?", "en", "who"),
    ("How was the cheese made?", "en", "how"),
    ("How hot is the sauna?", "en", "much"),
    ("How late is the shop open?", "en", "when"),
    ("Aus welchen Gründen wurde der Steg gesperrt?", "de", "why"),
    ("Wem gehört das Boot?", "de", "who"),
    ("Von wem wurde es gebaut?", "de", "who"),
    ("Mikä on syynä viivästykseen?", "fi", "why"),
    ("Kenelle vene kuuluu?", "fi", "who"),
    ("Av vilken orsak stängdes bron?", "sv", "why"),
    ("Vems båt är det?", "sv", "who"),
    ("Hva er grunnen til at broen er stengt?", "no", "why"),
    ("Af hvilken årsag lukkede broen?", "da", "why"),
    ("What did the team win?", "en", "what"),
    ("The bridge was built by whom?", "en", "who"),
    ("When the war ended, who was king?", "en", "who"),
    ("Is the bridge still open?", "en", "open"),
    ("The old bridge of the town", "en", ""),
    ("Wer hat den Verein gegründet?", "de", "who"),
    ("In welchem Jahr endete der Krieg?", "de", "when"),
    ("Wie viele Schiffe gingen verloren?", "de", "many"),
    ("Wie heißt der Fluss?", "de", "what"),
    ("Wie funktioniert die Pumpe?", "de", "how"),
    ("Weshalb stürzte die Brücke ein?", "de", "why"),
    ("Ist die Brücke noch offen?", "de", "open"),
    ("Kuka perusti seuran?", "fi", "who"),
    ("Minä vuonna sota päättyi?", "fi", "when"),
    ("Missä kaupungissa kisat pidettiin?", "fi", "where"),
    ("Kuinka monta laivaa upposi?", "fi", "many"),
    ("Miksi silta romahti?", "fi", "why"),
    ("Onko silta vielä auki?", "fi", "open"),
    ("Saako laituriin jättää veneen?", "fi", "open"),
    ("Vem grundade föreningen?", "sv", "who"),
    ("Hur många fartyg sjönk?", "sv", "many"),
    ("Vilket år slutade kriget?", "sv", "when"),
    ("Lagras några personuppgifter i appen?", "sv", "open"),
    ("Hvor ligger brua?", "no", "where"),
    ("Hvor mange skip gikk tapt?", "no", "many"),
    ("Hvor gammel er broen?", "no", "much"),
    ("Hvorfor falt brua ned?", "no", "why"),
    ("Hvornår sluttede krigen?", "da", "when"),
    ("Hvem grundlagde foreningen?", "da", "who"),
    ("Qui a fondé le club ?", "fr", "who"),
    ("Pourquoi le pont est-il tombé ?", "fr", "why"),
    ("En quelle année la guerre a-t-elle pris fin ?", "fr", "when"),
    ("¿Cuántos barcos se perdieron?", "es", "many"),
    ("¿Dónde se firmó el tratado?", "es", "where"),
    ("Chi ha fondato il club?", "it", "who"),
    ("Quando terminou a guerra?", "pt", "when"),
    ("Hoeveel schepen gingen verloren?", "nl", "many"),
    ("Кто основал клуб?", "ru", "who"),
    ("クラブを設立したのは誰ですか。", "ja", "who"),
    ("戦争が終わったのはいつですか。", "ja", "when"),
    ("船は何人乗りですか。", "ja", "many"),
    ("橋が落ちたのはなぜですか。", "ja", "why"),
    ("設立された年は？", "ja", "when"),
    ("桥为什么倒塌？", "zh", "why"),
]


@pytest.mark.parametrize(("text", "language", "kind"), [each for each in QUESTIONS if each[2]])
def test_the_type_follows_from_the_words(text: str, language: str, kind: str) -> None:
    assert classify(text, language).type == kind


def test_a_text_that_asks_nothing_has_no_type() -> None:
    assert classify("The old bridge of the town", "en").type == ""
    assert classify("", "").type == ""


def test_the_words_that_ask_are_no_part_of_an_answer() -> None:
    question = classify("In which year did the war end?", "en")
    assert {"which", "year"} <= question.asking and "war" not in question.asking


def test_the_language_of_the_texts_helps_where_the_question_shows_none() -> None:
    assert classify("Hvem?", "da").type == classify("Hvem?", "no").type == "who"


def test_every_language_with_a_stemmer_has_interrogatives() -> None:
    for kind in ("who", "where", "when", "why", "how"):
        assert set(STEMMERS) <= set(question_words(kind)), kind


def test_a_phrase_wins_against_its_beginning() -> None:
    pattern = pattern_of("many", "en")
    assert pattern and pattern.search("how many ships") and not pattern.search("how manyfold")
    assert pattern_of("many", "xx") is None


def test_a_noun_far_behind_how_does_not_make_it_a_question_for_a_number() -> None:
    assert classify("Hur räknas barnets vikt ut när den är okänd?", "sv").type == "how"
    assert classify("Hur stor andel av medlemmarna röstade?", "sv").type == "much"


def test_a_question_for_an_amount_has_a_measure_and_a_period() -> None:
    yearly = classify("Paljonko autopaikka maksaa vuodessa?", "fi")
    assert (yearly.type, yearly.measures, yearly.period) == ("much", {"money"}, "year")
    assert classify("How old was she when she won?").measures == {"age"}
    assert classify("How long is the bridge?").measures == {"length", "span"}
    assert classify("How long does it take?").measures == {"span"}
    assert classify("Wie viele Meter hoch ist der Turm?").measures == {"length"}
    assert classify("Wie viel kostet der Stellplatz pro Monat?", "de").period == "month"
    assert (classify("Who won?").measures, classify("Who won?").period) == (frozenset(), "")


def test_a_question_for_a_definition_has_a_subject() -> None:
    assert classify("What is a comet?").subject == "comet"
    assert classify("Qu'est-ce que la photosynthèse ?").subject == "photosynthèse"
    assert classify("What is the capital of France?").subject == "", "it asks for the capital"
    assert classify("Where is France?").subject == ""


def test_a_longer_word_is_no_noun_of_time() -> None:
    assert classify("Hvilken tidligere minister ble kritisert?", "no").type == "which"
    assert classify("På hvilket tidspunkt begynte møtet?", "no").type == "when"
    assert classify("Welche Zeitung berichtete darüber?").type == "which"
