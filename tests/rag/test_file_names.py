"""The words of a file name are those that a person reads in it."""

from __future__ import annotations

import pytest

from agentformer.rag.chunks import words_of_name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("AMAZON_2017_10K.pdf", "AMAZON 2017 10K"),
        ("JOHNSON_JOHNSON_2023_8K_dated-2023-08-30.pdf", "JOHNSON JOHNSON 2023 8K dated 2023-08-30"),
        ("folder/Årsberetning – 2022.v2.docx", "Årsberetning – 2022 v2"),
        ("työ-ohje+(uusi).md", "työ ohje (uusi)"),
        ("9f86d081884c7d659a2feaa0c55ad015.pdf", ""),
        ("scan-550e8400-e29b-41d4-a716-446655440000.pdf", "scan"),
        ("report-1f0a9b2c.pdf", "report"),
        ("report-20230830.pdf", "report 20230830"),
        ("2017-12-31.pdf", ""),
        ("p1.txt", ""),
        ("規則.txt", "規則"),
        ("", ""),
        ("abc_" * 200 + ".txt", ("abc " * 20).rstrip()),
    ],
)
def test_words_of_a_file_name(name: str, words: str) -> None:
    assert words_of_name(name) == words
