"""Language detection on sentences as people write them, and what the word lists promise."""

from __future__ import annotations

from agentformer.text.languages import detection as languages
from agentformer.text.languages.detection import FUNCTION_WORDS, STEMMERS, detect_language, stem, word_list

SENTENCES = [
    ("en", "Where did you put the keys to the summer house?"),
    ("en", "The meeting was moved to Thursday because nobody could come."),
    ("en", "Thanks, see you tomorrow!"),
    ("fi", "Missä kesämökin avaimet ovat?"),
    ("fi", "Kokous siirrettiin torstaille, koska kukaan ei päässyt paikalle."),
    ("fi", "Laskun eräpäivä on ensi viikolla."),
    ("sv", "Var har du lagt nycklarna till sommarstugan?"),
    ("sv", "Mötet flyttades till torsdag eftersom ingen kunde komma."),
    ("sv", "Jag vet inte vad det kostar."),
    ("no", "Hvor har du lagt nøklene til hytta, og når kommer dere?"),
    ("no", "Jeg vet ikke hva det koster."),
    ("no", "Møtet ble flyttet til torsdag fordi ingen av oss kunne komme etter jobb."),
    ("da", "Hvor har du lagt nøglerne til sommerhuset, og hvornår kommer I?"),
    ("da", "Jeg ved ikke, hvad det koster."),
    ("da", "Mødet blev flyttet til torsdag, fordi ingen af os kunne komme efter arbejde."),
    ("de", "Wo hast du die Schlüssel für das Ferienhaus hingelegt?"),
    ("de", "Die Rechnung ist noch nicht bezahlt worden."),
    ("fr", "Où as-tu mis les clés de la maison ?"),
    ("fr", "L'eau n'est pas encore chaude."),
    ("es", "¿Dónde has puesto las llaves de la casa?"),
    ("es", "La reunión se ha cambiado al jueves porque nadie podía venir."),
    ("it", "Dove hai messo le chiavi della casa?"),
    ("it", "La riunione è stata spostata a giovedì perché nessuno poteva venire."),
    ("pt", "Onde é que você colocou as chaves da casa?"),
    ("pt", "A reunião foi adiada porque ninguém podia vir."),
    ("nl", "Waar heb je de sleutels van het huis gelegd?"),
    ("nl", "De vergadering is verplaatst omdat niemand kon komen."),
    ("pl", "Gdzie są klucze do domu i kto je ma?"),
    ("et", "Kus on suvila võtmed ja kes need võttis?"),
    ("hu", "Hol vannak a nyaraló kulcsai, és ki vitte el?"),
    ("tr", "Evin anahtarları nerede ve kim aldı?"),
    ("ru", "Где лежат ключи от дачи?"),
    ("uk", "Де лежать ключі від будинку і хто їх взяв?"),
    ("el", "Πού είναι τα κλειδιά του σπιτιού;"),
    ("ja", "別荘の鍵はどこに置きましたか。"),
    ("ja", "PDFファイルをアップロードする方法"),
    ("zh", "别墅的钥匙放在哪里了？"),
    ("ko", "별장 열쇠를 어디에 두었습니까?"),
    ("ar", "أين وضعت مفاتيح البيت؟"),
    ("fa", "کلید خانه را کجا گذاشتی؟"),
    ("he", "איפה שמת את המפתחות?"),
    ("th", "คุณวางกุญแจไว้ที่ไหน"),
    ("hi", "घर की चाबी कहाँ है?"),
]


def test_a_short_sentence_is_recognised() -> None:
    for language, sentence in SENTENCES:
        assert detect_language(sentence) == language


def test_thin_evidence_gives_the_prior_or_nothing() -> None:
    for text in ["", "   \n", "42", "3.11.7 / 2023-05-08", "😀🎉", "SKU-1234", "Helsinki", "!!!"]:
        assert detect_language(text) == ""
        assert detect_language(text, "fi") == "fi"


def test_a_chunk_of_names_follows_its_document_and_a_clear_one_does_not() -> None:
    names = "Los Angeles Rams, San Diego Chargers, Los Angeles Lakers, Los Angeles Clippers"
    assert detect_language(names, "fi") == "fi"
    assert detect_language("This is what the board has decided about the budget for the next year.", "fi") == "en"


