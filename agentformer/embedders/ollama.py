"""Models that an Ollama server holds, through its own API: `/api/embed`, or `/api/embeddings` where that is missing.

https://docs.ollama.com/api/embed. `truncate: false` makes the server refuse what it would otherwise cut; the older
endpoint cuts unseen, and only the estimate of tokens, which counts high, keeps texts within the model there.
"""

from __future__ import annotations

import re
from typing import Any

from agentformer.embedders.known import habits
from agentformer.embedders.remote import PATIENCE, Answer, RemoteEmbedder, Slow, overflows
from agentformer.errors import EmbedderUnavailable, TextTooLong
from agentformer.http.client import HttpFailure, JsonClient
from agentformer.settings import Settings

DEFAULT_MODEL = "nomic-embed-text"
# What Ollama gives a model that is not told otherwise, in its older releases; windows have no use for more.
_DEFAULT_CONTEXT = 2048
_UNKNOWN_CONTEXT = 512  # of a model about which the server says nothing; embedding models below this are rare
_GAVE_UP = (408, 504)  # a gateway's words for a model that took too long
_NUM_CTX = re.compile(r"^\s*num_ctx\s+(\d+)", re.MULTILINE)


class OllamaEmbedder(RemoteEmbedder):
    """`ollama:MODEL`. Raises `EmbedderUnavailable` when the server does not answer or lacks the model."""

    provider = "ollama"

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        key: str = "",
        timeout: float = 60.0,
        retries: int = 2,
        batch: int = 64,
        keep_alive: str = "5m",
        languages: str = "",
    ) -> None:
        self._model = model
        self._timeout = timeout
        self._client = JsonClient(base_url, key=key, timeout=timeout, retries=retries, final=overflows)
        self._keep_alive = int(keep_alive) if keep_alive.lstrip("-").isdecimal() else keep_alive
        self._has_embed: bool | None = None  # not known before the first answer, and settled by it
        super().__init__(model, self._client.address, batch=batch, timeout=timeout, languages=languages)
        self._space = self._describe(model, self._context(), habits(model), revision=self._digest())

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> OllamaEmbedder:
        base_url = settings.embed_base_url or settings.ollama_base_url
        return cls(
            model or DEFAULT_MODEL,
            base_url.rstrip("/").removesuffix("/v1"),
            key=settings.embed_api_key,
            timeout=settings.embed_timeout,
            retries=settings.embed_retries,
            batch=settings.embed_batch,
            keep_alive=settings.embed_keep_alive,
            languages=settings.embed_languages,
        )

    @property
    def request_texts(self) -> int:
        return 1 if self._has_embed is False else super().request_texts

    def _ask(self, texts: list[str]) -> Answer:
        if self._has_embed is False:
            return Answer([self._ask_older(text) for text in texts], 0)
        payload = {"model": self._model, "input": texts, "truncate": False, "keep_alive": self._keep_alive}
        try:
            answer = _answer(self._client.post("/api/embed", payload))
        except HttpFailure as failure:
            if self._has_embed or not _lacks_endpoint(failure):
                raise self._embedding(failure) from None
            answer = Answer([self._ask_older(text) for text in texts], 0)
            self._has_embed = False
        else:
            self._has_embed = True
        return answer

    def _ask_older(self, text: str) -> object:
        payload = {"model": self._model, "prompt": text, "keep_alive": self._keep_alive}
        try:
            found = self._client.post("/api/embeddings", payload)
        except HttpFailure as failure:
            raise self._embedding(failure) from None
        return found.get("embedding") if isinstance(found, dict) else None

    def _context(self) -> int:
        """Tokens that the model reads on this server."""
        try:
            shown = self._client.post("/api/show", {"model": self._model, "name": self._model})
        except HttpFailure as failure:
            if not _lacks_endpoint(failure):
                raise self._translated(failure) from None
            return _UNKNOWN_CONTEXT
        told = shown if isinstance(shown, dict) else {}
        info = told.get("model_info")
        lengths = [
            value
            for name, value in (info.items() if isinstance(info, dict) else ())
            if name.endswith(".context_length") and type(value) is int and value > 0
        ]
        parameters = told.get("parameters")
        given = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
        return min([*lengths, int(given[1]) if given else _DEFAULT_CONTEXT] if lengths else [_UNKNOWN_CONTEXT])

    def _digest(self) -> str:
        """Of the model's files, as the server lists them; "" where it lists none."""
        try:
            listed = self._client.get("/api/tags")
        except HttpFailure as failure:
            if not _lacks_endpoint(failure):
                raise self._translated(failure) from None
            return ""
        models = listed.get("models") if isinstance(listed, dict) else None
        for model in models if isinstance(models, list) else ():
            if isinstance(model, dict) and model.get("name") in (self._model, f"{self._model}:latest"):
                return str(model.get("digest") or "")
        return ""

    def _embedding(self, failure: HttpFailure) -> EmbedderUnavailable | TextTooLong | Slow:
        """What a failed request for vectors means."""
        if failure.cause == "timeout" or failure.status in _GAVE_UP:
            said = f"took too long for the gateway before it (status {failure.status})" if failure.status else ""
            return Slow(said or f"did not answer within {self._timeout:g} s")
        if overflows(failure.excerpt) or failure.status == 413:
            said = failure.excerpt or f"status {failure.status}"
            return TextTooLong(f"{self._who} refused a text as longer than the model reads: {said}")
        return self._translated(failure)

    def _translated(self, failure: HttpFailure) -> EmbedderUnavailable:
        name = f"{self.provider}:{self._model}"
        if failure.status == 200:  # and no JSON; the failure ends with a question
            return EmbedderUnavailable(f"{name}: {failure} Set OLLAMA_BASE_URL or AGENTFORMER_EMBED_BASE_URL")
        if failure.status == 404 and not _lacks_endpoint(failure):
            advice = f"get the model with `ollama pull {self._model}`"
        elif failure.status in (401, 403):
            advice = "set AGENTFORMER_EMBED_API_KEY to a key that this server takes"
        elif failure.cause == "refused":
            advice = "start it with `ollama serve`, or set OLLAMA_BASE_URL or AGENTFORMER_EMBED_BASE_URL"
        elif failure.cause == "timeout":
            advice = PATIENCE
        elif failure.cause == "size":
            advice = "set AGENTFORMER_EMBED_BATCH lower, and check that this is the address of an Ollama server"
        elif failure.retryable and failure.cause != "host":
            advice = "try again later, and look into the server's log if it stays so"
        else:
            advice = "check that OLLAMA_BASE_URL or AGENTFORMER_EMBED_BASE_URL is the address of an Ollama server"
        return EmbedderUnavailable(f"{name}: {failure}; {advice}")


def _answer(body: Any) -> Answer:
    if not isinstance(body, dict):
        return Answer(None, 0)
    read = body.get("prompt_eval_count")
    return Answer(body.get("embeddings"), read if type(read) is int else 0)


def _lacks_endpoint(failure: HttpFailure) -> bool:
    """A 404 of the router, not of a model: the latter's error names the model."""
    return failure.status in (404, 405) and "model" not in failure.excerpt.lower()
