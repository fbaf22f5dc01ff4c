"""Forwards requests for chat completions to the configured server without interpreting them, and returns the
responses."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentformer.errors import LanguageModelUnavailable
from agentformer.http import tracing
from agentformer.http.openai_client import Failure, FirstThatAnswers, Server, explain, open_raw
from agentformer.http.redaction import error_message, redact
from agentformer.http.retry_policy import Policy
from agentformer.settings import Settings

_PASSED_ON = (400, 404, 409, 413, 422, 429, 503, 504)  # statuses that the caller gets; others become 502
_MAX_MESSAGE = 1000  # characters of a server's message
_MAX_SHOWN = 200  # characters of what a server sent instead of a chat completion


@dataclass(frozen=True, slots=True)
class Refusal:
    """A failed request: the status, and the details of the error in OpenAI's format. No field contains an API key."""

    status: int
    message: str
    type: str = "server_error"
    code: str = "upstream_error"
    param: str | None = None
    retry_after: str = ""


class Forwarded:
    """A response with the status 200. The body is one JSON value or a stream, as the request required. `read` and
    `pieces` close the response at the end. A caller that uses neither must call `close`."""

    def __init__(self, response: Any, server: Server, model: str) -> None:
        self._response = response
        self._server = server
        self._model = model
        self.content_type = str(response.headers.get("content-type", "application/json"))

    @property
    def is_stream(self) -> bool:
        """True if the server sends events."""
        return self._media_type == "text/event-stream"

    @property
    def is_json(self) -> bool:
        """True if the server sends JSON."""
        return self._media_type == "application/json" or self._media_type.endswith("+json")

    @property
    def _media_type(self) -> str:
        return self.content_type.partition(";")[0].strip().lower()

    def read(self) -> bytes | Refusal:
        """Return the complete body, which is a chat completion in JSON, or a `Refusal` that says why there is none."""
        try:
            data = bytes(self._response.read())
        except Exception as error:  # noqa: BLE001 - a server can send anything, and the library raises many classes
            return _refusal(explain(error, self._server, self._model, seconds="timeout"))
        finally:
            self.close()
        if _is_completion(data):
            return data
        return _no_completion(redact(error_message(data), self._server.credentials.secrets, _MAX_SHOWN))

    def pieces(self) -> Generator[bytes | Refusal, None, None]:
        """Yield each piece of the body as soon as it arrives. If the stream breaks, the last item is a `Refusal` with
        the reason."""
        try:
            # No size is given, because the library would hold each piece back until it has this size. The library's own
            # buffer limits a piece to 64 KiB.
            yield from self._response.iter_raw()
        except Exception as error:  # noqa: BLE001 - as in `read`
            yield _refusal(explain(error, self._server, self._model, seconds="stream_seconds"))
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            self._response.close()


