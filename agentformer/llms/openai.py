"""Any server that speaks the OpenAI chat protocol: OpenAI itself, LM Studio, Ollama, llama.cpp, vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from agentformer.errors import LanguageModelUnavailable, MissingExtra
from agentformer.settings import Settings
from agentformer.types import ChatMessage, Reply

_NO_KEY = "none"  # the client refuses to start without a key; local servers ignore it


class OpenAIModel:
    """Chat completions with a timeout and retries (429, 5xx, lost connections), as the settings say."""

    def __init__(self, model: str, *, base_url: str, api_key: str, timeout: float, retries: int) -> None:
        try:
            import openai
        except ImportError:
            raise MissingExtra("llm", "a language model over HTTP") from None
        self._errors = openai.OpenAIError
        self._model = model
        self._client = openai.OpenAI(
            base_url=base_url or None, api_key=api_key or _NO_KEY, timeout=timeout, max_retries=retries
        )

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> OpenAIModel:
        return cls(
            model,
            base_url=settings.llm_base_url,
            api_key=settings.llm_api_key,
            timeout=settings.llm_timeout,
            retries=settings.llm_retries,
        )

    def complete(self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512) -> Reply:
        try:
            done = self._client.chat.completions.create(
                model=self._model, messages=_wire(messages), temperature=temperature, max_tokens=max_tokens
            )
            text = done.choices[0].message.content
        except (self._errors, IndexError, AttributeError, TypeError, ValueError) as error:
            raise self._unavailable(error) from error
        if not text:
            raise LanguageModelUnavailable(f"{self._model} at {self._address()} returned no text")
        usage = done.usage
        return Reply(text, self._model, usage.prompt_tokens if usage else 0, usage.completion_tokens if usage else 0)

    def stream(
        self, messages: Sequence[ChatMessage], *, temperature: float = 0.3, max_tokens: int = 512
    ) -> Iterator[str]:
        try:
            parts = self._client.chat.completions.create(
                model=self._model, messages=_wire(messages), temperature=temperature, max_tokens=max_tokens, stream=True
            )
            for part in parts:
                if part.choices and part.choices[0].delta.content:
                    yield part.choices[0].delta.content
        except (self._errors, AttributeError, TypeError, ValueError) as error:
            raise self._unavailable(error) from error

    def _address(self) -> str:
        """Where the server is, without credentials."""
        parts = urlsplit(str(self._client.base_url))
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"

    def _unavailable(self, error: Exception) -> LanguageModelUnavailable:
        # The client's own text may quote the key that a server refused, so only its kind is passed on.
        kind = type(error).__name__
        return LanguageModelUnavailable(
            f"{self._model} at {self._address()} did not answer ({kind}); "
            "check that the server runs, the model's name and the key"
        )


def _wire(messages: Sequence[ChatMessage]) -> Any:
    return [{"role": message.role, "content": message.content} for message in messages]
