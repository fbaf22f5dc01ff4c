"""Arguments and options that select entries: beginnings of ids, owners, dates, metadata and pages of a list."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.edges.conftest import Invoke, Shown

TEA, COFFEE = "Aino prefers tea.", "Aino prefers coffee."


@pytest.fixture
def facts(shown: Shown) -> list[str]:
    """The ids of an older and a newer fact."""
    return [shown("remember", text)["id"] for text in (TEA, COFFEE)]


def test_changes_take_the_beginning_of_an_id(facts: list[str], run: Invoke, shown: Shown) -> None:
    old, new = facts
    changed = shown("update", new[:-1], "--title", "drinks")
    assert (changed["id"], changed["version"]) == (new, 2)
    assert [one["title"] for one in shown("history", new[:-2])["versions"]] == [""]
    assert shown("history", "drinks")["current"]["id"] == new
    assert shown("supersede", old[:-1], "drinks")["superseded_by"] == new
    assert run("supersede", old[:-1], new[:-1]).exit_code == 2  # superseded already
    assert [entry["id"] for entry in shown("restore", old[:-2])["entries"]] == [old]


@pytest.mark.parametrize(
    "command", [("update", "{}", "--title", "x"), ("history", "{}"), ("supersede", "{}", "NEW"), ("restore", "{}")]
)
def test_several_matching_entries_are_listed_and_nothing_changes(
    facts: list[str], run: Invoke, shown: Shown, command: tuple[str, ...]
) -> None:
    before = shown("memories")
    same = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(*facts, strict=True)))
    done = run(*(part.format(same) for part in command))
    assert (done.exit_code, done.stdout) == (2, "")
    assert all(f"{entry} (fact: {text})" in done.stderr for entry, text in zip(facts, (TEA, COFFEE), strict=True))
    assert shown("memories") == before


@pytest.mark.parametrize("argument", ["abcdef", "01a", "Aino"])
def test_an_argument_that_matches_no_entry_is_refused_with_what_can_be_given(
    facts: list[str], run: Invoke, argument: str
) -> None:
    for command in (("update", argument, "--title", "x"), ("history", argument), ("restore", argument)):
        done = run(*command)
        assert done.exit_code == 2 and f"there is no entry {argument} in namespace default" in done.stderr
        assert "beginning of an id (at least 4 characters), or a title" in done.stderr


def contents(listed: Any) -> list[str]:
    return [entry["content"] for entry in listed["entries"]]


def test_memories_of_a_user_include_what_belongs_to_nobody(shown: Shown) -> None:
    shown("remember", "The door is red.")
    shown("remember", TEA, "--user", "aino")
    shown("remember", "Bo sails.", "--user", "bo", "--project", "boat")
    assert contents(shown("memories", "--user", "aino")) == ["The door is red.", TEA]
    assert contents(shown("memories", "--user", "bo", "--project", "boat")) == ["The door is red.", "Bo sails."]
    assert shown("forget", "--user", "aino", "--yes")["forgotten"] == 1
    assert contents(shown("memories")) == ["The door is red.", "Bo sails."]


def test_a_list_says_when_there_are_more_memories(shown: Shown, run: Invoke) -> None:
    ids = [shown("remember", f"Boat {n} is blue.")["id"] for n in range(4)]
    first = run("memories", "--limit", "2")
    assert f"there are more memories; add --after {ids[1]}" in first.stderr
    assert shown("memories", "--limit", "2")["next"] == ids[1]
    last = run("memories", "--limit", "2", "--after", ids[1])
    assert (last.exit_code, last.stderr) == (0, "")
    assert shown("memories", "--limit", "2", "--after", ids[1])["next"] is None


def test_recall_selects_by_date_and_metadata(shown: Shown, run: Invoke) -> None:
    for year, site in ((2024, "north"), (2025, "south"), (2026, "north")):
        metadata = f'{{"site": "{site}", "year": {year}}}'
        shown("remember", f"The fee was {year % 100} euros.", "--at", f"{year}-05-01T12:00:00Z", "--metadata", metadata)

    def found(*options: str) -> set[str]:
        return {hit["content"][12:14] for hit in shown("recall", "What was the fee?", "--all", *options)["hits"]}

    assert found() == {"24", "25", "26"}
    assert found("--since", "2025-01-01") == {"25", "26"}
    assert found("--since", "2025-05-01", "--until", "2025-05-01") == {"25"}
    assert found("--where", "site=north") == {"24", "26"}
    assert found("--where", "site=north", "--where", "year=2026") == {"26"}
    references = shown("recall", "What was the fee?", "--references", "--until", "2023-01-01")
    assert references == {"references": []}
    for wrong, said in ((("--since", "soon"), "--since"), (("--where", "site"), "--where: must be KEY=VALUE")):
        done = run("recall", "fee", *wrong)
        assert done.exit_code == 2 and said in done.stderr


@pytest.mark.parametrize(
    ("command", "name"), [("eval", "nosuch.jsonl"), ("optimize", "nosuch.jsonl"), ("eval", "odd.bin")]
)
def test_a_wrong_path_of_questions_is_refused_before_a_memory_is_opened(
    tmp_path: Path, run: Invoke, command: str, name: str
) -> None:
    (tmp_path / "odd.bin").write_bytes(b"\xff\xfe\x00")
    done = run(command, str(tmp_path / name), "--json")
    said = "does not exist" if name.startswith("nosuch") else "is not a text file in UTF-8"
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{tmp_path / name} {said}" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("options", [(), ("--stream",)])
def test_an_unanswered_question_shows_the_nearest_passages(
    tmp_path: Path, run: Invoke, shown: Shown, options: tuple[str, ...]
) -> None:
    text = "The boat shed is painted red every spring by volunteers of the club. "
    (tmp_path / "shed.txt").write_text(text * 6)
    shown("ingest", str(tmp_path / "shed.txt"))
    question = "Who invented the quantum boat telescope in Antarctica?"
    told = shown("ask", question)
    assert (told["mode"], len(told["hits"]), told["confidence"] < 0.1) == ("none", 1, True)
    lines = run("ask", question, *options).stdout.splitlines()
    assert lines[0] == told["answer"]
    at = lines.index(f"The nearest passages (confidence {told['confidence']:.2f}) probably do not answer the question:")
    assert [line[:29] for line in lines[at + 1 :]] == ["  shed.txt, page 1: The boat "] and lines[-1].endswith("…")