def test_what_danish_and_norwegian_share_is_left_to_the_prior() -> None:
    shared = "Hvor kommer han fra?"
    assert detect_language(shared, "no") == "no"
    assert detect_language(shared, "da") == "da"


def test_capitals_and_typographic_apostrophes_do_not_hide_a_language() -> None:
    assert detect_language("KUINKA PALJON TÄMÄ MAKSAA JA MISTÄ SEN SAA?") == "fi"
    assert detect_language("Don’t you think that it’s too late?") == "en"


def test_only_the_beginning_of_a_long_text_counts() -> None:
    finnish = "Kokous on siirretty, koska hän ei ole täällä. " * 100
    assert detect_language(finnish + "This is English and it is much longer. " * 10_000) == "fi"


def test_every_language_has_a_working_stemmer_and_function_words() -> None:
    assert {"en", "fi", "sv", "no", "da", "de", "fr", "es", "it", "pt", "nl", "et", "hu", "ru"} <= set(STEMMERS)
    for language in STEMMERS:
        assert stem("a", language)
        assert len(FUNCTION_WORDS[language]) >= 25, language


def test_function_words_are_folded_and_greetings_are_none() -> None:
    assert "dass" in FUNCTION_WORDS["de"]
    assert "της".casefold() in FUNCTION_WORDS["el"]
    assert "kiitos" in word_list("greetings")["fi"]
    assert "kiitos" not in FUNCTION_WORDS["fi"]


def test_a_language_without_stemmer_keeps_its_words() -> None:
    assert stem("hestarnir", "is") == "hestarnir"
    assert stem("taloissa", "fi") == "talo"


def test_texts_of_several_scripts_habits_and_lengths_are_told_as_ever() -> None:
    for language, text in [
        ("en", "The committee's report wasn't ready, so they'd postponed the meeting."),
        ("fr", "L'eau qu'il boit vient d'une source près de l'église."),
        ("sr", "Састанак је одложен јер извештај још није био готов."),
        ("ja", "会議は延期された。API v2 のレポートが未完成だったため。"),
        ("zh", "会议推迟了，因为 report 还没有准备好。"),
        ("en", "Kahvi 東京 coffee and a 会 in the \u00b5 table"),
        ("en", "THE MEETING WAS MOVED BECAUSE OF THE REPORT"),
        ("", "12.5 % (3/24) — 2024-05-01"),
        ("", "ab" * 2000),
        ("ro", "fi fi fi Å ø"),
    ]:
        assert [detect_language(text), detect_language(text)] == [language] * 2  # the second time cached


def test_endless_words_are_not_remembered() -> None:
    kept = languages._word_votes.cache_info().currsize, languages._small.cache_info().currsize
    detect_language("qwertyuiop" * 5 + " " + "zxcvbnm" * 100)
    assert kept == (languages._word_votes.cache_info().currsize, languages._small.cache_info().currsize)


def test_alike_languages_are_told_apart_by_their_spelling() -> None:
    for text, language in (("jeg er på øya", "no"), ("jeg er", "da"), ("det är en jag", "sv"), ("the jeg er", "")):
        assert languages.likelier_of_alike(text) == language


def test_a_rare_letter_votes_only_in_a_word_of_three_letters() -> None:
    assert languages._word_votes("xø") == ()
    assert {language for language, _ in languages._word_votes("xøx")} == {"da", "no"}


def test_repeated_words_and_names_have_a_limited_weight() -> None:
    weights = languages._weighted_words("Los los Los Los the the the the The")
    assert weights == {"los": 2.0, "the": 3.3}


def test_a_few_ideographs_outvote_a_name_and_some_kana_outvote_ideographs() -> None:
    for text, script in (
        ("漢漢 abcde", "han"),
        ("漢漢 abcdefg", "latin"),
        ("か" + "漢" * 20, "kana"),
        ("か" + "漢" * 21, "han"),
        ("", ""),
        ("12 .", ""),
    ):
        assert languages._script(text) == script
