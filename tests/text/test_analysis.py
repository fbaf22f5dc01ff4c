"""Terms: what a text can be found by."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentformer.text.analysis import COMPOUNDING, MAX_QUERY, QueryTerms, Terms, query_terms, text_terms
from agentformer.text.languages.detection import STEMMERS
from agentformer.text.tokenizer import MAX_TERM


def stems(text: str, language: str = "en") -> list[str]:
    return list(text_terms(text, language).stems)


def meets(query: str, text: str, language: str, field: str = "stems", store: tuple[str, ...] = ()) -> bool:
    """Whether every term of the query's field is one of the text's, in a store of the languages given."""
    asked = set(getattr(query_terms(query, {language, *store}), field))
    own = {term for term in asked if "~" not in term or term.startswith(f"{language}~")}
    return bool(own) and own <= set(getattr(text_terms(text, language), field))


@pytest.mark.parametrize("language", ["", *STEMMERS])
def test_the_terms_of_a_word_are_those_of_the_same_word_with_a_mark(language: str) -> None:
    words = ("genotypic", "djnr", "House", "may", "pesukone", "the", "en")  # Turkish and Serbian stems have diacritics
    assert [text_terms(word, language) for word in words] == [text_terms(f"({word})", language) for word in words]


def test_inflected_words_meet_in_their_language() -> None:
    for language, query, text in [
        ("en", "running houses", "He runs past the house."),
        ("fi", "työkalut", "Työkalun varsi katkesi."),
        ("sv", "bilarna", "En bil står på gatan."),
        ("no", "bilene", "Bilen er rød."),
        ("da", "bilerne", "Bilen er rød."),
        ("de", "Häuser", "Ein Haus am See."),
        ("fr", "chevaux noirs", "Le cheval noir."),
        ("es", "gatos negros", "El gato negro."),
        ("it", "gatti neri", "Il gatto nero."),
        ("pt", "gatos pretos", "O gato preto."),
        ("nl", "boeken", "Een boek op tafel."),
        ("et", "raamatud", "Raamatu kaaned."),
        ("hu", "könyvek", "A könyv az asztalon."),
        ("ru", "книги", "Новая книга на столе."),
    ]:
        assert meets(query, text, language)


def test_each_stem_names_its_language_and_keeps_order_and_repetition() -> None:
    assert stems("Työkalut ja työkalu", "fi") == ["fi~työkalu", "fi~ja", "fi~työkalu"]
    assert stems("Horses, horse", "") == ["~horses", "~horse"]


def test_a_query_is_stemmed_for_every_language_of_the_store() -> None:
    terms = query_terms("talossa", {"fi", "sv", ""})
    assert terms.stems == ("~talossa", "fi~talo", "sv~taloss")
    assert terms.words == ("talossa",)
    assert terms.surface == ("talossa", "fi~talo", "fi~talossa", "sv~taloss", "sv~talossa")


def test_function_words_leave_a_query_unless_it_has_nothing_else() -> None:
    assert query_terms("Mikä on Suomen pääkaupunki?", {"fi"}).stems == ("fi~suome", "fi~pääkaupunk")
    assert query_terms("Mikä on Suomen pääkaupunki?", {"fi"}).words == (
        "suomen",
        "pääkaupunki",
        "paakaupunki",
        "paeaekaupunki",
    )
    assert query_terms("To be or not to be", {"en"}).surface == ("to", "be", "or", "not", "to", "be")


def test_a_capital_inside_the_sentence_is_a_name_not_a_function_word() -> None:
    assert query_terms("What does IT cost in May?", {"en"}).stems == ("en~it", "en~cost", "en~may")
    assert query_terms("WHAT DOES IT COST?", {"en"}).stems == ("en~cost",)
    assert query_terms("What did I do in Rome?", {"en"}).stems == ("en~rome",)


def test_codes_numbers_and_joined_words_are_kept_whole_and_split() -> None:
    for text, expected in [
        ("SKU-1234", ["sku-1234", "sku1234", "1234", "en~sku"]),
        ("snake_case", ["snake_case", "en~snakecas"]),
        ("foo.bar()", ["foo.bar", "en~foobar", "en~foo", "en~bar"]),
        ("getUserName", ["en~getusernam"]),
        ("covid19", ["covid19", "19", "en~covid"]),
        ("C++ C#", ["c++", "en~c", "c#", "en~c"]),
        ("3.11.7", ["3.11.7", "3.11"]),
        ("1 500,50", ["1500.50", "1500", "1", "500,50"]),
        ("1,500.50", ["1,500.50", "1500.50"]),
        ("1.500,50", ["1.500,50", "1500.50"]),
        ("3,5", ["3,5", "3.5"]),
        ("8.5.2023", ["8.5.2023", "2023-05-08", "2023", "5", "8"]),
        ("2023-05-08", ["2023-05-08", "2023", "5", "8"]),
        ("12:30", ["12:30", "12", "30"]),
        ("ann@firm.fi", ["ann@firm.fi", "en~annfirmfi", "en~ann", "en~firm", "en~fi"]),
        ("e-mail", ["en~email", "en~e", "en~mail"]),
        ("John's", ["en~john"]),
        ("don't", ["en~dont"]),
        ("O\u2019Brien", ["en~obrien", "en~brien"]),
    ]:
        assert stems(text) == expected


def test_codes_of_a_query_are_what_no_word_or_year_looks_like() -> None:
    written = "Is 9F3AC01B7E, cd80680348, INV-2024-0032 or 4711023 newer than A4 of 2024-05-06?"
    assert QueryTerms.of(written).identifiers == ("9f3ac01b7e", "cd80680348", "inv-2024-0032", "4711023")
    joined = "inv/2026/0007, err_ab_123? v1.22.33; A.12.3.45: 2026/INV/0007 12-AB-3456 #123456"
    assert QueryTerms.of(joined).identifiers == (
        *("inv/2026/0007", "err_ab_123", "v1.22.33", "a.12.3.45", "2026/inv/0007", "12-ab-3456", "123456"),
    )
    words = "FY2022 python3 18th-century 1980-luvulla covid-19 200 000 internet2 20.11.2026 3rd-and-9 facade12"
    words += " 03/14/2026 12:30 and/or en_US e.g. 1.500,50 http://a.b"
    assert QueryTerms.of(words).identifiers == ()


def test_a_case_ending_behind_a_colon_is_dropped() -> None:
    for language in ["fi", "sv", "en"]:
        assert stems("EU:n tv:ssä 3:n", language) == [f"{language}~eu", f"{language}~tv", "3"]


def test_words_inside_an_identifier_are_parts() -> None:
    for identifier in ["getUserName", "get_user_name", "GetUserName"]:
        terms = text_terms(identifier, "en")
        assert terms.parts == ("en~get", "en~user", "en~name")
        assert terms.surface[-3:] == ("get", "user", "name")
        assert set(query_terms("user names", {"en"}).parts) <= set(terms.parts)


def test_an_identifier_is_found_however_it_is_spelt() -> None:
    assert meets("getusername", "call getUserName()", "en")
    assert set(query_terms("SKU1234", {"en"}).stems) & set(stems("the SKU-1234 part"))
    assert set(query_terms("youtube", {"en"}).stems) <= set(stems("YouTube"))


def test_elided_articles_leave_the_noun() -> None:
    assert "fr~eau" in stems("l'eau", "fr")


def test_cjk_runs_give_pairs_of_which_those_with_hiragana_weigh_less_and_ideographs() -> None:
    terms = text_terms("東京都に行く", "ja")
    assert terms.stems == ("東京", "京都")
    assert terms.parts == ("東", "京", "都", "行", "都に", "に行", "行く", "東京都")
    assert query_terms("雨", {"ja"}) == Terms(("雨",), (), ("雨",))
    assert {"りん", "んご"} < {*query_terms("pdf りんご", {"ja"}).parts}
    assert query_terms("りんご", {"ja"}) == Terms((), (), ("りん", "んご"))
    assert stems("ＰＤＦ形式", "ja") == ["ja~pdf", "形式"]


def test_other_unspaced_scripts_give_bigrams_and_indian_words_stay_whole() -> None:
    assert stems("กุญแจ", "th") == ["กุ", "ุญ", "ญแ", "แจ"]
    assert stems("नमस्ते दुनिया", "en") == ["en~नमस्ते", "en~दुनिया"]


def test_emoji_and_lone_symbols_are_findable() -> None:
    assert stems("👍🏽 🇫🇮 ❤️") == ["👍", "🇫🇮", "❤"]
    assert stems(":-)  ???") == [":-)", "???"]
    assert stems("5 €") == ["5", "€"]


def test_diacritics_fold_on_the_surface_only() -> None:
    assert text_terms("Jyväskylä", "fi").surface == ("jyväskylä", "jyvaskyla", "fi~jyvaskyl")
    assert text_terms("Søren Łódź", "da").words == ("søren", "soren", "soeren", "łódź", "lodz")
    assert stems("väri", "fi") != stems("vari", "fi")
    assert set(query_terms("Jyvaskyla", {"en"}).surface) <= set(text_terms("Jyväskylä", "en").surface)


def test_compounds_meet_by_pieces_in_languages_that_write_them_as_one() -> None:
    asked = set(query_terms("vakuutus", {"fi"}).parts)
    assert asked & set(text_terms("Matkavakuutuksen ehdot", "fi").parts) == {"akuut"}
    assert text_terms("Travel insurance", "en").parts == ()


def test_a_query_in_a_language_of_the_store_asks_for_no_pieces_of_another() -> None:
    parts = query_terms("What is the price of the insurance?", {"en", "fi"}).parts
    assert parts == ("en~price", "en~insur", "fi~price", "fi~insuranc")


def test_other_normal_forms_and_invisible_characters_change_nothing() -> None:
    assert text_terms("a\u0308iti ﬁnland Tyo\u0308\u00adpaikka", "fi") == text_terms("äiti finland työpaikka", "fi")
    assert stems("STRASSE", "de") == stems("straße", "de")


@pytest.mark.slow
def test_an_endless_line_gives_bounded_terms() -> None:
    for unit in ["x", "a-", "Ab", "1.", "1 ", "a'", "_", "म", "a\u0308", "東", ":n"]:
        terms = text_terms(unit * 50_000, "fi")
        assert len(terms.stems) + len(terms.parts) <= 300_000
        assert max(map(len, terms.stems)) <= MAX_TERM + 3


def test_a_pasted_page_is_cut_to_a_bounded_query() -> None:
    assert len(query_terms("kissa koira " * 100_000, {"fi"}).stems) <= MAX_QUERY


@given(st.text(max_size=200), st.sampled_from([*STEMMERS, *COMPOUNDING, "", "ja"]))
def test_any_text_gives_terms_without_white_space_and_is_found_by_itself(text: str, language: str) -> None:
    terms = text_terms(text, language)
    every = (*terms.stems, *terms.surface, *terms.parts)
    assert all(term and term.split() == [term] and len(term) <= 4 * MAX_TERM for term in every)
    asked = query_terms(text, {language})
    if terms.stems:
        assert set(asked.stems + asked.parts) & set(every)


@given(st.text(alphabet="aA1_-.:,'@&+#äमक東 \u0308", max_size=80))
def test_any_joining_of_letters_marks_and_digits_is_analysed(text: str) -> None:
    assert all(term.split() == [term] for term in text_terms(text, "fi").stems)


def test_a_word_of_the_longest_term_is_one_term_and_a_longer_one_is_cut() -> None:
    assert len(text_terms("q" * MAX_TERM, "en").stems) == 1
    assert len(text_terms("q" * (MAX_TERM + 1), "en").stems) > 1


# Pieces of which some form a token together with their neighbors, or end a token.
_FRAGMENTS = (
    *("Cables,", "houses!", "don't", "l'eau", "C++", "c#", "EU:n", "e-mail", "getUserName", "TCP/IP", "***", "--", "_"),
    *(
        "+358 (9)",
        "(09)",
        "040-12-",
        "0401",
        "345678",
        "FI21",
        "12AB",
        "5600",
        "12",
        "500,50",
        "3",
        "000",
        "(1)",
        "14:30",
    ),
    *("日本語", "テキスト", "Jyväskylä", "½", "1½", "\u0301", "’s", "x\u00a01", "$", " ", "  ", "\n", "a" * 70),
)


@given(
    st.lists(st.tuples(st.sampled_from(_FRAGMENTS), st.sampled_from((" ", "", "-", "  ", "\n"))), max_size=8),
    st.sampled_from(("en", "fi", "")),
)
def test_the_terms_of_a_text_do_not_depend_on_how_it_is_split(pieces: list[tuple[str, str]], language: str) -> None:
    text = "".join(f"{piece}{space}" for piece, space in pieces)
    assert text_terms(text, language) == QueryTerms.of(text).as_text(language)
