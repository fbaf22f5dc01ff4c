"""Names of parts: the whole extension surface on one page.

A part of this package is named here as "module:Class". A third party adds one with an entry point of the
group `agentformer.embedders`, `agentformer.rerankers` or `agentformer.llms`, a callable
`(model: str, settings: Settings)`; or of `agentformer.backends`, a callable
`(settings: Settings, embedder: Embedder)`, and of `agentformer.stored_spaces`, under the same name, one
`(index_dir: Path) -> EmbeddingSpace | None`, of `agentformer.wanted_embedders` one `(index_dir: Path) -> str`, of
`agentformer.present` one `(index_dir: Path) -> bool`, and of `agentformer.salvagers` one `(index_dir: Path) -> str`.
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
    "rerankers": {
        "sbert": "agentformer.rerankers.cross_encoder:CrossEncoderReranker.from_settings",
    },
    "backends": {
        "faiss": "agentformer.builders:faiss_backend",
        "local_json": "agentformer.memory.backends.local_json:LocalJsonMemoryBackend.from_settings",
    },
    # How `auto` learns which embedder made the vectors that a backend's folder holds.
    "stored_spaces": {
        "faiss": "agentformer.memory.backends.faiss.folder:stored_space",
    },
    # Which embedder was asked for while it could not be had, by a store that has no vectors yet.
    "wanted_embedders": {
        "faiss": "agentformer.memory.backends.faiss.folder:wanted_embedder",
    },
    # Whether a folder holds a store of this backend, so that nobody takes it for empty with other settings.
    "present": {
        "faiss": "agentformer.memory.backends.faiss.folder:present",
        "local_json": "agentformer.memory.backends.present:local_json",
    },
    # What saves of a folder's store what can be read, where it cannot be opened, and tells in words what came of it.
    "salvagers": {
        "faiss": "agentformer.memory.backends.faiss.folder:salvage_folder",
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
    return sorted({point.name for point in _plugins(group)} | set(PARTS[group]))


def ours(group: str) -> list[str]:
    """Names of our own parts of a group, sorted; they are known without looking for third parties'."""
    return sorted(PARTS[group])


def known(group: str, name: str) -> bool:
    """Is there a part of this name, ours or a third party's?"""
    return name in PARTS[group] or any(point.name == name for point in _plugins(group))


def lookup(group: str, name: str) -> Callable[..., Any]:
    """The callable that builds the part `name`. Raises `InvalidInput` that lists the known names, or names the plugin
    that cannot be loaded."""
    if target := PARTS[group].get(name):
        part: Callable[..., Any] = load(target)
        return part
    for point in _plugins(group):
        if point.name == name:
            return _load_plugin(group, point)
    raise InvalidInput(group, f"there is no {name!r}; known are {', '.join(names(group))}")


def load(target: str) -> Any:
    """What "module:attribute" names."""
    module, _, attribute = target.partition(":")
    found: Any = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


@functools.cache
def _plugins(group: str) -> tuple[EntryPoint, ...]:
    """Parts of third parties. Looked for once, and only where ours do not answer: it reads a file of every package."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=f"agentformer.{group}"))


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
