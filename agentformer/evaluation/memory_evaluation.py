"""Measures a memory: either a temporary memory that contains the corpus of a dataset, or the memory that the user has
open. Also reads files of questions about the documents of an open memory."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentformer.errors import InvalidInput
from agentformer.evaluation.corpus_loader import Loader
from agentformer.evaluation.dataset import Dataset, Question
from agentformer.evaluation.run import Evaluation, EvaluationOptions, evaluate
from agentformer.records import fields
from agentformer.types import DEFAULT_NAMESPACE, UNSEARCHED_KINDS, Hit, MemoryBackend, Scope


@dataclass(frozen=True, slots=True)
class Trial(Loader):
    """A temporary memory with the corpus of a dataset, created by `factory.trial`."""

    def evaluate(self, dataset: Dataset, **options: Any) -> Evaluation:
        """Ask the questions of a dataset whose passages are stored in this memory. `options` are the fields of
        `EvaluationOptions`."""
        return evaluate(self.backend.search, dataset, EvaluationOptions(**options))


Named = Literal["entry", "record", "page", "document"]
_ORDER: tuple[Named, ...] = ("entry", "record", "page", "document")  # from the smallest unit to the largest
_KEYS = ("id", "text", "relevant", "meta")
_MAX_LISTED = 5  # unknown names in a message


def evaluate_opened(
    backend: MemoryBackend,
    questions: Iterable[Question | Mapping[str, Any]],
    *,
    namespace: str = DEFAULT_NAMESPACE,
    scope_of: Callable[[Question], Scope] | None = None,
    **options: Any,
) -> Evaluation:
    """Measure how well an open memory finds its own entries. `relevant` of a question lists the correct results: ids of
    entries, source ids, names of documents, or pages (`name#3`). Each item of the list is looked up as an id, then as a
    source id, and so on in this order, and the first match counts. `scope_of(question)` returns the scope to search
    (default: the whole namespace). Raises `InvalidInput` if nothing matches, and the errors of `evaluate`."""
    if isinstance(questions, (bytes, Mapping)) or not isinstance(questions, Iterable):
        raise InvalidInput("questions", f"must be a list of questions or a folder, got {type(questions).__name__}")
    parsed = tuple(question_of(given, number) for number, given in enumerate(questions, 1))
    within = Scope(fields.name("namespace", namespace))
    kinds_of = _kinds(backend, within, parsed)

    def passage_of(hit: Hit, question: Question) -> str:
        """Return a name of the entry in the hit (an entry has several names, see `names_of`). If one of them is in
        `question.relevant`, return this name, so that the hit counts as found. Otherwise, return a name that the entry
        shares with other parts of the same document or record, so that these parts count as one result."""
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
    """Find out what the names in the field `relevant` of the questions mean. Return name -> kind: `entry`, `record`,
    `document` or `page`. Names are looked up in the namespace of `within`. Raises `InvalidInput` for unknown names."""
    names = dict.fromkeys(name for question in questions for name in question.relevant)
    kinds = {name: kind for name in names if (kind := _kind(backend, within, name))}
    if lost := [name for name in names if name not in kinds]:
        more = f" and {len(lost) - _MAX_LISTED} more" if len(lost) > _MAX_LISTED else ""
        unknown = ", ".join(repr(name[:80]) for name in lost[:_MAX_LISTED])
        raise InvalidInput(
            "relevant",
            f"nothing in the namespace {within.namespace} has the name {unknown}{more}; use the id of an entry, a "
            "source id, the name of a document, or name#page",
        )
    return kinds


def _kind(backend: MemoryBackend, within: Scope, name: str) -> Named | None:
    """Return the kind of what has the name: an entry with this id that a search can return, else a record with this
    source id, else a document, else a page (`document#page`). Return None if nothing has the name."""
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


_QUESTION_KEYS = ("question", "document", "page", "answer", "unanswerable")
_REPORTED = 10  # at most this many invalid lines are reported
# Scripts without spaces between words, or with endings written inside the word:
# Chinese, Japanese, Korean, Thai, Lao, Myanmar, Khmer.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
)


@dataclass(frozen=True, slots=True)
class DocumentQuestion:
    """A question and what is known about its answer: the document, the page, or words of the correct passage.
    `unanswerable` means that the documents have no answer."""

    line: int
    text: str
    document: str | None = None
    page: int | None = None
    answer: str | None = None
    unanswerable: bool = False


def read_questions(lines: Iterable[str], documents: Mapping[str, int], longest: int) -> list[DocumentQuestion]:
    """Return the questions of a file. `documents` maps the name of each document to its number of pages. `longest` is
    the largest number of characters of a question. Raises `InvalidInput` with the numbers of the invalid lines."""
    questions, errors = [], []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                questions.append(_parse(number, line, documents, longest))
            except ValueError as error:
                errors.append(f"line {number}: {error}")
    if errors:
        more = f"; and {len(errors) - _REPORTED} more" if len(errors) > _REPORTED else ""
        raise InvalidInput(
            "FILE", f"no question was asked, because some lines are not valid: {'; '.join(errors[:_REPORTED])}{more}"
        )
    if not questions:
        example = """{"question": "...", "answer": "..."}"""
        raise InvalidInput("FILE", f"contains no questions; write lines such as {example}")
    return questions


def _parse(number: int, line: str, documents: Mapping[str, int], longest: int) -> DocumentQuestion:
    """Return the question on a line of the file. Raises `ValueError` if the line is not valid."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if not isinstance(values, dict):
        raise ValueError("is not a JSON object")
    for problem in _problems(values, longest):
        raise ValueError(problem)
    name, page = values.get("document"), values.get("page")
    if name is not None and name not in documents:
        raise ValueError(f"there is no document {name[:80]!r} with text in this namespace")
    if name is not None and (page or 1) > documents[name]:
        raise ValueError(f"{name[:80]!r} has {documents[name]} pages, and no page {page}")
    return DocumentQuestion(
        number, values["question"], name, page, values.get("answer"), values.get("unanswerable", False)
    )


