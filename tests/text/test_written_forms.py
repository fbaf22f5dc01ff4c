"""Numbers, codes and names are found in whichever of their usual forms they are asked for, in text and query alike."""

from __future__ import annotations

import pytest

from agentformer.text.analysis import query_terms, text_terms

# Forms of one thing; each must be found by each other.
SAME = [
    ("SKU-1234", "SKU 1234", "SKU1234", "sku-1234"),
    ("a.b@c.fi", "A.B@C.FI"),
    ("USB-C 3.2", "usb c 3.2"),
    ("USB3.2", "USB 3.2"),
    ("iPhone15", "iPhone 15", "iphone15"),
    ("16GB", "16 GB"),
    ("1.5GB", "1.5 GB"),
    ("GPT-4o", "GPT4o", "gpt 4o"),
    ("COVID-19", "covid19", "Covid 19"),
    ("v1.2.3", "1.2.3", "V1.2.3"),
    ("12 500,50", "12500.50", "12500,50", "12.500,50", "12,500.50", "12\u00a0500,50"),
    ("10 000", "10000", "10,000", "10.000"),
    ("3½", "3.5", "3,5"),
    ("+358 40 1234567", "+358401234567", "040 1234567", "0401234567", "040-123 4567", "+358 (0)40 123 4567"),
    ("FI21 1234 5600 0007 85", "FI2112345600000785", "fi2112345600000785"),
    ("4111 1111 1111 1111", "4111111111111111", "4111-1111-1111-1111"),
    ("1234-5678", "12345678"),
    ("node.js", "nodejs", "Node.js"),
    ("A/B", "a/b"),
    ("TCP/IP", "tcp/ip"),
    ("e-mail", "email"),
    ("get_user_name", "getUserName", "getusername"),
    ("2023-05-08", "8.5.2023", "08.05.2023"),
    ("Straße", "Strasse", "STRASSE"),
]


@pytest.mark.parametrize("language", ["en", "fi"])
@pytest.mark.parametrize(
    ("written", "asked"), [(a, b) for forms in SAME for a in forms for b in forms], ids=lambda form: form
)
def test_a_form_finds_the_others(written: str, asked: str, language: str) -> None:
    """By what tells one from another: a term that no other group of forms has."""
    text = text_terms(f"Tied to {written} since then.", language)
    query = query_terms(asked, {language})
    assert _telling(query.stems, asked) & set(text.stems)


def _telling(terms: tuple[str, ...], asked: str) -> set[str]:
    """Without those that stand for a part which much else has: a short number, or a word where there is a number."""
    numbers = {term for term in terms if any(letter.isdigit() for letter in term)}
    long = {term for term in numbers if sum(map(str.isdigit, term)) >= 5}
    return long or numbers or {*terms}


def test_a_part_finds_the_whole() -> None:
    for written, asked in [
        ("/usr/local/lib/site.py", "site.py"),
        ("C:\\Users\\ann\\file.txt", "file.txt"),
        ("src/agentformer/text/analysis.py", "analysis.py"),
        ("https://example.org/a/b?c=1", "example.org"),
        ("B12-vitamiini", "B12"),
        ("iPhone15", "iphone"),
        ("16GB", "GB"),
        ("12 500,50 €", "12500"),
        ("v1.2.3", "1.2"),
        ("IBAN FI21 1234 5600 0007 85", "FI21"),
        ("A/B testing", "testing"),
        ("and/or", "or"),
        ("192.168.1.10", "192.168.1.10"),
    ]:
        assert set(query_terms(asked, {"en"}).stems) & set(text_terms(written, "en").stems)


def test_a_time_of_day_is_no_part_of_a_telephone_number() -> None:
    for text, terms in [
        ("05-07-2023 14:30", {"05-07-2023", "14:30"}),
        ("05-07-2023 1430", {"05-07-2023", "1430"}),
        ("040 123 4567 14:30", {"0401234567", "14:30"}),
        ("+358 40 123 4567 08:30", {"358401234567", "08:30"}),
        ("07-07-2023456", {"07072023456"}),
    ]:
        assert terms <= set(text_terms(text, "").stems)


def test_dates_and_rows_of_numbers_are_no_telephone_numbers() -> None:
    for text in [
        "1.2.2003 ja 05-06-2024",
        "10 20 30 40",
        "2019 2020 2021",
        "a/b/c/d/e",
        "0,5 100 200",
        "0-306-40615-2",
    ]:
        assert max(len(term) for term in text_terms(text, "").stems if term.isdigit() or "/" not in term) <= 13
        assert not {"0520030506", "10203040", "05100200"} & set(text_terms(text, "").stems)


def test_words_are_found_without_their_diacritics_in_any_case() -> None:
    for written, asked, language in [
        ("Jyväskylä", "Jyvaskyla", "fi"),
        ("Jyväskylä", "Jyvaskylassa", "fi"),
        ("Jyväskylään", "jyvaskylasta", "fi"),
        ("smörgås", "smorgas", "sv"),
        ("smörgåsarna", "smorgas", "sv"),
        ("écoles", "ecole", "fr"),
        ("école", "ecoles", "fr"),
        ("niños", "nino", "es"),
        ("München", "Muenchen", "de"),
        ("München", "Munchen", "de"),
        ("Muenchen", "München", "de"),
        ("München", "Muenchen", "fi"),
        ("Århus", "Aarhus", "da"),
        ("Søren", "Soeren", "da"),
        ("Søren", "Soren", "no"),
        ("Þingvellir", "thingvellir", "is"),
    ]:
        text, query = text_terms(written, language), query_terms(asked, {language, "en"})
        assert set(query.surface) & set(text.surface)


def test_diacritics_weigh_less_than_the_right_letters() -> None:
    assert set(query_terms("Jyväskylässä", {"fi"}).stems) & set(text_terms("Jyväskylä", "fi").stems)
    assert not set(query_terms("Jyvaskylassa", {"fi"}).stems) & set(text_terms("Jyväskylä", "fi").stems)
    assert "jyvaeskylae" not in text_terms("Jyväskylä", "fi").surface  # nobody writes Finnish so
