"""`GET /metrics`: what the providers were asked and what is stored, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from flask import Response

from agentformer.access.grant import Grant
from agentformer.api.operations import Operations
from agentformer.errors import MissingExtra
from agentformer.settings import Settings

_LABELS = ("role", "provider", "model")
_PREFIX = "agentformer_provider"
_ALIAS = "hierarchical"  # of a backend that is listed under its own name too


class _Backend(Protocol):
    def status(self) -> Mapping[str, Any]: ...


class Measured(Protocol):
    """What is measured: an opened memory."""

    @property
    def settings(self) -> Settings: ...

    @property
    def backend(self) -> _Backend: ...

    def usage(self) -> Mapping[str, Mapping[str, Any]]:
        """`ROLE PROVIDER:MODEL ADDRESS` (without an address where there is none) -> counts since the start."""
        ...


def add_metrics(operations: Operations, memory: Measured) -> None:
    @operations.declare("GET", "/metrics", right="admin", returns={200: ("text/plain",)}, faults=(501,), tag="server")
    def metrics(grant: Grant) -> Response:
        """Counters of each embedder and language model, and gauges of each backend, as Prometheus reads them.

        Of the process that answers, over every namespace. A key that is bound to namespaces may not ask.
        """
        grant.require_all_namespaces()
        return _page(memory)


def _page(memory: Measured) -> Response:
    """All metrics, read now. The registry is its own, so that those of a host application stay apart."""
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.core import Metric
        from prometheus_client.registry import Collector
    except ImportError as error:
        raise MissingExtra("metrics", "GET /metrics", error) from None

    class Now(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from _provider_metrics(_summed(memory.usage()))
            yield from _store_metrics(_stores(memory.settings.backend, memory.backend.status()))

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Now())
    return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def _provider_metrics(providers: Mapping[tuple[str, ...], Mapping[str, Any]]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    calls = CounterMetricFamily(f"{_PREFIX}_calls", "Calls, failed ones included.", labels=_LABELS)
    errors = CounterMetricFamily(f"{_PREFIX}_errors", "Failed calls by kind of error.", labels=(*_LABELS, "kind"))
    tokens = CounterMetricFamily(
        f"{_PREFIX}_tokens", "Tokens read (in) and written (out).", labels=(*_LABELS, "direction")
    )
    seconds = CounterMetricFamily(f"{_PREFIX}_seconds", "Time spent in calls.", labels=_LABELS)
    slowest = GaugeMetricFamily(f"{_PREFIX}_slowest_seconds", "The slowest call since the start.", labels=_LABELS)
    for labels, used in providers.items():
        calls.add_metric(labels, used["calls"])
        for kind, count in used["errors"].items():
            errors.add_metric((*labels, kind), count)
        tokens.add_metric((*labels, "in"), used["tokens_in"])
        tokens.add_metric((*labels, "out"), used["tokens_out"])
        seconds.add_metric(labels, used["seconds"])
        slowest.add_metric(labels, used["slowest_ms"] / 1000)
    yield from (calls, errors, tokens, seconds, slowest)


def _store_metrics(stores: Mapping[str, Mapping[str, Any]]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    for name, what in (("entries", "Entries stored."), ("pending", "Entries that wait for their vectors.")):
        gauge = GaugeMetricFamily(f"agentformer_{name}", what, labels=("backend",))
        for backend, status in stores.items():
            if name in status:
                gauge.add_metric((backend,), status[name])
        yield gauge


def _stores(default: str, status: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Backend's name -> its status, each backend once."""
    several = status.get("backends")
    if not several:
        return {default: status}
    return {name: each for name, each in several.items() if name != _ALIAS or len(several) == 1}


def _summed(usage: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Labels -> counts; those of one model at several addresses are added, as no label tells addresses."""
    summed: dict[tuple[str, ...], dict[str, Any]] = {}
    for key, used in usage.items():
        numbers = {name: used.get(name, 0) for name in ("calls", "tokens_in", "tokens_out", "seconds", "slowest_ms")}
        errors = dict(used.get("errors", {}))
        if known := summed.get(labels := _labels(key)):
            slowest = max(known["slowest_ms"], numbers["slowest_ms"])
            errors = {
                kind: known["errors"].get(kind, 0) + errors.get(kind, 0) for kind in {**known["errors"], **errors}
            }
            numbers = {name: known[name] + number for name, number in numbers.items()}
            numbers["slowest_ms"] = slowest
        summed[labels] = {**numbers, "errors": errors}
    return summed


def _labels(key: str) -> tuple[str, str, str]:
    """Role, provider and model of a usage key; of a model in a local folder only the folder's name."""
    role, _, rest = key.partition(" ")
    spec, _, last = rest.rpartition(" ")
    if not last.startswith(("http://", "https://")):
        spec = rest
    provider, _, model = spec.partition(":")
    if model.startswith(("/", "~", ".", "\\")) or "\\" in model:
        model = model.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return role, provider, model
