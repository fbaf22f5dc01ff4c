"""Addresses of servers, as they are used and as they may be shown."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from agentformer.errors import InvalidInput


def checked(setting: str, url: str) -> str:
    """`url` without a trailing slash. Raises `InvalidInput`, naming the setting, for one that is no HTTP address, or
    has more than a path: what follows it could not be kept where a path is added."""
    if not url.strip().isprintable():
        raise InvalidInput(setting, "holds a line break or another control character; write it again")
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
            "must end with its path, without ? and #; keys have settings of their own, and in a password "
            "they are %3F and %23",
        )
    return url.strip().rstrip("/")


def shown(url: str) -> str:
    """Scheme, host, port and path: no user, password, query or fragment, which may hold secrets."""
    try:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        place = f"{host}:{parts.port}" if parts.port else host
    except ValueError:
        return "an address that is not valid"
    return urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))


def with_path(url: str, path: str) -> str:
    """`url` with `path` where it has none: servers are often named by host and port alone."""
    parts = urlsplit(url.rstrip("/"))
    return urlunsplit(parts._replace(path=parts.path or path))
