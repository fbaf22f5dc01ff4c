"""AgentFormer: a memory that an agent can trust, and answers with page-exact citations.

with agentformer.connect() as af:
    af.rag.upload("handbook.pdf")
    print(af.rag.query("Who holds the keys?").text)

What is named here is imported when it is first used, so that no command waits for parts that it does not need.
"""

from agentformer._version import __version__

TYPE_CHECKING = False  # true for type checkers; that of `typing` would cost more than all the rest of this file
if TYPE_CHECKING:
    from agentformer import errors as errors
    from agentformer import factory as factory
    from agentformer import settings as settings
    from agentformer import types as types
    from agentformer.errors import AgentFormerError
    from agentformer.factory import AgentFormer, connect
    from agentformer.search.fusion import merge
    from agentformer.settings import Settings
    from agentformer.types import Answer, Citation, Hit, MemoryEntry, Scope, Vote

__all__ = [
    "AgentFormer",
    "AgentFormerError",
    "Answer",
    "Citation",
    "Hit",
    "MemoryEntry",
    "Scope",
    "Settings",
    "Vote",
    "__version__",
    "connect",
    "merge",
]

_ROOMS = {
    "AgentFormer": "factory",
    "AgentFormerError": "errors",
    "Answer": "types",
    "Citation": "types",
    "Hit": "types",
    "MemoryEntry": "types",
    "Scope": "types",
    "Settings": "settings",
    "Vote": "types",
    "connect": "factory",
    "merge": "search.fusion",
}

_MODULES = {
    "access",
    "embedders",
    "errors",
    "factory",
    "index",
    "llms",
    "memory",
    "http",
    "search",
    "rag",
    "readers",
    "records",
    "registry",
    "rerankers",
    "settings",
    "text",
    "tools",
    "types",
}

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name):
        from importlib import import_module

        if room := _ROOMS.get(name):
            value = getattr(import_module(f"{__name__}.{room}"), name)
            globals()[name] = value
            return value
        if name in _MODULES:  # `agentformer.errors.NotFound` after `import agentformer`
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
