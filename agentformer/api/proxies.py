"""Requests that come through a proxy: the address of the client, the scheme, and the prefix of the path."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from agentformer.access.hosts import ip_address, networks_in
from agentformer.settings import Settings

_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_PORT = re.compile(r"^(?:\[([0-9a-fA-F:.]+)\](?::\d{1,5})?|([0-9.]+):\d{1,5})$", re.ASCII)
_Environ = dict[str, Any]
_Wsgi = Callable[[_Environ, Any], Iterable[bytes]]


class BehindProxy:
    """A WSGI application that adjusts the environment of each request for `application`: `REMOTE_ADDR` and the scheme
    become those of the client, and the prefix moves from the path to `SCRIPT_NAME`, which links begin with. A request
    whose path has no prefix is answered too, because some proxies remove it, and health checks come without it.

    Only the proxies of the setting `trusted_proxies` are believed, because any client can send the headers of a proxy.
    The client is the last address of `X-Forwarded-For` that is not a trusted proxy's: a proxy appends the address that
    it sees, and a client may have made up what stands before."""

    def __init__(self, application: _Wsgi, settings: Settings) -> None:
        self._application = application
        self._prefix = settings.url_prefix
        self._trusted = networks_in(settings.trusted_proxies)

    def __call__(self, environ: _Environ, start_response: Any) -> Iterable[bytes]:
        prefix = self._prefix
        if self._trusts(environ.get("REMOTE_ADDR", "")):
            environ["REMOTE_ADDR"] = self._client(environ)
            if environ.get("HTTP_X_FORWARDED_PROTO") in ("http", "https"):
                environ["wsgi.url_scheme"] = environ["HTTP_X_FORWARDED_PROTO"]
            sent_prefix = environ.get("HTTP_X_FORWARDED_PREFIX", "").rstrip("/")
            prefix = sent_prefix if _PREFIX.fullmatch(sent_prefix) else prefix
        if prefix:
            path = environ.get("PATH_INFO", "")
            if path == prefix or path.startswith(f"{prefix}/"):
                environ["PATH_INFO"] = path[len(prefix) :] or "/"
            environ["SCRIPT_NAME"] = prefix
        return self._application(environ, start_response)

    def _trusts(self, text: str) -> bool:
        address = ip_address(text)
        return address is not None and any(address in network for network in self._trusted)

    def _client(self, environ: _Environ) -> str:
        """Return the address of the client of a trusted proxy."""
        client = str(environ["REMOTE_ADDR"])
        for text in reversed(environ.get("HTTP_X_FORWARDED_FOR", "").split(",")):
            address = ip_address(_PORT.sub(r"\1\2", text.strip()))
            if address is None:
                break
            client = str(address)
            if not self._trusts(client):
                break
        return client
