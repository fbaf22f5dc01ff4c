"""Who asks over HTTP: the holder of a key, or without any key a program on this machine."""

from __future__ import annotations

from typing import Protocol

from agentformer.access.grant import EVERYTHING, Grant
from agentformer.access.hosts import host_of, is_local
from agentformer.access.keys import KeyStore
from agentformer.errors import InvalidInput, Unauthenticated

MAKE_ONE = "make a key with: agentformer keys add NAME"
_FORWARDED = (  # what proxies add; nothing but its absence is believed
    *("Forwarded", "Forwarded-For", "Via", "X-Forwarded", "X-Forwarded-By", "X-Forwarded-For", "X-Forwarded-Host"),
    *("X-Forwarded-Port", "X-Forwarded-Prefix", "X-Forwarded-Proto", "X-Forwarded-Protocol", "X-Forwarded-Scheme"),
    *("X-Forwarded-Server", "X-Forwarded-Ssl", "X-Original-Forwarded-For", "X-Original-Host", "X-Real-IP"),
    *("X-Client-IP", "X-Cluster-Client-IP", "X-ProxyUser-IP", "True-Client-IP", "Fastly-Client-IP"),
    *("X-Envoy-External-Address", "X-Azure-ClientIP", "X-Amzn-Trace-Id", "CDN-Loop"),
    *("CF-Connecting-IP", "CF-Connecting-IPv6", "CF-Ray", "Tailscale-User-Login"),
)


class Headers(Protocol):
    """Of a request; names are found in any case."""

    def get(self, key: str, /) -> str | None: ...


def grant_of_request(keys: KeyStore, headers: Headers, peer: str | None, host: str = "localhost") -> Grant:
    """What the sender of these headers may do. `host` is what the request is addressed to, where nothing else checks
    that. Raises `Unauthenticated`, and `StoreError` where the keys cannot be read."""
    scheme, _, secret = (headers.get("Authorization") or "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return keys.grant_of(secret.strip())
    if scheme or keys.ever_made:
        raise Unauthenticated("a key is needed; send it as the header Authorization: Bearer KEY")
    if any(headers.get(name) is not None for name in _FORWARDED):
        raise Unauthenticated(f"this came through a proxy, so that anybody may have sent it; {MAKE_ONE}")
    if not (is_local(peer) and is_local(host_of(host).name)):
        raise Unauthenticated(f"without keys only this machine is served; {MAKE_ONE}")
    return EVERYTHING


def check_listening(host: str, address: str, keys: KeyStore) -> None:
    """Raises `InvalidInput` for an address that others reach while there is no key."""
    if not keys.ever_made and not is_local(address):
        raise InvalidInput("host", f"{host} can be reached by others, so that a key is needed first; {MAKE_ONE}")
