"""Servers with the protocol of OpenAI: functions that choose the server and the key for a model, open a client, and
explain errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from agentformer.errors import InvalidInput
from agentformer.http.client import open_http
from agentformer.http.redaction import QUOTED, Credentials, credentials, error_message, redact, redact_url, with_path
from agentformer.http.retry_policy import OverLimit, Policy, is_overflow, is_temporary

if TYPE_CHECKING:
    import openai

Kind = Literal["unavailable", "timeout", "too_long", "rejected"]
_READ = 2000  # characters of an error message that are examined; many, because lists of validation errors are long
_NO_KEY = "none"  # the package requires a key; this value is never sent
OPENAI_URL = "https://api.openai.com/v1"
LMSTUDIO_URL = "http://127.0.0.1:1234"
OLLAMA_URL = "http://127.0.0.1:11434"
_LABELS = {"openai": "OpenAI", "lmstudio": "LM Studio", "ollama": "Ollama"}
_PROBE_SECONDS = 2.0
# Models hosted by OpenAI. GPT-J, GPT-NeoX, GPT-OSS, GPT-SW3 and GPT-2 are hosted elsewhere.
_OPENAI_NAMES = re.compile(
    r"(ft:)?(gpt-(?![12](\D|$))\d|chatgpt-|codex-|o\d+(-|$)|text-embedding-(3-|ada-)|(davinci|babbage)-002)",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Server:
    """A server with the protocol of OpenAI. `base_url` is the address without `/chat/completions` at its end.
    `str(server)` is a text such as "LM Studio at http://127.0.0.1:1234/v1". `repr(server)` contains neither the address
    nor the key, because both may be secret."""

    name: str
    base_url: str = field(repr=False)
    api_key: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.label} at {self.address}"

    @property
    def label(self) -> str:
        """The name of the server in messages, such as "LM Studio"."""
        return _LABELS.get(self.name, "the server")

    @property
    def address(self) -> str:
        """The address of the server without user name and password."""
        return redact_url(self.base_url)

    @property
    def credentials(self) -> Credentials:
        """The `Authorization` header for the server, and the secrets that messages must not contain. Raise
        `InvalidInput` if the key contains characters that a header cannot contain."""
        return credentials(self.base_url, self.api_key)


def candidates(
    model: str,
    *,
    explicit_url: str,
    explicit_key: str,
    openai_key: str,
    openai_url: str,
    lmstudio_url: str,
    ollama_url: str,
) -> tuple[Server, ...]:
    """Return the servers that may have the model, the preferred one first. Servers without an address are left out.

    If `explicit_url` is set, it is the only server. If `model` is the name of an OpenAI model, the only server is
    `openai_url`, or OpenAI itself if `openai_url` is empty, so a configured proxy is never bypassed. For any other
    model, the servers are `openai_url`, LM Studio and Ollama. OpenAI's key is sent only to OpenAI's own address and to
    `openai_url`."""
    if explicit_url:
        url = with_path(explicit_url, "/v1")
        is_openai = _origin(url) in {_origin(own) for own in (OPENAI_URL, openai_url) if own}
        return (Server("server", url, explicit_key or (openai_key if is_openai else "")),)
    if _OPENAI_NAMES.match(model):
        return (Server("openai", with_path(openai_url or OPENAI_URL, "/v1"), explicit_key or openai_key),)
    servers = (
        ("openai", openai_url, explicit_key or openai_key),
        ("lmstudio", lmstudio_url, explicit_key),
        ("ollama", ollama_url, explicit_key),
    )
    return tuple(Server(name, with_path(url, "/v1"), key) for name, url, key in servers if url)


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def answers(server: Server) -> bool:
    """Return True if an HTTP server responds at the address of `server`, with any status. The key is not sent."""
    with open_http(Policy(_PROBE_SECONDS, retries=0)) as http:
        try:
            with http.stream("GET", f"{server.address}/models"):
                return True
        except Exception:  # noqa: BLE001 - any failure means that it does not answer
            return False


class FirstThatAnswers:
    """Chooses the first of several servers that answers a test request, and remembers this server. If there is only one
    server, it is chosen without a test request. Thread-safe."""

    def __init__(self, servers: Sequence[Server], answers: Callable[[Server], bool] = answers) -> None:
        self._servers = tuple(servers)
        self._answers = answers
        self._lock = threading.Lock()
        self._chosen: Server | None = None

    def pick(self, exclude: Collection[Server] = ()) -> Server | None:
        """Return the chosen server, or None if no server answers. A server in `exclude` is never returned; if it was
        the chosen server, another server is chosen."""
        with self._lock:
            if len(self._servers) == 1:
                return None if self._servers[0] in exclude else self._servers[0]
            if self._chosen is None or self._chosen in exclude:
                remaining = (server for server in self._servers if server not in exclude)
                self._chosen = next(filter(self._answers, remaining), None)
            return self._chosen

    @property
    def has_fallback(self) -> bool:
        """True if another server may replace the chosen one. This is so if there are several servers, and one of them
        was chosen because it has answered a test request."""
        return len(self._servers) > 1 and self._chosen is not None

    @property
    def tried(self) -> str:
        """The names and addresses of all servers, for an error message."""
        return ", ".join(map(str, self._servers)) or "no server"


def open_client(server: Server, policy: Policy) -> openai.OpenAI:
    """Return a client that sends requests only to `server`. The environment variables of the package `openai` have no
    effect. Raise `MissingExtra` if the package is not installed. Raise `InvalidInput` if the address has a query, or if
    the key contains characters that a header cannot contain."""
    http, base_url = open_raw(server, policy)
    import openai  # import it after `open_http`, which checks that the package is installed

    client = openai.OpenAI(
        base_url=base_url,
        api_key=_NO_KEY,
        timeout=http.timeout,
        max_retries=0,  # the HTTP client retries under the policy
        http_client=http,
    )
    client.admin_api_key = client.webhook_secret = None  # the package reads these from the environment
    return client


def open_raw(server: Server, policy: Policy) -> tuple[Any, str]:
    """Return an HTTP client that sends requests with the key of `server`, and the address to which the requests go,
    without user name and password. Raise `MissingExtra` and `InvalidInput` like `open_client`."""
    parts = urlsplit(server.base_url)
    if parts.query or parts.fragment:
        raise InvalidInput(
            "base_url",
            f"the address {server.address} must not contain a query or a fragment; write a key in the setting for keys",
        )
    http = open_http(policy, server.credentials.authorization)
    # The HTTP library logs addresses with passwords. So the password is sent in the header only.
    return http, urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")


@dataclass(frozen=True, slots=True)
class Failure:
    """The explanation of an error that a client raised. `message` is the complete message for the user. `detail` is
    only the error message of the server without secrets, or the exceeded limit. `status` is the HTTP status, or 0.
    `kind` is `unavailable` (the server is unreachable, busy or broken, or the key, the model or the address is wrong),
    `timeout`, `too_long` (for the model), or `rejected` (the server refused the request for another reason)."""

    kind: Kind
    message: str
    status: int = 0
    detail: str = ""


def explain(
    error: BaseException,
    server: Server,
    model: str,
    *,
    settings: Literal["llm", "embed"] = "llm",
    seconds: str = "timeout",
) -> Failure:
    """Return the explanation of an exception that a call raised, or that was raised while its response was read.
    `settings` is the group of settings that the message names, and `seconds` is the setting in this group that limits
    the time of a complete response. The message contains no key, but the exception may contain the key. So the caller
    must raise the new error after the `except` block, not inside it."""
    prefix = f"AGENTFORMER_{settings.upper()}"
    where = f"for model {model!r} ({server.address})"
    exceeded = next((cause for cause in _causes(error) if isinstance(cause, OverLimit)), None)
    if exceeded:
        setting = seconds if exceeded.exceeded == "seconds" else exceeded.exceeded
        advice = f"check the server, or raise {prefix}_{setting.upper()}" if setting else "check the server"
        kind: Kind = "timeout" if setting else "unavailable"
        return Failure(kind, f"{server.label} {exceeded} {where}; {advice}", detail=str(exceeded))
    return _explain_response(error, server, where, prefix)


def _explain_response(error: BaseException, server: Server, where: str, prefix: str) -> Failure:
    """Explain an exception by the HTTP status in it, the failed connection, or the error event in a stream."""
    status = int(getattr(error, "status_code", None) or 0)
    secrets = server.credentials.secrets
    detail = redact(error_message(getattr(error, "body", None)), secrets, _READ)
    if status:
        kind, advice = _explain_status(status, detail, prefix)
        if status in (401, 403):  # the server's message may quote a key
            detail = ""
        message = f"{server.label} returned HTTP {status} {where}{_quoted(detail)}{advice}"
        return Failure(kind, message, status, detail)
    # The package `openai` converts the errors of its HTTP library, except while the body of an error response is read.
    library = type(error).__module__.partition(".")[0].startswith("httpx")
    if library or any(kind.__name__ in ("APIConnectionError", "OSError") for kind in type(error).__mro__):
        root = _causes(error)[-1]
        reason = redact(getattr(root, "strerror", None) or str(root) or type(root).__name__, secrets)
        advice = f"check that the server runs, or set {prefix}_BASE_URL to its address"
        return Failure("unavailable", f"{server.label} is not reachable {where}: {reason}; {advice}")
    if detail:  # an error event in the middle of a stream
        kind = "too_long" if is_overflow(0, detail) else "unavailable"
        return Failure(kind, f"{server.label} ended the stream {where} with an error{_quoted(detail)}", detail=detail)
    reason = f"returned a response that does not follow the OpenAI protocol ({type(error).__name__})"
    return Failure("unavailable", f"{server.label} {reason} {where}; check the address ({prefix}_BASE_URL)")


def _explain_status(status: int, detail: str, prefix: str) -> tuple[Kind, str]:
    """Return the kind of the failure, and the advice with which its message ends."""
    if status in (401, 403):
        return "unavailable", f"; check the key ({prefix}_API_KEY or OPENAI_API_KEY)"
    if status >= 400 and is_overflow(status, detail):
        return "too_long", "; the input is too long for the model"
    if status == 404:
        return "unavailable", f"; check the model's name and the path of the address ({prefix}_BASE_URL)"
    if 300 <= status < 400:
        return "unavailable", f", a redirect; redirects are not followed; set the final address ({prefix}_BASE_URL)"
    if status in (408, 504):
        return "timeout", "; try again later"
    return ("unavailable", "; try again later") if is_temporary(status) else ("rejected", "")


def _quoted(detail: str) -> str:
    return f': "{detail if len(detail) <= QUOTED else detail[: QUOTED - 1] + "…"}"' if detail else ""


def _causes(error: BaseException) -> list[BaseException]:
    """Return the exception and the exceptions that caused it. The original cause is last."""
    causes = [error]
    while (cause := causes[-1].__cause__) and cause not in causes:
        causes.append(cause)
    return causes
