"""Any server that speaks the OpenAI chat protocol: OpenAI itself, LM Studio, Ollama, llama.cpp, vLLM."""

from __future__ import annotations

import logging
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
from agentformer.http.openai_client import Failure, cleaned, explain, open_client, secrets
from agentformer.http.redact_text import masked
from agentformer.http.redaction import with_path
from agentformer.http.servers import LMSTUDIO_URL, OLLAMA_URL, FirstThatAnswers, Server, candidates
from agentformer.llms.request_checks import check_asked
from agentformer.llms.server_capabilities import SHAPES, Dialect
from agentformer.llms.structured import Mismatch, Schema
from agentformer.llms.wire import (
    Finish,
    Joiner,
    check_length,
    check_said,
    messages_out,
    piece_in,
    reply_in,
    tools_out,
    unstreamed_in,
)
from agentformer.settings import Settings
from agentformer.types import ChatMessage, Reply, Tool

if TYPE_CHECKING:
    import openai

log = logging.getLogger("agentformer")
T = TypeVar("T")
_TRIES = 6  # of one request: as many as there are things that a server may refuse by name
_SHOWN_BACK = 2000  # characters of a bad answer that a model is shown again


class OpenAIModel:
    """Chat completions at the first of `servers` that answers. A call that it fails goes on to the next, unless a
    stream has given a piece.

    What a busy server (429, 5xx) or a lost connection cost is repeated `retries` times with exponential backoff, or as
    the server asks, within twice the timeout; a timeout is not, so that a hung server costs one. `timeout`: seconds for
    a whole reply, and between two pieces of a stream; `stream_seconds`: for a whole stream. Thread-safe.
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
        """Raises `MissingExtra` without the `openai` package, `InvalidInput` for a key that cannot be sent or for no
        model."""
        servers = candidates(
            model,
            explicit_url=settings.llm_base_url,
            explicit_key=settings.llm_api_key,
            openai_key=settings.openai_api_key,
            openai_url=settings.openai_base_url,
            lmstudio_url=settings.lmstudio_base_url,
            ollama_url=settings.ollama_base_url,
        )
        return cls._of(model, servers, settings)

    @classmethod
    def ollama(cls, model: str, settings: Settings) -> OpenAIModel:
        """At Ollama alone. Raises as `from_settings` does."""
        url = settings.llm_base_url or settings.ollama_base_url or OLLAMA_URL
        return cls._of(model, [Server("ollama", with_path(url, "/v1"), settings.llm_api_key)], settings)

    @classmethod
    def lmstudio(cls, model: str, settings: Settings) -> OpenAIModel:
        """At LM Studio alone. Raises as `from_settings` does."""
        url = settings.llm_base_url or settings.lmstudio_base_url or LMSTUDIO_URL
        return cls._of(model, [Server("lmstudio", with_path(url, "/v1"), settings.llm_api_key)], settings)

    @classmethod
    def _of(cls, model: str, servers: Sequence[Server], settings: Settings) -> OpenAIModel:
        if not model.strip():
            raise InvalidInput("llm_model", "names no model; give one after the colon, such as ollama:gemma3")
        return cls(
            model.strip(),
            servers,
            timeout=settings.llm_timeout,
            retries=settings.llm_retries,
            stream_seconds=settings.llm_stream_seconds,
        )

    @property
    def has_fallback(self) -> bool:
        """Whether one of several servers answers, after another has failed a call."""
        return self._first.has_fallback

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
        check_asked(messages, temperature=temperature, max_tokens=max_tokens, tools=tools)
        shape = None if schema is None else Schema(schema)
        offered: dict[str, Any] = {"tools": tools_out(tools)} if tools else {}

        def ask(server: Server, messages: Sequence[ChatMessage]) -> Reply:
            def request(below: str) -> dict[str, Any]:
                dialect = self._dialects[server]
                options = dialect.options(temperature=temperature, max_tokens=max_tokens, stream=False)
                asked, wanted = dialect.shaped(messages, shape, below)
                return {"model": self._model, "messages": messages_out(asked), **options, **offered, **wanted}

            return self._send(server, request, lambda done: reply_in(done, self._who(server), self._model, max_tokens))

        if shape is None:
            return self._wherever(lambda server: ask(server, messages))
        return self._wherever(lambda server: self._valid(messages, shape, partial(ask, server), server))

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Generator[str, None, Reply]:
        """As `LanguageModel.stream`. Closing the generator closes the connection."""
        check_asked(messages, temperature=temperature, max_tokens=max_tokens)

        def begin(server: Server) -> tuple[Server, str, Generator[str, None, Reply]]:
            pieces = self._stream(server, messages, temperature, max_tokens)
            return server, next(pieces), pieces  # one without any piece raises; it does not end

        server, first, rest = self._wherever(begin)
        try:
            yield first
            return (yield from rest)
        except LanguageModelUnavailable:
            self._first.pick(but=[server])  # so that the next call goes elsewhere
            raise
        finally:
            rest.close()

    def _wherever(self, ask: Callable[[Server], T]) -> T:
        """`ask` of the first server that can answer; where none can, the error says what each of them did."""
        lost: dict[Server, str] = {}
        while True:
            server = self._server(lost)
            try:
                return ask(server)
            except LanguageModelUnavailable as error:
                lost[server] = str(error)

    def _stream(
        self, server: Server, messages: Sequence[ChatMessage], temperature: float, max_tokens: int
    ) -> Generator[str, None, Reply]:
        wire = messages_out(messages)

        def request(below: str) -> dict[str, Any]:
            options = self._dialects[server].options(temperature=temperature, max_tokens=max_tokens, stream=True)
            return {"model": self._model, "messages": wire, **options}

        def read(parts: Any) -> Any:
            done = unstreamed_in(parts)
            return parts if done is None else reply_in(done, self._who(server), self._model, max_tokens)

        parts = self._send(server, request, read, streams=True)
        if isinstance(parts, Reply):
            yield parts.text
            return parts
        try:
            return (yield from self._pieces(parts, server, max_tokens))
        finally:
            parts.close()

    def _pieces(self, parts: Any, server: Server, max_tokens: int) -> Generator[str, None, Reply]:
        said: list[str] = []
        joiner = Joiner()
        finish: Finish = ""
        tokens = (0, 0)
        chars = came = 0
        while True:
            piece = self._tried(lambda: piece_in(next(parts, None)), server, streams=True)
            if isinstance(piece, Failure) and not finish:
                raise self._error(piece)
            if piece is None or isinstance(piece, Failure):  # after the end only counts can be lost
                break
            came += 1
            finish, tokens = piece.finish or finish, piece.tokens or tokens
            chars += len(piece.text)
            check_length(chars, max_tokens, self._who(server))
            if text := joiner.add(piece.text):
                said.append(text)
                yield text
        if not finish:
            what = "the stream ended before the answer did" if came else "what came is no stream of the OpenAI protocol"
            raise LanguageModelUnavailable(f"{self._who(server)}: {what}; try again, or check the address")
        if text := joiner.end():
            said.append(text)
            yield text
        whole = "".join(said)
        check_said(whole, finish, self._who(server))
        return Reply(whole, self._model, *tokens, finish)

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
            found = self._tried(partial(_call, client, sent, read), server, streams=streams)
            if not isinstance(found, Failure):
                return found
            failure = found
            learned = self._dialects[server].learn(failure, sent)
            if not learned:
                break
            refused = learned if learned in SHAPES else refused
        assert failure
        raise self._error(failure)

    def _tried(self, call: Callable[[], T], server: Server, *, streams: bool) -> T | Failure:
        try:
            return call()
        except InvalidReply as error:
            told = masked(str(error), secrets(server))  # it may quote the model
        except Exception as error:  # noqa: BLE001  a server can send anything; the package passes on what it trips over
            return explain(error, server, self._model, seconds="stream_seconds" if streams else "timeout")
        raise InvalidReply(told)

    def _error(self, failure: Failure) -> LanguageModelError:
        if failure.kind == "too_long":
            return PromptTooLong(f"{failure.message}; shorten the conversation")
        if failure.kind == "rejected":
            return InvalidReply(failure.message)
        return LanguageModelUnavailable(failure.message)

    def _server(self, lost: Mapping[Server, str]) -> Server:
        """The server to ask, none of the `lost`, whose errors these are."""
        server = self._first.pick(but=lost)
        if server is not None and lost:
            log.warning("%s; going on with %s", [*lost.values()][-1], self._who(server))
        if server is None and lost:
            raise LanguageModelUnavailable("; then ".join(lost.values()))
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
