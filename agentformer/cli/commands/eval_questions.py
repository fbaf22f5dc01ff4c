"""The questions that `eval` reads from a file of JSON Lines. All lines are checked before the first question is
asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.records import fields

_KEYS = ("question", "document", "page", "answer", "unanswerable")
_REPORTED = 10  # at most this many invalid lines are reported


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the place of its answer. The place is a document, a page, or words of the passage, or the question
    has no answer."""

    line: int
    text: str
    document: str | None = None
    page: int | None = None
    answer: str | None = None
    unanswerable: bool = False


def read_questions(path: Path, documents: Mapping[str, int], longest: int) -> list[Question]:
    """Return the questions of a file. `documents` maps names of documents to numbers of pages. A question has at most
    `longest` characters. Raises `InvalidInput` with the numbers of invalid lines."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("FILE", f"{path} cannot be read as UTF-8 text ({type(error).__name__})") from None
    questions, errors = [], []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                questions.append(_parse(number, line, documents, longest))
            except ValueError as error:
                errors.append(f"line {number}: {error}")
    if errors:
        more = f"; and {len(errors) - _REPORTED} more" if len(errors) > _REPORTED else ""
        raise InvalidInput("FILE", f"no question was asked: {'; '.join(errors[:_REPORTED])}{more}")
    if not questions:
        example = """{"question": "...", "answer": "..."}"""
        raise InvalidInput("FILE", f"{path} contains no questions; write lines such as {example}")
    return questions


def _parse(number: int, line: str, documents: Mapping[str, int], longest: int) -> Question:
    """Return the question of a line. Raises `ValueError`."""
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
    return Question(number, values["question"], name, page, values.get("answer"), values.get("unanswerable", False))


def _problems(values: Mapping[str, Any], longest: int) -> Iterator[str]:
    """Yield the errors in the fields of a question."""
    if unknown := sorted(set(values) - set(_KEYS)):
        yield f"{unknown[0][:80]!r} is unknown; the fields are {', '.join(_KEYS)}"
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
