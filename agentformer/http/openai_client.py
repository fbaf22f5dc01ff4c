"""Clients of the `openai` package that obey their arguments only, and what their errors mean."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from agentformer.errors import InvalidInput
from agentformer.http.limits import OverLimit, open_http
from agentformer.http.redact_text import masked, one_line
from agentformer.http.servers import Server

if TYPE_CHECKING:
    import openai

Kind = Literal["unavailable", "refused", "missing", "too_long", "rejected", "garbled"]
QUOTED = 200  # characters of a server's own words in a message
_READ = 2000  # characters of them that are looked at; lists of validation errors are long
_NO_KEY = "none"  # the package refuses to start without one; it is never sent
# Whose words they are: OpenAI and vLLM, llama.cpp, LM Studio, Ollama, and gateways in front of them.
_OVERFLOW = re.compile(
    r"context[ _-]?(length|size|window)|maximum context|exceed_context|too many tokens"
    r"|(input|prompt)( \(\d+ tokens\))?( is)? too (long|large)"
    r"|(larger|longer) than the (max|context|physical batch)|reduce the length",
    re.IGNORECASE,
)
_SECRET = re.compile(r"\b(sk-|Bearer\s+)[\w.*~+/=-]{6,}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Failure:
    """What an error of the client means. `said`: the server's own words, cleaned; "" where there are none.

    Kinds: `unavailable` (no answer, busy, broken: later it may work), `refused` (the key), `missing` (the model or the
    path), `too_long` (the input), `rejected` (any other request that it does not take), `garbled` (an answer that is
    not of the protocol).
    """

    kind: Kind
    message: str
    status: int = 0
    said: str = ""


def open_client(server: Server, *, timeout: float, retries: int, seconds: float) -> openai.OpenAI:
    """A client for this server alone, with this key or none; the package's environment variables have no say.

    `timeout`: seconds without a byte. `seconds`: of one response as a whole. Retries and the waits before them end
    within twice the timeout; see `bounded`. Raises `MissingExtra`, and `InvalidInput` for an address or key that cannot
    be sent.
    """
    parts = urlsplit(server.base_url)
    if parts.query or parts.fragment:
        raise InvalidInput(
            "base_url", f"{server.address} must be given without a query; keys have settings of their own"
        )
    http = open_http(
        timeout=timeout,
        seconds=seconds,
        authorization=_authorization(server),
        retries=retries,
        final=lambda said: bool(_OVERFLOW.search(said[:_READ])),
    )
    import openai  # after `open_http`, which says what is missing

    client = openai.OpenAI(
        # The HTTP library logs addresses with their passwords, so the password goes into the header.
        base_url=urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])),
        api_key=_NO_KEY,
        timeout=http.timeout,
        max_retries=0,  # the HTTP client repeats, within its limits
        http_client=http,
    )
    client.admin_api_key = client.webhook_secret = None  # the package took these from the environment
    return client


def _authorization(server: Server) -> str:
    key = server.api_key.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidInput("api_key", f"the key for {server.name} must be printable ASCII without spaces")
    if key:
        return f"Bearer {key}"
    parts = urlsplit(server.base_url)
    if parts.username is None:
        return ""
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def cleaned(text: str, server: Server, limit: int = QUOTED) -> str:
    """A server's words as they may be quoted: one line, no secret nor a good part of one, `limit` characters."""
    text = one_line(text[: 10 * _READ])
    for secret in sorted(secrets(server), key=len, reverse=True):
        text = text.replace(secret, "[key]")  # first, so that the pattern takes nothing that stands beside one
    return _cut(masked(_SECRET.sub("[key]", text), secrets(server)), limit)


