"""Commands about the state of the store: `status` counts its contents, and `doctor` verifies them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from agentformer.cli.group import common, examples, main
from agentformer.cli.inputs import require_memory
from agentformer.cli.output import plural, print_json, say, watching
from agentformer.errors import StoreDamaged, StoreError
from agentformer.factory import AgentFormer, connect, salvage
from agentformer.rag.documents import Document
from agentformer.settings import load_settings
from agentformer.tools.result_json import report_json
from agentformer.types import Check, Scope

_NAMED = 10  # namespaces
_BY_A_MODEL = ("model", "model_retried")
_OPENED = "the memory opens"
_FOUND, _UNUSABLE = 1, 3  # exit codes
_TRY = "`agentformer doctor --repair` recovers the readable records"


@main.command(
    epilog=examples("agentformer status", "agentformer status --json", "agentformer status --namespace board")
)
@common
def status(namespace: str, as_json: bool, **options: Any) -> None:
    """Show what is stored, and the state of all parts.

    Documents are counted in the namespace, all else in the whole memory. Provider calls are counted per process.
    """
    with connect(**options) as af:
        state = af.status()
        documents = af.rag.documents(namespace=namespace)
        lines = [] if as_json else _status_lines(af, state, namespace, documents)
    if as_json:
        print_json({**state, "documents": dict(Counter(document.status for document in documents))})
        return
    for name, value in lines:
        say(f"{f'{name}:' if name else '':16}{value}")


def _status_lines(
    af: AgentFormer, state: Mapping[str, Any], namespace: str, documents: Sequence[Document]
) -> list[tuple[str, str]]:
    counts = {name: af.backend.count(Scope(name, include_archived=True)) for name in af.backend.namespaces()}
    states = Counter(document.status for document in documents)
    more = f" and {len(counts) - _NAMED} more" if len(counts) > _NAMED else ""
    names = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:_NAMED])
    return [
        ("memory", f"{af.settings.index_dir} ({af.settings.backend}), files in {af.settings.upload_dir}"),
        ("entries", f"{sum(counts.values())}{_listed(_kinds(state))}"),
        ("namespaces", f"{names}{more}" if counts else "none"),
        ("documents", f"{len(documents)} in {namespace}{_listed(states)}"),
        *_embedding(af, state, sum(af.backend.pending(Scope(name)) for name in counts)),
        ("language model", af.settings.llm_model or "none (answers quote the documents)"),
        *_cleaner(state["cleaner"]),
        *_providers(state["providers"]),
    ]


def _embedding(af: AgentFormer, state: Mapping[str, Any], waiting: int) -> list[tuple[str, str]]:
    spaces = [
        f"{space['spec']}: {space['state']}, {space['dimension']} dimensions, {plural(space['vectors'], 'vector')}, "
        f"{space['bytes'] / 1e6:.1f} MB"
        for space in state["spaces"]
    ]
    pending = "none"
    if waiting:
        pending = f"{plural(waiting, 'entry')} without a vector; agentformer reindex --show shows the reason"
    return [*_labelled("embedder", spaces or [f"{af.settings.embedder}; no vectors yet"]), ("waiting", pending)]


def _cleaner(cleaner: Mapping[str, Any]) -> list[tuple[str, str]]:
    outcomes = cleaner["outcomes"]
    by_model = sum(outcomes[name] for name in _BY_A_MODEL)
    total = sum(outcomes.values())
    text = f"{total} summaries" + (f": {by_model} by a model, {total - by_model} quoted" if total else "")
    text += f"; {cleaner['queued']} sessions queued" if cleaner["queued"] else ""
    return [("cleaner", text), *([("", f"last error: {cleaner['last_error']}")] if cleaner["last_error"] else [])]


def _providers(providers: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return a line for each provider that was called in this process, with its errors."""
    lines = []
    for name, usage in providers.items():
        if usage["calls"] or usage["errors"]:
            errors = f"; errors{_listed(usage['errors'])}; last error: {usage['last_error']}" if usage["errors"] else ""
            lines.append(f"{name}: {plural(usage['calls'], 'call')}, {usage['mean_ms']:.0f} ms each{errors}")
    return _labelled("providers", lines or ["not called in this process"])


