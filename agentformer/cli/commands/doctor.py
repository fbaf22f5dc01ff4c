"""The commands `status`, which counts the contents of the memory, and `doctor`, which verifies the stored data."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentformer.cli.group import common, examples, main
from agentformer.cli.inputs import kinds_of, open_existing, require_memory
from agentformer.cli.output import one_line, plural, print_json, print_result, print_warnings, say, watching
from agentformer.errors import AgentFormerError, InvalidInput, StoreDamaged, StoreError
from agentformer.factory import AgentFormer, connect, salvage
from agentformer.rag.documents import Document
from agentformer.records.integrity.disk import holders
from agentformer.records.integrity.findings import Findings
from agentformer.records.offers import vectors_of
from agentformer.registry import SERVERS
from agentformer.settings import Settings, load_settings, unused_values
from agentformer.tools.result_json import report_json
from agentformer.types import Check, Scope

if TYPE_CHECKING:
    from agentformer.memory.distributed import NodeState

_NAMED = 10  # at most this many namespaces, or documents with the same file, are named
_SHA256 = re.compile(r"[0-9a-f]{64}")  # the name of an original file
_BY_A_MODEL = ("model", "model_retried")
_OPENED = "the memory opens"
_FOUND, _UNUSABLE = 1, 3  # exit codes
_BACKUPS = "backups, exports, and copies of the disk, such as snapshots"
_SERVER = (
    "the files of the PostgreSQL server: after `agentformer vacuum --full` and a checkpoint, the tables hold nothing "
    "deleted; its write-ahead log, archived log, standbys and dumps may"
)
_TRY = "`agentformer doctor --repair` recovers the readable records"


@main.command(
    epilog=examples("agentformer status", "agentformer status --json", "agentformer status --namespace board")
)
@common
def status(namespace: str, as_json: bool, **options: Any) -> None:
    """Show what is stored, and the state of each part of the memory.

    Documents are counted only in the namespace of --namespace. All other counts are of the whole memory. Only the calls
    of embedders and language models by this command itself are counted. If the file `.env` and the environment have
    different values of a variable, the command also names the value that is not used."""
    with open_existing(**options) as af:
        state = af.status()
        documents = af.rag.documents(namespace=namespace)
        unused = unused_values()
        lines = [] if as_json else _status_lines(af, state, namespace, documents)
    if as_json:
        counts = dict(Counter(document.status for document in documents))
        print_json({**state, "documents": counts, "unused_settings": unused})
        return
    for name, value in lines:
        say(f"{f'{name}:' if name else '':16}{value}")
    print_warnings(unused)


def _status_lines(
    af: AgentFormer, state: Mapping[str, Any], namespace: str, documents: Sequence[Document]
) -> list[tuple[str, str]]:
    counts = {name: af.backend.count(Scope(name, include_archived=True)) for name in af.backend.namespaces()}
    states = Counter(document.status for document in documents)
    more = f" and {len(counts) - _NAMED} more" if len(counts) > _NAMED else ""
    names = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:_NAMED])
    return [
        ("memory", f"{af.settings.index_dir} ({af.settings.backend}), files in {af.settings.upload_dir}"),
        ("entries", f"{sum(counts.values())}{_listed(kinds_of(state))}"),
        ("namespaces", f"{names}{more}" if counts else "none"),
        ("documents", f"{len(documents)} in {namespace}{_listed(states)}"),
        ("disk", ", ".join(f"{kind} {size / 1e6:.1f} MB" for kind, size in state["disk"].items() if size) or "nothing"),
        *_embedding_rows(af, state, sum(vectors_of(af.backend).pending(Scope(name)) for name in counts)),
        ("language model", af.settings.llm_model or "none (answers quote the documents)"),
        *_cleaner(state["cleaner"]),
        *_providers(state["providers"]),
    ]


def _embedding_rows(af: AgentFormer, state: Mapping[str, Any], waiting: int) -> list[tuple[str, str]]:
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
    lines = []
    for name, usage in providers.items():
        if usage["calls"] or usage["errors"]:
            errors = f"; errors{_listed(usage['errors'])}; last error: {usage['last_error']}" if usage["errors"] else ""
            lines.append(f"{name}: {plural(usage['calls'], 'call')}, {usage['mean_ms']:.0f} ms each{errors}")
    return _labelled("providers", lines or ["not called in this process"])


def _listed(counts: Mapping[Any, int]) -> str:
    return f": {', '.join(f'{count} {name}' for name, count in counts.items())}" if counts else ""


def _labelled(label: str, values: Sequence[str]) -> list[tuple[str, str]]:
    """Return rows (label, value) of a table for several values with one label. Only the first row shows the label."""
    return [(label if not number else "", value) for number, value in enumerate(values)]


@main.command(epilog=examples("agentformer doctor", "agentformer doctor --repair", "agentformer doctor --json"))
@click.option("--repair", is_flag=True, help="Repair the data if possible, and move unreadable records into a file.")
@click.option(
    "--erased",
    is_flag=True,
    help="Read texts from standard input, one in a line, and show which files of the memory still contain one.",
)
@common
def doctor(namespace: str, as_json: bool, repair: bool, erased: bool, **options: Any) -> None:
    """Verify the stored data of every namespace.

    The command checks the database file, the checksum of every entry and vector, the links between entries, the
    indexes, and the documents with their pages, chunks and files. It also reports files without a document, and entries
    that wait for an embedder. Other processes may use the memory during the check.

    Without --repair, nothing is changed. With --repair, data that can be computed from the records is rebuilt, and
    a damaged document is ingested again from its file, under a new id that the report names. Other damaged records
    are moved into a file `damaged-DATE.jsonl` in the folder of the database. If the database file is not completely
    readable, a new file with the readable records replaces the database file, and the damaged file is kept as
    `memory.sqlite3.damaged-DATE`. Before the database file is replaced, all other processes must close the memory.

    --erased is for proof after `forget` or `remove`: it reads all files of the index folder and the upload folder, and
    names the documents whose original file it is. It cannot read backups, copies of the disk, or the files of a
    database server.

    The exit code is 0 if no problem is left. It is 1 if problems are left, if the repair lost data, or if a file still
    contains a text. It is 2 if there is no memory, and 3 if the memory cannot be opened.
    """
    settings = load_settings(options)
    require_memory(settings)
    if erased:
        if repair:
            raise InvalidInput("--erased", "cannot be used together with --repair")
        _report_holders(settings, as_json=as_json)
        return
    checks, nodes, code = _run_checks(options, repair=repair)
    left = sum(check.found - check.mended for check in checks)
    lost = sum(check.lost for check in checks)
    if as_json:
        known = {"nodes": [asdict(node) for node in nodes]} if nodes is not None else {}
        print_json({"well": not (left or lost or code), "checks": [report_json(check) for check in checks], **known})
    else:
        _print_checks(checks)
        if nodes is not None:
            alive = sum(node.alive for node in nodes)
            say(f"nodes: {alive} alive, {len(nodes) - alive} dead; agentformer nodes lists them")
        say(_summary(checks, left, lost))
    if code or left or lost:
        sys.exit(code or _FOUND)


def _report_holders(settings: Settings, *, as_json: bool) -> None:
    """Print the files that contain one of the texts on standard input, without the texts. Exit with code 1 if there is
    such a file."""
    texts = [line.strip() for line in sys.stdin if line.strip()] if sys.stdin else []
    if not texts:
        raise InvalidInput("--erased", "needs texts on standard input, one in a line")
    folders = (settings.index_dir, settings.upload_dir)
    found = sorted({str(path) for text in texts for path in holders(folders, text)})
    documents = _documents_of(settings, found, texts)
    elsewhere = [_BACKUPS, *([_SERVER] if settings.backend in SERVERS else [])]
    named = {path: f", of the document {'; '.join(names)}" for path, names in documents.items()}
    lines = [
        *(f"still in {path}{named.get(path, '')}" for path in found),
        *([] if found else ["no file of this memory contains a text"]),
    ]
    lines += [f"not read: {place}" for place in elsewhere]
    values = {"files": found, "documents": documents, "not_read": elsewhere}
    print_result(values, "\n".join(lines), as_json=as_json)
    if found:
        sys.exit(_FOUND)


def _documents_of(settings: Settings, paths: Sequence[str], texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the names and ids of the stored documents whose original files are at these paths, by the path. A name
    that contains one of the texts is left out. A memory that cannot be opened has no documents."""
    digests = {path: Path(path).stem for path in paths if _SHA256.fullmatch(Path(path).stem)}
    found: dict[str, list[str]] = {}
    if not digests:
        return found
    try:
        with AgentFormer(replace(settings, embed_retry_seconds=0, cleanup_interval=0)) as af:
            for path, digest in digests.items():
                for name in af.backend.namespaces():
                    scope = Scope(name, kinds=("document",), metadata={"sha256": digest}, include_archived=True)
                    for entry in af.backend.list(scope, limit=_NAMED):
                        secret = any(text in entry.content for text in texts)
                        shown = "[name]" if secret else one_line(entry.content)
                        place = f"{shown} ({entry.id}, namespace {name})"
                        found.setdefault(path, []).append(place)
    except AgentFormerError as error:
        print_warnings([f"the documents of these files are not named: {error}"])
    return found


