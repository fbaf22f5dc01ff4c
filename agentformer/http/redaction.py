"""Checks of addresses and keys before they are used, and the removal of secrets from addresses and from the messages of
servers."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from agentformer.actor import ACTOR
from agentformer.errors import (
    AgentFormerError,
    EmbedderUnavailable,
    InvalidInput,
    LanguageModelError,
    LanguageModelUnavailable,
    PromptTooLong,
)

QUOTED = 200  # characters of a server's message in an error
_READ = 20_000  # characters of a server's message that are searched for secrets
_RUN = 6  # parts of a secret from this length are hidden, because servers quote parts of keys
_SECRET = re.compile(r"\b(sk-|Bearer\s+)[\w.*~+/=-]{6,}", re.IGNORECASE)


_ADDRESS = re.compile(r"https?://[^\s()\"',;<>]+")
_FAILURES: tuple[tuple[type[AgentFormerError], str], ...] = (
    (LanguageModelUnavailable, "it cannot be used now"),
    (PromptTooLong, "the prompt is too long for it"),
    (LanguageModelError, "its reply cannot be used"),
    (EmbedderUnavailable, "the embedder cannot be used now"),
)


def told(error: BaseException | None) -> str:
    """Return the message of an error for the caller. A caller over a network gets only the kind of the failure, because
    the message may have addresses and paths of the server."""
    if not ACTOR.get().client:
        return str(error)
    kinds = (text for kind, text in _FAILURES if isinstance(error, kind))
    return next(kinds, "an internal error; see the log of the server")


def without_addresses(text: str) -> str:
    """Return a message with "[address]" in place of each HTTP address."""
    return _ADDRESS.sub("[address]", text)


def address_in(error: BaseException) -> str:
    """Return the address of the server that could not be used, or "". Messages of other errors may quote a text."""
    address = (
        _ADDRESS.search(str(error)) if isinstance(error, (LanguageModelUnavailable, EmbedderUnavailable)) else None
    )
    return address[0] if address else ""


def check_url(setting: str, url: str) -> str:
    """Return the address `url` without spaces at the ends and without a slash at the end. Raise `InvalidInput`, with
    `setting` as the name of the wrong setting, if `url` is not an HTTP address. Raise the same error if `url` has a
    query or a fragment, because a path could not be added to such an address."""
    if not url.strip().isprintable():
        raise InvalidInput(setting, "contains a line break or another control character; write the address again")
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidInput(setting, "must be an address such as http://127.0.0.1:11434")
    if "?" in url or "#" in url:
        raise InvalidInput(
            setting,
            "must not contain ? or #; write a key in the setting for keys; write ? and # in a password as %3F and %23",
        )
    return url.strip().rstrip("/")


def redact_url(url: str) -> str:
    """Return scheme, host, port and path of an address, without user name, password and query, which may be secret."""
    try:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        place = f"{host}:{parts.port}" if parts.port else host
    except ValueError:
        return "an invalid address"
    if place or not parts.scheme:
        return urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
    return f"{parts.scheme}://{parts.path.rstrip('/')}"  # `urlunsplit` would leave out the slashes


def with_path(url: str, path: str) -> str:
    """Return `url` without a slash at the end. If the address has no path, `path` is added."""
    parts = urlsplit(url.rstrip("/"))
    return urlunsplit(parts._replace(path=parts.path or path))


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials for a server. `authorization` is the value of the `Authorization` header, or "" if no header is
    needed. `secrets` are all texts that must not appear in a message."""

    authorization: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)


def credentials(url: str, key: str) -> Credentials:
    """Return the credentials for the server at `url`. The key is used if it is not empty; otherwise, the user name and
    the password in the address are used. Raise `InvalidInput` if the key contains characters that a header cannot
    contain."""
    key = key.strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InvalidInput("api_key", "the key must contain only printable ASCII characters, without spaces")
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode() if user or password else ""
    authorization = f"Bearer {key}" if key else f"Basic {encoded}" if encoded else ""
    secrets = {key, encoded, password, parts.password or ""} - {""}
    # The longest secret is first, because a secret may be a part of another secret.
    return Credentials(authorization, tuple(sorted(secrets, key=len, reverse=True)))


def error_message(body: Any) -> str:
    """Return the error message that the body of an error response contains. `body` is bytes, text or a JSON value that
    is already parsed. Return "" if the body is HTML."""
    if isinstance(body, bytes):
        text = body.decode("utf-8", "replace")
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            body = text
    for name in ("error", "message", "detail"):
        body = (body.get(name) if isinstance(body, Mapping) else None) or body
    text = str(body) if body else ""
    return "" if text.lstrip().startswith("<") else text


def redact(text: str, secrets: Collection[str], limit: int = QUOTED) -> str:
    """Return the message of a server on one line, with "[key]" in place of each secret and of each part of a secret.
    Only the first `limit` characters are returned."""
    text = " ".join("".join(char if char.isprintable() else " " for char in text[:_READ]).split())
    for secret in secrets:
        text = text.replace(secret, "[key]")  # before the pattern, which could match text next to a secret
    text = mask(_SECRET.sub("[key]", text), secrets)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def mask(text: str, secrets: Collection[str]) -> str:
    """Return `text` with "[key]" in place of each secret, and of each part of a secret with at least 6 characters."""
    hidden = [False] * len(text)
    for secret in filter(None, secrets):
        size = min(_RUN, len(secret))
        runs = {secret[i : i + size] for i in range(len(secret) - size + 1)}
        for i in range(len(text) - size + 1):
            if text[i : i + size] in runs:
                hidden[i : i + size] = [True] * size
    groups = groupby(zip(hidden, text, strict=True), key=lambda pair: pair[0])
    return "".join("[key]" if hide else "".join(char for _, char in group) for hide, group in groups)
