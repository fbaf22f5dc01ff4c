"""`agentformer optimize`: what a person and a program are told, and the file of settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from agentformer.evaluation.dataset import Dataset
from tests.edges.conftest import Invoke, Shown
from tests.evaluation.far_apart import easy_to_judge, far_apart, written

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


def test_what_is_not_proven_is_not_written(same: str, work: str, run: Invoke, tmp_path: Path) -> None:
    target = tmp_path / "settings.env"
    for more in ((), ("--force",)):
        done = run("optimize", same, "--only", "rrf_k", "--work", work, "--write", str(target), *more)
        assert done.exit_code == 1 and not target.exists()
        assert "keep your settings" in done.stdout and "nothing was written" in done.stderr


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
    assert done.exit_code == 0 and "the time ended" in done.stdout


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
    owned += [work / name for name in ("measured.jsonl", "questions.json", "lock")]
    for path in owned:
        path.write_text("mine")
    for _ in range(2):
        done = run("optimize", str(folder), "--synthetic", "20", "--only", "rrf_k", "--work", str(work))
        assert done.exit_code == 0, done.stderr
    assert {path: path.read_text() for path in owned} == dict.fromkeys(owned, "mine")
    assert sorted(each.name for each in work.iterdir()) == sorted(
        ["agentformer-optimize", "lock", "measured.jsonl", "questions.json", "stores", "stores.txt"]
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--metric", "beauty"), "metric"),
        (("--only", "port"), "'port' is not a setting"),
        (("--write", "/dev/null/settings"), "--write"),
        (("--level", "all"), "--level"),
    ],
)
def test_a_wrong_argument_is_told_before_anything_is_done(
    same: str, work: str, run: Invoke, arguments: tuple[str, ...], said: str
) -> None:
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
    assert kept.name.startswith("same-") and (kept / "agentformer-optimize" / "measured.jsonl").exists()
