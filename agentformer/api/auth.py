"""Who may ask, and from where: keys, Host and Origin, limits of bodies, and what every answer carries."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from flask import Blueprint, Flask, Response, request
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from agentformer.access.grant import Grant
from agentformer.access.hosts import Host, authenticate, host_of, hosts_in, is_local, origin_host, origins_in
from agentformer.access.keys import KeyStore
from agentformer.api.bounded import BoundedBody
from agentformer.api.multipart import FORM_BYTES
from agentformer.api.problems import problem
from agentformer.api.request_log import begun, log_request
from agentformer.errors import Forbidden, TooLarge
from agentformer.factory import AgentFormer

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
JSON_BYTES = 16 * 1024 * 1024  # of any other body, which is held in memory; sixteen of the longest entries
_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_SENT = "Authorization, Content-Type, Accept, If-Match, If-None-Match, Last-Event-ID, Prefer, X-Request-ID"
_SHOWN = "Content-Disposition, ETag, Location, Preference-Applied, Retry-After, X-Request-ID"
_SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """For one memory. With `authorize` the host application decides who asks, and to which hosts; else the memory's
    keys do. Raises `InvalidInput` for settings that name no hosts or origins."""

    def __init__(self, af: AgentFormer, *, authorize: Callable[[], Grant] | None = None) -> None:
        self._settings = af.settings
        self._keys = KeyStore(af.settings.index_dir)
        self._authorize = authorize
        self._names = hosts_in(af.settings.allowed_hosts) | {af.settings.host.lower()}
        self._origins = origins_in(af.settings.cors_origins)

    def authorize(self) -> Grant:
        """What the one who sent this request may do. Raises `Unauthenticated`."""
        if self._authorize:
            grant = self._authorize()
        else:
            host = request.headers.get("Host", "")
            grant = authenticate(self._keys, request.headers, request.remote_addr, host)
        begun().key_id = grant.key_id
        return grant

    def protect(self, target: Flask | Blueprint) -> None:
        """Check every request to `target` before anything else, and complete every answer. For an application that
        is all ours this covers unknown paths too."""
        target.before_request(self._before)
        target.after_request(self._after)
        target.register_error_handler(RequestEntityTooLarge, self._too_large)
        target.register_error_handler(ClientDisconnected, _incomplete)

    def _before(self) -> Response | None:
        given = request.headers.get("X-Request-ID", "")
        begun(given if _REQUEST_ID.fullmatch(given) else "")
        multipart = request.mimetype == "multipart/form-data"
        most = self._settings.max_file_bytes + FORM_BYTES if multipart else JSON_BYTES
        request.environ["wsgi.input"] = BoundedBody(request.environ["wsgi.input"], most, request.content_length)
        request.max_content_length = most if request.content_length is not None else most + 1
        if self._authorize is None and not self._is_ours(host_of(request.headers.get("Host"))):
            return _misdirected()
        if self._is_foreign_page() and not self._asks_for_keys():
            raise Forbidden("pages of other origins may not ask here; the setting cors_origins names those that may")
        if request.method == "OPTIONS" and self._asks_before() and "Access-Control-Request-Method" in request.headers:
            return Response(status=204)
        return None

    def _is_ours(self, host: Host) -> bool:
        """Whether a request may be addressed so. A page that makes its own name lead here (DNS rebinding) is known by
        that name: it needs one, so that with keys every literal address is fine."""
        if is_local(host.name) or host.name in self._names:
            return True
        return host.literal and self._keys.ever_made

    def _asks_for_keys(self) -> bool:
        """Whether every request needs a key. No browser sends one by itself, as it does the cookies by which a host
        application may know its users, and as it comes from this machine."""
        return self._authorize is None and self._keys.ever_made

    def _is_foreign_page(self) -> bool:
        """Whether a browser says that a page which is neither ours nor named in `cors_origins` asks. Links to here
        may be followed from everywhere."""
        origin = request.headers.get("Origin")
        if origin is not None:
            return not self._asks_before() and origin_host(origin) != request.headers.get(
                "Host", ""
            ).lower().removesuffix(":")
        follows_link = request.headers.get("Sec-Fetch-Mode") == "navigate" and request.method in ("GET", "HEAD")
        return request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site") and not follows_link

    def _asks_before(self) -> bool:
        return request.headers.get("Origin", "").lower() in self._origins

    def _after(self, response: Response) -> Response:
        for name, value in _SAFE_HEADERS.items():
            response.headers.setdefault(name, value)
        request_id = response.headers["X-Request-ID"] = begun().request_id
        if self._origins:
            response.vary.add("Origin")
        if self._asks_before():
            response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
            response.headers["Access-Control-Expose-Headers"] = _SHOWN
            if request.method == "OPTIONS":
                response.headers["Access-Control-Allow-Methods"] = _METHODS
                response.headers["Access-Control-Allow-Headers"] = _SENT
                response.headers["Access-Control-Max-Age"] = "600"
        if response.mimetype == "application/problem+json":
            response.set_data(json.dumps({**response.get_json(), "request_id": request_id}))
        log_request(response, self._settings.log_format)
        return response

    def _too_large(self, error: RequestEntityTooLarge) -> Response:
        multipart = request.mimetype == "multipart/form-data"
        limit, most = ("max_file_bytes", self._settings.max_file_bytes) if multipart else ("max_json_bytes", JSON_BYTES)
        what = "what one request uploads" if multipart else "a body that is no upload"
        told = TooLarge(limit, f"{what} may have {most} bytes; send less at once")
        return problem(413, "too-large", str(told), limit=limit)


def _misdirected() -> Response:
    detail = "this host name is not served here; the setting allowed_hosts names those that are"
    return problem(421, "misdirected-request", detail, title="Misdirected Request")


def _incomplete(error: ClientDisconnected) -> Response:
    detail = "the body did not arrive as a whole, or too slowly; send it again"
    return problem(408, "incomplete-request", detail, title="Request Timeout")
