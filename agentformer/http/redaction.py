"""Addresses, keys and messages of servers: they are checked before use, and secrets are removed before they are
shown."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from agentformer.errors import InvalidInput

QUOTED = 200  # characters of a server's message in an error
_READ = 20_000  # characters of a server's message that are searched for secrets
_RUN = 6  # parts of a secret from this length are hidden, because servers quote parts of keys
_SECRET = re.compile(r"\b(sk-|Bearer\s+)[\w.*~+/=-]{6,}", re.IGNORECASE)


def check_url(setting: str, url: str) -> str:
    """Return `url` without a slash at its end. Raise `InvalidInput` with the name of the setting if it is not an HTTP
    address, or if it has a query or a fragment, because these are lost when a path is appended."""
    if not url.strip().isprintable():
        raise InvalidInput(setting, "contains a line break or another control character; write the address again")
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidInput(setting, "must be an address such as http://127.0.0.1:11434")
    if "?" in url or "#" in url:
        raise InvalidInput(
            setting,
            "must not contain ? or #; set a key in the setting for keys; write ? and # in a password as %3F and %23",
        )
    return url.strip().rstrip("/")


def redact_url(url: str) -> str:
    """Return the scheme, host, port and path. All other parts are removed, because they may be secret."""
    try:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        place = f"{host}:{parts.port}" if parts.port else host
    except ValueError:
        return "an invalid address"
    return urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))


def with_path(url: str, path: str) -> str:
    """Return `url`. If it has no path, append `path`."""
    parts = urlsplit(url.rstrip("/"))
    return urlunsplit(parts._replace(path=parts.path or path))


@dataclass(frozen=True, slots=True)
class Credentials:
    """The `Authorization` header for a server, or "", and every string that no message may contain."""

    authorization: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)


def credentials(url: str, key: str) -> Credentials:
    """Return the credentials from a key. Without a key, return the credentials from the user and password in the
    address. Raise `InvalidInput` for a key that no header can contain."""
    key = key.strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InvalidInput("api_key", "must be printable ASCII without spaces")
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode() if user or password else ""
    authorization = f"Bearer {key}" if key else f"Basic {encoded}" if encoded else ""
    secrets = {key, encoded, password, parts.password or ""} - {""}
    # The longest secret is first, because a secret may be a part of another secret.
    return Credentials(authorization, tuple(sorted(secrets, key=len, reverse=True)))


def error_message(body: Any) -> str:
    """Return the message in the body of an error response, which is bytes, text or parsed JSON. Return "" for HTML."""
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
    """Return a server's message on one line of at most `limit` characters, without secrets or parts of secrets."""
    text = " ".join("".join(char if char.isprintable() else " " for char in text[:_READ]).split())
    for secret in secrets:
        text = text.replace(secret, "[key]")  # before the pattern, which could match text next to a secret
    text = mask(_SECRET.sub("[key]", text), secrets)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def mask(text: str, secrets: Collection[str]) -> str:
    """Return `text` with "[key]" in place of each secret and of each part of a secret with 6 or more characters."""
    hidden = [False] * len(text)
    for secret in filter(None, secrets):
        size = min(_RUN, len(secret))
        runs = {secret[i : i + size] for i in range(len(secret) - size + 1)}
        for i in range(len(text) - size + 1):
            if text[i : i + size] in runs:
                hidden[i : i + size] = [True] * size
    groups = groupby(zip(hidden, text, strict=True), key=lambda pair: pair[0])
    return "".join("[key]" if hide else "".join(char for _, char in group) for hide, group in groups)
