"""`agentformer eval` of a folder and of built questions: what is printed, what is refused, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from agentformer.evaluation.dataset import Question, halves, read_dataset
from agentformer.evaluation.memory_evaluation import Trial
from agentformer.evaluation.synthetic import Source
from tests.edges.conftest import Invoke, Shown
from tests.forked import SERVE, start

THINGS = ("harbour", "lighthouse", "boathouse", "pier", "crane", "sauna", "workshop", "office", "kiosk", "museum")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Ten passages, a question of each, and one of two."""
    path = tmp_path / "club"
    path.mkdir()
    corpus = [
        {"id": thing, "text": f"The {thing} of the village was painted by volunteers in {1900 + n}."}
        for n, thing in enumerate(THINGS)
    ]
    queries: list[dict[str, Any]] = [
        {"id": f"q{n}", "text": f"When was the {thing} painted?", "relevant": [thing], "meta": {"category": n % 2}}
        for n, thing in enumerate(THINGS)
    ]
    queries.append({"id": "both", "text": "pier and crane", "relevant": ["pier", "crane"], "meta": {"category": "two"}})
    write(path, corpus, queries)
    return str(path)


def write(path: Path, corpus: list[dict[str, Any]], queries: list[dict[str, Any]]) -> None:
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (path / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")


def test_a_folder_is_measured_and_no_memory_is_begun(folder: str, shown: Shown, tmp_path: Path) -> None:
    told = shown("eval", folder)
    assert (told["name"], told["passages"], told["questions"]) == ("club", 10, 11)
    assert told["modes"] == ["hybrid", "lexical", "dense"] and told["half"] is None
    assert told["overall"]["figures"]["lexical"]["recall@5"] == [1.0, 1.0, 1.0]
    assert set(told["overall"]["differences"]) == {"lexical", "dense"}
    assert [part["name"] for part in told["categories"]] == ["0", "1", "two"]
    assert told["results"][0]["ranks"]["lexical"] == [1]
    assert not (tmp_path / "i").exists() and not (tmp_path / "u").exists()


def test_a_person_reads_a_table_and_whether_a_difference_may_be_chance(folder: str, run: Invoke) -> None:
    lines = run("eval", folder, "--modes", "hybrid,lexical").stdout.splitlines()
    assert lines[0] == "club: 11 questions, 10 passages; means with 95% intervals"
    assert lines[2].split() == ["words", "both"]
    assert lines[3].split()[:4] == ["recall@1", "0.955", "(0.864", "to"]  # of two passages one is the first
    assert any(line.startswith("recall_all@5") for line in lines)  # since a question has two passages
    assert any(line.startswith("both - words, recall@5: ") for line in lines)
    assert next(line.split()[0] for line in lines if line.startswith(("category", "two", "0  ", "1  "))) == "category"


def test_halves_share_no_question_and_samples_are_small(folder: str, shown: Shown) -> None:
    halves = [
        {each["id"] for each in shown("eval", folder, "--half", half, "--modes", "lexical")["results"]}
        for half in ("dev", "test")
    ]
    assert not halves[0] & halves[1] and len(halves[0] | halves[1]) == 11
    assert next(half for half in halves if "both" in half) >= {"q3", "q4"}  # which share its passages
    assert shown("eval", folder, "--sample", "3", "--modes", "lexical")["questions"] == 3


def test_a_half_is_that_of_the_same_seed_of_an_optimisation(folder: str, shown: Shown) -> None:
    questions = read_dataset(Path(folder)).questions
    told = []
    for seed in (0, 1):
        found = shown("eval", folder, "--half", "test", "--seed", str(seed), "--modes", "lexical")["results"]
        told.append([each["id"] for each in found])
        assert told[-1] == [each.id for each in halves(questions, seed).test]
    assert told[0] != told[1]


def test_a_half_without_questions_is_refused_before_anything_is_stored(
    folder: str, run: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [{"id": str(n), "text": "Who?", "relevant": ["pier"]} for n in range(5)]
    monkeypatch.setattr(Trial, "load", lambda *given: pytest.fail("a corpus was stored"))
    for queries, half, said in (
        (asked, "dev" if halves([Question("0", "?", ("pier",))]).test else "test", "--half: "),
        ([{"id": "1", "text": "Who?"}], "dev", "questions: have no relevant passage"),
    ):
        (Path(folder) / "queries.jsonl").write_text("\n".join(json.dumps(row) for row in queries))
        done = run("eval", folder, "--half", half)
        assert (done.exit_code, done.stdout) == (2, "")
        assert said in done.stderr and ("add ids of passages to their field `relevant`" in done.stderr) == (
            said != "--half: "
        )
        assert ("another --seed" in done.stderr) == (said == "--half: ")


def test_metadata_of_a_stored_document_do_not_tell_which_passage_it_is(
    run: Invoke, shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model's questions no sentence is known: a hit is right by its entry alone."""
    monkeypatch.setattr("agentformer.evaluation.synthetic._cloze_of", lambda sources: _asks_for_it)
    for n, thing in enumerate(THINGS[:3]):
        path = tmp_path / f"{thing}.txt"
        path.write_text(f"The {thing} of the village was painted by volunteers of the rowing club in {1900 + n}.")
        assert run("ingest", str(path), "--metadata", '{"passage": "all"}').exit_code == 0
    told = shown("eval", "--synthetic", "3", "--modes", "lexical")
    assert told["overall"]["figures"]["lexical"]["recall@1"][0] == 1.0


def _asks_for_it(source: Source) -> Question:
    return Question("", f"{source.text.split()[1]}?", (source.id,))


def test_dates_that_cannot_be_read_are_told(folder: str, shown: Shown) -> None:
    dates = ["05/08/2023", "2023-05-08", "", None, "yesterday"]
    corpus = [
        {"id": thing, "text": f"The {thing}.", "meta": {"session": "s", "date": dates[n % 5]}}
        for n, thing in enumerate(THINGS)
    ]
    (Path(folder) / "corpus.jsonl").write_text("\n".join(json.dumps(row) for row in corpus))
    told = shown("eval", folder, "--modes", "lexical")
    assert told["notes"] == ["4 dates of corpus.jsonl cannot be read and were ignored, such as '05/08/2023'"]


def test_questions_are_built_from_a_corpus(folder: str, shown: Shown) -> None:
    told = shown("eval", folder, "--synthetic", "4", "--modes", "lexical")
    assert told["synthetic"] and told["questions"] == 4
    assert "favours words over vectors" in told["notes"][0]
    again = shown("eval", folder, "--synthetic", "4", "--modes", "lexical")
    assert [each["question"] for each in again["results"]] == [each["question"] for each in told["results"]]
    other = shown("eval", folder, "--synthetic", "4", "--modes", "lexical", "--seed", "3")
    assert [each["question"] for each in other["results"]] != [each["question"] for each in told["results"]]


@pytest.mark.slow
def test_questions_are_built_from_the_stored_documents_with_their_pages(
    run: Invoke, shown: Shown, tmp_path: Path
) -> None:
    for n, thing in enumerate(THINGS):
        path = tmp_path / f"{thing}.txt"
        path.write_text(f"The {thing} of the village was painted by volunteers of the rowing club in {1900 + n}.")
        assert run("ingest", str(path)).exit_code == 0
    told = shown("eval", "--synthetic", "5", "--modes", "lexical,hybrid")
    assert (told["questions"], told["passages"]) == (5, 10)
    assert told["pages"]["questions"] == 5 and told["pages"]["figures"]["lexical"]["recall@10"][0] == 1.0
    chunks = shown("memories", "--kind", "chunk")["entries"]
    assert [each["match_count"] for each in chunks] == [0] * 10
    printed = run("eval", "--synthetic").stdout
    assert "of the correct page:" in printed and "note: 10 questions were made from sentences" in printed


@pytest.mark.usefixtures("empty_memory")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "PATH: is missing"),
        (["{folder}", "--top-k", "3"], "--top-k: does not apply to a DIR"),
        (["{folder}", "--mode", "dense"], "--mode: does not apply to a DIR"),
        (["{folder}", "--no-answers"], "--no-answers: does not apply to a DIR"),
        (["{folder}", "--modes", "words"], "--modes: must be a list of modes (hybrid, lexical, dense)"),
        (["{folder}", "--modes", ","], "--modes: must be a list of modes"),
        (["{folder}", "--half", "dev", "--synthetic"], "--half: cannot be used with --synthetic"),
        (["{folder}/corpus.jsonl", "--half", "dev"], "--half: does not apply to a FILE"),
        (["{folder}/corpus.jsonl", "--sample", "3"], "--sample: does not apply to a FILE"),
        (["{folder}/corpus.jsonl", "--seed", "3"], "--seed: does not apply to a FILE"),
        (["{folder}/corpus.jsonl", "--seed", "0"], "--seed: does not apply to a FILE"),
        (["{folder}/corpus.jsonl", "--synthetic"], "is not a folder"),
        (["{folder}/nowhere"], "does not exist"),
        (["--synthetic"], "store documents first"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(folder: str, run: Invoke, arguments: list[str], said: str) -> None:
    done = run("eval", *(each.format(folder=folder) for each in arguments))
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_bad_line_is_named(folder: str, run: Invoke) -> None:
    with (Path(folder) / "corpus.jsonl").open("a") as file:
        file.write("\n{")
    done = run("eval", folder)
    assert done.exit_code == 2 and "corpus.jsonl:11: the line is not JSON" in done.stderr


@pytest.mark.process
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    path, temporary = tmp_path / "large", tmp_path / "tmp"
    for each in (path, temporary):
        each.mkdir()
    corpus = [{"id": str(n), "text": f"Boat {n} lies in the harbour. " * 20} for n in range(6_000)]
    write(path, corpus, [{"id": "q", "text": "Boat 7", "relevant": ["7"]}])
    code = f"from agentformer.cli import main\nmain({['eval', str(path), '--embedder', 'hashing']})"
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = start(code, SERVE, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    try:
        waited_until = time.monotonic() + 60
        while not list(temporary.glob("agentformer-eval-*/index/memory.sqlite3")) and time.monotonic() < waited_until:
            time.sleep(0.02)
        assert list(temporary.iterdir()), "it began nothing"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130 and "interrupted" in told and "Traceback" not in told
    assert not list(temporary.iterdir())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["large", "tmp"]
