"""OAuth 2.1 for the MCP server over HTTP: the server is a resource server that accepts the access tokens of one issuer.

The MCP specification (2025-06-18 and later) asks for the metadata of the protected resource (RFC 9728), a challenge in
`WWW-Authenticate`, and tokens that were issued for this server (RFC 8707). A token is a JWT (RFC 9068). Its signature
is checked with the public keys of the issuer, which are fetched from the addresses in its metadata (RFC 8414). API keys
work as before, beside tokens.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import jwt

from agentformer.access.permissions import Grant, Right
from agentformer.errors import AccessError, Forbidden, InvalidInput, Unauthenticated
from agentformer.http.client import HttpFailure, JsonClient
from agentformer.http.retry_policy import Policy
from agentformer.records import fields
from agentformer.types import DEFAULT_NAMESPACE

WELL_KNOWN = "/.well-known/oauth-protected-resource"
SCOPES: Mapping[str, Right] = {"memory:read": "read", "memory:write": "write", "memory:admin": "admin"}
# Signatures with a public key. `none`, and secrets that the public key could stand for, are refused.
_ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
_METADATA = ("oauth-authorization-server", "openid-configuration")
_LEEWAY = 60  # seconds by which the clocks of the issuer and of this machine may differ
_KEYS_SECONDS = 600.0  # after which the keys of the issuer are fetched again
_AGAIN_SECONDS = 15.0  # least time between two fetches, whatever keys tokens name
_MAX_BYTES = 1 << 20  # of the metadata and of the keys
_MAX_TOKEN = 16_384  # characters
_NAMESPACES = "namespaces"  # a claim with the namespaces that the token may use


@dataclass(frozen=True, slots=True)
class Verified:
    """What a valid token allows: the rights of its scopes in its namespaces, and the user that its subject names."""

    grant: Grant
    user_id: str


class Challenge(Exception):
    """A refusal of access. `error` is the reason, and `header` the value of `WWW-Authenticate`, which tells a client
    where to get a token."""

    def __init__(self, error: AccessError, header: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.header = header


class Tokens:
    """Checks access tokens of `issuer` for the server `resource`; both are addresses. Thread-safe."""

    def __init__(self, issuer: str, resource: str) -> None:
        self.issuer = _address("oauth_issuer", issuer)
        self.resource = _address("oauth_resource", resource)
        self._lock = threading.Lock()
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched = self._tried = float("-inf")  # on the monotonic clock

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of this protected resource (RFC 9728)."""
        return {
            "resource": self.resource,
            "authorization_servers": [self.issuer],
            "scopes_supported": [*SCOPES],
            "bearer_methods_supported": ["header"],
            "resource_name": "AgentFormer",
        }

    @property
    def metadata_url(self) -> str:
        """The address of the metadata: the well-known path is before the path of the resource."""
        parts = urlsplit(self.resource)
        return f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path}"

    def challenge(self, error: AccessError, kind: str = "") -> Challenge:
        """Return an error that tells a client where to get a token. `kind` is `invalid_token` or `insufficient_scope`,
        or "" for a request without a token."""
        parts = [f'resource_metadata="{self.metadata_url}"']
        if kind != "invalid_token":
            parts.append(f'scope="{" ".join([*SCOPES][:2])}"')
        if kind:
            parts.insert(0, f'error="{kind}"')
        return Challenge(error, f"Bearer {', '.join(parts)}")

    def verify(self, token: str) -> Verified:
        """Return what a token allows. Raises `Challenge` for a token that is not valid here, or has none of the scopes,
        and `Unauthenticated` if the keys of the issuer cannot be fetched."""
        try:
            claims = self._claims(token)
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            reason = f"the token is not valid here ({type(error).__name__}); get a new one from {self.issuer}"
            raise self.challenge(Unauthenticated(reason), "invalid_token") from None
        rights = frozenset(SCOPES[scope] for scope in _scopes(claims) if scope in SCOPES)
        if not rights:
            wanted = Forbidden(f"the token has none of the scopes {', '.join(SCOPES)}")
            raise self.challenge(wanted, "insufficient_scope")
        user = str(claims["sub"])
        try:
            return Verified(Grant(rights, _namespaces(claims), key_id=f"oauth:{user}"), fields.name("sub", user))
        except InvalidInput as error:
            unusable = Unauthenticated(f"the token has a claim that cannot be used: {error}")
            raise self.challenge(unusable, "invalid_token") from None

    def _claims(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token. Raises `ValueError` or `PyJWTError` if the token is not valid here."""
        if len(token) > _MAX_TOKEN:
            raise ValueError("the token is too long")
        header = jwt.get_unverified_header(token)
        algorithm = header.get("alg")
        if algorithm not in _ALGORITHMS:
            raise ValueError("the signature is not one with a public key")
        key = self._key(str(header.get("kid", "")))
        required = ["exp", "iat", "aud", "iss", "sub"]
        claims: Mapping[str, Any] = jwt.decode(
            token,
            key.key,
            algorithms=[algorithm],
            audience=self.resource,
            issuer=self.issuer,
            leeway=_LEEWAY,
            options={"require": required},
        )
        return claims

    def _key(self, name: str) -> jwt.PyJWK:
        """Return the public key with this name, or the only key for a token that names none. A call with a known name
        does not wait while another one fetches. A token that names none may be of a newer key, so it fetches, too."""
        is_known = name in self._keys or (not name and len(self._keys) == 1)
        if self._lock.acquire(blocking=not is_known):
            try:
                self._fetch_again(name)
            finally:
                self._lock.release()
        keys = self._keys
        if name in keys:
            return keys[name]
        if not name and len(keys) == 1:
            return next(iter(keys.values()))
        raise ValueError("the issuer has no key of this name")

    def _fetch_again(self, name: str) -> None:
        """Fetch the keys if they are old, or if none has this name, as after a rotation; but not more often than each
        `_AGAIN_SECONDS`, so that made-up names cannot keep the issuer busy."""
        now = time.monotonic()
        stale = now - self._fetched > _KEYS_SECONDS
        if (stale or name not in self._keys) and now - self._tried > _AGAIN_SECONDS:
            self._tried = now
            try:
                self._keys, self._fetched = self._fetch(), now
            except HttpFailure as failure:
                if not self._keys:
                    self._tried = float("-inf")
                    raise Unauthenticated(f"the keys of the issuer cannot be fetched now: {failure}") from None

    def _fetch(self) -> dict[str, jwt.PyJWK]:
        """Return the keys with which the issuer signs, by name. Keys that cannot be used here are left out."""
        policy = Policy(timeout=5, retries=1, max_bytes=_MAX_BYTES)
        address = str(self._issuer_metadata(policy).get("jwks_uri", ""))
        parts = urlsplit(_address("jwks_uri", address))
        path = parts.path + f"?{parts.query}" * bool(parts.query)
        answer = JsonClient(f"{parts.scheme}://{parts.netloc}", policy).get(path)
        if not isinstance(answer, dict) or not isinstance(answer.get("keys"), list):
            raise HttpFailure(f"{address} does not answer with a list of keys")
        keys = {}
        for each in answer["keys"]:
            if isinstance(each, dict) and each.get("kty") in ("RSA", "EC", "OKP") and each.get("use", "sig") == "sig":
                try:
                    keys[str(each.get("kid", ""))] = jwt.PyJWK(each)
                except jwt.PyJWTError:  # a curve or an algorithm that is not known here
                    continue
        return keys

    def _issuer_metadata(self, policy: Policy) -> Mapping[str, Any]:
        """Return the metadata of the issuer. Its own name in them must be the configured one (RFC 8414)."""
        parts = urlsplit(self.issuer)
        client, path = JsonClient(f"{parts.scheme}://{parts.netloc}", policy), parts.path.rstrip("/")
        places = [f"/.well-known/{name}{path}" for name in _METADATA]
        places += [f"{path}/.well-known/{_METADATA[1]}"] if path else []
        for place in places:
            try:
                metadata = client.get(place)
            except HttpFailure as failure:
                if failure.status != 404 or place == places[-1]:
                    raise
                continue
            if not isinstance(metadata, dict) or metadata.get("issuer") != self.issuer:
                raise ValueError("the metadata of the issuer name another issuer")
            return metadata
        raise ValueError("the issuer has no metadata")


def _scopes(claims: Mapping[str, Any]) -> list[str]:
    value = claims.get("scope", claims.get("scp", ""))
    return value.split() if isinstance(value, str) else [str(each) for each in value] if isinstance(value, list) else []


def _namespaces(claims: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the namespaces of the claim `namespaces`, or the default namespace. Raises `InvalidInput` for another
    value, because no namespace at all would mean every namespace."""
    names = claims.get(_NAMESPACES, [DEFAULT_NAMESPACE])
    if not isinstance(names, list) or not names:
        raise InvalidInput(_NAMESPACES, "must be a list of names")
    return tuple(fields.name(_NAMESPACES, name) for name in names)


def _address(setting: str, value: str) -> str:
    """Return an address of https, or of http on this machine. Raises `InvalidInput` for another value."""
    parts = urlsplit(value)
    local = parts.hostname in ("127.0.0.1", "localhost", "::1")
    if not parts.hostname or parts.scheme not in ("https", "http") or (parts.scheme == "http" and not local):
        raise InvalidInput(setting, f"must be an address of https, or of http on this machine, got {value!r:.200}")
    if parts.fragment or parts.username or (setting != "jwks_uri" and parts.query):
        raise InvalidInput(setting, "must have no user, query or fragment")
    return value
