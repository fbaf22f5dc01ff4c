"""The endpoint that answers questions: as one JSON document, or as events while the answer is spoken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, jsonify, request

from agentformer.api.bodies import json_object
from agentformer.api.streaming import EVENT_STREAM, event_stream
from agentformer.errors import InvalidInput
from agentformer.factory import AgentFormer
from agentformer.tools.shapes import answer_json
from agentformer.types import DEFAULT_NAMESPACE

_FIELDS = frozenset({"question", "top_k", "namespace", "filters", "max_tokens", "stream"})


def add_question_routes(blueprint: Blueprint, memory: AgentFormer) -> None:
    blueprint.add_url_rule("/api/rag/query", view_func=_query(memory), methods=["POST"])


def _query(memory: AgentFormer) -> Any:
    def query() -> Response:
        """JSON `{question, top_k, namespace, filters, max_tokens, stream}`. What is wrong with it is told before the
        first event: as a problem document, also to who asks for events."""
        body = json_object(_FIELDS, '{"question": "..."}')
        asked: dict[str, Any] = {
            "top_k": body.get("top_k"),
            "namespace": body.get("namespace", DEFAULT_NAMESPACE),
            "filters": body.get("filters"),
            "max_tokens": body.get("max_tokens"),
        }
        question = "" if body.get("question") is None else body["question"]
        if _wants_events(body):
            return event_stream(memory.rag.stream(question, **asked))
        return jsonify(answer_json(memory.rag.query(question, **asked)))

    return query


def _wants_events(body: Mapping[str, Any]) -> bool:
    """What the body says, else whether the client prefers events to JSON."""
    stream = body.get("stream")
    if stream is None:
        return request.accept_mimetypes.best_match(["application/json", EVENT_STREAM]) == EVENT_STREAM
    if not isinstance(stream, bool):
        raise InvalidInput("stream", f"must be true or false, got {stream!r:.80}")
    return stream