def _kinds(state: Mapping[str, Any]) -> Mapping[str, int]:
    """Count entries by kind over all backends. `hierarchical` is another name of one of them."""
    backends = state.get("backends", {"": state})
    kinds: Counter[str] = Counter()
    for name, backend in backends.items():
        if name != "hierarchical":
            kinds.update(backend["kinds"])
    return kinds


def _listed(counts: Mapping[Any, int]) -> str:
    return f": {', '.join(f'{count} {name}' for name, count in counts.items())}" if counts else ""


def _labelled(label: str, values: Sequence[str]) -> list[tuple[str, str]]:
    """Return several lines of which the first has the label."""
    return [(label if not number else "", value) for number, value in enumerate(values)]


@main.command(epilog=examples("agentformer doctor", "agentformer doctor --repair", "agentformer doctor --json"))
@click.option("--repair", is_flag=True, help="Rebuild derived data, and move unreadable records into a file.")
@common
def doctor(namespace: str, as_json: bool, repair: bool, **options: Any) -> None:
    """Verify the stored data of every namespace.

    It checks the database file, every entry and vector by its checksum, links, windows against texts, both indexes
    against the records, documents with their pages, chunks and files, files that belong to no document, and entries
    that wait for an embedder. Other processes may use the memory meanwhile.

    Without --repair nothing is changed. With it, data that follows from the records is rebuilt, and a document is
    read again from its file. Other damaged records are moved into a file `damaged-DATE.jsonl` beside the database. A
    database file that is not completely readable is replaced by its readable part, and kept as
    `memory.sqlite3.damaged-DATE`; this needs all other processes to close the memory first.

    The exit code is 0 if everything is intact, or all findings are repaired; 1 if findings are left, and once if data
    is lost; 2 if there is no memory; 3 if it cannot be opened.
    """
    require_memory(load_settings(options))
    checks, code = _run_checks(options, repair=repair)
    left = sum(check.found - check.mended for check in checks)
    lost = sum(check.lost for check in checks)
    if as_json:
        print_json({"well": not (left or lost or code), "checks": [report_json(check) for check in checks]})
    else:
        _print_checks(checks)
        say(_summary(checks, left, lost))
    if code or left or lost:
        sys.exit(code or _FOUND)


class _NotOpened(Exception):
    """The memory cannot be opened."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(str(error))
        self.damaged = isinstance(error, StoreDamaged)


def _run_checks(options: dict[str, Any], *, repair: bool) -> tuple[list[Check], int]:
    """Return the checks, and the exit code for a memory that cannot be opened, else 0."""
    with watching(lambda: "repairing" if repair else "verifying"):
        try:
            return _verify(options, repair=repair), 0
        except _NotOpened as error:
            if not repair or not error.damaged:
                reason = f"{error}; {_TRY}" if error.damaged else str(error)
                return [Check("memory", _OPENED, 1, 1, 0, (reason,))], _UNUSABLE
            damage = str(error)
        try:
            salvaged = salvage(load_settings(options))
            checks = _verify(options, repair=True)
        except (StoreError, _NotOpened) as error:
            return [Check("memory", _OPENED, 1, 1, 0, (damage, f"recovery failed: {error}"))], _UNUSABLE
        results = [result.summary() for result in salvaged]
        lost = sum(len(result.unreadable) for result in salvaged)
        return [Check("memory", _OPENED, 1, 1 + lost, 1, (damage, *results)), *checks], 0


def _verify(options: dict[str, Any], *, repair: bool) -> list[Check]:
    try:
        af = connect(**options, embed_retry_seconds=0)
    except StoreError as error:
        raise _NotOpened(error) from error
    with af:
        return af.verify(repair=repair)


def _summary(checks: Sequence[Check], left: int, lost: int) -> str:
    repaired = sum(check.mended for check in checks)
    if lost:
        return f"found: {left}; repaired: {repaired - lost}; lost, unless a backup has it: {lost}"
    if left:
        return f"found: {left}" + (f"; repaired: {repaired}" if repaired else "")
    return f"no problems left; repaired: {repaired}" if repaired else "no problems found"


def _print_checks(checks: Sequence[Check]) -> None:
    for check in checks:
        state = "OK" if not check.found else "repaired" if check.mended >= check.found else "FOUND"
        say(f"{state:10}{check.name}: {check.asked} ({check.looked_at})")
        for finding in check.findings:
            say(f"{'':10}{finding}")
        if check.found > len(check.findings):
            say(f"{'':10}and {check.found - len(check.findings)} more")
