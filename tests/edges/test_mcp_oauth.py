"""OAuth 2.1 at the MCP server: tokens of a local issuer, each way in which a token can be wrong, and a whole login."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
pytest.importorskip("flask", reason="the extra `server` is not installed")

import anyio
import httpx2
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from mcp.client import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from agentformer.access.keys import KeyStore
from agentformer.errors import InvalidInput
from agentformer.mcp_server import oauth
from agentformer.mcp_server.oauth import Challenge, Tokens
from tests.edges.doors import BOUND, HttpServer

JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
RESOURCE = "http://127.0.0.1:9/mcp"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Issuer:
    """An authorization server on this machine: metadata, keys, registration, login without a question, and tokens."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"one": RSA}
        self.asked: list[str] = []
        self.codes: dict[str, dict[str, str]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                outer.get(self)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.post(self, body)

            def log_message(self, *given: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def metadata(self) -> dict[str, Any]:
        return {
            **{"issuer": self.url, "jwks_uri": f"{self.url}/jwks", "token_endpoint": f"{self.url}/token"},
            **{"authorization_endpoint": f"{self.url}/authorize", "registration_endpoint": f"{self.url}/register"},
            **{"response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]},
            "token_endpoint_auth_methods_supported": ["none"],
        }

    def jwks(self) -> dict[str, Any]:
        found = []
        for name, key in self.keys.items():
            kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
            found.append({**json.loads(kind.to_jwk(key.public_key())), "kid": name, "use": "sig"})
        return {"keys": found}

    def get(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        answers = {"/.well-known/oauth-authorization-server": self.metadata, "/jwks": self.jwks()}
        if parts.path == "/authorize":
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
            code = f"code{len(self.codes)}"
            self.codes[code] = asked
            query = urlencode({"code": code, "state": asked["state"]})
            request.send_response(302)
            request.send_header("Location", f"{asked['redirect_uri']}?{query}")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        self.answer(request, answers.get(parts.path), 200 if parts.path in answers else 404)

    def post(self, request: BaseHTTPRequestHandler, body: str) -> None:
        if request.path == "/register":
            self.answer(request, {**json.loads(body), "client_id": "client-1"}, 201)
            return
        given = {name: values[0] for name, values in parse_qs(body).items()}
        asked = self.codes.pop(given["code"])
        challenge = base64.urlsafe_b64encode(hashlib.sha256(given["code_verifier"].encode()).digest()).rstrip(b"=")
        assert challenge.decode() == asked["code_challenge"]
        token = self.token(aud=given["resource"], scope="memory:read memory:write")
        self.answer(request, {"access_token": token, "token_type": "Bearer", "expires_in": 60}, 200)

    def answer(self, request: BaseHTTPRequestHandler, value: Any, status: int) -> None:
        body = json.dumps(value).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def token(self, *, kid: str = "one", alg: str = "RS256", key: Any = None, **changes: Any) -> str:
        """A token that is valid for `RESOURCE`, apart from the changes; None leaves a claim out."""
        now = int(time.time())
        claims = {"iss": self.url, "aud": RESOURCE, "sub": "anna", "iat": now, "exp": now + 300, "scope": "memory:read"}
        claims = {name: value for name, value in {**claims, **changes}.items() if value is not None}
        return jwt.encode(claims, self.keys.get(kid) if key is None else key, algorithm=alg, headers={"kid": kid})


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    yield issuer
    issuer.close()


def refusal(issuer: Issuer, token: str) -> Challenge:
    with pytest.raises(Challenge) as refused:
        Tokens(issuer.url, RESOURCE).verify(token)
    assert token not in str(refused.value)
    return refused.value


@pytest.mark.process
def test_a_valid_token_has_the_rights_of_its_scopes(issuer: Issuer) -> None:
    tokens = Tokens(issuer.url, RESOURCE)
    verified = tokens.verify(issuer.token(scope="memory:read memory:write openid"))
    assert verified.user_id == "anna"
    assert verified.grant.rights == {"read", "write"}
    assert verified.grant.namespaces == ("default",)
    listed = tokens.verify(issuer.token(scope=None, scp=["memory:admin"], namespaces=["board", "team"], aud=[RESOURCE]))
    assert listed.grant.rights == {"admin"}
    assert listed.grant.namespaces == ("board", "team")
    assert issuer.asked == ["/.well-known/oauth-authorization-server", "/jwks"]  # once for both


@pytest.mark.process
def test_a_token_signed_on_a_curve_is_valid(issuer: Issuer) -> None:
    issuer.keys["two"] = ec.generate_private_key(ec.SECP256R1())
    assert Tokens(issuer.url, RESOURCE).verify(issuer.token(kid="two", alg="ES256")).user_id == "anna"


@pytest.mark.process
@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://other.example"},
        {"aud": "http://127.0.0.1:9/other"},
        {"aud": f"{RESOURCE}/"},
        {"aud": []},
        {"exp": int(time.time()) - 301},
        {"exp": "soon"},
        {"iat": int(time.time()) + 3000, "exp": int(time.time()) + 6000},  # a clock that is far ahead
        {"nbf": int(time.time()) + 3000},
        *({name: None} for name in ("iss", "aud", "exp", "iat", "sub")),
        {"sub": ""},
        {"sub": "x" * 5000},
        {"namespaces": []},
        {"namespaces": "board"},
        {"namespaces": [5]},
        {"kid": "unknown", "key": RSA},
        {"key": rsa.generate_private_key(public_exponent=65537, key_size=2048)},  # of somebody else
    ],
)
def test_a_wrong_token_is_refused(issuer: Issuer, changes: dict[str, Any]) -> None:
    refused = refusal(issuer, issuer.token(**changes))
    assert 'error="invalid_token"' in refused.header
    assert f'resource_metadata="http://127.0.0.1:9{oauth.WELL_KNOWN}/mcp"' in refused.header


@pytest.mark.process
def test_a_clock_that_is_a_little_off_is_no_error(issuer: Issuer) -> None:
    now = int(time.time())
    assert Tokens(issuer.url, RESOURCE).verify(issuer.token(iat=now + 40, exp=now - 40)).user_id == "anna"


@pytest.mark.process
def test_no_signature_and_a_secret_for_a_signature_are_refused(issuer: Issuer) -> None:
    parts = [json.dumps({"alg": "none", "kid": "one"}), json.dumps({"iss": issuer.url, "aud": RESOURCE, "sub": "a"})]
    nothing = ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts) + "."
    secret = jwt.encode({"iss": issuer.url}, "x" * 64, algorithm="HS256", headers={"kid": "one"})
    for token in (nothing, secret, "a.b.c", "...", "x" * 20_000, "\x00.\x00.\x00"):
        refusal(issuer, token)
    assert issuer.asked == []  # they are refused before a key is needed


@pytest.mark.process
def test_a_token_without_a_scope_of_ours_lacks_rights(issuer: Issuer) -> None:
    for scope in (None, "", "openid", 5):
        refused = refusal(issuer, issuer.token(scope=scope))
        assert 'error="insufficient_scope"' in refused.header
        assert 'scope="memory:read memory:write"' in refused.header


@pytest.mark.process
def test_a_rotated_key_is_fetched_and_made_up_names_are_not(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens(issuer.url, RESOURCE)
    tokens.verify(issuer.token())
    issuer.keys = {"two": rsa.generate_private_key(public_exponent=65537, key_size=2048)}
    for n in range(20):
        with pytest.raises(Challenge):
            tokens.verify(issuer.token(kid=f"made up {n}", key=RSA))
    assert len(issuer.asked) == 2
    monkeypatch.setattr(oauth, "_AGAIN_SECONDS", 0.0)
    assert tokens.verify(issuer.token(kid="two")).user_id == "anna"
    with pytest.raises(Challenge):
        tokens.verify(issuer.token(kid="one", key=RSA))  # its key was taken back
    issuer.keys = {"three": rsa.generate_private_key(public_exponent=65537, key_size=2048)}
    assert tokens.verify(issuer.token(kid="", key=issuer.keys["three"])).user_id == "anna"  # it names no key


@pytest.mark.process
def test_a_known_key_does_not_wait_for_an_issuer_that_is_slow(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens(issuer.url, RESOURCE)
    tokens.verify(issuer.token())
    asked, answered = threading.Event(), threading.Event()
    known = dict(tokens._keys)

    def fetch() -> dict[str, Any]:
        asked.set()
        assert answered.wait(60)
        return known

    monkeypatch.setattr(oauth, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(tokens, "_fetch", fetch)
    with ThreadPoolExecutor(2) as pool:
        made_up = pool.submit(tokens.verify, issuer.token(kid="made up", key=RSA))
        try:
            assert asked.wait(60)
            for name in ("one", ""):  # a token that names no key has the only one
                token = issuer.token(kid=name, key=issuer.keys["one"])
                assert pool.submit(tokens.verify, token).result(60).user_id == "anna"
            assert not made_up.done()
        finally:
            answered.set()
        with pytest.raises(Challenge):
            made_up.result(60)


@pytest.mark.process
def test_an_answer_without_a_list_of_keys_takes_no_key_back(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens(issuer.url, RESOURCE)
    tokens.verify(issuer.token())
    monkeypatch.setattr(oauth, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(oauth, "_KEYS_SECONDS", 0.0)
    monkeypatch.setattr(issuer, "jwks", lambda: {"error": "try again later"})
    assert tokens.verify(issuer.token()).user_id == "anna"
    with pytest.raises(Exception, match=r"cannot be fetched now: .* does not answer with a list of keys"):
        Tokens(issuer.url, RESOURCE).verify(issuer.token())


@pytest.mark.process
def test_an_issuer_that_is_away_or_another_is_no_way_in(issuer: Issuer) -> None:
    token = issuer.token()
    issuer.close()
    with pytest.raises(Exception, match="cannot be fetched now"):
        Tokens(issuer.url, RESOURCE).verify(token)
    other = Issuer()
    real = Issuer.metadata
    try:
        other_url = other.url
        Issuer.metadata = property(lambda self: {**real.fget(self), "issuer": "https://elsewhere.example"})  # type: ignore[misc, method-assign, assignment]
        with pytest.raises(Challenge):
            Tokens(other_url, RESOURCE).verify(other.token())
    finally:
        Issuer.metadata = real  # type: ignore[method-assign]
        other.close()


@pytest.mark.parametrize(
    "address", ["", "issuer", "ftp://a.example", "http://a.example", "https://u:p@a.example", "https://a/#x"]
)
def test_an_address_that_is_not_safe_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="oauth_issuer"):
        Tokens(address, RESOURCE)
    with pytest.raises(InvalidInput, match="oauth_resource"):
        Tokens("https://a.example", address)


# The server as a process.


def served(folder: Path, issuer: Issuer, *arguments: str) -> HttpServer:
    server = HttpServer(folder, *arguments, environment={"AGENTFORMER_OAUTH_ISSUER": issuer.url})
    assert server.url.startswith("http://"), server.told
    return server


def post(server: HttpServer, message: Any, token: str = "") -> httpx2.Response:
    headers = {**JSON, "Connection": "close", **({"Authorization": f"Bearer {token}"} if token else {})}
    return httpx2.post(server.url, content=json.dumps(message), headers=headers, timeout=BOUND)


def call(server: HttpServer, token: str, tool: str, **arguments: Any) -> str:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    answer = post(server, message, token)
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.process
def test_a_server_with_an_issuer(tmp_path: Path, issuer: Issuer) -> None:
    server = served(tmp_path, issuer)
    try:
        anonymous = post(server, LIST)
        place = urlsplit(server.url)
        metadata = f"{place.scheme}://{place.netloc}{oauth.WELL_KNOWN}/mcp"
        assert anonymous.status_code == 401  # also from this machine, and without any key
        assert anonymous.headers["WWW-Authenticate"].startswith(f'Bearer resource_metadata="{metadata}"')
        described = httpx2.get(metadata, timeout=BOUND).json()
        assert described["resource"] == server.url
        assert described["authorization_servers"] == [issuer.url]
        anna = issuer.token(aud=server.url, scope="memory:read memory:write")
        ben = issuer.token(aud=server.url, scope="memory:read memory:write", sub="ben")
        reader = issuer.token(aud=server.url)
        call(server, anna, "memory_add", content="Anna drinks tea at five.")
        assert "tea" in call(server, anna, "memory_search", query="What does Anna drink?")
        assert "tea" in call(server, reader, "memory_search", query="What does Anna drink?")
        assert "tea" not in call(server, ben, "memory_search", query="What does Anna drink?")
        assert "right to write" in call(server, reader, "memory_add", content="More")
        assert "may use only the namespace" in call(server, anna, "memory_search", query="x", namespace="board")
        poor = post(server, LIST, issuer.token(aud=server.url, scope="openid"))
        assert (poor.status_code, 'error="insufficient_scope"' in poor.headers["WWW-Authenticate"]) == (403, True)
        assert post(server, LIST, issuer.token()).status_code == 401  # a token for another server
        assert post(server, LIST, "af_00000000_wrong").status_code == 401
        query = httpx2.post(f"{server.url}?access_token={anna}", json=LIST, headers=JSON, timeout=BOUND)
        assert query.status_code == 401
        _, key = KeyStore(tmp_path / "i").make("k", frozenset({"read"}))
        assert post(server, LIST, key).status_code == 200  # keys work beside tokens
    finally:
        _, said = server.end()
    assert anna not in said
    assert "tea at five" not in said


@pytest.mark.process
def test_the_client_of_the_sdk_logs_in_by_itself(tmp_path: Path, issuer: Issuer) -> None:
    server = served(tmp_path, issuer)
    found: dict[str, str] = {}

    class Storage:
        tokens: OAuthToken | None = None
        information: OAuthClientInformationFull | None = None

        async def get_tokens(self) -> OAuthToken | None:
            return self.tokens

        async def set_tokens(self, tokens: OAuthToken) -> None:
            self.tokens = tokens

        async def get_client_info(self) -> OAuthClientInformationFull | None:
            return self.information

        async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
            self.information = client_info

    async def redirect(address: str) -> None:
        async with httpx2.AsyncClient(timeout=BOUND) as web:
            location = (await web.get(address)).headers["Location"]
        found.update({name: values[0] for name, values in parse_qs(urlsplit(location).query).items()})

    async def callback() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=found["code"], state=found["state"])

    async def run() -> Any:
        details = OAuthClientMetadata(client_name="test", redirect_uris=["http://127.0.0.1:9/callback"])  # type: ignore[list-item]
        provider = OAuthClientProvider(server.url, details, Storage(), redirect, callback)
        http = httpx2.AsyncClient(auth=provider, timeout=BOUND)
        async with Client(streamable_http_client(server.url, http_client=http)) as client:
            await client.call_tool("memory_add", {"content": "The boat is blue."})
            return await client.call_tool("memory_search", {"query": "Which colour has the boat?"})

    try:
        assert "blue" in bounded(run).content[0].text
    finally:
        server.close()


@pytest.mark.process
def test_a_public_address_needs_the_name_by_which_clients_reach_it(tmp_path: Path, issuer: Issuer) -> None:
    server = HttpServer(tmp_path, "--host", "0.0.0.0", environment={"AGENTFORMER_OAUTH_ISSUER": issuer.url})
    assert "oauth_resource" in server.told
    server.close()


def bounded(run: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async def within() -> Any:
        with anyio.fail_after(BOUND):
            return await run()

    return anyio.run(within)
