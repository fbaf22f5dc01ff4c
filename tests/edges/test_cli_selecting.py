"""Arguments and options that select entries: beginnings of ids, owners, dates, metadata and pages of a list."""

from __future__ import annotations

import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentformer.cli import main
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
    assert "matches 2 entries; give one id: " in done.stderr
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
    at = lines.index(f"The nearest passages (confidence {told['confidence']:.2f}):")
    assert [line[:29] for line in lines[at + 1 :]] == ["  shed.txt, page 1: The boat "] and lines[-1].endswith("…")


def test_a_beginning_of_an_id_means_a_memory_beside_many_parts_of_documents(
    tmp_path: Path, run: Invoke, shown: Shown
) -> None:
    (tmp_path / "long.txt").write_text("\f".join(f"Page {n} of the log says that the sea is calm." for n in range(30)))
    shown("ingest", str(tmp_path / "long.txt"))
    kept = shown("remember", TEA)["id"]
    (document,) = shown("list")["documents"]
    same = "".join(a for a, b in takewhile(lambda pair: pair[0] == pair[1], zip(kept, document["id"], strict=True)))
    assert len(same) >= 4 and len(shown("memories", "--kind", "page")["entries"]) == 30
    assert shown("update", same, "--title", "drinks")["id"] == kept
    refused = run("forget", document["id"][:20])
    assert refused.exit_code == 2 and refused.stderr.count("long.txt") <= 10


@pytest.mark.slow
def test_many_matching_entries_are_counted(run: Invoke, shown: Shown) -> None:
    for n in range(12):
        shown("remember", f"Boat {n} is blue.", "--title", "boat")
    done = run("history", "boat")
    assert done.exit_code == 2 and "boat matches 12 entries; give one id: " in done.stderr
    assert done.stderr.count("(fact: boat)") == 10 and done.stderr.endswith("; and 2 more\n")


def test_blank_queries_are_refused(run: Invoke, shown: Shown) -> None:
    shown("remember", TEA)
    for command in ("recall", "search"):
        done = run(command, " ")
        assert (done.exit_code, done.stderr) == (2, "error: QUERY: is empty; give words or a question\n")


def test_paths_that_all_do_not_exist_are_a_wrong_argument_and_create_nothing(tmp_path: Path, run: Invoke) -> None:
    for paths in ([f"{tmp_path}/no.pdf"], [f"{tmp_path}/no.pdf", f"{tmp_path}/none/"]):
        done = run("ingest", *paths)
        said = f"error: PATH: {' and '.join(paths)} {'does' if len(paths) == 1 else 'do'} not exist; check the path\n"
        assert (done.exit_code, done.stdout, done.stderr) == (2, "", said)
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_text_is_listed_without_counts(tmp_path: Path, run: Invoke) -> None:
    (tmp_path / "empty.txt").touch()
    done = run("ingest", str(tmp_path / "empty.txt"))
    assert (done.exit_code, done.stdout.splitlines()[0][:20]) == (1, "failed     empty.txt")
    assert "0 pages" not in done.stdout


@pytest.mark.usefixtures("faiss_files")
def test_the_folder_of_a_backup_leads_to_the_memory_in_it(tmp_path: Path, run: Invoke, shown: Shown) -> None:
    shown("remember", TEA)
    shown("backup", str(tmp_path / "copy"))
    done = CliRunner().invoke(main, ["memories", "--index-dir", f"{tmp_path}/copy"])
    options = f"--index-dir {tmp_path}/copy/indexes --upload-dir {tmp_path}/copy/uploads"
    assert done.exit_code == 2 and f"this folder is a backup: give {options}\n" in done.stderr
    assert TEA in CliRunner().invoke(main, ["memories", *options.split()]).stdout


@pytest.mark.process
def test_an_argument_in_another_encoding_is_refused_with_what_to_do(tmp_path: Path) -> None:
    where = ["--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u", "--embedder", "hashing"]
    command = [sys.executable, "-m", "agentformer.cli", "remember", b"Caf\xe9 Aino", *where]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"error: TEXT: is not a text in the encoding utf-8 of this terminal; set LC_ALL=C.UTF-8" in done.stderr


def test_a_context_says_why_entries_were_left_out(run: Invoke, shown: Shown) -> None:
    shown("remember", TEA)
    done = run("context", "The harbour of Oslo")
    assert "note: left out 1 time: the entry is not relevant to the task\n" in done.stderr


def test_core_blocks_that_do_not_exist_are_refused_with_what_to_do(run: Invoke, shown: Shown) -> None:
    shown("remember", TEA)
    done = run("core show", "persona")
    assert done.exit_code == 2 and "append a text to create it" in done.stderr
