"""AgentFormer: a memory that an agent can trust, and answers with page-exact citations.

with agentformer.connect() as af:
    af.rag.upload("handbook.pdf")
    print(af.rag.query("Who holds the keys?").text)

The names of this module are imported when they are first used, so that a command does not wait for the import of parts
that it does not use.
"""

from agentformer._version import __version__

TYPE_CHECKING = False  # true for type checkers; an import of `typing` would take longer than the rest of this file
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

# Imported at their first use, as in `agentformer.errors.NotFound`.
_MODULES = (
    *("access", "aio", "embedders", "errors", "factory", "http", "index", "llms", "memory", "rag", "readers"),
    *("records", "registry", "rerankers", "search", "settings", "text", "tools", "types"),
)

if not TYPE_CHECKING:  # a type checker would accept every misspelt name

    def __getattr__(name):
        """Import a public name or a module at its first use."""
        if name in ("AgentFormer", "connect"):
            import agentformer.factory as module
        elif name == "AgentFormerError":
            import agentformer.errors as module
        elif name == "Settings":
            import agentformer.settings as module
        elif name == "merge":
            import agentformer.search.fusion as module
        elif name in __all__:
            import agentformer.types as module
        elif name in _MODULES:
            from importlib import import_module

            return import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
