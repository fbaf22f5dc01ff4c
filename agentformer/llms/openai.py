"""Language models on any server with the chat protocol of OpenAI, such as OpenAI, LM Studio, Ollama, llama.cpp and
vLLM."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from agentformer.errors import InvalidInput, InvalidReply, LanguageModelUnavailable, PromptTooLong
from agentformer.http.openai_client import (
    LMSTUDIO_URL,
    OLLAMA_URL,
    Failure,
    FirstThatAnswers,
    Server,
    candidates,
    explain,
    open_client,
)
from agentformer.http.redaction import mask, redact, with_path
from agentformer.http.retry_policy import Policy
from agentformer.llms import chat_protocol
from agentformer.llms.structured import Mismatch, Schema
from agentformer.settings import Settings
from agentformer.types import ChatMessage, Reply, Tool

if TYPE_CHECKING:
    import openai

log = logging.getLogger("agentformer")
T = TypeVar("T")
_TRIES = 6  # attempts of one request: one for each option that a server may refuse
_QUOTED_REPLY = 2000  # characters of an invalid reply that are sent back to the model


def chat_servers(provider: str, model: str, settings: Settings) -> tuple[Server, ...]:
    """Return the servers that may have the model of a provider, the preferred one first. The result is empty if the
    provider has no server with the protocol of OpenAI."""
    if provider == "openai":
        return candidates(
            model,
            explicit_url=settings.llm_base_url,
            explicit_key=settings.llm_api_key,
            openai_key=settings.openai_api_key,
            openai_url=settings.openai_base_url,
            lmstudio_url=settings.lmstudio_base_url,
            ollama_url=settings.ollama_base_url,
        )
    own = {"ollama": settings.ollama_base_url or OLLAMA_URL, "lmstudio": settings.lmstudio_base_url or LMSTUDIO_URL}
    if provider not in own:
        return ()
    return (Server(provider, with_path(settings.llm_base_url or own[provider], "/v1"), settings.llm_api_key),)


class OpenAIModel:
    """A chat model on the first server in `servers` that answers. Thread-safe.

    If a call fails, it is repeated on the next server. A stream is not repeated after its first piece. `timeout` is the
    longest time in seconds for a complete reply, and also for the wait between two pieces of a stream. `stream_seconds`
    is the longest time for a complete stream. A failed request is sent again `retries` times at most; the module
    `http.retry_policy` contains the rules.
    """

    def __init__(
        self, model: str, servers: Sequence[Server], *, timeout: float, retries: int, stream_seconds: float
    ) -> None:
        self._model = model
        self._choice = FirstThatAnswers(servers)
        policies = {False: Policy(timeout, retries=retries), True: Policy(timeout, stream_seconds, retries=retries)}
        self._servers = {server: _ChatServer(server, model, policies) for server in servers}
        for server in servers[:1]:  # reports a missing package or an invalid key now, not at the first question
            self._servers[server].client(streams=False)

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> OpenAIModel:
        """Return the model on the servers that the settings name. Raise `MissingExtra` if the package `openai` is not
        installed. Raise `InvalidInput` if the name of the model is empty, or if a key contains characters that a header
        cannot contain."""
        return cls._at(model, chat_servers("openai", model, settings), settings)

    @classmethod
    def ollama(cls, model: str, settings: Settings) -> OpenAIModel:
        """Return a model on the Ollama server of the settings. The errors are those of `from_settings`."""
        return cls._at(model, chat_servers("ollama", model, settings), settings)

    @classmethod
    def lmstudio(cls, model: str, settings: Settings) -> OpenAIModel:
        """Return a model on the LM Studio server of the settings. The errors are those of `from_settings`."""
        return cls._at(model, chat_servers("lmstudio", model, settings), settings)

    @classmethod
    def _at(cls, model: str, servers: Sequence[Server], settings: Settings) -> OpenAIModel:
        if not model.strip():
            raise InvalidInput(
                "llm_model", "names no model; write the name of a model after the colon, such as ollama:gemma3"
            )
        return cls(
            model.strip(),
            servers,
            timeout=settings.llm_timeout,
            retries=settings.llm_retries,
            stream_seconds=settings.llm_stream_seconds,
        )

    @property
    def has_fallback(self) -> bool:
        """True if another server answers, and the next call after a failed call will use that server."""
        return self._choice.has_fallback

    def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.3,
        max_tokens: int = 512,
    ) -> Reply:
        """Return a complete reply, as `LanguageModel.complete` describes. If the JSON of the reply is not valid under
        `schema`, the model is asked once more."""
        chat_protocol.check_request(messages, temperature=temperature, max_tokens=max_tokens, tools=tools)
        shape = None if schema is None else Schema(schema)
        request = _ChatRequest(messages, temperature, max_tokens, tuple(tools), shape)
        return self._first_reply(lambda server: self._servers[server].complete(request))

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Generator[str, None, Reply]:
        """Yield the pieces of a reply, as `LanguageModel.stream` describes. If the caller closes this generator, the
        connection to the server is closed."""
        chat_protocol.check_request(messages, temperature=temperature, max_tokens=max_tokens)
        request = _ChatRequest(messages, temperature, max_tokens)

        def begin(server: Server) -> tuple[Server, str, Generator[str, None, Reply]]:
            pieces = self._servers[server].stream(request)
            return server, next(pieces), pieces  # if the stream has no piece, the error is raised here

        server, first, rest = self._first_reply(begin)
        try:
            yield first
            return (yield from rest)
        except LanguageModelUnavailable:
            self._choice.pick(exclude=[server])  # the next call can use another server
            raise
        finally:
            rest.close()

    def _first_reply(self, call: Callable[[Server], T]) -> T:
        """Call `call(server)` with one server after another, and return the first result. If no server is available,
        raise `LanguageModelUnavailable` with the messages of all servers."""
        failed: dict[Server, str] = {}
        while True:
            server = self._choice.pick(exclude=failed)
            if server is None and failed:
                raise LanguageModelUnavailable("; then ".join(failed.values()))
            if server is None:
                raise LanguageModelUnavailable(
                    f"No server is reachable for model {self._model!r} (tried {self._choice.tried}); "
                    "start a server, or set AGENTFORMER_LLM_BASE_URL to the address of a server"
                )
            if failed:
                log.warning("%s; trying %s next", [*failed.values()][-1], server)
            try:
                return call(server)
            except LanguageModelUnavailable as error:
                failed[server] = str(error)


@dataclass(frozen=True, slots=True)
class _ChatRequest:
    messages: Sequence[ChatMessage]
    temperature: float
    max_tokens: int
    tools: tuple[Tool, ...] = ()
    schema: Schema | None = None


class _ChatServer:
    """A chat model on one server. `policies` has the time limits and the number of retries: `policies[True]` for
    streams, and `policies[False]` for complete replies."""

    def __init__(self, server: Server, model: str, policies: Mapping[bool, Policy]) -> None:
        self._server = server
        self._model = model
        self._title = f"model {model!r} on {server}"
        self._policies = policies
        self._capabilities = chat_protocol.Capabilities()
        self._clients: dict[bool, openai.OpenAI] = {}
        self._lock = threading.Lock()

    def client(self, *, streams: bool) -> openai.OpenAI:
        """Return the HTTP client for streams or the HTTP client for complete replies. There are two clients, because
        streams and complete replies have different time limits. The errors are the same as for `open_client`."""
        with self._lock:
            if streams not in self._clients:
                self._clients[streams] = open_client(self._server, self._policies[streams])
            return self._clients[streams]

    def complete(self, request: _ChatRequest) -> Reply:
        """Return a complete reply. If the JSON of the reply is not valid under the schema of the request, ask the model
        once more with a description of the problem. Raise `InvalidReply` if the second reply is not valid either."""
        schema = request.schema
        if schema is None:
            return self._complete(request)
        read = written = 0
        wrong = ""
        attempt = request
        for _ in range(2):
            reply = self._complete(attempt)
            read, written = read + reply.tokens_in, written + reply.tokens_out
            reply = replace(reply, tokens_in=read, tokens_out=written)
            if reply.tool_calls:
                return reply
            if reply.finish == "length":
                raise InvalidReply(f"{self._title}: the JSON was cut off at max_tokens; raise max_tokens")
            try:
                text, data = schema.read(reply.text)
                return replace(reply, text=text, data=data)
            except Mismatch as mismatch:
                wrong = str(mismatch)
            correction = f"That answer cannot be used:\n{wrong}\n\n{schema.instruction}"
            invalid = ChatMessage("assistant", reply.text[:_QUOTED_REPLY])
            attempt = replace(request, messages=[*request.messages, invalid, ChatMessage("user", correction)])
        wrong = redact(wrong, self._server.credentials.secrets)
        raise InvalidReply(f"{self._title} returned no valid JSON in two attempts: {wrong}")

    def _complete(self, request: _ChatRequest) -> Reply:
        def body(refused: str) -> dict[str, Any]:  # see `_send`
            messages, options = request.messages, self._options(request, stream=False)
            if request.schema:
                messages, shape = self._capabilities.json_request(messages, request.schema, refused)
                options |= shape
            if request.tools:
                options["tools"] = [chat_protocol.tool_out(tool) for tool in request.tools]
            sent = [chat_protocol.message_out(message) for message in messages]
            return {"model": self._model, "messages": sent, **options}

        return self._send(body, lambda done: chat_protocol.reply_in(done, self._title, self._model, request.max_tokens))

    def stream(self, request: _ChatRequest) -> Generator[str, None, Reply]:
        """Yield the pieces of the reply, at least one piece. At the end, return the complete reply as the value of the
        generator."""
        messages = [chat_protocol.message_out(message) for message in request.messages]

        def body(refused: str) -> dict[str, Any]:
            return {"model": self._model, "messages": messages, **self._options(request, stream=True)}

        def read(parts: Any) -> Any:
            completion = chat_protocol.unstreamed_in(parts)
            if completion is None:
                return parts
            return chat_protocol.reply_in(completion, self._title, self._model, request.max_tokens)

        parts = self._send(body, read, streams=True)
        if isinstance(parts, Reply):
            yield parts.text
            return parts
        try:
            return (yield from self._pieces(parts, request.max_tokens))
        finally:
            parts.close()

    def _options(self, request: _ChatRequest, *, stream: bool) -> dict[str, Any]:
        return self._capabilities.options(temperature=request.temperature, max_tokens=request.max_tokens, stream=stream)

    def _pieces(self, parts: Any, max_tokens: int) -> Generator[str, None, Reply]:
        """Yield the texts of the stream `parts`, and return the reply. Raises `LanguageModelError` if it is cut off."""
        texts: list[str] = []
        joiner = chat_protocol.SurrogateJoiner()
        finish: chat_protocol.Finish = ""
        tokens = (0, 0)
        chars = events = 0
        while True:
            piece = self._attempt(lambda: chat_protocol.piece_in(next(parts, None)), streams=True)
            if isinstance(piece, Failure) and not finish:
                raise _error(piece)
            if piece is None or isinstance(piece, Failure):  # after the end of the reply, only token counts can be lost
                break
            events += 1
            finish, tokens = piece.finish or finish, piece.tokens or tokens
            chars += len(piece.text)
            chat_protocol.check_length(chars, max_tokens, self._title)
            if text := joiner.add(piece.text):
                texts.append(text)
                yield text
        if not finish:
            problem = "the stream ended before the reply was complete"
            if not events:
                problem = "the response is not a stream of the OpenAI protocol"
            raise LanguageModelUnavailable(f"{self._title}: {problem}; try again, or check the address")
        if text := joiner.end():
            texts.append(text)
            yield text
        chat_protocol.check_text("".join(texts), finish, self._title)
        return Reply("".join(texts), self._model, *tokens, finish)

    def _send(self, body: Callable[[str], dict[str, Any]], read: Callable[[Any], T], *, streams: bool = False) -> T:
        """Send a request, and return the result of `read(response)`. The time limits are those of a stream if `streams`
        is true. If the server refuses an option of the request, send the request again without this option.
        `body(refused)` returns the JSON of the request. `refused` is the format for JSON replies that the server has
        just refused, or "", so that `body` can choose another format."""
        create: Any = self.client(streams=streams).chat.completions.create  # the type stubs accept no dictionary
        refused = ""
        for attempt in range(_TRIES):
            sent = body(refused)
            result = self._attempt(partial(_call, create, sent, read), streams=streams)
            if not isinstance(result, Failure):
                return result
            learned = self._capabilities.learn(result, sent)
            if not learned or attempt == _TRIES - 1:
                raise _error(result)
            refused = learned if learned in chat_protocol.SHAPES else refused
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, call: Callable[[], T], *, streams: bool) -> T | Failure:
        try:
            return call()
        except InvalidReply as error:
            message = mask(str(error), self._server.credentials.secrets)  # the error may quote the model
        except Exception as error:  # noqa: BLE001 - a server can send anything, and the package raises many classes
            setting = "stream_seconds" if streams else "timeout"
            return explain(error, self._server, self._model, seconds=setting)
        raise InvalidReply(message)


def _call(create: Any, sent: Mapping[str, Any], read: Callable[[Any], T]) -> T:
    return read(create(**sent))


def _error(failure: Failure) -> PromptTooLong | InvalidReply | LanguageModelUnavailable:
    if failure.kind == "too_long":
        return PromptTooLong(f"{failure.message}; shorten the conversation")
    if failure.kind == "rejected":
        return InvalidReply(failure.message)
    return LanguageModelUnavailable(failure.message)
