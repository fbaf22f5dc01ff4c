"""The parts of `sync` and `export` that read and write a memory home, a folder of Markdown files."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentformer.archive.markdown.writer import HomeReport
from agentformer.cli.inputs import hint_namespaces
from agentformer.cli.output import plural, print_json, safe, say
from agentformer.factory import AgentFormer, connect
from agentformer.records import fields

_SHOWN = 10  # the most files that are printed for each kind of change
_LOOK_SECONDS = 1.0  # seconds between two checks for changes with --watch
_CHANGES = ("added", "changed", "restored", "archived", "written", "deleted")


def export_home(af: AgentFormer, folder: Path, namespace: str, *, as_json: bool) -> None:
    """Export a namespace into a memory home, and print the report. Exit with code 1 if the report has problems."""
    hint_namespaces(af, namespace)
    _print(af.markdown.export(folder, namespace=namespace), as_json=as_json)


def sync_home(
    folder: str,
    namespace: str | None,
    options: Mapping[str, Any],
    *,
    delete: bool,
    watch: bool,
    adopt: bool,
    as_json: bool,
) -> None:
    """Sync a memory home, a folder of Markdown files, and print the report. `namespace`, `delete` and `adopt` are
    arguments of `MarkdownHomes.sync`. With `watch`, sync again after each change, until Ctrl-C. Exit with code 1 if the
    report has problems."""
    fields.optional_name("--namespace", namespace)
    with connect(**options) as af:
        report = af.markdown.sync(folder, namespace=namespace, delete=delete, adopt=adopt)
        _show(report, as_json=as_json)
        if watch:
            follower = af.markdown.follow(folder)
            while True:
                time.sleep(_LOOK_SECONDS)
                latest = follower.step()
                if latest and (not latest.complete or any(getattr(latest, name) for name in _CHANGES)):
                    _show(latest, as_json=as_json)
    _end(report)


def _print(report: HomeReport, *, as_json: bool) -> None:
    _show(report, as_json=as_json)
    _end(report)


def _end(report: HomeReport) -> None:
    if not report.complete:
        sys.exit(1)


def _show(report: HomeReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report_json(report), indent=None)
        return
    for state in ("skipped", "pending", "failed", "conflicts"):
        for name, reason in getattr(report, state):
            say(f"{state.removesuffix('s') if state == 'conflicts' else state:9}  {safe(name)}  ({safe(reason)})")
    for state in _CHANGES:
        names = getattr(report, state)
        for name in names[:_SHOWN]:
            say(f"{state:9}  {safe(name)}")
        if len(names) > _SHOWN:
            say(f"{state:9}  {plural(len(names) - _SHOWN, 'more file')} (--json lists all)")
    counts = {name: len(getattr(report, name)) for name in (*_CHANGES, "conflicts", "failed")}
    parts = [f"{count} {name}" for name, count in (*counts.items(), ("unchanged", report.unchanged)) if count]
    say(", ".join(parts) or "the memory home is empty")


def report_json(report: HomeReport) -> dict[str, Any]:
    """Return the report as a JSON object. Each problem is an object with a name and a reason."""
    values = dataclasses.asdict(report)
    for name in ("conflicts", "pending", "skipped", "failed"):
        values[name] = [problem._asdict() for problem in getattr(report, name)]
    return {**values, "seconds": round(report.seconds, 3)}
