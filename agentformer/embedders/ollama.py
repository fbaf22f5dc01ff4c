"""Embedding models on an Ollama server. The module uses Ollama's own API: the endpoint `/api/embed`, or the endpoint
`/api/embeddings` of older servers.

The API is described at https://docs.ollama.com/api/embed. With `truncate: false`, the endpoint `/api/embed` refuses a
text that is too long. The older endpoint cuts such a text without an error. So this module estimates the tokens of a
text, and refuses a text before it is sent if the estimate is above the limit. The estimate is higher than the real
count, so no text is cut.

After a refusal, `index.embedding.windows` divides an entry into shorter windows and sends them again; a query is split
again by `RemoteEmbedder.embed_query`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from agentformer.embedders.model_info import model_card
from agentformer.embedders.remote import (
    GATEWAY_TIMEOUT,
    TIMEOUT_ADVICE,
    UNKNOWN_CONTEXT,
    RemoteEmbedder,
    RemoteOptions,
    TimedOut,
    Vectors,
)
from agentformer.errors import EmbedderUnavailable, TextTooLong
from agentformer.http.client import HttpFailure, JsonClient
from agentformer.http.retry_policy import is_overflow
from agentformer.settings import Settings

DEFAULT_MODEL = "nomic-embed-text"
_DEFAULT_CONTEXT = 2048  # the context of a model without `num_ctx` in older releases; windows need no more tokens
_NUM_CTX = re.compile(r"^[ \t]*num_ctx[ \t]+(\d+)", re.MULTILINE)
_ADDRESS_SETTINGS = "OLLAMA_BASE_URL or AGENTFORMER_EMBED_BASE_URL"


class OllamaEmbedder(RemoteEmbedder):
    """The embedder with the name `ollama:MODEL` in the settings. Raises `EmbedderUnavailable` if the server is not
    reachable or does not have the model."""

    def __init__(
        self, model: str, base_url: str, options: RemoteOptions | None = None, *, key: str = "", keep_alive: str = "5m"
    ) -> None:
        options = options or RemoteOptions()
        self._model = model
        self._client = JsonClient(base_url, options.policy, key=key)
        self._keep_alive = int(keep_alive) if keep_alive.lstrip("-").isdecimal() else keep_alive  # a number is seconds
        self._has_embed: bool | None = None  # None until the first response
        super().__init__("ollama", model, self._client.address, options)
        self._describe(model, self._context(), model_card(model), revision=self._digest())

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> OllamaEmbedder:
        """Connect to the server whose address is in the settings. A `/v1` at the end of the address is ignored."""
        base_url = settings.embed_base_url or settings.ollama_base_url
        return cls(
            model or DEFAULT_MODEL,
            base_url.rstrip("/").removesuffix("/v1"),
            RemoteOptions.from_settings(settings),
            key=settings.embed_api_key,
            keep_alive=settings.embed_keep_alive,
        )

    @property
    def request_texts(self) -> int:
        """The number of texts in the next request: 1 for the older endpoint, which accepts one text in a request."""
        return 1 if self._has_embed is False else super().request_texts

    def _request(self, texts: list[str]) -> Vectors:
        """Embed the texts with `/api/embed`. If the server lacks it, use the older endpoint now and in later calls."""
        if self._has_embed is False:
            return Vectors([self._request_older(text) for text in texts], 0)
        payload = {"model": self._model, "input": texts, "truncate": False, "keep_alive": self._keep_alive}
        try:
            body = self._client.post("/api/embed", payload)
        except HttpFailure as failure:
            if self._has_embed or not _lacks_endpoint(failure):
                raise self._embed_error(failure) from None
            vectors = Vectors([self._request_older(text) for text in texts], 0)
            self._has_embed = False
            return vectors
        self._has_embed = True
        if not isinstance(body, dict):
            return Vectors(None, 0)
        tokens = body.get("prompt_eval_count")
        return Vectors(body.get("embeddings"), tokens if type(tokens) is int else 0)

    def _request_older(self, text: str) -> object:
        payload = {"model": self._model, "prompt": text, "keep_alive": self._keep_alive}
        try:
            body = self._client.post("/api/embeddings", payload)
        except HttpFailure as failure:
            raise self._embed_error(failure) from None
        return body.get("embedding") if isinstance(body, dict) else None

    def _context(self) -> int:
        """Return the number of tokens that the model reads on this server, or `UNKNOWN_CONTEXT`."""
        body = self._optional(lambda: self._client.post("/api/show", {"model": self._model, "name": self._model}))
        info = body.get("model_info")
        lengths = [
            value
            for name, value in (info.items() if isinstance(info, dict) else ())
            if name.endswith(".context_length") and type(value) is int and value > 0
        ]
        parameters = body.get("parameters")
        num_ctx = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
        return min([*lengths, int(num_ctx[1]) if num_ctx else _DEFAULT_CONTEXT]) if lengths else UNKNOWN_CONTEXT

    def _digest(self) -> str:
        """Return the digest of the files of the model, or "" if the list of models of the server lacks the model."""
        models = self._optional(lambda: self._client.get("/api/tags")).get("models")
        for model in models if isinstance(models, list) else ():
            if isinstance(model, dict) and model.get("name") in (self._model, f"{self._model}:latest"):
                return str(model.get("digest") or "")
        return ""

    def _optional(self, call: Callable[[], Any]) -> dict[str, Any]:
        """Send a request with `call` and return the JSON object of the response. Return {} if the server does not have
        the endpoint, or if the response is not a JSON object."""
        try:
            body = call()
        except HttpFailure as failure:
            if not _lacks_endpoint(failure):
                raise self._unavailable(failure) from None
            return {}
        return body if isinstance(body, dict) else {}

    def _embed_error(self, failure: HttpFailure) -> EmbedderUnavailable | TextTooLong | TimedOut:
        if failure.cause == "timeout" or failure.status in GATEWAY_TIMEOUT:
            return TimedOut(str(failure).removeprefix(f"{self._client.address} "))
        if is_overflow(failure.status, failure.excerpt):
            reason = failure.excerpt or f"HTTP {failure.status}"
            return TextTooLong(f"{self._title} refused a text that is too long for the model: {reason}")
        return self._unavailable(failure)

    def _unavailable(self, failure: HttpFailure) -> EmbedderUnavailable:
        if failure.status == 404 and not _lacks_endpoint(failure):
            advice = f"get the model with `ollama pull {self._model}`"
        elif failure.status in (401, 403):
            advice = "set AGENTFORMER_EMBED_API_KEY to a key that this server accepts"
        elif failure.cause == "refused":
            advice = f"start the server with `ollama serve`, or set {_ADDRESS_SETTINGS} to its address"
        elif failure.cause == "timeout":
            advice = TIMEOUT_ADVICE
        elif failure.cause == "size":
            advice = "lower AGENTFORMER_EMBED_BATCH, and check that this is the address of an Ollama server"
        elif failure.retryable and failure.cause != "host":
            advice = "try again later; if the error remains, check the server's log"
        else:
            advice = f"check that {_ADDRESS_SETTINGS} is the address of an Ollama server"
        return EmbedderUnavailable(f"ollama:{self._model}: {failure}; {advice}")


def _lacks_endpoint(failure: HttpFailure) -> bool:
    """Return True if the request failed because the server does not have the endpoint. A 404 with the word "model" in
    its message has another cause: the server does not have the model."""
    return failure.status in (404, 405) and "model" not in failure.excerpt.lower()
