"""The parts of an optimisation by themselves: halves, what is tried, what is taken, and the file of settings."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from agentformer.errors import InvalidInput
from agentformer.evaluation.dataset import Question, halves
from agentformer.evaluation.optimizing.grid import (
    PARAMETERS,
    Configuration,
    Grid,
    Level,
    OutOfTime,
    Parameter,
    Value,
    is_improvement,
    present,
    search,
    settings_of,
    stored_key,
)
from agentformer.evaluation.optimizing.settings_file import write_settings
from agentformer.settings import Settings, load_settings

NOW = present(Settings())


def grid(level: Level, *, model_tokens: int = 256, longest: int = 2_000, languages: str = "en fi ja") -> Grid:
    return Grid(level, (), (), model_tokens, longest, languages.split())


def parameter(name: str) -> Parameter:
    (found,) = (each for each in PARAMETERS if each.name == name)
    return found


def asked(count: int, *, each: int = 1) -> list[Question]:
    """Questions, `each` of which share a passage."""
    return [Question(f"q{n}", f"question {n}", (f"p{n // each}",)) for n in range(count)]


def test_halves_hold_every_question_once_and_are_of_like_size() -> None:
    questions = asked(1_000)
    development, test = halves(questions)
    assert sorted(q.id for q in (*development, *test)) == sorted(q.id for q in questions)
    assert 430 < len(development) < 570


def test_questions_of_one_passage_stay_in_one_half_also_through_others() -> None:
    development, test = halves(asked(400, each=4))
    assert {q.relevant for q in development}.isdisjoint({q.relevant for q in test})
    chain = [Question(f"c{n}", "?", (f"p{n}", f"p{n + 1}")) for n in range(300)]
    random.Random(5).shuffle(chain)
    assert sorted(map(len, halves(chain))) == [0, 300]


def test_a_half_follows_from_the_ids_and_the_seed_alone() -> None:
    questions = asked(200, each=3)
    shuffled = random.Random(1).sample(questions, len(questions))
    former = {q.id for q in halves(questions).test}
    assert {q.id for q in halves(shuffled).test} == former
    assert {q.id for q in halves([*questions, Question("new", "?", ("other",))]).test} - {"new"} == former
    assert {q.id for q in halves(questions, seed=1).test} != former


def test_questions_without_an_answer_are_in_neither_half() -> None:
    development, test = halves([*asked(10), Question("nothing", "?")])
    assert len(development) + len(test) == 10


def test_every_setting_that_is_searched_is_one_of_the_settings_and_takes_its_values() -> None:
    levels: tuple[Level, ...] = ("quick", "full")
    for level in levels:
        for each in grid(level).parameters():
            row = grid(level).row(each, NOW)
            assert row, each
            for tried in row:
                assert present(settings_of(Settings(), tried)) == tried
                assert {name for name in NOW if NOW[name] != tried[name]} - {"chunk_overlap"} <= {each.name}


def test_quick_searches_nothing_that_makes_vectors_or_chunks_anew() -> None:
    stored = {each.name for each in PARAMETERS if each.rebuilds in ("vectors", "chunks")}
    assert stored.isdisjoint(each.name for each in grid("quick").parameters())
    assert stored <= {each.name for each in grid("full").parameters()}
    assert grid("eval").parameters() == []


def test_a_ranking_needs_no_store_of_its_own_and_a_chunk_does() -> None:
    def stored(**changed: Value) -> str:
        return stored_key({**NOW, **changed})

    assert stored(rrf_k=5, fusion="rrf", fanout=30) == stored()
    keys = stored(chunk_tokens=100), stored(window_tokens=32), stored(chunk_overlap=0), stored(compounds="pieces")
    assert len({stored(), *keys}) == 5


def test_sizes_that_cut_nothing_are_not_tried() -> None:
    short = grid("full", longest=90, languages="en")
    tried = {each.name: short.row(each, NOW) for each in short.parameters()}
    assert tried["chunk_tokens"] == tried["chunk_overlap"] == []
    assert [each["window_tokens"] for each in tried["window_tokens"]] == [32, 64]
    assert "language_detector" in tried and {"compounds", "japanese"}.isdisjoint(tried)
    cut = {**NOW, "chunk_tokens": 50, "chunk_overlap": 5}
    row = grid("full", longest=400).row(parameter("chunk_tokens"), cut)
    assert [each["chunk_tokens"] for each in row] == [100, 200, 300, 500]


def test_without_vectors_only_what_words_are_found_by_is_searched() -> None:
    names = {each.name for each in grid("full", model_tokens=0).parameters()}
    assert {"chunk_tokens", "chunk_overlap", "compounds"} <= names
    assert names.isdisjoint({"window_tokens", "fusion", "dense_weight", "rrf_k", "fanout"})


def test_an_overlap_stays_its_share_of_a_chunk() -> None:
    row = grid("full").row(parameter("chunk_tokens"), NOW)
    assert {each["chunk_overlap"] * 10 == each["chunk_tokens"] for each in row} == {True}


class Measured:
    """Scores by what each value of a setting gains, and what was asked for, `most` of them before time is up."""

    def __init__(self, gains: Mapping[str, Mapping[object, float]], *, most: int = 10_000) -> None:
        self._gains = gains
        self._most = most
        self.asked: list[Configuration] = []

    def __call__(self, configuration: Configuration) -> Sequence[float]:
        if len(self.asked) == self._most:
            raise OutOfTime
        self.asked.append(configuration)
        return [sum(values.get(configuration[name], 0.0) for name, values in self._gains.items())] * 50


def test_what_is_better_is_found_and_everything_else_stays() -> None:
    measure = Measured({"chunk_tokens": {200: 0.2}, "rrf_k": {10: 0.1}})
    *_, best = search(grid("full"), NOW, measure)
    assert best == {**NOW, "chunk_tokens": 200, "chunk_overlap": 20, "rrf_k": 10}
    assert len(measure.asked) == 1 + sum(len(grid("full").row(each, best)) for each in grid("full").parameters())


def test_what_may_be_chance_is_not_taken() -> None:
    def measure(configuration: Configuration) -> Sequence[float]:
        better = {10: 1, 60: 0, 120: 3}.get(int(configuration["rrf_k"]), 0) if configuration["fanout"] == 100 else 0
        return [1.0] * better + [0.5] * (50 - better)

    assert [*search(grid("quick"), NOW, measure)][-1] == NOW  # which tries 10 alone
    assert [*search(grid("full"), NOW, measure)][-1] == {**NOW, "rrf_k": 120}
    assert not is_improvement([1.0, 0.0] * 25, [0.0, 1.0] * 25)
    assert not is_improvement([1.0] + [0.5] * 49, [0.5] * 50)  # one question
    assert is_improvement([1.0, 1.0] + [0.5] * 48, [0.5] * 50)


def test_a_search_without_time_keeps_what_it_has_settled() -> None:
    gains = {"chunk_tokens": {200: 0.2}, "rrf_k": {10: 0.1}}
    whole = Measured(gains)
    assert len([*search(grid("full"), NOW, whole)]) == 1 + len(grid("full").parameters())
    broken, best = Measured(gains, most=8), NOW
    with pytest.raises(OutOfTime):
        for best in search(grid("full"), NOW, broken):  # noqa: B007
            pass
    assert best == {**NOW, "chunk_tokens": 200, "chunk_overlap": 20}
    assert broken.asked == whole.asked[:8]


def test_a_file_of_settings_is_one_that_settings_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agentformer.settings.loading.ENV_FILE", ".env")
    settings = {"chunk_tokens": 200, "fusion": "rrf", "dense_weight": 0.5}
    assert write_settings(tmp_path / ".env", settings, "why") == []
    loaded = load_settings()
    assert (loaded.chunk_tokens, loaded.fusion, loaded.dense_weight) == (200, "rrf", 0.5)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_other_line_of_a_file_stays_as_it_is(tmp_path: Path, end: str) -> None:
    path = tmp_path / ".env"
    before = [
        "\ufeff# keys",
        "OPENAI_API_KEY='sk a$b'",
        "",
        "export AGENTFORMER_FANOUT = 30  # mine",
        "no assignment",
        "A=1",
    ]
    path.write_bytes(end.join(before).encode())
    path.chmod(0o600)
    assert write_settings(path, {"fanout": 100, "rrf_k": 10}, "chosen") == ["AGENTFORMER_FANOUT = 30  # mine"]
    after = [*before[:3], "export AGENTFORMER_FANOUT=100", *before[4:], "# chosen", "AGENTFORMER_RRF_K=10", ""]
    assert path.read_bytes().decode() == end.join(after)
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_comment_is_one_line_whatever_it_holds(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    write_settings(path, {"fanout": 100}, "of my\nOPENAI_BASE_URL=http://elsewhere\r\nfolder\x85x\u2028y")
    assert path.read_text().splitlines() == [
        "# of my OPENAI_BASE_URL=http://elsewhere folder x y",
        "AGENTFORMER_FANOUT=100",
    ]


def test_a_file_that_cannot_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "settings").mkdir()
    (tmp_path / "latin").write_bytes(b"A=\xe4\n")
    for name in ("settings", "latin", "nowhere/settings"):
        with pytest.raises(InvalidInput, match="--write"):
            write_settings(tmp_path / name, {"fanout": 100})
    assert (tmp_path / "latin").read_bytes() == b"A=\xe4\n"