def _run_checks(options: dict[str, Any], *, repair: bool) -> tuple[Sequence[Check], Sequence[NodeState] | None, int]:
    """Verify the memory, and also repair it if `repair` is true. Return the checks, the nodes of a shared memory, and
    an exit code, which is 3 if the memory cannot be opened and 0 otherwise."""
    with watching(lambda: "repairing" if repair else "verifying"):
        try:
            af = connect(**options, embed_retry_seconds=0)
        except StoreDamaged as error:
            checks, code = _recover(options, str(error)) if repair else _not_opened(f"{error}; {_TRY}")
            return checks, None, code
        except StoreError as error:
            checks, code = _not_opened(str(error))
            return checks, None, code
        with af:
            return af.verify(repair=repair), af.distributed.nodes() if af.distributed else None, 0


def _recover(options: dict[str, Any], damage: str) -> tuple[Sequence[Check], int]:
    """Move the readable records to a new file, then verify and repair it. Return the checks and the exit code."""
    try:
        salvaged = salvage(load_settings(options))
    except StoreError as error:
        return _not_opened(damage, f"recovery failed: {error}")
    findings = Findings("memory", _OPENED, looked_at=1)
    findings.add(damage)
    for result in salvaged:
        result.add_to(findings)
    try:
        with connect(**options, embed_retry_seconds=0) as af:
            return [findings.to_check(), *af.verify(repair=True)], 0
    except AgentFormerError as error:  # the losses of the recovery are reported although the new file does not open
        checks, code = _not_opened(str(error))
        return [findings.to_check(), *checks], code