def secrets(server: Server) -> set[str]:
    """What no message may hold a part of."""
    password = urlsplit(server.base_url).password or ""
    return {server.api_key.strip(), password, unquote(password), _authorization(server).rpartition(" ")[2]} - {""}


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def explain(
    error: BaseException,
    server: Server,
    model: str,
    *,
    settings: Literal["llm", "embed"] = "llm",
    seconds: str = "timeout",
) -> Failure:
    """What went wrong, for a message: which model, which address, what to do. `settings` names the settings to change;
    `seconds` the one among them that limits a response as a whole.

    Any exception that a call and the reading of its answer can raise will do. It never quotes a key; so raise the
    resulting error outside the `except` block, or the original would stand in the traceback.
    """
    status = int(getattr(error, "status_code", 0) or 0)
    place = f"{model} at {server.name} {server.address}"
    key, url = f"AGENTFORMER_{settings.upper()}_API_KEY", f"AGENTFORMER_{settings.upper()}_BASE_URL"
    if limit := next((cause for cause in _causes(error) if isinstance(cause, OverLimit)), None):
        name = f"AGENTFORMER_{settings}_{seconds if limit.longer == 'seconds' else limit.longer}".upper()
        advice = f"check the server, or give it longer ({name})" if limit.longer else "check the server"
        return Failure("unavailable", f"{place}: the server {limit}; {advice}")
    said = cleaned(_words(error), server, _READ)
    if status:
        return _explain_status(status, place, said, model, key, url)
    if _is_connection(error):
        reason = cleaned(_root(error), server)
        return Failure("unavailable", f"{place} cannot be reached ({reason}); check that the server runs ({url})")
    if said:  # an error event in the middle of a stream
        kind: Kind = "too_long" if _OVERFLOW.search(said) else "unavailable"
        return Failure(kind, f"{place} broke off with an error{_quote(said)}", 0, said)
    advice = f"check that the address is one of an OpenAI-compatible server ({url})"
    what = f"the answer is not of the OpenAI protocol ({type(error).__name__})"
    return Failure("garbled", f"{place}: {what}; {advice}")


def _explain_status(status: int, place: str, said: str, model: str, key: str, url: str) -> Failure:
    quote = _quote(said)
    if status in (401, 403):
        advice = f"check the key ({key}, or OPENAI_API_KEY)"
        # Unquoted: such words are about a key, which may be another's, of a gateway behind the server.
        return Failure("refused", f"{place} refuses the key (status {status}); {advice}", status)
    # A 429 speaks of tokens per minute. Some servers say 500 where the input is too long.
    if status == 413 or (status >= 400 and status != 429 and _OVERFLOW.search(said)):
        return Failure("too_long", f"{place}: the input is longer than the model reads{quote}", status, said)
    if status == 404:
        advice = f"check the model's name, that the server has it, and the path of the address ({url})"
        return Failure("missing", f"{place}: no model {model!r} there{quote}; {advice}", status, said)
    if 300 <= status < 400:
        advice = f"give the final address ({url})"
        return Failure("unavailable", f"{place} redirects, which is not followed; {advice}", status, said)
    if status in (408, 409, 429) or (status >= 500 and status != 501):
        what = "is busy or its quota is used up" if status == 429 else "is in trouble"
        return Failure("unavailable", f"{place} {what} (status {status}){quote}; try again later", status, said)
    return Failure("rejected", f"{place} does not take the request (status {status}){quote}", status, said)


def _quote(said: str) -> str:
    return f': "{_cut(said, QUOTED)}"' if said else ""


def _is_connection(error: BaseException) -> bool:
    """The package wraps most of the HTTP library's errors, but not those while an error's body is read."""
    library = type(error).__module__.partition(".")[0].startswith("httpx")
    return library or any(kind.__name__ in ("APIConnectionError", "OSError") for kind in type(error).__mro__)


def _root(error: BaseException) -> str:
    """The system's own word for a failed connection, such as "Connection refused"."""
    *_, root = _causes(error)
    return getattr(root, "strerror", None) or str(root) or type(root).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = error
    for _ in range(8):  # the package's, the HTTP library's, its transport's and the system's; and nobody's circle
        if at is not None:
            yield at
            at = at.__cause__


def _words(error: BaseException) -> str:
    """The message in an error's body, in the shapes that servers give it; else the body."""
    body: Any = getattr(error, "body", None)
    for name in ("error", "message", "detail"):
        inner = body.get(name) if isinstance(body, Mapping) else None
        body = inner if inner else body
    if body is None:
        return ""
    text = str(body)
    return "" if text.lstrip()[:1] == "<" else text
