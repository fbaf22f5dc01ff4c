"""Which server that speaks the OpenAI protocol is asked for a model, and with which key."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from agentformer.http.limits import open_http
from agentformer.http.redaction import shown, with_path

OPENAI_URL = "https://api.openai.com/v1"
LMSTUDIO_URL = "http://127.0.0.1:1234"
OLLAMA_URL = "http://127.0.0.1:11434"
PROBE_SECONDS = 2.0
# Those that OpenAI hosts: GPT-J, GPT-NeoX, GPT-OSS, GPT-SW3 and GPT-2 are served elsewhere.
_OPENAI_NAMES = re.compile(
    r"(ft:)?(gpt-(?![12](\D|$))\d|chatgpt-|codex-|o\d+(-|$)|text-embedding-(3-|ada-)|(davinci|babbage)-002)",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Server:
    """`base_url` ends before `/chat/completions`. Neither it nor the key is shown: an address may hold a password."""

    name: str
    base_url: str = field(repr=False)
    api_key: str = field(default="", repr=False)

    @property
    def address(self) -> str:
        """The address as it may be shown."""
        return shown(self.base_url)


def candidates(
    model: str,
    *,
    explicit_url: str,
    explicit_key: str,
    openai_key: str,
    openai_url: str,
    lmstudio_url: str,
    ollama_url: str,
) -> tuple[Server, ...]:
    """The servers to ask for `model`, best first; an empty address is no server.

    An explicit address is the only one. A name that is OpenAI's goes to OpenAI, and that is where `OPENAI_BASE_URL`
    points if it is set: whoever runs a proxy sets it so that nothing goes past. Any other model goes to the first of
    `OPENAI_BASE_URL`, LM Studio and Ollama. OpenAI's key goes to OpenAI's own address and to `OPENAI_BASE_URL` only.
    """
    if explicit_url:
        url = with_path(explicit_url, "/v1")
        own = _place(url) in {_place(known) for known in (OPENAI_URL, openai_url) if known}
        return (Server("server", url, explicit_key or (openai_key if own else "")),)
    if _OPENAI_NAMES.match(model):
        return (Server("openai", with_path(openai_url or OPENAI_URL, "/v1"), explicit_key or openai_key),)
    found = (
        ("openai", openai_url, explicit_key or openai_key),
        ("lmstudio", lmstudio_url, explicit_key),
        ("ollama", ollama_url, explicit_key),
    )
    return tuple(Server(name, with_path(url, "/v1"), key) for name, url, key in found if url)


def _place(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port: whoever answers there is the same server."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def answers(server: Server) -> bool:
    """Whether anybody speaks HTTP there: any status will do, and no key is sent."""
    url = f"{shown(server.base_url)}/models"
    with open_http(timeout=PROBE_SECONDS, seconds=PROBE_SECONDS) as http:
        try:
            with http.stream("GET", url):
                return True
        except Exception:  # noqa: BLE001  whatever keeps it from answering, it does not answer
            return False


class FirstThatAnswers:
    """Remembers which of the servers answered first. Thread-safe; a single server is never probed."""

    def __init__(self, servers: Sequence[Server], answers: Callable[[Server], bool] = answers) -> None:
        self._servers = tuple(servers)
        self._answers = answers
        self._lock = threading.Lock()
        self._chosen: Server | None = None

    def pick(self, but: Collection[Server] = ()) -> Server | None:
        """The server to ask, none of those in `but`, which did not answer; None where none answers, and then `tried`
        says which were asked."""
        with self._lock:
            if len(self._servers) == 1:
                return None if self._servers[0] in but else self._servers[0]
            if self._chosen is None or self._chosen in but:
                left = (server for server in self._servers if server not in but)
                self._chosen = next(filter(self._answers, left), None)
            return self._chosen

    @property
    def has_fallback(self) -> bool:
        """Whether one of several is known to answer, after another was passed over."""
        return len(self._servers) > 1 and self._chosen is not None

    @property
    def tried(self) -> str:
        """The servers with their addresses, for a message."""
        return ", ".join(f"{server.name} at {server.address}" for server in self._servers) or "no server"
