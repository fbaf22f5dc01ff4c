"""Checks of every request (key, Host, Origin, length of the body), headers of every response, and the access log."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from flask import Blueprint, Flask, Response, request
from werkzeug.datastructures import Headers
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge
from werkzeug.wsgi import ClosingIterator

from agentformer.access.authentication import authenticate
from agentformer.access.hosts import Host, host_of, hosts_in, is_local, origin_host, origins_in
from agentformer.access.keys import KEY, KeyStore
from agentformer.access.limits import Allowance, quota_headers
from agentformer.access.permissions import Grant
from agentformer.actor import ACTOR, NOBODY, Actor
from agentformer.api.request import BoundedBody
from agentformer.api.request_counts import RequestsSeen
from agentformer.api.response import problem, speaks_openai
from agentformer.errors import Forbidden, StoreDamaged, StoreError, TooLarge
from agentformer.factory import AgentFormer
from agentformer.servers.logs import FIELDS
from agentformer.servers.problems import PROBLEM
from agentformer.types import new_id

log = logging.getLogger("agentformer.requests")

JSON_BYTES = 16 * 1024 * 1024  # limit of a body that is not an upload; room for sixteen of the longest entries
FORM_BYTES = 1024 * 1024  # limit of an upload without its files: names, metadata, boundaries
METRICS = "/metrics"
_KEY = "agentformer.request_info"  # in the WSGI environment
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_MAX_PATH = 300  # characters of a path in the access log
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_CORS_HEADERS = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": (
        "Authorization, Content-Type, Accept, If-Match, If-None-Match, Last-Event-ID, Prefer, X-Request-ID"
    ),
    "Access-Control-Max-Age": "600",
}
_EXPOSED = (
    "Content-Disposition, ETag, Location, Preference-Applied, RateLimit, RateLimit-Policy, Retry-After, X-Request-ID"
)
_SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Checks the requests for one memory. If the function `authorize` is given, the host application (the application
    that contains the endpoints) authenticates the requests with this function, and checks the header Host itself.
    Without `authorize`, the keys and the settings of the memory decide which requests are allowed. Raises
    `InvalidInput` for invalid hosts or origins in the settings."""

    def __init__(self, af: AgentFormer, *, authorize: Callable[[], Grant] | None = None) -> None:
        self.requests = RequestsSeen()
        self._settings = af.settings
        self._keys = af.keys
        self._scraped_keys = self._keys
        if authorize is None:  # a database of the keys may hang, and a file may be damaged
            self._scraped_keys = self._keys.remembering()
            with suppress(StoreError):  # the first reading; if it fails, a later request reads them
                _ = self._keys.ever_made
        self._authorize = authorize
        self._hosts = hosts_in(af.settings.allowed_hosts) | {af.settings.host.lower()}
        self._origins = origins_in(af.settings.cors_origins)

    def authorize(self) -> Grant:
        """Return the grant of the current request. A grant contains the rights of the client. Raises `Unauthenticated`
        if the request needs a valid key and has none."""
        if self._authorize:
            grant = self._authorize()
        else:
            host = request.headers.get("Host", "")
            headers = request.headers
            if speaks_openai() and not self._keys.ever_made:  # OpenAI's clients always send a key
                headers = Headers([(name, value) for name, value in headers if name.lower() != "authorization"])
            grant = authenticate(self._known_keys(), headers, request.remote_addr, host)
        info = _request_info()
        info.key_id, info.allowance = grant.key_id, grant.allowance
        ACTOR.set(Actor(grant.key_id, via="http", client=request.remote_addr or "", request=info.request_id))
        return grant

    def _known_keys(self) -> KeyStore:
        """Return the keys for the current request. A scrape of the metrics is answered while the keys cannot be read,
        by the keys that were read last, because the metrics say what is wrong then."""
        rule = request.url_rule.rule if request.url_rule else ""
        return self._scraped_keys if rule.endswith(METRICS) else self._keys

    @property
    def keys(self) -> KeyStore | None:
        """The keys that authenticate requests, or None if the host application authenticates the requests."""
        return self._keys if self._authorize is None else None

    def protect(self, target: Flask | Blueprint) -> None:
        """Check every request to `target` before the view runs, and add headers to every response. Requests for unknown
        paths are checked too if `target` is an application, but not if it is a blueprint."""
        target.before_request(self._check_request)
        target.after_request(self._finish_response)
        target.teardown_request(_forget_actor)
        target.register_error_handler(RequestEntityTooLarge, self._too_large)
        target.register_error_handler(ClientDisconnected, _incomplete)

    def _check_request(self) -> Response | None:
        """Return None if the view may run. Otherwise return the response, or raise `Forbidden`."""
        request_id = request.headers.get("X-Request-ID", "")
        valid = _REQUEST_ID.fullmatch(request_id) and not KEY.search(request_id)
        _request_info(request_id if valid else "")
        max_bytes = self._settings.max_file_bytes + FORM_BYTES if _is_upload() else JSON_BYTES
        request.environ["wsgi.input"] = BoundedBody(request.environ["wsgi.input"], max_bytes, request.content_length)
        request.max_content_length = max_bytes if request.content_length is not None else max_bytes + 1
        if self._authorize is None and not self._is_allowed_host(host_of(request.headers.get("Host"))):
            detail = "this host name is not allowed; add the name to the setting allowed_hosts"
            return problem(421, "misdirected-request", detail, title="Misdirected Request")
        # A browser never adds a key by itself, but it adds the cookies that a host application may use.
        if self._is_from_other_origin() and (self._authorize or not self._needs_key()):
            raise Forbidden(
                "requests from web pages of this origin are not allowed; add the origin to the setting cors_origins"
            )
        is_preflight = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        return Response(status=204) if is_preflight and self._is_allowed_origin() else None

    def _is_allowed_host(self, host: Host) -> bool:
        """Return True if the header Host names this machine or an allowed host, or if the header has an IP address and
        the server requires keys. This prevents DNS rebinding: a foreign host name that points to this server."""
        if is_local(host.name) or host.name in self._hosts:
            return True
        return host.literal and self._needs_key()

    def _needs_key(self) -> bool:
        """Return True if requests need a key. While the stored keys are damaged, they need one, and none is accepted:
        only the endpoints that are open to all answer."""
        try:
            return self._known_keys().ever_made
        except StoreDamaged:
            return True

    def _is_from_other_origin(self) -> bool:
        """Return True if a web page of another origin sent the request, and the setting `cors_origins` does not contain
        this origin. Return False if the browser opens the URL as a page, because the user followed a link."""
        origin = request.headers.get("Origin")
        if origin is not None:
            own = request.headers.get("Host", "").lower().removesuffix(":")
            return not self._is_allowed_origin() and origin_host(origin) != own
        follows_link = request.headers.get("Sec-Fetch-Mode") == "navigate" and request.method in ("GET", "HEAD")
        return request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site") and not follows_link

    def _is_allowed_origin(self) -> bool:
        return request.headers.get("Origin", "").lower() in self._origins

    def _finish_response(self, response: Response) -> Response:
        present = {name.lower() for name, _ in response.headers}
        for name, value in _SAFE_HEADERS.items():
            if name.lower() not in present:
                response.headers.add(name, value)
        request_id = response.headers["X-Request-ID"] = _request_info().request_id
        if allowance := _request_info().allowance:
            response.headers.update(quota_headers(allowance.quotas))
        if self._origins:
            response.vary.add("Origin")
        if self._is_allowed_origin():
            response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
            response.headers["Access-Control-Expose-Headers"] = _EXPOSED
            if request.method == "OPTIONS":
                response.headers.update(_CORS_HEADERS)
        if response.mimetype == PROBLEM:
            response.set_data(json.dumps({**response.get_json(), "request_id": request_id}))
        _record(response, self.requests)
        return response

    def _too_large(self, error: RequestEntityTooLarge) -> Response:
        if _is_upload():
            limit, part, max_bytes = "max_file_bytes", "an upload", self._settings.max_file_bytes
        else:
            limit, part, max_bytes = "max_json_bytes", "the body of a request that is not an upload", JSON_BYTES
        detail = str(TooLarge(limit, f"{part} may have at most {max_bytes} bytes; send less data in one request"))
        return problem(413, "too-large", detail, limit=limit)


