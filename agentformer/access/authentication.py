"""The authentication of HTTP requests. A request with a key gets the rights of the key. If no key was ever made,
requests of this machine get all rights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from agentformer.access.hosts import host_of, is_local
from agentformer.access.keys import KeyStore
from agentformer.access.permissions import EVERYTHING, Grant
from agentformer.errors import Unauthenticated

MAKE_KEY = "make a key with: agentformer keys add NAME"
_PROXY_HEADERS = (  # headers of proxies; only their presence counts, because a client can send any value
    *("Forwarded", "Forwarded-For", "Via", "X-Forwarded", "X-Forwarded-By", "X-Forwarded-For", "X-Forwarded-Host"),
    *("X-Forwarded-Port", "X-Forwarded-Prefix", "X-Forwarded-Proto", "X-Forwarded-Protocol", "X-Forwarded-Scheme"),
    *("X-Forwarded-Server", "X-Forwarded-Ssl", "X-Original-Forwarded-For", "X-Original-Host", "X-Real-IP"),
    *("X-Client-IP", "X-Cluster-Client-IP", "X-ProxyUser-IP", "True-Client-IP", "Fastly-Client-IP"),
    *("X-Envoy-External-Address", "X-Azure-ClientIP", "X-Amzn-Trace-Id", "CDN-Loop"),
    *("CF-Connecting-IP", "CF-Connecting-IPv6", "CF-Ray", "Tailscale-User-Login"),
)
_PROXY_NAMES = frozenset(map(str.lower, _PROXY_HEADERS))


class Headers(Protocol):
    """The headers of an HTTP request. The case of a header name does not matter."""

    def get(self, key: str, /) -> str | None: ...

    def items(self) -> Iterable[tuple[str, str]]: ...


def authenticate(keys: KeyStore, headers: Headers, peer: str | None, host: str = "localhost") -> Grant:
    """Return the rights of an HTTP request. `peer` is the IP address of the sender. `host` is the value of the header
    `Host`; a caller that has already checked this header omits `host`. Raises `Unauthenticated` if the request has no
    valid key but needs one, `Busy` after too many requests, and `StoreError` if the keys cannot be read."""
    scheme, _, secret = (headers.get("Authorization") or "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return keys.grant_of(secret.strip(), peer or "")
    if scheme or keys.ever_made:
        raise Unauthenticated("a key is required; send the key in the header Authorization: Bearer KEY")
    if any(name.lower() in _PROXY_NAMES for name, _ in headers.items()):
        raise Unauthenticated(f"a request through a proxy needs a key, because the real sender is unknown; {MAKE_KEY}")
    if not (is_local(peer) and is_local(host_of(host).name)):
        raise Unauthenticated(f"requests from other machines need a key, and no key exists yet; {MAKE_KEY}")
    return EVERYTHING
