"""`agentformer eval`: the figures against ranks worked out by hand, and every bad line told by its number."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentformer.cli import main
from tests.edges.conftest import Invoke, Shown
from tests.readers.conftest import make_pdf

pytestmark = pytest.mark.process
KEYS = "The caretaker keeps the keys in the blue cupboard."
BOATS = "Boats are lifted out of the water in October."
Ask = Callable[..., Any]


def _store(folder: Path) -> None:
    (folder / "rules.pdf").write_bytes(make_pdf([[BOATS], [KEYS]]))
    (folder / "notes.txt").write_text("Kevätkokous pidetään huhtikuussa. The spring meeting is in April.")
    where = ("--index-dir", f"{folder}/i", "--upload-dir", f"{folder}/u", "--embedder", "hashing")
    done = CliRunner().invoke(main, ["ingest", f"{folder}/rules.pdf", f"{folder}/notes.txt", *where])
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A memory with two documents. Each test has a copy, so that the documents are read once."""
    folder = tmp_path_factory.mktemp("stored")
    _store(folder)
    return folder


@pytest.fixture
def questions(stored: Path, tmp_path: Path) -> Callable[..., str]:
    """A file of questions beside two documents."""
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    if not (stored / "i" / "memory.sqlite3").exists():  # a server stores the entries, and each folder has its own
        _store(tmp_path)

    def write(*lines: Any) -> str:
        path = tmp_path / "questions.jsonl"
        written = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(written), encoding="utf-8")
        return str(path)

    return write


def test_ranks_recall_and_declined_ones_are_as_by_hand(questions: Callable[..., str], shown: Shown) -> None:
    file = questions(
        {"question": "Who keeps the keys in the cupboard?", "document": "rules.pdf", "page": 2},
        "",
        {"question": "Who keeps the keys in the cupboard?", "document": "rules.pdf", "page": 1},
        {"question": "When are boats lifted out of the water?", "answer": "In\n october"},
        {"question": "When are boats lifted out of the water?", "answer": "in November"},
        {"question": "zebra quantum chromodynamics", "unanswerable": True},
    )
    told = shown("eval", file)
    assert [(each["line"], each["rank"], each["page_rank"]) for each in told["results"]] == [
        (1, 1, 1),
        (3, 1, 2),
        (4, 1, None),
        (5, None, None),
        (6, None, None),
    ]
    assert (told["questions"], told["answerable"], told["with_page"]) == (5, 4, 2)
    assert told["recall"] == {"1": 0.75, "3": 0.75, "5": 0.75, "10": 0.75}
    assert told["page_recall"] == {"1": 0.5, "3": 1.0, "5": 1.0, "10": 1.0}
    assert told["mrr@10"] == 0.75
    assert told["declined"]["unanswerable"] == {"asked": 1, "declined": 1, "share": 1.0}
    assert told["declined"]["answerable"] == {"asked": 4, "declined": 0, "share": 0.0}
    assert told["median_ms"]["search"] > 0 and told["median_ms"]["answer"] > 0


def test_a_person_reads_the_figures_and_what_was_missed(questions: Callable[..., str], run: Invoke) -> None:
    file = questions(
        {"question": "Who keeps the keys?", "document": "rules.pdf", "page": 2},
        {"question": "When are boats lifted?", "answer": "in November"},
        {"question": "zebra quantum", "unanswerable": True},
    )
    done = run("eval", file)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "questions    3, 2 with an answer",
        "recall       @1 0.500  @3 0.500  @5 0.500  @10 0.500",
        "MRR@10       0.500",
    ]
    assert "declined     1 of 1 unanswerable (1.000)" in lines
    assert lines[-2:] == ["no correct passage among the first 10: 1", "  line 2: When are boats lifted?"]


def test_searching_alone_makes_no_answers_and_counts_no_use(questions: Callable[..., str], shown: Shown) -> None:
    file = questions({"question": "Who keeps the keys?", "answer": "blue cupboard"})
    told = shown("eval", file, "--no-answers", "--mode", "lexical")
    assert (told["mode"], told["recall"]["1"], told["declined"]["answerable"]) == ("lexical", 1.0, None)
    assert (told["results"][0]["declined"], told["median_ms"]["answer"]) == (None, None)
    chunks = shown("memories", "--kind", "chunk")["entries"]
    assert [each["match_count"] for each in chunks] == [0] * 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "not a JSON object"),
        ({"question": " ", "answer": "x"}, "'question' must be a text"),
        ({"question": 3, "answer": "x"}, "'question' must be a text"),
        ({"answer": "x"}, "'question' must be a text"),
        ({"question": "x" * 9000, "answer": "x"}, "max_question_chars"),
        ({"question": "x"}, "must have 'document', 'answer' or 'unanswerable'"),
        ({"question": "x", "unanswerable": "yes"}, "true or false"),
        (
            {"question": "x", "unanswerable": True, "answer": "y"},
            "is marked as unanswerable, but has the field 'answer'",
        ),
        ({"question": "x", "answer": "y", "page": 1}, "'page' requires 'document'"),
        ({"question": "x", "document": "rules.pdf", "page": 0}, "whole number from 1"),
        ({"question": "x", "document": "rules.pdf", "page": True}, "whole number from 1"),
        ({"question": "x", "document": "rules.pdf", "page": 3}, "has 2 pages, and no page 3"),
        ({"question": "x", "document": "nowhere.pdf"}, "no document 'nowhere.pdf'"),
        ({"question": "x", "answer": "y", "pgae": 1}, "'pgae' is unknown"),
        ('{"question": "\\ud800", "answer": "y"}', "surrogate"),
    ],
)
def test_a_bad_line_is_told_by_its_number_and_nothing_is_asked(
    questions: Callable[..., str], run: Invoke, line: Any, said: str
) -> None:
    done = run("eval", questions({"question": "Who keeps the keys?", "answer": "cupboard"}, line))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "line 2: " in done.stderr and said in done.stderr and "Traceback" not in done.stderr


def test_many_bad_lines_are_told_as_ten_and_the_rest(questions: Callable[..., str], run: Invoke) -> None:
    said = run("eval", questions(*["{"] * 13)).stderr
    assert said.count("is not JSON") == 10 and "and 3 more" in said


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_a_file_without_questions_is_a_wrong_argument(
    questions: Callable[..., str], run: Invoke, content: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "other.jsonl"
    if content is not None:
        path.write_bytes(content)
    done = run("eval", str(path))
    assert (done.exit_code, "FILE" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("answer", "found"),
    [("4", True), ("2", False), ("14", False), ("car", False), ("carpet", True), ("net", False), ("日本", True)],
)
def test_an_answer_is_found_as_whole_words(
    questions: Callable[..., str], shown: Shown, tmp_path: Path, answer: str, found: bool
) -> None:
    (tmp_path / "shed.txt").write_text("The carpet and 4 of 214 nets lie in the shed. 私は日本語を話します。")
    shown("ingest", str(tmp_path / "shed.txt"))
    file = questions({"question": "What lies in the shed: the carpet, nets?", "answer": answer})
    assert (shown("eval", file, "--no-answers")["results"][0]["rank"] is not None) is found