def _forget_actor(error: BaseException | None) -> None:
    """Let no later work of this thread, such as that of a host application, count as work of the client."""
    ACTOR.set(NOBODY)


def _is_upload() -> bool:
    return request.mimetype == "multipart/form-data"


def _incomplete(error: ClientDisconnected) -> Response:
    detail = "The body of the request was incomplete or too slow. Send the request again."
    return problem(408, "incomplete-request", detail, title="Request Timeout")


@dataclass(slots=True)
class _RequestInfo:
    """The id, the key and the start time of the current request. `key_id` is "" until the request is authenticated."""

    request_id: str
    key_id: str = ""
    allowance: Allowance | None = None
    started: float = field(default_factory=time.monotonic)


def _request_info(request_id: str = "") -> _RequestInfo:
    """Return the data of the current request, for the access log. The first call for a request creates the data, with
    the id `request_id`, or with a new id if `request_id` is empty."""
    info = request.environ.get(_KEY)
    if not isinstance(info, _RequestInfo):
        info = request.environ[_KEY] = _RequestInfo(request_id or new_id())
    return info


def _record(response: Response, requests: RequestsSeen) -> None:
    """Count the current request, and write a line about it to the log. For a streamed response, do so at the end of the
    stream."""
    shown = KEY.sub(r"af_\1_...", request.path)  # a key in place of an id
    info, path = _request_info(), quote(shown, safe="/:@!$&'()*+,;=~", errors="replace")
    route = request.url_rule.rule if request.url_rule else ""
    line = {
        "method": quote(request.method, safe="")[:20],
        "path": path[:_MAX_PATH],
        "route": route,
        "status": response.status_code,
    }
    ids = {"request_id": info.request_id, "key_id": info.key_id, "client": request.remote_addr or ""}

    method = request.method if request.method in _METHODS else "other"  # clients may send any word

    def write(sent: int) -> None:
        seconds = time.monotonic() - info.started
        requests.add(method, route, response.status_code, seconds)
        values = {**line, "ms": round(seconds * 1000, 1), "bytes": sent, **ids}
        words = {**values, "ms": f"{values['ms']}ms", "bytes": f"{sent}B", "key_id": info.key_id or "-"}
        words.pop("route")
        log.info("%s", " ".join(map(str, words.values())), extra={FIELDS: values})

    if response.is_streamed and not response.direct_passthrough and request.method != "HEAD":
        sent = 0
        pieces: Any = response.response

        def count(piece: Any) -> Any:
            nonlocal sent
            sent += len(piece.encode()) if isinstance(piece, str) else len(piece)
            return piece

        response.response = ClosingIterator(map(count, pieces), getattr(pieces, "close", None))
        response.call_on_close(lambda: write(sent))
    else:
        write(0 if request.method == "HEAD" else response.content_length or 0)
