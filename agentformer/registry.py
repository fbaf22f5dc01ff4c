"""Names of parts: the whole extension surface on one page.

A part of this package is named here as "module:Class". A third party adds one with an entry point of the
group `agentformer.embedders` or `agentformer.llms`, a callable `(model: str, settings: Settings)`; or of
`agentformer.backends`, a callable `(settings: Settings, embedder: Embedder)`, and of
`agentformer.stored_spaces`, under the same name, one `(index_dir: Path) -> EmbeddingSpace | None`, of
`agentformer.wanted_embedders` one `(index_dir: Path) -> str`, and of `agentformer.present` one
`(index_dir: Path) -> bool`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from agentformer.errors import InvalidInput

PARTS: dict[str, dict[str, str]] = {
    "embedders": {
        "sbert": "agentformer.embedders.sbert:SbertEmbedder.from_settings",
        "minilm": "agentformer.embedders.sbert:SbertEmbedder.packaged",
        "hashing": "agentformer.embedders.hashing:HashingEmbedder.from_settings",
        "ollama": "agentformer.embedders.ollama:OllamaEmbedder.from_settings",
        "openai": "agentformer.embedders.openai:OpenAIEmbedder.from_settings",
    },
    "backends": {
        "faiss": "agentformer.memory.backends.faiss:FaissMemoryBackend.from_settings",
        "local_json": "agentformer.memory.backends.local_json:LocalJsonMemoryBackend.from_settings",
    },
    # How `auto` learns which embedder made the vectors that a backend's folder holds.
    "stored_spaces": {
        "faiss": "agentformer.memory.backends.faiss:stored_space",
    },
    # Which embedder was asked for while it could not be had, by a store that has no vectors yet.
    "wanted_embedders": {
        "faiss": "agentformer.memory.backends.faiss:wanted_embedder",
    },
    # Whether a folder holds a store of this backend, so that nobody takes it for empty with other settings.
    "present": {
        "faiss": "agentformer.memory.backends.faiss:present",
        "local_json": "agentformer.memory.backends.local_json:present",
    },
    "servers": {
        "auto": "agentformer.api.serving:serve",  # one of these
        "gunicorn": "agentformer.api.serving.gunicorn:serve",
        "waitress": "agentformer.api.serving.waitress:serve",
    },
    "mcp": {
        "stdio": "agentformer.mcp_server.stdio:serve",
        "http": "agentformer.mcp_server.http:serve",
    },
    "llms": {
        "openai": "agentformer.llms.openai:OpenAIModel.from_settings",
        "ollama": "agentformer.llms.openai:OpenAIModel.ollama",
        "lmstudio": "agentformer.llms.openai:OpenAIModel.lmstudio",
        "echo": "agentformer.llms.echo:EchoModel.from_settings",
    },
}


def names(group: str) -> list[str]:
    """Known names of a group, ours and third parties', sorted."""
    found = {point.name for point in entry_points(group=f"agentformer.{group}")}
    return sorted(found | set(PARTS[group]))


def lookup(group: str, name: str) -> Callable[..., Any]:
    """The callable that builds the part `name`. Raises `InvalidInput` that lists the known names, or names the plugin
    that cannot be loaded."""
    if target := PARTS[group].get(name):
        return _load(target)
    for point in entry_points(group=f"agentformer.{group}", name=name):
        return _load_plugin(group, point)
    raise InvalidInput(group, f"there is no {name!r}; known are {', '.join(names(group))}")


def _load_plugin(group: str, point: EntryPoint) -> Callable[..., Any]:
    whose = f" of the package {point.dist.name} {point.dist.version}" if point.dist else ""
    try:
        loaded: Callable[..., Any] = point.load()
        if not callable(loaded):
            raise TypeError(f"{point.value} is not callable")
    except Exception as error:  # importing somebody else's code can raise anything
        reason = f"{type(error).__name__}: {error}"[:200]
        raise InvalidInput(
            group, f"{point.name!r}{whose} cannot be loaded ({reason}); update or uninstall that package"
        ) from error
    return loaded


def _load(target: str) -> Callable[..., Any]:
    module, _, attribute = target.partition(":")
    found: Any = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    loaded: Callable[..., Any] = found
    return loaded