class ChatForwarder:
    """Sends chat requests to the first of `servers` that answers. If a server cannot be reached, the next server is
    used. Thread-safe. `model` is the name of the configured model, for use in error messages."""

    def __init__(self, servers: tuple[Server, ...], model: str, settings: Settings) -> None:
        self._choice = FirstThatAnswers(servers)
        self._model = model
        retries = settings.llm_retries
        self._policies = {  # by whether the response is a stream
            False: Policy(settings.llm_timeout, retries=retries),
            True: Policy(settings.llm_timeout, settings.llm_stream_seconds, retries=retries),
        }
        self._clients: dict[tuple[Server, bool], tuple[Any, str]] = {}  # the HTTP client and the base URL
        self._lock = threading.Lock()

    def send(self, body: Mapping[str, Any], *, stream: bool) -> Forwarded | Refusal:
        """Send a request, and return the response as soon as its headers have arrived. Raises `ValueError` if the body
        contains a number that JSON cannot express, such as NaN, `MissingExtra` if the package `openai` is not
        installed, and `LanguageModelUnavailable` if no server answers."""
        content = json.dumps(body, allow_nan=False).encode("ascii")
        failed: dict[Server, Refusal] = {}
        while True:
            server = self._choice.pick(exclude=failed)
            if server is None:
                if failed:
                    return [*failed.values()][-1]
                raise LanguageModelUnavailable(
                    f"no server is reachable for model {self._model!r} (tried {self._choice.tried}); start a server, "
                    "or set AGENTFORMER_LLM_BASE_URL to the address of a server"
                )
            attributes = {"gen_ai.request.stream": stream, "agentformer.request.bytes": len(content)}
            try:
                with tracing.model_span("chat", server.name, self._model, attributes) as span:
                    response = self._post(server, content, stream=stream)
                    span.set({"http.response.status_code": response.status_code})
            except Exception as error:  # noqa: BLE001 - the library raises many classes
                failed[server] = _refusal(explain(error, server, self._model, seconds="timeout"))
                continue
            if response.status_code != 200:
                return _refused(response, server, self._model)
            forwarded = Forwarded(response, server, self._model)
            if forwarded.is_stream if stream else forwarded.is_json:
                return forwarded
            forwarded.close()
            sent = "events" if forwarded.is_stream else redact(forwarded.content_type, server.credentials.secrets)
            return _no_completion(f"{sent} instead of {'events (text/event-stream)' if stream else 'JSON'}")

    def _post(self, server: Server, content: bytes, *, stream: bool) -> Any:
        with self._lock:
            if (server, stream) not in self._clients:
                self._clients[server, stream] = open_raw(server, self._policies[stream])
            http, base_url = self._clients[server, stream]
        headers = {"Content-Type": "application/json"}
        request = http.build_request("POST", f"{base_url}/chat/completions", content=content, headers=headers)
        return http.send(request, stream=True)


def _refusal(failure: Failure) -> Refusal:
    slow = failure.kind == "timeout"
    return Refusal(504 if slow else 502, failure.message, code="upstream_timeout" if slow else "upstream_unavailable")


def _is_completion(data: bytes) -> bool:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return False
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list) or not choices:
        return False
    return all(isinstance(choice, dict) and isinstance(choice.get("message"), dict) for choice in choices)


def _no_completion(sent: str) -> Refusal:
    """Return the error that the client gets if the server answers with status 200, but sends no chat completion. `sent`
    is an excerpt of the response without secrets, or ""."""
    return Refusal(
        502,
        f"the language model's server sent no chat completion{f', but: {sent}' if sent else ''}; the administrator of "
        "this memory must check AGENTFORMER_LLM_BASE_URL",
        code="upstream_invalid",
    )


def _refused(response: Any, server: Server, model: str) -> Refusal:
    """Return the error in a response with a status other than 200, without secrets."""
    status = int(response.status_code)
    try:
        data = bytes(response.read())
    except Exception as error:  # noqa: BLE001 - as in `Forwarded.read`
        return _refusal(explain(error, server, model, seconds="timeout"))
    finally:
        with suppress(Exception):
            response.close()
    if status in (401, 403) or 300 <= status < 400:
        reason = "refused the key of this memory; the administrator of this memory must check AGENTFORMER_LLM_API_KEY"
        reason = reason if status >= 400 else "redirects; the administrator of this memory must set the final address"
        return Refusal(502, f"the language model's server {reason}", code="upstream_refused")
    secrets = server.credentials.secrets
    details: dict[str, Any] = {}
    with suppress(ValueError, RecursionError):
        parsed = json.loads(data)
        inner = parsed.get("error") if isinstance(parsed, dict) else None
        details = inner if isinstance(inner, dict) else {}
    texts = {name: redact(details[name], secrets) for name in ("type", "code", "param") if _is_text(details.get(name))}
    message = redact(error_message(data), secrets, _MAX_MESSAGE) or f"HTTP {status}"
    passed = status if status in _PASSED_ON else 502
    kind = "invalid_request_error" if 400 <= passed < 429 else "rate_limit_error" if passed == 429 else "server_error"
    retry_after = str(response.headers.get("retry-after", ""))
    return Refusal(
        passed,
        f"the language model's server answered: {message}",
        type=texts.get("type", kind),
        code=texts.get("code", "upstream_error"),
        param=texts.get("param"),
        retry_after=retry_after if retry_after.isascii() and retry_after.isprintable() else "",
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 100
