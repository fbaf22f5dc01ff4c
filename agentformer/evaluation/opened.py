"""Measures a memory: either a temporary memory that contains the corpus of a dataset, or the memory that the user has
open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentformer.errors import InvalidInput
from agentformer.evaluation.dataset import Dataset, Question
from agentformer.evaluation.loading import Loader, Progress
from agentformer.evaluation.run import Evaluation, EvaluationOptions, evaluate
from agentformer.memory.memory_manager import MemoryManager
from agentformer.records import fields
from agentformer.settings import Settings
from agentformer.types import DEFAULT_NAMESPACE, UNSEARCHED_KINDS, Embedder, Hit, MemoryBackend, Scope


@dataclass(frozen=True, slots=True)
class Trial:
    """The parts of a temporary memory that a measurement needs. `factory.trial` creates this object."""

    backend: MemoryBackend
    memory: MemoryManager
    embedder: Embedder
    settings: Settings

    def load(self, dataset: Dataset, progress: Progress | None = None) -> None:
        """Store the passages of a dataset in this memory; see `Loader.load`. Raises `InvalidInput` if a passage cannot
        be stored."""
        Loader(self.memory, self.backend, self.embedder, self.settings).load(dataset, progress)

    def evaluate(self, dataset: Dataset, **options: Any) -> Evaluation:
        """Ask the questions of a dataset whose passages are stored in this memory. `options` are the fields of
        `EvaluationOptions`."""
        return evaluate(self.backend.search, dataset, EvaluationOptions(**options))


Named = Literal["entry", "record", "page", "document"]
_ORDER: tuple[Named, ...] = ("entry", "record", "page", "document")  # from the smallest unit to the largest
_KEYS = ("id", "text", "relevant", "meta")
_TOLD = 5


def evaluate_opened(
    backend: MemoryBackend,
    questions: Iterable[Question | Mapping[str, Any]],
    *,
    namespace: str = DEFAULT_NAMESPACE,
    scope_of: Callable[[Question], Scope] | None = None,
    **options: Any,
) -> Evaluation:
    """Measure how well an open memory finds its own entries.

    The field `relevant` of a question lists names. A name is the id of an entry, a source id, the name of a document,
    or a page (`name#3`). If a name fits several of these kinds, the first of these kinds is used. `scope_of(question)`
    returns the scope that is searched for a question. By default, the whole namespace is searched. Raises
    `InvalidInput` for a name that nothing in the namespace has. Also raises the errors of `evaluate`.
    """
    if isinstance(questions, (bytes, Mapping)) or not isinstance(questions, Iterable):
        raise InvalidInput("questions", f"must be a list of questions or a folder, got {type(questions).__name__}")
    parsed = tuple(question_of(given, number) for number, given in enumerate(questions, 1))
    within = Scope(fields.name("namespace", namespace))
    kinds_of = _kinds(backend, within, parsed)

    def passage_of(hit: Hit, question: Question) -> str:
        """Return a name of the entry in the hit. If one of its names is in `question.relevant`, return this name, so
        that the hit counts as found. Otherwise, return a name that the entry shares with other parts of the same
        document or record, so that these parts count as one result."""
        names = names_of(hit)
        kinds = [kinds_of[name] for name in question.relevant]
        for kind in _ORDER:
            if names.get(kind) in question.relevant and kind in kinds:
                return names[kind]
        return names.get(max(kinds, key=_ORDER.index), hit.entry.id)

    scopes = scope_of or (lambda question: within)
    measure = EvaluationOptions(scope_of=scopes, passage_of=passage_of, **options)
    return evaluate(backend.search, Dataset(within.namespace, (), parsed), measure)


def question_of(given: Question | Mapping[str, Any], number: int) -> Question:
    """Return a `Question` from the values that a caller gave. If the values have no `id`, the id is `number`. Raises
    `InvalidInput` if the values are invalid."""
    if isinstance(given, Question):
        return given
    if not isinstance(given, Mapping):
        raise InvalidInput("questions", f"must be `Question` objects or mappings, got {type(given).__name__}")
    if unknown := sorted(set(map(str, given)) - set(_KEYS)):
        raise InvalidInput(
            "questions", f"question {number}: the key {unknown[0]!r} is unknown; known keys are {', '.join(_KEYS)}"
        )
    text = fields.text("text", given.get("text"))
    if not text.strip():
        raise InvalidInput("questions", f"question {number}: 'text' is empty; write the question")
    return Question(
        fields.text("id", given.get("id", str(number))),
        text,
        _relevant(given.get("relevant")),
        fields.metadata(given.get("meta"), "meta"),
    )


def names_of(hit: Hit) -> dict[Named, str]:
    """Return the names of the entry in a hit, by kind: `entry` is the id of the entry, `record` is its source id, and
    `document` and `page` are the names of the document and of the page that contain it."""
    entry, source = hit.entry, hit.entry.source
    names: dict[Named, str] = {"entry": entry.id}
    if entry.source_id:
        names["record"] = entry.source_id
    if source is not None:
        names["document"] = source.name
        if source.page is not None:
            names["page"] = page_name(source.name, source.page)
    return names


def page_name(document: str, page: int) -> str:
    """Return the name of a page, such as `rules.pdf#3`. The first page has the number 1."""
    return f"{document}#{page}"


def _kinds(backend: MemoryBackend, within: Scope, questions: Sequence[Question]) -> dict[str, Named]:
    """Return name -> kind for each name in the field `relevant` of the questions. Raises `InvalidInput` for unknown
    names."""
    names = dict.fromkeys(name for question in questions for name in question.relevant)
    kinds = {name: kind for name in names if (kind := _kind(backend, within, name))}
    if lost := [name for name in names if name not in kinds]:
        more = f" and {len(lost) - _TOLD} more" if len(lost) > _TOLD else ""
        unknown = ", ".join(repr(name[:80]) for name in lost[:_TOLD])
        raise InvalidInput(
            "relevant",
            f"nothing in the namespace {within.namespace} has the name {unknown}{more}; use the id of an entry, a "
            "source id, the name of a document, or name#page",
        )
    return kinds


def _kind(backend: MemoryBackend, within: Scope, name: str) -> Named | None:
    entries = backend.get([name])
    if entries and entries[0].namespace == within.namespace and entries[0].kind not in UNSEARCHED_KINDS:
        return "entry"
    if backend.count(Scope(within.namespace, source_id=name)):
        return "record"
    if backend.count(Scope(within.namespace, kinds=("document",), metadata={"name": name})):
        return "document"
    document, mark, page = name.rpartition("#")
    if not mark or not page.isdecimal():
        return None
    documents = backend.list(Scope(within.namespace, kinds=("document",), metadata={"name": document}), limit=100)
    return "page" if any(1 <= int(page) <= entry.metadata["pages"] for entry in documents) else None


def _relevant(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidInput("relevant", f"must be a list, such as [{str(value)[:80]!r}]")
    return tuple(dict.fromkeys(fields.text("relevant", name) for name in value))
