"""Labels of places in documents, as citations and context lines show them."""

from __future__ import annotations

from agentformer.text.places import cited_place, label_of_part, lines_label, lines_of, page_name, place_name

TEXT = "def a():\n    pass\n\n\ndef b():\n    return 2\n"


def test_a_label_of_lines_is_read_back() -> None:
    assert lines_label(3, 9) == "lines 3-9"
    assert lines_label(3, 9, "cell 2") == "cell 2, lines 3-9"
    for label in ("lines 3-9", "cell 2, lines 3-9"):
        assert lines_of(label) == (3, 9)
    for label in ("", "iv", "lines 3", "lines 3-9 of 12", "Headlines"):
        assert lines_of(label) is None, label


def test_the_label_of_a_part_counts_the_lines_before_and_inside_the_part() -> None:
    before, part = TEXT[:19], TEXT[19:]
    assert part.startswith("\ndef b") and before.count("\n") == 3
    for label, expected in (("lines 10-15", "lines 13-15"), ("cell 2, lines 1-6", "cell 2, lines 4-6")):
        assert label_of_part(label, before, part) == expected
        assert label_of_part(label, TEXT[:20], "def b():") == expected.replace("4-6", "5-5").replace("13-15", "14-14")
    assert label_of_part("lines 10-15", "", TEXT) == "lines 10-15"
    assert label_of_part("Rules", before, part) == "Rules"


def test_a_place_is_a_page_or_the_lines_of_a_file() -> None:
    assert place_name("rules.pdf", 6, "iv") == "rules.pdf, page iv"
    assert place_name("rules.pdf", 6, "") == "rules.pdf, page 6"
    assert place_name("talk.pptx", None, "Keys") == "talk.pptx, page Keys"
    assert place_name("src/a.py", 1, "lines 3-9") == "src/a.py (lines 3-9)"
    assert place_name("note.txt", None, "") == "note.txt"


def test_people_read_the_number_of_a_page_and_what_is_printed_on_it() -> None:
    assert page_name(5, "iii") == "page 5 (printed iii)"
    assert page_name(12, "A-2") == "page 12 (A-2)"
    assert page_name(3, "Fees > Members") == "page 3 (Fees > Members)"
    assert [page_name(5, "5"), page_name(5, ""), page_name(None, "Keys"), page_name(None, "")] == [
        "page 5",
        "page 5",
        "Keys",
        "",
    ]
    assert cited_place("rules.pdf", 5, "iii") == "rules.pdf, page 5 (printed iii)"
    assert cited_place("src/a.py", 1, "cell 2, lines 3-9") == "src/a.py (cell 2, lines 3-9)"
    assert cited_place("a note", None, "") == "a note"
