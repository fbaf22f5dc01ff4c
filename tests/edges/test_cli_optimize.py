"""`agentformer optimize`: what a person and a program are told, and the file of settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentformer.cli import main
from agentformer.evaluation.dataset import Dataset
from tests.edges.conftest import UNCLEANED, Invoke, Shown, copy_memory, folders_of
from tests.evaluation.far_apart import easy_to_judge, far_apart, word, written

WINDOWS = ("--level", "full", "--only", "window_tokens")


@pytest.fixture
def work(tmp_path: Path) -> str:
    return str(tmp_path / "work")


@pytest.fixture
def far(tmp_path: Path) -> str:
    return str(written(far_apart(), tmp_path / "far"))


@pytest.fixture
def same(tmp_path: Path) -> str:
    """Questions that everything answers."""
    dataset = far_apart()
    few = dataclasses.replace(dataset, passages=dataset.passages[:20])
    return str(written(few, tmp_path / "same"))


@pytest.mark.slow
def test_what_was_chosen_and_how_sure_that_is_is_told_and_written(
    far: str, work: str, run: Invoke, shown: Shown, tmp_path: Path
) -> None:
    target = tmp_path / "settings.env"
    target.write_text("OPENAI_API_KEY=mine\nAGENTFORMER_WINDOW_TOKENS=64\n")
    done = run("optimize", far, *WINDOWS, "--work", work, "--write", str(target))
    assert (done.exit_code, "Traceback" in done.output) == (0, False)
    out = done.stdout
    for said in (
        "44 passages",
        "used to choose",
        "used to judge",
        "window_tokens: 0 -> 32",
        "better, also for the questions",
        "gain",
    ):
        assert said in out
    assert "instead of AGENTFORMER_WINDOW_TOKENS=64" in out
    assert "questions are few" in done.stderr
    assert target.read_text() == "OPENAI_API_KEY=mine\nAGENTFORMER_WINDOW_TOKENS=32\n"
    told = shown("optimize", far, *WINDOWS, "--work", work)
    assert (told["verdict"], told["chosen"], told["written"]) == ("better", {"window_tokens": 32}, None)
    assert (told["embedded"], told["reused"]) == (0, 6)
    assert told["gain"]["test"][1] > 0
    assert sorted(path.name for path in Path(far).iterdir()) == ["corpus.jsonl", "queries.jsonl"]


def fill(folder: Path) -> None:
    """Make a memory with the texts as documents."""
    texts = folder / "texts"
    texts.mkdir()
    for passage in far_apart().passages:
        (texts / f"{passage.id}.txt").write_text(passage.text)
    done = CliRunner(env=UNCLEANED).invoke(main, ["ingest", str(texts), *folders_of(folder)])
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    fill(folder)
    return folder


@pytest.fixture
def stored(template: Path, tmp_path: Path) -> Callable[..., str]:
    """A memory with the texts as documents, and a file of questions about them, as for `eval`."""
    copy_memory(template, tmp_path, fill)
    dataset = far_apart()

    def write(*lines: dict[str, Any], count: int = 20) -> str:
        path = tmp_path / "questions.jsonl"
        asked = [{"question": q.text, "document": f"{q.relevant[0]}.txt", "page": 1} for q in dataset.questions[:count]]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in (*asked, *lines)))
        return str(path)

    return write


@pytest.mark.process
def test_one_file_of_questions_measures_and_optimizes_the_stored_documents(
    stored: Callable[..., str], work: str, shown: Shown
) -> None:
    """`eval` and `optimize` read the same file. Their figures for the present settings are equal, because `optimize`
    stores the same chunks. The memory does not change."""
    file = stored(
        {"question": f"Where is the {word(0, 'wa')}?", "answer": f"the {word(0, 'wa')} keeps the {word(3, 'xe')}"},
        {"question": "Who is absent?", "answer": "nobody wrote this"},
        {"question": "Who sings?", "unanswerable": True},
    )
    before = shown("memories", "--kind", "chunk", "--kind", "document", "--kind", "page")
    measured = shown("eval", file, "--no-answers")
    told = shown("optimize", file, *WINDOWS, "--work", work)
    assert (told["verdict"], told["chosen"]) == ("better", {"window_tokens": 32})
    assert sum(told["questions"].values()) == measured["answerable"] == 22
    halves = [(told["questions"][half], told["current"][half][0]) for half in ("development", "test")]
    assert sum(count * mean for count, mean in halves) == pytest.approx(measured["recall"]["5"] * 22, abs=0.01)
    notes = " ".join(told["notes"])
    assert (
        "1 answers are on no page, such as the answer in line 22" in notes and "unanswerable were not used: 1" in notes
    )
    assert shown("memories", "--kind", "chunk", "--kind", "document", "--kind", "page") == before


@pytest.mark.process
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(
    stored: Callable[..., str], work: str, run: Invoke, tmp_path: Path
) -> None:
    absent = str(tmp_path / "absent")
    cases: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
        ({"count": 12}, (), "are only 12"),
        ({"document": "nowhere.pdf"}, (), "line 21: there is no document 'nowhere.pdf'"),
        ({}, ("--namespace", "board"), "namespace board has no documents with text"),
        ({}, ("--synthetic",), "--synthetic: does not apply to a FILE"),
        ({}, ("--index-dir", absent), "there is no memory in"),
    ]
    for lines, options, reason in cases:
        wrong = [{"question": "x", **lines}] if "document" in lines else []
        file = stored(*wrong, count=lines.get("count", 20))
        done = run("optimize", file, *options, "--work", work)
        assert (done.exit_code, done.stdout, reason in done.stderr) == (2, "", True), (reason, done.stderr)
    done = run("optimize", absent, "--work", work)
    assert done.exit_code == 2 and f"{absent} does not exist" in done.stderr
    assert not Path(work).exists() and not (tmp_path / "absent").exists()


@pytest.mark.process
def test_questions_that_name_only_a_document_are_measured(tmp_path: Path, work: str, shown: Shown, run: Invoke) -> None:
    """Any passage of the document is correct."""
    (tmp_path / "all.txt").write_text("\n\n".join(f"The {word(n, 'wa')} lies in the harbour." for n in range(24)))
    (tmp_path / "other.txt").write_text("Nothing is here.")
    shown("ingest", str(tmp_path / "all.txt"), str(tmp_path / "other.txt"))
    file = tmp_path / "questions.jsonl"
    asked = [{"question": f"Where is the {word(n, 'wa')}?", "document": "all.txt"} for n in range(24)]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in asked))
    assert shown("eval", str(file), "--no-answers")["recall"]["1"] == 1.0
    told = shown("optimize", str(file), "--only", "rrf_k", "--work", work)
    assert (sum(told["questions"].values()), told["verdict"]) == (24, "keep")
    assert [told["current"][half] for half in ("development", "test")] == [[1.0, 1.0, 1.0]] * 2
    assert any("24 questions name only a document" in note for note in told["notes"])


def test_what_is_not_proven_is_not_written(same: str, work: str, run: Invoke, tmp_path: Path) -> None:
    target = tmp_path / "settings.env"
    for more in ((), ("--force",)):
        done = run("optimize", same, "--only", "rrf_k", "--work", work, "--write", str(target), *more)
        assert done.exit_code == 1 and not target.exists()
        assert "keep your settings" in done.stdout and "nothing was written" in done.stderr


@pytest.mark.slow
def test_a_gain_that_may_be_chance_is_written_by_force_alone(tmp_path: Path, work: str, run: Invoke) -> None:
    folder, target = str(written(easy_to_judge(), tmp_path / "half")), tmp_path / "settings.env"
    arguments = ("optimize", folder, *WINDOWS, "--work", work, "--write", str(target))
    done = run(*arguments)
    assert (done.exit_code, target.exists()) == (1, False)
    assert "may be chance: keep your settings" in done.stdout and "--force writes the settings" in done.stderr
    assert run(*arguments, "--force").exit_code == 0
    assert target.read_text().splitlines()[1:] == ["AGENTFORMER_WINDOW_TOKENS=32"]


def test_the_present_settings_alone_are_measured(same: str, work: str, shown: Shown) -> None:
    told = shown("optimize", same, "--level", "eval", "--metric", "mrr@10", "--work", work)
    assert (told["metric"], told["verdict"], len(told["tried"])) == ("mrr@10", "keep", 1)
    assert told["current"]["development"] == told["current"]["test"] == [1.0, 1.0, 1.0]


def test_a_time_that_is_up_is_told(same: str, work: str, run: Invoke) -> None:
    done = run("optimize", same, "--budget", "0", "--work", work)
    assert done.exit_code == 1 and "the time ended before the current settings were measured (0 texts" in done.stdout
    assert "run the same command again to continue" in done.stdout
    assert run("optimize", same, "--budget", "3600", "--only", "rrf_k", "--work", work).exit_code == 0


@pytest.mark.slow
def test_questions_are_built_where_there_are_none(tmp_path: Path, work: str, shown: Shown) -> None:
    texts = far_apart().passages[:20]
    numbered = [
        dataclasses.replace(each, text=f"The lighthouse of {each.id.replace(' ', '')} burns with {n} lamps of brass.")
        for n, each in enumerate(texts)
    ]
    folder = written(Dataset("built", tuple(numbered)), tmp_path / "built")
    (folder / "queries.jsonl").unlink()
    told = shown("optimize", str(folder), "--synthetic", "20", "--work", work)
    assert sum(told["questions"].values()) == 20
    assert told["without"] == ["fusion", "dense_weight"]  # which such questions cannot tell
    tried = {name for each in told["tried"] for name in each["changed"]}
    assert "rrf_k" in tried and tried.isdisjoint(told["without"])
    assert any("do not show how well" in note for note in told["notes"])


def test_what_is_somebodys_own_in_the_work_folder_stays(tmp_path: Path, run: Invoke) -> None:
    texts = [
        dataclasses.replace(each, text=f"The lighthouse of {each.id.replace(' ', '')} burns with {n} lamps of brass.")
        for n, each in enumerate(far_apart().passages[:20])
    ]
    folder, work = written(Dataset("built", tuple(texts)), tmp_path / "built"), tmp_path / "work"
    (work / "stores" / "0123456789abcdef").mkdir(parents=True)
    owned = [work / "stores" / "0123456789abcdef" / "thesis.txt", work / "stores" / "list.txt", work / "stores.txt"]
    owned += [work / name for name in ("measured.sqlite3", "questions.sqlite3", "lock")]
    for path in owned:
        path.write_text("mine")
    for _ in range(2):
        done = run("optimize", str(folder), "--synthetic", "20", "--only", "rrf_k", "--work", str(work))
        assert done.exit_code == 0, done.stderr
    assert {path: path.read_text() for path in owned} == dict.fromkeys(owned, "mine")
    assert sorted(each.name for each in work.iterdir()) == sorted(
        ["agentformer-optimize", "lock", "measured.sqlite3", "questions.sqlite3", "stores", "stores.txt"]
    )


def test_a_wrong_argument_is_told_before_anything_is_done(same: str, work: str, run: Invoke) -> None:
    for arguments, said in (
        (("--metric", "beauty"), "metric"),
        (("--only", "port"), "'port' is not a setting"),
        (("--write", "/dev/null/settings"), "--write"),
        (("--level", "all"), "--level"),
    ):
        done = run("optimize", same, "--work", work, *arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert said in done.stderr and "Traceback" not in done.stderr
        assert not Path(work).exists()


def test_too_few_questions_are_refused_with_what_can_be_done(tmp_path: Path, work: str, run: Invoke) -> None:
    dataset = far_apart()
    folder = written(dataset.asking(dataset.questions[:12]), tmp_path / "few")
    done = run("optimize", str(folder), "--work", work)
    assert done.exit_code == 2
    assert "are only 12" in done.stderr and "--level eval" in done.stderr and "--synthetic" in done.stderr


def test_measurements_are_kept_in_the_cache_folder(
    same: str, run: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTFORMER_CACHE_DIR", str(tmp_path / "cache"))
    done = run("optimize", same, "--level", "eval")
    assert done.exit_code == 0
    (kept,) = (tmp_path / "cache" / "optimize").iterdir()
    assert kept.name.startswith("same-") and (kept / "agentformer-optimize" / "measured.sqlite3").exists()
