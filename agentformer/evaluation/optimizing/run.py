"""Finds the best settings for given questions. Settings are chosen with one half of the questions (the development
half) and tested with the other half (the test half).

To measure a configuration (a set of settings), `Optimizer` stores the passages in a memory with these settings, and
asks the questions of the development half. `descend` chooses the best configuration. After this choice, the current and
the chosen settings are measured with the test half.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import Timeout

from agentformer._version import __version__
from agentformer.embedders import estimated_spans
from agentformer.errors import Conflict, EmbedderUnavailable, InvalidInput
from agentformer.evaluation.dataset import Question
from agentformer.evaluation.metrics import DEPTH
from agentformer.evaluation.metrics import metric as measure_of
from agentformer.evaluation.optimizing.cache import ANOTHER_FOLDER, Half, Journal, short_name, work_folder, writing
from agentformer.evaluation.optimizing.corpus import Corpus, Stores, halves
from agentformer.evaluation.optimizing.measure import Optimization, Optimizer, Progress
from agentformer.evaluation.optimizing.space import (
    Clock,
    Configuration,
    Facts,
    Level,
    Space,
    analyzer_names,
    present,
    settings_of,
)
from agentformer.index.words.fields import ANALYSIS
from agentformer.settings.access import file_lock, make_folder
from agentformer.text.languages import detect_language
from agentformer.types import Embedder, EmbeddingSpace

METRIC = "recall@5"
LEAST = 20  # least number of questions; with fewer questions, the halves cannot compare settings
_LEAST_HALF = 5
_LONG = 50  # number of longest passages whose tokens are counted
_SAMPLE = 500  # number of passages whose languages are detected
_BEGINNING = 1_000  # code points of each text from which its language is detected
# Other settings that a ranking depends on. If one of them changes, earlier measurements are not valid.
_FIXED = (
    "backend", "hierarchical_backend", "routes", "target_recall", "embed_languages", "runtime", "reranker",
    "rerank_hits",
)  # fmt: skip
_AUTOMATIC = dict.fromkeys(("language_detector", "compounds", "japanese"), "auto")  # the analyzers of this machine


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """The options of `optimize`. If `only` is not empty, only the settings that it names may change. Otherwise, all
    settings may change, except those in `without`. `seed` changes how the questions are divided into halves. `budget`
    is a number of seconds. A measurement is not started if it would probably exceed the budget, and it is interrupted
    when the budget ends. The vectors that were made until then are kept. A part of the budget is reserved for the final
    measurements with the test half."""

    level: Level = "quick"
    metric: str = METRIC
    only: Collection[str] = ()
    without: Collection[str] = ()
    seed: int = 0
    budget: float | None = None


def optimize(
    corpus: Corpus, work: Path, options: OptimizeOptions, progress: Callable[[Progress], None] | None = None
) -> Optimization:
    """Search for the settings with the highest mean of a metric. Measurements are stored in a folder inside `work`, so
    the same call continues an interrupted optimisation. If the passages, questions, model, version, installed analyzers
    or other retrieval settings have changed, everything is measured again.

    Raises `InvalidInput` for too few questions or a setting that cannot be searched, `Conflict` while another process
    uses the folder, `StoreFull` if the folder cannot be written, and `EmbedderUnavailable` if the embedder fails.
    Finished measurements remain stored after an error."""
    check_metric(options.metric)
    check_only(options.only, present(corpus.settings))
    clock = Clock(options.budget)
    questions = question_halves(corpus.dataset.answerable, options.level, options.seed)
    space, notes = _space(corpus.embedder)
    own = work_folder(work)
    with _lock(own), closing(Journal(own / "measured.jsonl", _about(corpus, space, options.seed))) as journal:
        stores = Stores(own / "stores", corpus, vectors=space is not None)
        if journal.reset_reason:
            stores.clear()
        optimizer = Optimizer(stores, journal, questions, options.metric, clock, progress, notes)
        only, without = frozenset(options.only), frozenset(options.without)
        result = optimizer.optimum(Space(options.level, _facts(corpus, space), only, without))
        stores.clear()
    return result


def _lock(folder: Path) -> AbstractContextManager[Any]:
    """Create the folder and lock it, so that only one process uses it. Raises `Conflict` if another process has the
    lock. Raises `StoreFull` if the folder cannot be created."""
    with writing(folder.parent, ANOTHER_FOLDER):
        make_folder(folder)
        try:
            return file_lock(folder / "lock", timeout=0).acquire()
        except Timeout:
            message = f"another process uses {folder.parent}; wait until it ends, or choose another folder with --work"
            raise Conflict(message) from None


def check_metric(name: str) -> None:
    """Raise `InvalidInput` if the metric is unknown, or needs more than the ten results that a measurement ranks."""
    measure_of(name)
    if int(name.partition("@")[2]) > DEPTH:
        raise InvalidInput("metric", f"must use at most {DEPTH} passages, such as recall@{DEPTH}, got {name!r:.80}")


def check_only(only: Collection[str], known: Configuration) -> None:
    """Raise `InvalidInput` if `only` contains a name that is not in `known`, the settings that can be searched."""
    if unknown := sorted(set(only) - set(known)):
        raise InvalidInput(
            "only", f"{unknown[0]!r:.80} is not a setting that can be optimised; known settings are {', '.join(known)}"
        )


def question_halves(questions: Sequence[Question], level: Level, seed: int = 0) -> dict[Half, tuple[Question, ...]]:
    """Return half -> questions. A half without questions is left out. Raises `InvalidInput` if there are too few
    questions; for the level `eval`, which chooses no settings, one question is enough."""
    if not questions:
        raise InvalidInput("questions", "no question has a relevant passage; list the ids of passages under 'relevant'")
    development, test = halves(questions, seed)
    if level != "eval":
        if len(questions) < LEAST:
            raise InvalidInput(
                "questions",
                f"there are only {len(questions)}; a choice of settings needs at least {LEAST}. Use --level eval to "
                "measure only the current settings, or add questions; a hundred questions of your own are best. "
                "--synthetic generates questions from the corpus of a folder",
            )
        if min(len(development), len(test)) < _LEAST_HALF:
            raise InvalidInput(
                "questions",
                f"one half has too few questions: {len(development)} to choose the settings and {len(test)} to test "
                "them. Questions with a common passage are in the same half, so ask about more passages, or try "
                "another --seed",
            )
    divided: dict[Half, tuple[Question, ...]] = {"development": development, "test": test}
    return {half: group for half, group in divided.items() if group}


def _space(embedder: Embedder) -> tuple[EmbeddingSpace | None, tuple[str, ...]]:
    """Return the embedding space of the embedder, and notes for the user. If the embedder is unavailable, the space is
    None, a note contains the reason, and search uses only words."""
    try:
        return embedder.space, ()
    except EmbedderUnavailable as error:
        return None, (f"only words were searched: {error}",)


def _about(corpus: Corpus, space: EmbeddingSpace | None, seed: int) -> dict[str, Any]:
    settings = corpus.settings
    return {
        "passages": corpus.dataset.digest(questions=False),
        "questions": corpus.dataset.digest(),
        "model": "" if space is None else f"{space.spec} {space.max_tokens} {short_name(space)}",
        "version": f"{__version__} {ANALYSIS}",
        "settings": {name: str(getattr(settings, name)) for name in _FIXED if hasattr(settings, name)},
        "analyzers": [name for name in analyzer_names(settings_of(settings, _AUTOMATIC)) if name],
        "seed": seed,
    }


def _facts(corpus: Corpus, space: EmbeddingSpace | None) -> Facts:
    dataset = corpus.dataset
    longest = sorted(dataset.passages, key=lambda passage: len(passage.text))[-_LONG:]
    count = corpus.embedder.token_spans if space is not None else estimated_spans
    step = max(1, len(dataset.passages) // _SAMPLE)
    texts = [passage.text for passage in dataset.passages[::step]]
    texts += [question.text for question in dataset.questions]
    return Facts(
        space.max_tokens if space is not None else 0,
        max(len(count(passage.text)) for passage in longest),
        frozenset(detect_language(text[:_BEGINNING]) for text in texts),
    )
