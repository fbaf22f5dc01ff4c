"""The built-in providers by name, and the entry points of other packages.

A built-in provider is named as "module:attribute". It is imported when it is looked up. Another package adds a provider
with an entry point. In the groups `agentformer.embedders`, `agentformer.rerankers` and `agentformer.llms`, the entry
point is a callable `(model: str, settings: Settings)`. In the group `agentformer.backends`, it is a callable
`(settings: Settings, embedder: Embedder)`.

Four more groups have callables of `index_dir: Path`. The name of the entry point is the name of the backend.
`agentformer.stored_spaces` returns the space of the vectors (`EmbeddingSpace | None`); from it, `auto` selects the
embedder. `agentformer.wanted_embedders` returns the embedder (`str`) for which the entries of a store without vectors
wait. `agentformer.present` returns whether the folder contains a store of this backend. `agentformer.salvagers`
recovers the readable records of a store that cannot be opened.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentformer.errors import InvalidInput

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PARTS: dict[str, dict[str, str]] = {
    "embedders": {
        "sbert": "agentformer.embedders.sbert:SbertEmbedder.from_settings",
        "minilm": "agentformer.embedders.sbert:SbertEmbedder.packaged",
        "hashing": "agentformer.embedders.hashing:HashingEmbedder.from_settings",
        "ollama": "agentformer.embedders.ollama:OllamaEmbedder.from_settings",
        "openai": "agentformer.embedders.openai:OpenAIEmbedder.from_settings",
    },
    "rerankers": {"sbert": "agentformer.rerankers.cross_encoder:CrossEncoderReranker.from_settings"},
    "backends": {
        "faiss": "agentformer.builders:faiss_backend",
        "local_json": "agentformer.memory.backends.local_json:LocalJsonMemoryBackend.from_settings",
    },
    "stored_spaces": {"faiss": "agentformer.memory.backends.faiss:stored_space"},
    "wanted_embedders": {"faiss": "agentformer.memory.backends.faiss:wanted_embedder"},
    "present": {
        "faiss": "agentformer.memory.backends.faiss:present",
        "local_json": "agentformer.memory.backends:has_local_json",
    },
    "salvagers": {"faiss": "agentformer.memory.backends.faiss.indexes:salvage_folder"},
    "servers": {
        "auto": "agentformer.api.serving:serve",  # selects one of the other servers
        "gunicorn": "agentformer.api.serving.gunicorn:serve",
        "waitress": "agentformer.api.serving.waitress:serve",
    },
    "mcp": {"stdio": "agentformer.mcp_server.stdio:serve", "http": "agentformer.mcp_server.http:serve"},
    "llms": {
        "openai": "agentformer.llms.openai:OpenAIModel.from_settings",
        "ollama": "agentformer.llms.openai:OpenAIModel.ollama",
        "lmstudio": "agentformer.llms.openai:OpenAIModel.lmstudio",
        "echo": "agentformer.llms.echo:EchoModel.from_settings",
    },
}


def names(group: str) -> list[str]:
    """Return the names of a group, sorted. Names of other packages are included."""
    return sorted({point.name for point in _plugins(group)} | set(PARTS[group]))


def ours(group: str) -> list[str]:
    """Return the built-in names of a group, sorted, without searching installed packages."""
    return sorted(PARTS[group])


def known(group: str, name: str) -> bool:
    """Return whether a provider of this name exists."""
    return name in PARTS[group] or any(point.name == name for point in _plugins(group))


def lookup(group: str, name: str) -> Callable[..., Any]:
    """Return the callable of a provider. Raises `InvalidInput` with the known names, or with the name of a package that
    cannot be loaded."""
    if target := PARTS[group].get(name):
        part: Callable[..., Any] = load(target)
        return part
    for point in _plugins(group):
        if point.name == name:
            return _load_plugin(group, point)
    raise InvalidInput(group, f"there is no {name!r}; known are {', '.join(names(group))}")


def load(target: str) -> Any:
    """Import the module of "module:attribute", and return the attribute."""
    module, _, attribute = target.partition(":")
    value: Any = import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


@functools.cache
def _plugins(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of other packages. The result is cached, because the search reads a file of every
    package."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=f"agentformer.{group}"))


def _load_plugin(group: str, point: EntryPoint) -> Callable[..., Any]:
    package = f" of the package {point.dist.name} {point.dist.version}" if point.dist else ""
    try:
        loaded: Callable[..., Any] = point.load()
        if not callable(loaded):
            raise TypeError(f"{point.value} is not callable")
    except Exception as error:  # a plugin can raise anything
        reason = f"{type(error).__name__}: {error}"[:200]
        raise InvalidInput(
            group, f"{point.name!r}{package} cannot be loaded ({reason}); update or uninstall that package"
        ) from error
    return loaded
