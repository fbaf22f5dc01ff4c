"""The lexemes of single tokens: the forms that each token has in the word index."""

from __future__ import annotations

from agentformer.text import tokenizer
from agentformer.text.tokenizer import MAX_TERM, Lexeme, lexemes


def test_a_token_has_its_words_and_codes() -> None:
    for text, lexeme in (
        ("tea", Lexeme(words=("tea",))),
        ("Tea", Lexeme(words=("tea",), capital=True)),
        ("e-mail", Lexeme(words=("email", "e", "mail"))),
        ("node.js", Lexeme(words=("nodejs", "node", "js"), codes=("node.js",))),
        ("SKU-1234", Lexeme(words=("sku",), codes=("sku-1234", "sku1234", "1234"), capital=True)),
        ("iPhone15", Lexeme(words=("iphone",), inner=("i", "phone"), codes=("iphone15", "15"))),
        ("C++", Lexeme(words=("c",), codes=("c++",), capital=True)),
        ("USB3.2", Lexeme(words=("usb",), codes=("usb3.2", "usb32", "usb3", "3", "2", "3.2"), capital=True)),
        ("getUserName", Lexeme(words=("getusername",), inner=("get", "user", "name"))),
        ("TCP/IP", Lexeme(words=("tcp", "ip"), codes=("tcp/ip",), capital=True)),
        ("24/7", Lexeme(codes=("24/7", "24", "7"))),
        ("l'eau", Lexeme(words=("leau", "eau"))),
        ("don't", Lexeme(words=("dont",))),
        ("Anna's", Lexeme(words=("anna",), capital=True)),
        ("EU:n", Lexeme(words=("eu",), capital=True)),
        ("漢", Lexeme(codes=("漢",), parts=("漢",), run="漢")),
        ("漢か", Lexeme(parts=("漢", "漢か"), run="漢か")),
        ("漢字", Lexeme(codes=("漢字",), parts=("漢", "字", "漢字"), run="漢字")),
        ("か", Lexeme(parts=("か",), run="か")),
        ("12 500,50", Lexeme(codes=("12500.50", "12500", "12", "500,50"))),
        ("+358 40 1234567", Lexeme(codes=("358401234567", "1234567", "358", "40"))),
        ("FI21 1234 5600", Lexeme(codes=("fi2112345600", "fi21", "1234", "5600"))),
        ("€", Lexeme(codes=("€",))),
    ):
        assert list(lexemes(text)) == [lexeme], text


def test_a_number_has_its_forms() -> None:
    for number, forms in (
        ("7.5.2023", ["7.5.2023", "2023-05-07", "2023", "5", "7"]),
        ("2023-05-07", ["2023-05-07", "2023-05-07", "2023", "5", "7"]),
        ("1.234", ["1.234", "1234"]),
        ("1,234", ["1,234", "1234"]),
        ("1,5", ["1,5", "1.5"]),
        ("1.234,5", ["1.234,5", "1234.5"]),
        ("1.2.3", ["1.2.3", "1.2"]),
        ("14:30", ["14:30", "14", "30"]),
        ("123-4567", ["123-4567", "123", "4567", "1234567"]),
        ("123-456", ["123-456", "123", "456"]),
        ("1.23", ["1.23"]),
        ("12", ["12"]),
    ):
        assert list(tokenizer._number(number)) == forms


def test_an_identifier_is_split_at_its_capitals() -> None:
    for identifier, words in (
        ("aB", ("a", "b")),
        ("aBC", ("a", "bc")),
        ("Ab", ("ab",)),
        ("AB", ("ab",)),
        ("getUserName", ("get", "user", "name")),
        ("PDFReader", ("pdf", "reader")),
        ("XMLa", ("xm", "la")),
        ("user2Name", ("user", "2", "name")),
    ):
        assert tokenizer._humps(identifier) == words


def test_a_long_token_is_cut_into_terms() -> None:
    assert MAX_TERM == 64  # a SHA-256 in hexadecimal
    words = [len(word) for lexeme in lexemes(f"{'x' * 64} {'y' * 65} {'z' * 129}") for word in lexeme.words]
    assert words == [64, 64, 1, 64, 64, 1]
    assert [lexeme.codes for lexeme in lexemes("-" * 65)] == [("-" * 64, "-")]
