"""`agentformer status`: what is kept and in which state, for a person on one screen, for a program as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from agentformer.cli.group import common, examples, main
from agentformer.cli.output import print_json, say
from agentformer.factory import AgentFormer, connect
from agentformer.rag.documents import Document
from agentformer.types import Scope

_NAMED = 10  # namespaces
_BY_A_MODEL = ("model", "model_retried")


@main.command(
    epilog=examples("agentformer status", "agentformer status --json", "agentformer status --namespace board")
)
@common
def status(namespace: str, as_json: bool, **options: Any) -> None:
    """Show what is kept, and in which state.

    Documents are those of the namespace, all else is of the whole memory. Calls of providers are counted by each
    process for itself.
    """
    with connect(**options) as af:
        state = af.status()
        documents = af.rag.documents(namespace=namespace)
        lines = [] if as_json else _lines(af, state, namespace, documents)
    if as_json:
        print_json({**state, "documents": dict(Counter(document.status for document in documents))})
        return
    for name, value in lines:
        say(f"{name:12}{value}")


def _lines(
    af: AgentFormer, state: Mapping[str, Any], namespace: str, documents: Sequence[Document]
) -> list[tuple[str, str]]:
    counts = {name: af.backend.count(Scope(name, include_archived=True)) for name in af.backend.namespaces()}
    states = Counter(document.status for document in documents)
    more = f" and {len(counts) - _NAMED} more" if len(counts) > _NAMED else ""
    there = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:_NAMED])
    return [
        ("memory", f"{af.settings.index_dir} ({af.settings.backend}), originals in {af.settings.upload_dir}"),
        ("entries", f"{sum(counts.values())}{_listed(_kinds(state))}"),
        ("namespaces", f"{there}{more}" if counts else "none"),
        ("documents", f"{len(documents)} in {namespace}{_listed(states)}"),
        *_embedding(af, state, sum(af.backend.pending(Scope(name)) for name in counts)),
        ("model", af.settings.llm_model or "none; answers and summaries quote"),
        *_cleaner(state["cleaner"]),
        *_providers(state["providers"]),
    ]


def _embedding(af: AgentFormer, state: Mapping[str, Any], waiting: int) -> list[tuple[str, str]]:
    spaces = [
        f"{each['spec']}: {each['state']}, {each['dimension']} dimensions, {each['vectors']} vectors, "
        f"{each['bytes'] / 1e6:.1f} MB"
        for each in state["spaces"]
    ]
    told = f"{waiting} entries, for an embedder; agentformer reindex --show tells why" if waiting else "nothing"
    return [*_under("embedder", spaces or [f"{af.settings.embedder}; there are no vectors yet"]), ("waiting", told)]


def _cleaner(cleaner: Mapping[str, Any]) -> list[tuple[str, str]]:
    outcomes = cleaner["outcomes"]
    by_model = sum(outcomes[name] for name in _BY_A_MODEL)
    total = sum(outcomes.values())
    told = f"{total} summaries" + (f": {by_model} by a model, {total - by_model} quoted" if total else "")
    told += f"; {cleaner['queued']} sessions queued" if cleaner["queued"] else ""
    return [("cleaner", told), *([("", f"last error: {cleaner['last_error']}")] if cleaner["last_error"] else [])]


def _providers(providers: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """One line for each that was asked in this process, with what went wrong."""
    told = []
    for name, used in providers.items():
        if used["calls"] or used["errors"]:
            errors = f"; errors{_listed(used['errors'])}; the last: {used['last_error']}" if used["errors"] else ""
            told.append(f"{name}: {used['calls']} calls, {used['mean_ms']:.0f} ms each{errors}")
    return _under("providers", told or ["not asked in this process"])


def _kinds(state: Mapping[str, Any]) -> Mapping[str, int]:
    """Entries by kind, over all backends; `hierarchical` is another name of one of them."""
    backends = state.get("backends", {"": state})
    kinds: Counter[str] = Counter()
    for name, each in backends.items():
        if name != "hierarchical":
            kinds.update(each["kinds"])
    return kinds


def _listed(counts: Mapping[Any, int]) -> str:
    return f": {', '.join(f'{count} {name}' for name, count in counts.items())}" if counts else ""


def _under(name: str, values: Sequence[str]) -> list[tuple[str, str]]:
    """Several values, of which the first has the name before it."""
    return [(name if not number else "", value) for number, value in enumerate(values)]
