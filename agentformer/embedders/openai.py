"""Any server with `/v1/embeddings`: OpenAI, LM Studio, llama.cpp, vLLM and others, through the `openai` package."""

from __future__ import annotations

import re
from typing import Any

from agentformer.embedders.known import habits
from agentformer.embedders.remote import Answer, RemoteEmbedder, Slow, overflows
from agentformer.errors import EmbedderUnavailable, InvalidInput, TextTooLong
from agentformer.http.limits import OverLimit
from agentformer.http.openai_client import Failure, explain, open_client
from agentformer.http.servers import FirstThatAnswers, Server, candidates
from agentformer.settings import Settings

DEFAULT_MODEL = "text-embedding-3-small"
# https://platform.openai.com/docs/guides/embeddings: tokens of one text, and of all texts of one request.
_OPENAI_MODEL = re.compile(r"text-embedding-(3-small|3-large|ada-002)$")
_OPENAI_CONTEXT = 8191
_REQUEST_TOKENS = 300_000
_UNKNOWN_CONTEXT = 512  # no server tells; embedding models that read less are rare
_GAVE_UP = (408, 504)  # a gateway's words for a model that took too long


class OpenAIEmbedder(RemoteEmbedder):
    """`openai:MODEL` or `openai:MODEL@DIMENSIONS`. Raises `EmbedderUnavailable` when the server does not answer or
    lacks the model, and `MissingExtra` without the package."""

    provider = "openai"

    def __init__(
        self,
        model: str,
        server: Server,
        *,
        timeout: float = 60.0,
        retries: int = 2,
        batch: int = 64,
        languages: str = "",
    ) -> None:
        self._model, self._dimensions = parsed(model)
        self._server = server
        self._client = open_client(server, timeout=timeout, retries=retries, seconds=timeout)
        super().__init__(
            model, server.address, batch=batch, timeout=timeout, languages=languages, batch_tokens=_REQUEST_TOKENS
        )
        context = _OPENAI_CONTEXT if _OPENAI_MODEL.match(self._model) else _UNKNOWN_CONTEXT
        self._space = self._describe(model, context, habits(self._model), dimension=self._dimensions)

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> OpenAIEmbedder:
        model = model or DEFAULT_MODEL
        servers = FirstThatAnswers(
            candidates(
                parsed(model)[0],
                explicit_url=settings.embed_base_url,
                explicit_key=settings.embed_api_key,
                openai_key=settings.openai_api_key,
                openai_url=settings.openai_base_url,
                lmstudio_url=settings.lmstudio_base_url,
                ollama_url=settings.ollama_base_url,
            )
        )
        server = servers.pick()
        if server is None:
            raise EmbedderUnavailable(
                f"openai:{model}: no server answers (asked {servers.tried}); start one, or set "
                "AGENTFORMER_EMBED_BASE_URL or OPENAI_BASE_URL"
            )
        return cls(
            model,
            server,
            timeout=settings.embed_timeout,
            retries=settings.embed_retries,
            batch=settings.embed_batch,
            languages=settings.embed_languages,
        )

    def _ask(self, texts: list[str]) -> Answer:
        body: dict[str, Any] = {"model": self._model, "input": texts, "encoding_format": "float"}
        if self._dimensions:
            body["dimensions"] = self._dimensions
        try:  # as plain JSON: the client's own type of this answer would take "1" and true for numbers
            found = self._client.post("/embeddings", cast_to=object, body=body)
        except Exception as error:  # noqa: BLE001 - the client and what parses its answer raise many kinds
            slow = _slowness(error)
            failure = explain(error, self._server, self._model, settings="embed")
        else:
            if isinstance(found, str) and found.lstrip().startswith("<"):
                raise EmbedderUnavailable(
                    f"{self._who} answered with HTML; is this the right address (AGENTFORMER_EMBED_BASE_URL)?"
                )
            return _answer(found)
        if slow:
            raise Slow(slow)
        raise self._translated(failure)

    def _translated(self, failure: Failure) -> EmbedderUnavailable | TextTooLong:
        # A 429 speaks of tokens per minute.
        if failure.kind == "too_long" or (failure.status not in (0, 429) and overflows(failure.said)):
            return TextTooLong(f"openai:{failure.message}")
        return EmbedderUnavailable(f"openai:{failure.message}")


def parsed(spec: str) -> tuple[str, int]:
    """Model and dimensions, 0 for the model's own. Only a number after the last "@" counts as dimensions: names of
    quantised models have an "@" too. Raises `InvalidInput`."""
    model, _, dimensions = spec.rpartition("@")
    if not (model and dimensions.isascii() and dimensions.isdecimal()):
        return spec, 0
    if not 1 <= int(dimensions[:9]) <= 65_536:
        raise InvalidInput("embedder", f"{spec} needs dimensions in 1..65536")
    return model, int(dimensions)


def _slowness(error: BaseException) -> str:
    """What to say of an error that fewer texts may mend; "" of another."""
    if (status := getattr(error, "status_code", 0)) in _GAVE_UP:
        return f"took too long for the gateway before it (status {status})"
    cause: BaseException | None = error
    for _ in range(8):  # the package's error, the HTTP library's and ours; and nobody's circle
        if isinstance(cause, OverLimit) and cause.longer:
            return str(cause)
        cause = cause.__cause__ if cause else None
    return ""


def _answer(body: Any) -> Answer:
    """In the order of the texts, which servers give as `index` and may not keep."""
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        return Answer(None, 0)
    places: list[Any] = [item.get("index") for item in data]
    if all(type(place) is int for place in places):
        if sorted(places) != list(range(len(places))):
            return Answer(None, 0)
        data = sorted(data, key=lambda item: int(item["index"]))
    usage = body.get("usage")
    read = usage.get("prompt_tokens") if isinstance(usage, dict) else 0
    return Answer([item.get("embedding") for item in data], read if type(read) is int else 0)
