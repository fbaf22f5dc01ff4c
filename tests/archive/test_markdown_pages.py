"""The form of a Markdown file: any entry comes back as it was, and any text of a person is read or refused."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentformer.archive.markdown.entries import adopted, category_folder
from agentformer.archive.markdown.pages import MAX_HEADER, MAX_NODES, as_text, load_header, parse, render, split_header
from agentformer.errors import InvalidInput
from agentformer.memory.validation import context_line
from agentformer.types import Link, MemoryEntry

DAY = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)
PIECES = (
    "---",
    "---\n",
    "\n---\n",
    "\r\n",
    "\n",
    "\ufeff",
    "\x00",
    "\x07",
    "\x85",
    "\u2028",
    " ",
    "\t",
    "# a: b",
    "'",
    '"',
)
TEXTS = st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join)
FILLED = TEXTS.filter(str.strip)
NAMES = st.none() | st.text(min_size=1, max_size=20).filter(str.strip)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
METADATA = st.dictionaries(
    st.sampled_from(["tags", "id", "title", "a-b", "null", "yes", "metadata"]) | TEXTS, VALUES, max_size=3
)


def entry_of(**values: Any) -> MemoryEntry:
    entry = MemoryEntry(**{"id": "0190", "content": "x", "created_at": DAY, "updated_at": DAY, **values})
    return entry if entry.context else MemoryEntry(**{**_fields(entry), "context": context_line(entry)})


def _fields(entry: MemoryEntry) -> Mapping[str, Any]:
    return {name: getattr(entry, name) for name in MemoryEntry.__dataclass_fields__}


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    st.builds(
        entry_of,
        id=st.uuids().map(str) | FILLED.filter(lambda text: len(text) <= 200),
        content=FILLED,
        title=TEXTS.map(lambda text: text[:300]),
        category=TEXTS.map(lambda text: text[:200]),
        kind=st.sampled_from(["fact", "decision", "event"]),
        speaker=TEXTS.map(lambda text: text[:200]),
        user_id=NAMES,
        session_id=NAMES,
        salience=st.floats(0, 1),
        version=st.integers(1, 2**62),
        occurred_at=st.none() | st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
        metadata=METADATA,
        derived_from=st.lists(st.builds(Link, FILLED, TEXTS), max_size=2).map(tuple),
        context=st.just("") | FILLED,
    )
)
@example(entry_of(content="---\ntitle: not a title\n---\n\nrest\n"))
@example(
    entry_of(content="\ufeff\r\n first  \r\n\r\n", title="null", metadata={"x": "yes", "y": "1_000", "z": "2026-01-01"})
)
@example(
    entry_of(
        metadata={
            "long key " * 40: [[[[1]]]],
            "deep": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]],
        }
    )
)
def test_any_entry_comes_back_from_its_file_as_it_was(entry: MemoryEntry) -> None:
    data = render(entry)
    page = parse(data)
    assert page.edits(entry) == {} and (page.id, page.version) == (entry.id, entry.version)
    assert adopted(page, entry.namespace, lambda each: each) == entry
    assert render(adopted(page, entry.namespace, lambda each: each)) == data


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(PIECES) | st.sampled_from(["a", ":", " ", "[", "{", "&x", "*x", "!!t", "|", "-", "?", "<<"])
    )
)
def test_any_text_of_a_person_is_a_page_or_an_error_that_says_why(pieces: list[str]) -> None:
    try:
        page = parse("".join(("---\n", *pieces, "\n---\n\nbody\n")).encode())
    except InvalidInput as error:
        assert len(str(error)) < 500
    else:
        assert str(page.values["content"]).strip()


@pytest.mark.parametrize(
    ("text", "header", "body"),
    [
        ("body", None, "body"),
        ("body\n\n", None, "body\n"),
        ("\ufeff---\na: 1\n---\nbody", "a: 1\n", "body"),
        ("---\r\na: 1\r\n---\r\n\r\nbody\r\nmore\r\n", "a: 1\n", "body\nmore"),
        ("---\na: 1\n---\n\nbody\r\nmore\r\n", "a: 1\n", "body\r\nmore\r"),
        ("---\na: 1\n---\n\n\n  body  \n", "a: 1\n", "\n  body  "),
        ("---\n---\n\nbody", "", "body"),
        ("---\na: 1\n---", "a: 1\n", ""),
        ("--- \na", None, "--- \na"),
        ("----\na", None, "----\na"),
    ],
)
def test_the_front_matter_ends_at_the_first_line_of_dashes(text: str, header: str | None, body: str) -> None:
    assert split_header(text) == (header, body)


def test_a_text_is_read_as_it_is_written_whatever_yaml_makes_of_it() -> None:
    text = 'a: 2026-11-20\nb: no\nc: 0o17\nd: ~\ne: "~"\nf:\ng: 1.50\nh: null\ni: |\n  two\n  lines\nj: it\'s\n'
    nodes = load_header(text)
    wanted = ["2026-11-20", "no", "0o17", "", "~", "", "1.50", "", "two\nlines\n", "it's"]
    assert [as_text(key, node) for key, node in nodes.items()] == wanted


def test_lists_and_mappings_in_the_form_of_an_editor_are_metadata() -> None:
    page = parse(b"---\nid: x\naliases:\n- One\n- 'Two: 2'\nplace:\n  city: Turku\n  n: 3\nopen: true\n---\nbody")
    assert page.values["metadata"] == {"aliases": ["One", "Two: 2"], "place": {"city": "Turku", "n": 3}, "open": True}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("a: &x 1\nb: *x\n", "an anchor or an alias in line 2"),
        ("<<: {a: 1}\n", "merge key .* in line 2"),
        ("a: !x 1\n", "a YAML tag"),
        ("a: {b: 1, b: 2}\n", "the key 'b' twice"),
        ("? [a]\n: 1\n", "a key that is not a text"),
        ("- 1\n", "lines of the form `key: value`"),
        ("a: 1\n b: 2\n", "not valid YAML in line 3"),
        ("a: '\n", "not valid YAML"),
        ("a: \x07\n", "special characters are not allowed"),
        ("a: " + "x" * MAX_HEADER, "has more than"),
        ("".join(f"k{n}: 1\n" for n in range(MAX_NODES // 2)), "more than 20,000 keys and values"),
        ("a: " + "[" * 40 + "]" * 40 + "\n", "nested more than 30 levels"),
    ],
)
def test_front_matter_that_is_no_plain_mapping_is_refused(header: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words.replace("[", r"\[")):
        load_header(header)


def test_metadata_with_many_values_is_written_as_one_text() -> None:
    for metadata in ({f"key{n}": n for n in range(9_000)}, {"few": 1, "many": [*range(30_000)]}):
        entry = entry_of(metadata=metadata)
        page = render(entry)
        assert parse(page).values["metadata"] == metadata
        assert page.count(b"\n") < 20


def test_different_categories_have_different_folders_that_every_file_system_can_have() -> None:
    names = [
        "",
        "facts",
        "core",
        "Facts",
        "decisions",
        "a/b",
        "a%2fb",
        "..",
        ".",
        "a.",
        "nul",
        "ä",
        "a\u0308",
        "x" * 201,
    ]
    folders = [category_folder(name) for name in names]
    assert len(set(folders)) == len(names) and folders[0] == "facts"
    assert all(len(folder.encode()) <= 200 and "/" not in folder and folder.strip(".") for folder in folders)
