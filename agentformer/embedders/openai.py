"""Embedding models on any server that has the endpoint `/v1/embeddings`: OpenAI, LM Studio, llama.cpp, vLLM and others.
The module uses the package `openai`."""

from __future__ import annotations

import re
from typing import Any

from agentformer.embedders.model_info import model_card
from agentformer.embedders.remote import UNKNOWN_CONTEXT, RemoteEmbedder, RemoteOptions, TimedOut, Vectors
from agentformer.errors import EmbedderUnavailable, InvalidInput, TextTooLong
from agentformer.http.openai_client import FirstThatAnswers, Server, candidates, explain, open_client
from agentformer.settings import Settings

DEFAULT_MODEL = "text-embedding-3-small"
# https://platform.openai.com/docs/guides/embeddings: tokens of one text, and of all texts of one request.
_OPENAI_MODEL = re.compile(r"text-embedding-(3-small|3-large|ada-002)$")
_OPENAI_CONTEXT = 8191
_REQUEST_TOKENS = 300_000


class OpenAIEmbedder(RemoteEmbedder):
    """The embedder with the name `openai:MODEL` or `openai:MODEL@DIMENSIONS` in the settings. Raises
    `EmbedderUnavailable` if the server is not reachable or does not have the model. Raises `MissingExtra` if the
    package `openai` is not installed."""

    def __init__(self, model: str, server: Server, options: RemoteOptions | None = None) -> None:
        options = options or RemoteOptions()
        self._model, self._dimensions = parse_model(model)
        self._spec = f"openai:{model}"
        self._server = server
        self._client = open_client(server, options.policy)
        super().__init__("openai", model, server.address, options, batch_tokens=_REQUEST_TOKENS)
        context = _OPENAI_CONTEXT if _OPENAI_MODEL.match(self._model) else UNKNOWN_CONTEXT
        self._describe(model, context, model_card(self._model), dimension=self._dimensions)

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> OpenAIEmbedder:
        """Connect to the server of the settings. If several servers are allowed, connect to the first that answers."""
        model = model or DEFAULT_MODEL
        servers = FirstThatAnswers(
            candidates(
                parse_model(model)[0],
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
                f"no server is reachable for embedder 'openai:{model}' (tried {servers.tried}); start a server, or set "
                "AGENTFORMER_EMBED_BASE_URL or OPENAI_BASE_URL to the address of a server"
            )
        return cls(model, server, RemoteOptions.from_settings(settings))

    def _request(self, texts: list[str]) -> Vectors:
        body: dict[str, Any] = {"model": self._model, "input": texts, "encoding_format": "float"}
        if self._dimensions:
            body["dimensions"] = self._dimensions
        try:  # read as plain JSON: the package's type of this response accepts "1" and true as numbers
            response = self._client.post("/embeddings", cast_to=object, body=body)
        except Exception as error:  # noqa: BLE001 - the package and its parsers raise many classes
            failure = explain(error, self._server, self._model, settings="embed")
        else:
            if isinstance(response, str) and response.lstrip().startswith("<"):
                raise EmbedderUnavailable(
                    f"{self._title} returned HTML instead of JSON; check the address (AGENTFORMER_EMBED_BASE_URL)"
                )
            return _vectors(response)
        if failure.kind == "timeout":
            raise TimedOut(f"returned HTTP {failure.status}" if failure.status else failure.detail)
        kind = TextTooLong if failure.kind == "too_long" else EmbedderUnavailable
        raise kind(f"{self._spec}: {failure.message}")


def parse_model(spec: str) -> tuple[str, int]:
    """Split `MODEL@DIMENSIONS` into the model and the number of dimensions. Only a number after the last "@" is read,
    because the names of quantized models can contain "@" too. If there is no such number, the second result is 0, which
    means the default dimension of the model. Raise `InvalidInput` if the number is not in 1..65536."""
    model, _, dimensions = spec.rpartition("@")
    if not (model and dimensions.isascii() and dimensions.isdecimal()):
        return spec, 0
    if not 1 <= int(dimensions[:9]) <= 65_536:
        raise InvalidInput("embedder", f"the number of dimensions in {spec} must be between 1 and 65536")
    return model, int(dimensions)


def _vectors(body: Any) -> Vectors:
    """Return the vectors of a response in the order of the texts. A server may send the vectors in another order; the
    field `index` of each vector then contains the index of its text."""
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        return Vectors(None, 0)
    indices: list[Any] = [item.get("index") for item in data]
    if all(type(index) is int for index in indices):
        if sorted(indices) != list(range(len(indices))):
            return Vectors(None, 0)
        data = sorted(data, key=lambda item: int(item["index"]))
    usage = body.get("usage")
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else 0
    return Vectors([item.get("embedding") for item in data], tokens if type(tokens) is int else 0)
