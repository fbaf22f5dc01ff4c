"""Questions with known answers, as `eval` reads them: JSON Lines, checked wholly before anything is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.records import fields

_KEYS = ("question", "document", "page", "answer", "unanswerable")
_TOLD = 10  # bad lines


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and where its answer is: in a document, on a page, in these words, or nowhere."""

    line: int
    text: str
    document: str | None = None
    page: int | None = None
    answer: str | None = None
    unanswerable: bool = False


def read_questions(path: Path, documents: Mapping[str, int], longest: int) -> list[Question]:
    """The questions of a file; `documents` are the pages by name of those that answers may come from. Raises
    `InvalidInput` that tells the bad lines by number."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("FILE", f"{path} cannot be read as UTF-8 text ({type(error).__name__})") from None
    questions, bad = [], []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                questions.append(_question(number, line, documents, longest))
            except ValueError as error:
                bad.append(f"line {number}: {error}")
    if bad:
        more = f"; and {len(bad) - _TOLD} more" if len(bad) > _TOLD else ""
        raise InvalidInput("FILE", f"nothing was asked, since {'; '.join(bad[:_TOLD])}{more}")
    if not questions:
        raise InvalidInput(
            "FILE", f"""{path} holds no questions; write lines like {{"question": "...", "answer": "..."}}"""
        )
    return questions


def _question(number: int, line: str, documents: Mapping[str, int], longest: int) -> Question:
    """Raises `ValueError` that says what is wrong with the line."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is no JSON") from None
    if not isinstance(given, dict):
        raise ValueError("is no JSON object")
    for problem in _problems(given, longest):
        raise ValueError(problem)
    question = Question(
        number,
        given["question"],
        given.get("document"),
        given.get("page"),
        given.get("answer"),
        given.get("unanswerable", False),
    )
    if question.document is not None and question.document not in documents:
        raise ValueError(f"there is no document {question.document[:80]!r} with text in this namespace")
    if question.document is not None and (question.page or 1) > documents[question.document]:
        raise ValueError(f"{question.document[:80]!r} has {documents[question.document]} pages, and no {question.page}")
    return question


def _problems(given: Mapping[str, Any], longest: int) -> Iterator[str]:
    """What is wrong with the fields of a question, before anything is looked up."""
    if unknown := sorted(set(given) - set(_KEYS)):
        yield f"{unknown[0][:80]!r} is not known; known are {', '.join(_KEYS)}"
    for name in ("question", "document", "answer"):
        value = given.get(name)
        if value is None and name != "question":
            continue
        if not isinstance(value, str) or not value.strip():
            yield f"{name!r} must be a text"
        fields.encodable(name, str(value))
    if len(given["question"]) > longest:
        yield f"the question has over {longest} characters (max_question_chars)"
    page, unanswerable = given.get("page"), given.get("unanswerable", False)
    if not isinstance(unanswerable, bool):
        yield "'unanswerable' must be true or false"
    if page is not None and (not isinstance(page, int) or isinstance(page, bool) or page < 1):
        yield "'page' must be a whole number from 1"
    if page is not None and given.get("document") is None:
        yield "'page' needs its 'document'"
    known = [name for name in ("document", "answer") if given.get(name) is not None]
    if unanswerable and known:
        yield f"is unanswerable, and has {known[0]!r}"
    if not unanswerable and not known:
        yield "needs 'document', 'answer' or 'unanswerable'"
