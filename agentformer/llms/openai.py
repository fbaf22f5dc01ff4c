"""Any server that speaks the OpenAI chat protocol: OpenAI itself, LM Studio, Ollama, llama.cpp, vLLM."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from agentformer.errors import (
    InvalidInput,
    InvalidReply,
    LanguageModelError,
    LanguageModelUnavailable,
    PromptTooLong,
)
from agentformer.llms.dialect import SHAPES, Dialect
from agentformer.llms.structured import Mismatch, Schema
from agentformer.llms.wire import Finish, check_length, check_said, messages_out, piece_in, reply_in, tools_out
from agentformer.net.openai_client import Failure, cleaned, explain, open_client
from agentformer.net.servers import FirstThatAnswers, Server, candidates
from agentformer.settings import Settings
from agentformer.types import ChatMessage, Reply, Tool

if TYPE_CHECKING:
    import openai

T = TypeVar("T")
_TRIES = 6  # of one request: as many as there are things that a server may refuse by name
_SHOWN_BACK = 2000  # characters of a bad answer that a model is shown again


class OpenAIModel:
    """Chat completions at the first of `servers` that answers.

    What a busy server (429, 5xx) or a lost connection cost is repeated `retries` times with exponential backoff; a
    timeout is not, so that a hung server costs one. `timeout`: seconds for a whole reply, and between two pieces of a
    stream; `stream_seconds`: for a whole stream. Thread-safe.
    """

    def __init__(
        self, model: str, servers: Sequence[Server], *, timeout: float, retries: int, stream_seconds: float
    ) -> None:
        self._model = model
        self._first = FirstThatAnswers(servers)
        self._dialects = {server: Dialect() for server in servers}
        self._seconds = {False: timeout, True: stream_seconds}
        self._timeout, self._retries = timeout, retries
        self._clients: dict[tuple[Server, bool], openai.OpenAI] = {}
        self._lock = threading.Lock()
        for server in servers[:1]:  # what is missing or cannot be sent shows now, not at the first question
            self._client(server, streams=False)

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> OpenAIModel:
        """Raises `MissingExtra` without the `openai` package, `InvalidInput` for a key that cannot be sent."""
        servers = candidates(
            model,
            explicit_url=settings.llm_base_url,
            explicit_key=settings.llm_api_key,
            openai_key=settings.openai_api_key,
            openai_url=settings.openai_base_url,
            lmstudio_url=settings.lmstudio_base_url,
            ollama_url=settings.ollama_base_url,
        )
        return cls(
            model,
            servers,
            timeout=settings.llm_timeout,
            retries=settings.llm_retries,
            stream_seconds=settings.llm_stream_seconds,
        )

    def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.3,
        max_tokens: int = 512,
    ) -> Reply:
        """As `LanguageModel.complete`. JSON that is not valid under the schema is asked for once more."""
        _check(messages, max_tokens)
        shape = None if schema is None else Schema(schema)
        server = self._server()
        offered: dict[str, Any] = {"tools": tools_out(tools)} if tools else {}

        def ask(messages: Sequence[ChatMessage]) -> Reply:
            def request(below: str) -> dict[str, Any]:
                dialect = self._dialects[server]
                options = dialect.options(temperature=temperature, max_tokens=max_tokens, stream=False)
                asked, wanted = dialect.shaped(messages, shape, below)
                return {"model": self._model, "messages": messages_out(asked), **options, **offered, **wanted}

            return self._send(server, request, lambda done: reply_in(done, self._who(server), self._model, max_tokens))

        return ask(messages) if shape is None else self._valid(messages, shape, ask, server)

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Generator[str, None, Reply]:
        """As `LanguageModel.stream`. Closing the generator closes the connection."""
        _check(messages, max_tokens)
        server = self._server()
        wire = messages_out(messages)

        def request(below: str) -> dict[str, Any]:
            options = self._dialects[server].options(temperature=temperature, max_tokens=max_tokens, stream=True)
            return {"model": self._model, "messages": wire, **options}

        parts = self._send(server, request, lambda parts: parts, streams=True)
        try:
            return (yield from self._pieces(parts, server, max_tokens))
        finally:
            parts.close()

    def _pieces(self, parts: Any, server: Server, max_tokens: int) -> Generator[str, None, Reply]:
        said: list[str] = []
        finish: Finish = ""
        tokens = (0, 0)
        chars = came = 0
        while True:
            piece = self._tried(lambda: piece_in(next(parts, None)), server)
            if isinstance(piece, Failure) and not finish:
                raise self._error(piece)
            if piece is None or isinstance(piece, Failure):  # after the end only counts can be lost
                break
            came += 1
            finish, tokens = piece.finish or finish, piece.tokens or tokens
            chars += len(piece.text)
            check_length(chars, max_tokens, self._who(server))
            if piece.text:
                said.append(piece.text)
                yield piece.text
        if not finish:
            what = "the stream ended before the answer did" if came else "what came is no stream of the OpenAI protocol"
            raise LanguageModelUnavailable(f"{self._who(server)}: {what}; try again, or check the address")
        text = "".join(said)
        check_said(text, finish, self._who(server))
        return Reply(text, self._model, *tokens, finish)

    def _valid(
        self,
        messages: Sequence[ChatMessage],
        shape: Schema,
        ask: Callable[[Sequence[ChatMessage]], Reply],
        server: Server,
    ) -> Reply:
        """The reply with its data; asked once more, with what is wrong, where that is not valid."""
        read = written = 0
        asked, wrong = list(messages), ""
        for _ in range(2):
            reply = ask(asked)
            read, written = read + reply.tokens_in, written + reply.tokens_out
            reply = replace(reply, tokens_in=read, tokens_out=written)
            if reply.tool_calls:
                return reply
            if reply.finish == "length":
                raise InvalidReply(f"{self._who(server)}: the JSON was cut off at max_tokens; raise max_tokens")
            try:
                text, data = shape.read(reply.text)
                return replace(reply, text=text, data=data)
            except Mismatch as mismatch:
                wrong = str(mismatch)
            again = f"That answer cannot be used:\n{wrong}\n\n{shape.instruction}"
            bad = reply.text[:_SHOWN_BACK]
            asked = [*messages, ChatMessage("assistant", bad), ChatMessage("user", again)]
        raise InvalidReply(f"{self._who(server)} gave no valid JSON, asked twice: {cleaned(wrong, server)}")

    def _send(
        self,
        server: Server,
        request: Callable[[str], dict[str, Any]],
        read: Callable[[Any], T],
        *,
        streams: bool = False,
    ) -> T:
        """`read` of the answer. What the server refuses by name is left out or asked for in another way."""
        client = self._client(server, streams=streams)
        refused, failure = "", None
        for _ in range(_TRIES):
            sent = request(refused)
            found = self._tried(partial(_call, client, sent, read), server)
            if not isinstance(found, Failure):
                return found
            failure = found
            learned = self._dialects[server].learn(failure, sent)
            if not learned:
                break
            refused = learned if learned in SHAPES else refused
        assert failure
        raise self._error(failure)

    def _tried(self, call: Callable[[], T], server: Server) -> T | Failure:
        try:
            return call()
        except LanguageModelError:
            raise
        except Exception as error:  # noqa: BLE001  a server can send anything; the package passes on what it trips over
            return explain(error, server, self._model)

    def _error(self, failure: Failure) -> LanguageModelError:
        if failure.kind == "unavailable":
            self._first.forget()
        if failure.kind == "too_long":
            return PromptTooLong(f"{failure.message}; shorten the conversation")
        if failure.kind == "rejected":
            return InvalidReply(failure.message)
        return LanguageModelUnavailable(failure.message)

    def _server(self) -> Server:
        server = self._first.pick()
        if server is None:
            raise LanguageModelUnavailable(
                f"no server for {self._model} answers (tried {self._first.tried}); "
                "start one, or name one with AGENTFORMER_LLM_BASE_URL"
            )
        return server

    def _client(self, server: Server, *, streams: bool) -> openai.OpenAI:
        with self._lock:
            if (server, streams) not in self._clients:
                seconds = self._seconds[streams]
                self._clients[server, streams] = open_client(
                    server, timeout=self._timeout, retries=self._retries, seconds=seconds
                )
            return self._clients[server, streams]

    def _who(self, server: Server) -> str:
        return f"{self._model} at {server.name} {server.address}"


def _call(client: openai.OpenAI, sent: Mapping[str, Any], read: Callable[[Any], T]) -> T:
    create: Any = client.chat.completions.create  # its overloads know no dictionary
    return read(create(**sent))


def _check(messages: Sequence[ChatMessage], max_tokens: int) -> None:
    if not messages:
        raise InvalidInput("messages", "must hold at least one message")
    if max_tokens < 1:
        raise InvalidInput("max_tokens", f"must be at least 1, got {max_tokens}")
