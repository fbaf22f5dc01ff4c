"""The endpoint for chat completions: a memory in front of the configured language model's server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from flask import Response, request

from agentformer.access.permissions import Grant
from agentformer.api.openai import models
from agentformer.api.openai.embeddings import DEFAULT
from agentformer.api.openai.finding import NAMESPACE_HEADER, home
from agentformer.api.openai.turns import (
    DEFAULT_SESSION,
    REMEMBER,
    SESSION,
    TOKENS,
    USER,
    Answer,
    ChatPlace,
    chat_place,
    remember,
    with_memory,
)
from agentformer.api.operations import Router, Service
from agentformer.api.request import client_left
from agentformer.api.response import EVENT_STREAM, in_thread, reply
from agentformer.builders import model_spec
from agentformer.errors import InvalidInput, LanguageModelUnavailable, NotFound
from agentformer.factory import AgentFormer
from agentformer.llms.forwarding import Forwarded, Refusal

RECALLED, REMEMBERED = "X-AgentFormer-Recalled", "X-AgentFormer-Remembered"
_HEADERS = {
    **NAMESPACE_HEADER,
    SESSION: f"The session to which the turn belongs. By default, it is `{DEFAULT_SESSION}`.",
    USER: "The user whose memories are recalled. Without it, the memories of all users are recalled.",
    REMEMBER: "With `false`, the turn is not stored.",
    TOKENS: "The largest number of recalled tokens; 0 recalls nothing. The default is the setting `context_tokens`.",
}
_SILENCE_SECONDS = 3.0  # without an event, after which a comment checks that the client is still connected
_MAX_EVENT = 1024 * 1024  # bytes; longer events pass through in parts
_COMMENT = b":\n\n"
_STREAM = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_CUT = Refusal(
    502, "the language model's server ended the stream before the answer was complete; send the request again"
)

router = Router("openai chat")


@router.route(
    "POST",
    "/v1/chat/completions",
    "chat",
    {200: (models.ChatCompletion, EVENT_STREAM)},
    headers=_HEADERS,
    errors=(404, 502, 503, 504),
    uses_model=True,
)
def complete(service: Service, grant: Grant, body: models.ChatRequest) -> Response:
    """Send a conversation to the configured language model, with what the memory knows about its last message.

    Memories and passages of documents are added before the last message of the user, marked as data. All other parts of
    the request, and the response with its tool calls and its stream, pass through unchanged. When the answer is
    complete, the last message of the user and the answer are stored as messages of the session. The response header
    `X-AgentFormer-Recalled` has the number of recalled entries.
    """
    af = service.af
    place = chat_place(request.headers, grant, home(grant), af.settings.context_tokens)
    forwarder = service.chat()
    if forwarder is None:
        raise NotFound(
            "no language model with a server is configured; its administrator must set AGENTFORMER_LLM_MODEL, such as "
            "ollama:gemma3, or openai:MODEL with AGENTFORMER_LLM_BASE_URL"
        )
    messages, recalled = with_memory(af, body.messages, place)
    sent = {**body.model_dump(exclude_unset=True), "messages": messages}
    if body.model in (None, DEFAULT):
        sent["model"] = model_spec(af.settings)[1]
    try:
        response = forwarder.send(sent, stream=bool(body.stream))
    except ValueError:
        raise InvalidInput("body", "contains NaN or Infinity, which JSON does not have; send another number") from None
    except LanguageModelUnavailable as error:
        response = Refusal(502, str(error), code="upstream_unavailable")
    if isinstance(response, Refusal):
        return _error(response)
    turn = _Turn(af, body.messages, place, recalled)
    headers = {RECALLED: str(recalled)}
    if response.is_stream:
        pieces = turn.stream(response)
        return Response(pieces, headers={**headers, **_STREAM}, content_type=response.content_type)
    return turn.whole(response, headers)


class _Turn:
    """One turn of the current request: passes the response of the server on, and stores the turn when the answer is
    complete and the client is still there."""

    def __init__(self, af: AgentFormer, messages: Sequence[Mapping[str, Any]], place: ChatPlace, recalled: int) -> None:
        self._af = af
        self._messages = messages
        self._place = place
        self._recalled = recalled
        self._answer = Answer()
        self._environ = request.environ
        self._decided = False  # whether the turn was stored, or must not be stored
        self._stored = False

    def whole(self, response: Forwarded, headers: Mapping[str, str]) -> Response:
        """Return a complete response."""
        data = response.read()
        if isinstance(data, Refusal):
            return _error(data)
        self._answer.read_whole(data)
        stored = self._remember()
        return Response(data, headers={**headers, REMEMBERED: str(stored).lower()}, content_type=response.content_type)

    def stream(self, response: Forwarded) -> Iterator[bytes]:
        """Yield the events of a stream. The turn is stored before the event that completes the answer is sent, so that
        a client that has read the answer can rely on it. If the stream breaks, the last event is an error. Only whole
        events are yielded, so that an error or a comment never follows a part of an event.

        The other thread only receives: the thread that sends to the client stores the turn, so that it is not stored
        after the client has left."""
        rest = b""
        with closing(in_thread(response.pieces(), _SILENCE_SECONDS)) as pieces:
            for piece in pieces:
                if piece is None:
                    yield _COMMENT
                    continue
                if isinstance(piece, Refusal):
                    yield _event(piece)
                    return
                self._answer.read_piece(piece)
                if self._answer.complete:
                    self._remember()
                events, rest = _whole_events(rest + piece)
                if events:
                    yield events
        if not self._answer.complete:
            yield _event(_CUT)
        elif rest:
            yield rest

    def _remember(self) -> bool:
        """Store the turn, unless this was done, the answer failed, or the client has left. Return whether the turn is
        stored."""
        if not self._decided:
            self._decided = True
            wanted = self._place.remember and not self._answer.failed and not client_left(self._environ)
            recalled = self._recalled > 0
            self._stored = wanted and remember(
                self._af, self._messages, self._answer.text, self._place, recalled=recalled
            )
        return self._stored


def _whole_events(data: bytes) -> tuple[bytes, bytes]:
    """Return the complete events, and the beginning of the next event."""
    end = max(data.rfind(blank) + len(blank) if blank in data else 0 for blank in (b"\n\n", b"\r\n\r\n"))
    return (data[:end], data[end:]) if end or len(data) < _MAX_EVENT else (data, b"")


def _error(refusal: Refusal) -> Response:
    headers = {"Retry-After": refusal.retry_after} if refusal.retry_after else {}
    return reply(_error_json(refusal), refusal.status, headers)


def _event(refusal: Refusal) -> bytes:
    """Return an event with an error."""
    return f"data: {json.dumps(_error_json(refusal))}\n\n".encode()


def _error_json(refusal: Refusal) -> dict[str, Any]:
    error = {"message": refusal.message, "type": refusal.type, "param": refusal.param, "code": refusal.code}
    return {"error": error}
