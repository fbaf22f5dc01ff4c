"""The registry of providers: the built-in providers by name, and the entry points with which other packages add
providers.

A built-in provider is written as "module:attribute". The module is imported when the provider is looked up. Another
package adds a provider with an entry point. In the groups `agentformer.embedders`, `agentformer.rerankers` and
`agentformer.llms`, the entry point is a callable `(model: str, settings: Settings)`. In the group
`agentformer.backends`, the entry point is a callable `(settings: Settings, embedder: Embedder)`.

In four more groups, the entry point is a callable `(index_dir: Path)`, and the name of the entry point is the name of a
backend. `agentformer.stored_spaces` returns the embedding space of the stored vectors (`EmbeddingSpace | None`), so
that the setting `auto` can select the embedder of this space. `agentformer.wanted_embedders` returns the name of the
embedder (`str`) that was requested for a store without vectors. `agentformer.present` returns whether the folder
contains a store of this backend. `agentformer.salvagers` recovers the readable records of a store that cannot be
opened.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentformer.errors import InvalidInput

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from agentformer.settings import Settings

# Backends whose store is not in the index folder. Their functions take the settings instead of the folder.
SERVERS = frozenset({"postgres"})
PARTS: dict[str, dict[str, str]] = {
    "embedders": {
        "sbert": "agentformer.embedders.sbert.embedder:SbertEmbedder.from_settings",
        "minilm": "agentformer.embedders.sbert.embedder:SbertEmbedder.minilm",
        "multilingual": "agentformer.embedders.sbert.embedder:SbertEmbedder.multilingual",
        "hashing": "agentformer.embedders.hashing:HashingEmbedder.from_settings",
        "ollama": "agentformer.embedders.ollama:OllamaEmbedder.from_settings",
        "openai": "agentformer.embedders.openai:OpenAIEmbedder.from_settings",
    },
    "rerankers": {"sbert": "agentformer.rerankers.cross_encoder:CrossEncoderReranker.from_settings"},
    "backends": {
        "cosmos_db": "agentformer.memory.backends.cosmos_db.backend:CosmosMemoryBackend.from_settings",
        "faiss": "agentformer.memory.backends.faiss.backend:FaissMemoryBackend.from_settings",
        "local_json": "agentformer.memory.backends.local_json.backend:LocalJsonMemoryBackend.from_settings",
        "postgres": "agentformer.memory.distributed:DistributedMemory.from_settings",
    },
    "stored_spaces": {
        "cosmos_db": "agentformer.memory.backends.cosmos_db.container:stored_space",
        "faiss": "agentformer.memory.backends.faiss.folder:stored_space",
        "postgres": "agentformer.memory.backends.postgres.database:stored_space",
    },
    "wanted_embedders": {
        "cosmos_db": "agentformer.memory.backends.cosmos_db.container:wanted_embedder",
        "faiss": "agentformer.memory.backends.faiss.folder:wanted_embedder",
        "postgres": "agentformer.memory.backends.postgres.database:wanted_embedder",
    },
    "present": {
        "faiss": "agentformer.memory.backends.faiss.folder:present",
        "local_json": "agentformer.memory.backends:has_local_json",
        "postgres": "agentformer.memory.backends.postgres.database:present",
    },
    # Backends with a database whose schema can be old, and whose deleted content takes space. The callables are
    # (settings, *, copy) and (settings, history_before).
    "upgrades": {
        "faiss": "agentformer.memory.backends.faiss.folder:upgrade",
        "postgres": "agentformer.memory.backends.postgres.database:upgrade",
    },
    "vacuums": {
        "faiss": "agentformer.memory.backends.faiss.folder:vacuum",
        "postgres": "agentformer.memory.backends.postgres.database:vacuum",
    },
    "salvagers": {"faiss": "agentformer.memory.backends.faiss.verifier:salvage_folder"},
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
    """Return the sorted names of all providers in a group, including the providers of other packages."""
    return sorted({point.name for point in _plugins(group)} | set(PARTS[group]))


def built_in_names(group: str) -> list[str]:
    """Return the sorted names of the built-in providers in a group. Entry points of other packages are not read."""
    return sorted(PARTS[group])


def known(group: str, name: str) -> bool:
    """Return whether the group has a provider of this name."""
    return name in PARTS[group] or any(point.name == name for point in _plugins(group))


def lookup(group: str, name: str) -> Callable[..., Any]:
    """Return the callable of the provider `name`. Raises `InvalidInput` if the group has no such provider, or if the
    package of the provider cannot be loaded."""
    if target := PARTS[group].get(name):
        part: Callable[..., Any] = load(target)
        return part
    for point in _plugins(group):
        if point.name == name:
            return _load_plugin(group, point)
    raise InvalidInput(group, f"there is no {name!r}; the known names are {', '.join(names(group))}")


def backend_names(settings: Settings) -> list[str]:
    """Return the names of all backends in the settings, without repetition. The default backend is first."""
    hierarchical = settings.hierarchical_backend or settings.backend
    routed = [hierarchical if route.target == "hierarchical" else route.target for route in settings.routes]
    return list(dict.fromkeys([settings.backend, *routed]))


def of_backends(group: str, settings: Settings) -> Iterator[Any]:
    """Call the function of each configured backend in the registry's group `group`, and yield the results, such as the
    embedding spaces of the stored vectors. The argument of a function is the index folder, or the settings if the store
    is on a server. A backend without a function in the group is skipped."""
    used = (name for name in backend_names(settings) if known(group, name))
    return (lookup(group, name)(settings if name in SERVERS else settings.index_dir) for name in used)


def present(settings: Settings) -> bool:
    """Return whether a configured backend has data, or cannot report whether it has data, such as `cosmos_db`."""
    silent = (known("backends", name) and not known("present", name) for name in backend_names(settings))
    return any(of_backends("present", settings)) or any(silent)


def in_folder(settings: Settings, index_dir: Path) -> Settings:
    """Return the settings with which the copy of a store in `index_dir` is opened. The copy of a store on a server uses
    the backend `faiss`."""
    local = dict.fromkeys(SERVERS, "faiss")
    routes = tuple(replace(route, target=local.get(route.target, route.target)) for route in settings.routes)
    backend, hierarchical = (local.get(name, name) for name in (settings.backend, settings.hierarchical_backend))
    return replace(settings, index_dir=index_dir, backend=backend, hierarchical_backend=hierarchical, routes=routes)


def load(target: str) -> Any:
    """Import the module of a target that is written as "module:attribute", and return the attribute."""
    module, _, attribute = target.partition(":")
    value: Any = import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


@functools.cache
def _plugins(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points that installed packages add to a group. The result is cached, because finding the entry
    points requires reading a file of every installed package."""
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
            group, f"{point.name!r}{package} cannot be loaded ({reason}); update or uninstall this package"
        ) from error
    return loaded
