"""The endpoint that answers questions: as one JSON document, or as events while the answer is spoken."""

from __future__ import annotations

from typing import Any

from flask import Response, request

from agentformer.access.grant import Grant
from agentformer.api.models.documents import Answer, Question
from agentformer.api.operations import Operations, always
from agentformer.api.response import reply
from agentformer.api.streaming import EVENT_STREAM, event_stream
from agentformer.errors import TooLarge
from agentformer.factory import AgentFormer
from agentformer.tools.shapes import answer_json


def add_questions(operations: Operations, af: AgentFormer) -> None:
    most = af.settings.max_question_chars

    @operations.declare(
        "POST",
        "/api/rag/query",
        right="read",
        body=Question,
        returns={200: (Answer, EVENT_STREAM)},
        faults=(503,),
        asks=always,
        tag="documents",
        tool="rag_query",
    )
    def query(grant: Grant, body: Question) -> Response:
        """Answer a question from the documents, with citations.

        As server-sent events: `token` with a `text` as the answer is spoken, `error` with a problem where the model
        breaks off, and last `answer` with what the JSON answer holds. What is wrong with the question is told before
        the first event, as a problem.
        """
        if len(body.question) > most:
            raise TooLarge("max_question_chars", f"the question has {len(body.question)} characters, over {most}")
        asked: dict[str, Any] = {
            "top_k": body.top_k,
            "namespace": grant.namespace(body.namespace),
            "filters": body.filters,
            "max_tokens": body.max_tokens,
        }
        if _wants_events(body.stream):
            return event_stream(af.rag.stream(body.question, **asked))
        return reply(answer_json(af.rag.query(body.question, **asked)))


def _wants_events(stream: bool | None) -> bool:
    """What the body says, else whether the client prefers events to JSON."""
    if stream is None:
        return request.accept_mimetypes.best_match(["application/json", EVENT_STREAM]) == EVENT_STREAM
    return stream