def _problems(values: Mapping[str, Any], longest: int) -> Iterator[str]:
    """Yield what is wrong with a question. A check relies on the checks before it, so the caller stops at a problem."""
    if unknown := sorted(set(values) - set(_QUESTION_KEYS)):
        yield f"{unknown[0][:80]!r} is unknown; the fields are {', '.join(_QUESTION_KEYS)}"
    for name in ("question", "document", "answer"):
        value = values.get(name)
        if value is None and name != "question":
            continue
        if not isinstance(value, str) or not value.strip():
            yield f"{name!r} must be a text"
        fields.encodable(name, str(value))
    if len(values["question"]) > longest:
        yield f"the question has more than {longest} characters (setting max_question_chars)"
    page, unanswerable = values.get("page"), values.get("unanswerable", False)
    if not isinstance(unanswerable, bool):
        yield "'unanswerable' must be true or false"
    if page is not None and (not isinstance(page, int) or isinstance(page, bool) or page < 1):
        yield "'page' must be a whole number from 1"
    if page is not None and values.get("document") is None:
        yield "'page' requires 'document'"
    given = [name for name in ("document", "answer") if values.get(name) is not None]
    if unanswerable and given:
        yield f"is marked as unanswerable, but has the field {given[0]!r}"
    if not unanswerable and not given:
        yield "must have 'document', 'answer' or 'unanswerable'"


def is_correct(hit: Hit, document: str | None, page: int | None, answer: str | None) -> bool:
    """Return whether the hit is a correct passage: it is from the document `document`, it is on the page `page`, and it
    contains the text `answer`. A condition whose value is None is skipped."""
    source = hit.entry.source
    if document is not None and (not source or source.name != document):
        return False
    if page is not None and (not source or source.page != page):
        return False
    return answer is None or contains(normalize(hit.entry.content), normalize(answer))


def contains(text: str, answer: str) -> bool:
    """Return whether `text` contains `answer` as whole words. In a script without spaces between words, the answer may
    begin and end at any character."""
    start = text.find(answer)
    while start >= 0:
        end = start + len(answer)
        if not _same_word(text[max(start - 1, 0) : start], answer[0]) and not _same_word(
            text[end : end + 1], answer[-1]
        ):
            return True
        start = text.find(answer, start + 1)
    return False


def _same_word(outside: str, inside: str) -> bool:
    if not outside or _UNSPACED.match(outside) or _UNSPACED.match(inside):
        return False
    return unicodedata.category(outside)[0] in "LMN"  # letters, marks and digits


def normalize(text: str) -> str:
    """Return the text in the form that `contains` compares: casefolded, and with single spaces."""
    return " ".join(text.casefold().split())
