"""An optimisation over small corpora: what is better is found and confirmed, and what was measured is not lost."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Conflict, EmbedderUnavailable, InvalidInput, MissingExtra
from agentformer.evaluation.cache import CachingEmbedder, work_folder
from agentformer.evaluation.dataset import Dataset, Passage, Question, halves
from agentformer.evaluation.documents import (
    StoredDocument,
    answered_passage,
    document_dataset,
    stored_documents,
    with_documents,
)
from agentformer.evaluation.memory_evaluation import DocumentQuestion, Trial
from agentformer.evaluation.metrics import Interval
from agentformer.evaluation.optimizing.grid import present
from agentformer.evaluation.optimizing.run import Corpus, Optimization, OptimizeOptions, optimize
from agentformer.evaluation.synthetic import with_generated
from agentformer.factory import connect, trial
from agentformer.llms.echo import EchoModel
from agentformer.rag.documents import Document
from agentformer.settings import Route, Settings
from agentformer.testing import CountingEmbedder, FlakyEmbedder
from agentformer.types import (
    ChatMessage,
    Embedder,
    EmbeddingSpace,
    Matrix,
    MemoryBackend,
    Page,
    Query,
    Reply,
    Scope,
    Span,
    Vector,
)
from tests.evaluation.far_apart import easy_to_judge, far_apart, word

pytestmark = pytest.mark.slow

SETTINGS = Settings(embedder="hashing")


class Opened:
    """Opens memories as the command does, and notes with which settings."""

    def __init__(self, embedder: Embedder | None, work: Path) -> None:
        self.work = work
        self.own = work_folder(work)
        self.inner = embedder or HashingEmbedder()
        self.settings: list[Settings] = []
        self.dies_at = 0  # of them, from 1

    def __call__(
        self, dataset: Dataset, settings: Settings = SETTINGS, *, progress: Any = str, **options: Any
    ) -> Optimization:
        embedder = CachingEmbedder(self.inner, self.work)

        @contextmanager
        def opens(other: Settings, folder: Path) -> Iterator[Trial]:
            self.settings.append(other)
            if len(self.settings) == self.dies_at:
                raise KeyboardInterrupt
            with trial(other, embedder, folder) as opened:
                yield opened

        try:
            return optimize(Corpus(dataset, settings, embedder, opens), self.work, OptimizeOptions(**options), progress)
        finally:
            embedder.close()

    def of(self, name: str) -> list[Any]:
        """The values of a setting, in the order in which memories were opened, each once in a row."""
        values = [getattr(each, name) for each in self.settings]
        return [value for place, value in enumerate(values) if not place or value != values[place - 1]]


@pytest.fixture
def optimized(tmp_path: Path) -> Opened:
    return Opened(None, tmp_path / "work")


def plain(count: int = 24) -> Dataset:
    """Short texts, each found by its own word whatever the settings are."""
    passages = [Passage(f"p{n}", f"The {word(n, 'wa')} lies in the harbour.") for n in range(count)]
    questions = [Question(f"q{n}", f"Where is the {word(n, 'wa')}?", (f"p{n}",)) for n in range(count)]
    return Dataset("plain", tuple(passages), tuple(questions))


def test_small_chunks_are_found_on_one_half_and_confirmed_by_the_other(optimized: Opened) -> None:
    found = optimized(far_apart(), level="full", only=["chunk_tokens"])
    assert found.changed == {"chunk_tokens": (500, 100), "chunk_overlap": (50, 10)}
    assert (found.verdict, found.finished) == ("better", True)
    assert found.current["test"].value < 0.2 and found.best["test"].value > 0.4
    gain = found.gain["test"]
    assert gain.low > 0 and gain.value == pytest.approx(found.best["test"].value - found.current["test"].value)
    assert found.questions["development"] + found.questions["test"] == 20


def test_small_windows_are_found_and_no_text_is_embedded_twice(tmp_path: Path) -> None:
    counting = CountingEmbedder()
    optimized = Opened(counting, tmp_path / "work")
    dataset = far_apart()
    found = optimized(dataset, level="full", only=["window_tokens"])
    assert (found.changed, found.verdict) == ({"window_tokens": (0, 32)}, "better")
    assert optimized.of("window_tokens")[:4] == [0, 32, 64, 128]
    assert len(counting.documents) == len(set(counting.documents))
    assert sorted(counting.queries) == sorted(question.text for question in dataset.questions)
    assert found.embedded == len(counting.documents) + len(counting.queries)
    assert len(found.tried) > 3


def test_where_nothing_is_better_everything_is_kept(optimized: Opened) -> None:
    found = optimized(plain(), level="quick", only=["rrf_k", "fanout"])
    assert (found.changed, found.verdict, found.chosen) == ({}, "keep", present(SETTINGS))
    assert [dict(each.changed) for each in found.tried] == [{}, {"rrf_k": 10}, {"fanout": 30}]
    assert found.gain == {"development": Interval(0, 0, 0), "test": Interval(0, 0, 0)}


def test_a_gain_that_the_other_half_does_not_show_is_not_proven(optimized: Opened) -> None:
    found = optimized(easy_to_judge(), level="full", only=["window_tokens"])
    assert found.changed and found.gain["development"].low > 0
    assert (found.verdict, found.gain["test"].value) == ("unproven", 0.0)


def test_an_interrupted_search_goes_on_where_it_was(optimized: Opened, tmp_path: Path) -> None:
    options: dict[str, Any] = {"level": "full", "only": ["rrf_k", "fanout"]}
    whole = Opened(None, tmp_path / "whole")(plain(), **options)
    optimized.dies_at = 4
    with pytest.raises(KeyboardInterrupt):
        optimized(plain(), **options)
    again = Opened(None, optimized.work)
    found = again(plain(), **options)
    assert (again.of("rrf_k")[0], found.reused, found.embedded) == (20, 3, found.questions["test"])
    changing: dict[str, Any] = {"tried": [], "reused": 0, "embedded": 0}
    assert found.as_json() | changing == whole.as_json() | changing
    last = Opened(None, optimized.work)
    assert last(plain(), **options).reused == len(found.tried) + 1
    assert last.settings == []


@pytest.mark.parametrize("what", ["questions", "passages", "model", "settings", "seed"])
def test_a_journal_of_something_else_begins_anew(optimized: Opened, what: str) -> None:
    dataset = plain()
    options: dict[str, Any] = {"level": "eval"}
    optimized(dataset, **options)
    settings, embedder = SETTINGS, None
    if what == "questions":
        dataset = dataset.asking([dataclasses.replace(dataset.questions[0], text="Where?"), *dataset.questions[1:]])
    elif what == "passages":
        dataset = dataclasses.replace(dataset, passages=(*dataset.passages, Passage("more", "More of it.")))
    elif what == "model":
        embedder = HashingEmbedder(64)
    elif what == "settings":
        settings = Settings(embedder="hashing", target_recall=0.95)
    else:
        options["seed"] = 1
    former = 1 if what == "questions" else 0  # the other half has the same questions
    assert Opened(embedder, optimized.work)(dataset, settings, **options).reused == former
    assert Opened(embedder, optimized.work)(dataset, settings, **options).reused == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"routes": (Route("hierarchical", tiers=("working",)),)},
        {"hierarchical_backend": "local_json"},
        {"runtime": "torch"},
    ],
)
def test_other_routes_and_runtimes_begin_anew(optimized: Opened, changed: dict[str, Any]) -> None:
    options: dict[str, Any] = {"level": "eval"}
    optimized(plain(), **options)
    assert optimized(plain(), **options).reused == 2
    assert optimized(plain(), Settings(embedder="hashing", **changed), **options).reused == 0


def test_an_analyser_that_was_installed_meanwhile_begins_anew(
    optimized: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"level": "eval"}
    for found, former in ((None, 0), (object(), 0), (None, 2)):
        monkeypatch.setattr("agentformer.text.language_extras.find_spec", lambda name, found=found: found)
        assert optimized(plain(), **options).reused == former
        assert optimized(plain(), **options).reused == 2


def test_another_metric_needs_no_measurement(optimized: Opened) -> None:
    optimized(plain(), level="eval")
    assert optimized(plain(), level="eval", metric="mrr@10").reused == 2


def test_without_an_embedder_words_alone_are_searched(tmp_path: Path) -> None:
    optimized = Opened(FlakyEmbedder(down=True), tmp_path / "work")
    options: dict[str, Any] = {"level": "quick", "only": ["chunk_tokens", "window_tokens", "fusion"]}
    found = optimized(far_apart(filler=9), dataclasses.replace(SETTINGS, chunk_tokens=800), **options)
    assert found.chosen["chunk_tokens"] < 800 and found.gain["development"].low > 0
    assert {name for each in found.tried for name in each.changed} == {"chunk_tokens", "chunk_overlap"}
    assert any(note.startswith("only words were searched: ") for note in found.notes)


class Server(FlakyEmbedder):
    """What it serves stays known while it is down."""

    @property
    def space(self) -> EmbeddingSpace:
        return self.inner.space

    def token_spans(self, text: str) -> list[Span]:
        return self.inner.token_spans(text)


def test_an_embedder_that_goes_away_stops_the_search_and_nothing_wrong_is_kept(tmp_path: Path) -> None:
    """While a store is filled, when all questions are known; and when they are to be asked."""
    server, dataset = Server(), far_apart()
    options: dict[str, Any] = {"level": "full", "only": ["window_tokens"]}
    for when in ("settings: 44 of 44 passages", "window_tokens=32: 10 of 10 questions"):

        def at(state: str, when: str = when) -> None:
            server.down = server.down or when in state

        optimized = Opened(server, tmp_path)
        with pytest.raises(EmbedderUnavailable):
            optimized(dataset, progress=at, **options)
        assert server.down
        server.down = False
    found = optimized(dataset, **options)
    assert (found.reused, found.verdict) == (2, "better")


class Slow(CountingEmbedder):
    """Needs one second for a text, on a clock of its own."""

    request_texts = 4
    now = 0.0

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        self.now += len(texts)
        return super().embed_documents(texts)

    def embed_query(self, text: str) -> Vector:
        self.now += 1
        return super().embed_query(text)

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    embedder = Slow()
    monkeypatch.setattr("agentformer.evaluation.optimizing.run.time", embedder)
    return embedder


def test_a_budget_ends_while_the_first_vectors_are_made_and_the_next_run_continues(tmp_path: Path, slow: Slow) -> None:
    options: dict[str, Any] = {"level": "full", "only": ["window_tokens"]}
    optimized = Opened(slow, tmp_path / "work")
    for budget in (-1, 0, 30):
        found = optimized(far_apart(), budget=budget, **options)
        assert (found.finished, found.verdict, found.tried) == (False, "keep", ())
        assert (found.current, found.best, found.gain) == ({}, {}, {})
        assert found.embedded == len(slow.documents) == slow.now < max(0, budget) + slow.request_texts
        assert json.loads(json.dumps(found.as_json()))["current"] == {}
    whole = optimized(far_apart(), **options)
    assert (whole.finished, whole.verdict, whole.reused) == (True, "better", 0)
    assert len(slow.documents) == len(set(slow.documents))  # nothing is embedded twice


def test_a_budget_ends_while_other_settings_are_measured_and_what_was_measured_is_told(
    tmp_path: Path, slow: Slow
) -> None:
    options: dict[str, Any] = {"level": "full", "only": ["window_tokens"]}
    dataset = far_apart()
    Opened(slow, tmp_path / "eval")(dataset, level="eval")
    first, optimized = slow.now, Opened(slow, tmp_path / "other")
    found = optimized(dataset, budget=first + 40, **options)
    assert (found.finished, len(found.tried), found.changed) == (False, 1, {})
    assert set(found.current) == {"development", "test"}
    assert 2 * first < slow.now < 2 * first + 40 + slow.request_texts
    assert optimized(dataset, **options).verdict == "better"


def test_a_choice_that_no_time_is_left_to_judge_is_unproven(tmp_path: Path, slow: Slow) -> None:
    dataset = far_apart()
    test = {question.text for question in halves(dataset.questions).test}

    def sleep(state: str) -> None:
        """Let the time end when the current settings have been asked the test half."""
        if "the current settings: 10 of 10 questions" in state and slow.queries[-1] in test:
            slow.now += 10_000

    options: dict[str, Any] = {"level": "full", "only": ["window_tokens"]}
    found = Opened(slow, tmp_path)(dataset, progress=sleep, budget=9_000, **options)
    assert (found.finished, found.verdict, set(found.best)) == (False, "unproven", {"development"})
    assert found.changed == {"window_tokens": (0, 32)} and set(found.gain) == {"development"}


def test_questions_that_name_only_a_document_are_divided_one_by_one() -> None:
    asked = [DocumentQuestion(n, f"Question {n}?", "a.txt") for n in range(30)]
    asked += [DocumentQuestion(30 + n, f"Question {n} of a page?", "a.txt", 1) for n in range(2)]
    stored = [StoredDocument(Document("a.txt", "default", "ready", pages=1), "", (Page(1, "A text.", "text"),))]
    dataset = document_dataset("questions", asked, stored)
    sizes = [len(half) for half in halves(dataset.questions)]
    assert sum(sizes) == 32 and min(sizes) >= 5
    assert dataset.questions[30].relevant == dataset.questions[31].relevant
    assert "30 questions name only a document" in " ".join(dataset.notes)


def test_settings_that_cannot_be_had_here_are_passed_over_and_told(tmp_path: Path) -> None:
    work, asked, installed = tmp_path / "work", list[int](), False
    embedder = CachingEmbedder(HashingEmbedder(), work)

    @contextmanager
    def opens(settings: Settings, folder: Path) -> Iterator[Trial]:
        asked.append(settings.rrf_k)
        if settings.rrf_k == 10 and not installed:
            raise MissingExtra("more", "this value")
        with trial(settings, embedder, folder) as opened:
            yield opened

    found = optimize(Corpus(plain(), SETTINGS, embedder, opens), work, OptimizeOptions(level="full", only=["rrf_k"]))
    skipped = {each.changed["rrf_k"]: each.skipped for each in found.tried if each.skipped}
    assert list(skipped) == [10] and "[more]" in skipped[10]
    assert len(found.tried) == 5 and asked.count(10) == 1

    installed = True  # then it is tried, and everything else is known
    again = optimize(Corpus(plain(), SETTINGS, embedder, opens), work, OptimizeOptions(level="full", only=["rrf_k"]))
    embedder.close()
    assert not [each for each in again.tried if each.skipped] and len(again.tried) == 5
    assert again.reused == 5 and asked.count(10) == 2


def test_what_cannot_be_had_is_tried_once_however_often_the_search_comes_to_it(tmp_path: Path) -> None:
    tried: list[tuple[Any, ...]] = []
    embedder = CachingEmbedder(HashingEmbedder(), tmp_path)

    @contextmanager
    def opens(settings: Settings, folder: Path) -> Iterator[Trial]:
        if settings.rrf_k == 10:
            tried.append(tuple(present(settings).items()))
            raise MissingExtra("more", "this value")
        with trial(settings, embedder, folder) as opened:
            yield opened

    corpus = Corpus(far_apart(), SETTINGS, embedder, opens)
    found = optimize(corpus, tmp_path, OptimizeOptions(level="full", only=["window_tokens", "rrf_k"]))
    embedder.close()
    assert found.changed and len(tried) == len(set(tried)) == 1


def test_one_process_works_in_a_folder_at_a_time(optimized: Opened) -> None:
    optimized.own.mkdir(parents=True)
    with FileLock(optimized.own / "lock"), pytest.raises(Conflict, match="--work"):
        optimized(plain())


def test_too_few_questions_choose_nothing_and_can_be_measured(optimized: Opened) -> None:
    with pytest.raises(InvalidInput, match="are only 19; a choice of settings needs at least 20"):
        optimized(plain(19))
    together = plain().asking([dataclasses.replace(each, relevant=("p1",)) for each in plain().questions])
    with pytest.raises(InvalidInput, match="common passage"):
        optimized(together)
    found = optimized(plain(3), level="eval")
    assert sum(found.questions.values()) == 3 and {each.value for each in found.current.values()} == {1.0}
    assert any("3 questions are few" in note for note in found.notes)


@pytest.mark.parametrize("wrong", [{"metric": "recall@50"}, {"metric": "beauty@5"}, {"only": ["port"]}])
def test_what_cannot_be_asked_for_is_told(optimized: Opened, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        optimized(plain(), **wrong)
    assert not optimized.work.exists()


def test_stores_do_not_stay_and_the_questions_folder_is_not_needed(optimized: Opened) -> None:
    optimized(plain(), level="quick", only=["rrf_k"])
    left = {path.name.partition("-")[0] for path in optimized.own.iterdir()}
    assert left == {"lock", "measured.sqlite3", "vectors"}


def test_progress_tells_what_is_done(optimized: Opened) -> None:
    told: list[str] = []
    optimized(plain(), level="full", only=["rrf_k"], progress=told.append)
    assert told[0] == "0 measured, the current settings: 24 of 24 passages stored"
    count = len(halves(plain().questions).development)
    assert f"4 measured, rrf_k=120: {count} of {count} questions asked" in told


def test_a_row_is_asked_for_once_and_is_the_same_afterwards(tmp_path: Path) -> None:
    texts = [f"text {n}" for n in range(700)]
    wanted = HashingEmbedder().embed_documents(texts)
    for asked in (700, 0):
        counting = CountingEmbedder()
        embedder = CachingEmbedder(counting, tmp_path)
        assert np.array_equal(embedder.embed_documents([*texts, *texts[:5]]), np.concatenate([wanted, wanted[:5]]))
        assert len(counting.documents) == embedder.embedded == asked
        embedder.close()
    other = CachingEmbedder(CountingEmbedder(HashingEmbedder(64)), tmp_path)
    assert other.embed_documents(texts[:2]).shape == (2, 64)
    assert other.embed_query(texts[0]).shape == (64,) and other.embedded == 3
    assert other.embed_documents([]).shape == (0, 64)
    other.close()


class Asking(EchoModel):
    """A model that asks about a passage, otherwise each time."""

    count = 0

    def complete(self, messages: Sequence[ChatMessage], **options: Any) -> Reply:
        Asking.count += 1
        return Reply(f"What is asked for the {Asking.count}th time?")


def test_built_questions_are_the_same_after_an_interruption(tmp_path: Path, optimized: Opened) -> None:
    texts = [f"The {word(n, 'wa')} lies in the {word(n * 3, 'xe')} beside the old lighthouse." for n in range(40)]
    dataset = Dataset("texts", tuple(Passage(f"p{n}", text) for n, text in enumerate(texts)))
    cloze: Callable[[int], Dataset] = lambda seed: with_generated(dataset, 30, tmp_path, seed=seed)  # noqa: E731
    assert cloze(0).digest() == cloze(0).digest() != cloze(1).digest()
    asked = with_generated(dataset, 5, tmp_path, model=Asking(), name="one")
    assert with_generated(dataset, 5, tmp_path, model=Asking(), name="one") == asked and len(asked.questions) == 5
    assert with_generated(dataset, 5, tmp_path, model=Asking(), name="other") != asked
    found = optimized(cloze(0), level="quick", only=["fanout"])
    assert sum(found.questions.values()) == 30 and any("do not show how well" in note for note in found.notes)


@pytest.mark.process
def test_documents_of_a_memory_are_stored_again_as_they_are(tmp_path: Path) -> None:
    """With equal settings, a copied document has the same chunks with the same headings. Without its original file,
    the text stays the same, and a note says that the headings are missing."""
    text = "# Rules\n\n## Keys\n\nThe caretaker keeps the keys.\n\n## Boats\n\n" + "Boats are lifted in October. " * 60

    def chunks(backend: MemoryBackend) -> list[tuple[Any, ...]]:
        entries = backend.list(Scope(kinds=("chunk",)), limit=100)
        places = [(each.source.name, each.source.page, each.source.start) for each in entries if each.source]
        return [(each.content, each.context, each.title, dict(each.metadata)) for each in entries] + places

    places = {"index_dir": tmp_path / "index", "upload_dir": tmp_path / "uploads"}
    settings = Settings(embedder="hashing", chunk_tokens=100, chunk_overlap=10)
    with connect(**places, embedder="hashing", chunk_tokens=100, chunk_overlap=10) as af:
        document = af.rag.upload(text.encode(), name="rules.md", metadata={"site": "north"})
        stored = stored_documents(af.backend, "default")
        asked = [DocumentQuestion(n, f"Which {n}?", answer=one) for n, one in enumerate(("keys", "caretaker", "crane"))]
        asked.append(DocumentQuestion(4, "What?", document="rules.md"))
        dataset = document_dataset("questions", asked, stored)
        assert [q.relevant for q in dataset.questions] == [("Which 0?",), ("Which 0?",), ("Which 2?",), ("What?",)]
        copy = with_documents(dataset, stored, af.originals, settings)
        with trial(settings) as other:
            other.load(copy)
            assert chunks(other.backend) == chunks(af.backend)
            (hit, *_) = other.backend.search(Query("caretaker keys"))
            assert [answered_passage(hit, q) == q.relevant[0] for q in dataset.questions] == [True, True, False, True]
        af.originals.files.path(document.sha256).unlink()
        copy = with_documents(dataset, stored, af.originals, settings)
        assert any("'rules.md'; their headings" in note for note in copy.notes)
        with trial(settings) as other:
            other.load(copy)
            contents = [entry.content for entry in other.backend.list(Scope(kinds=("chunk",)), limit=100)]
            assert "The caretaker keeps the keys." in " ".join(contents)