def _not_opened(*findings: str) -> tuple[Sequence[Check], int]:
    return [Check("memory", _OPENED, 1, 1, 0, findings)], _UNUSABLE


def _summary(checks: Sequence[Check], left: int, lost: int) -> str:
    repaired = sum(check.mended for check in checks)
    if lost:
        return f"found: {left}; repaired: {repaired - lost}; lost, unless a backup has it: {lost}"
    if left:
        mended = f"; repaired: {repaired}" if repaired else ""
        return f"found: {left}{mended}; each line below FOUND ends with what to do"
    return f"no problems left; repaired: {repaired}" if repaired else "no problems found"


def _print_checks(checks: Sequence[Check]) -> None:
    for check in checks:
        state = "OK" if not check.findings else "NOTE"  # a note is no damage
        counts = f"{check.looked_at} checked"
        if check.found:
            state = "repaired" if check.mended >= check.found else "FOUND"
            counts += f", {check.found} wrong" + (f", {check.mended} repaired" if check.mended else "")
        say(f"{state:10}{check.name} ({counts}): {check.asked}")
        for finding in check.findings:
            say(f"{'':10}{finding}")
        if check.found > len(check.findings):
            say(f"{'':10}and {check.found - len(check.findings)} more")
        for former, new in check.replaced.items():
            say(f"{'':10}the document {former} has the new id {new}")
