"""`GET /metrics`: calls of providers and sizes of stores, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from flask import Response

from agentformer.access.grant import Grant
from agentformer.api.operations import Operation, Operations
from agentformer.errors import MissingExtra
from agentformer.settings import Settings

_LABELS = ("role", "provider", "model")
_PREFIX = "agentformer_provider"
_ALIAS = "hierarchical"  # another name for a backend that is also listed under its own name


class _Backend(Protocol):
    def status(self) -> Mapping[str, Any]: ...


class Measured(Protocol):
    """The source of the metrics: an opened memory."""

    @property
    def settings(self) -> Settings: ...

    @property
    def backend(self) -> _Backend: ...

    def usage(self) -> Mapping[str, Mapping[str, Any]]:
        """Return counts since the start by `ROLE PROVIDER:MODEL ADDRESS`; some keys have no address."""
        ...


def add_metrics(operations: Operations, memory: Measured) -> None:
    """Declare the endpoint."""

    @operations.declare(
        Operation(
            method="GET", path="/metrics", right="admin", returns={200: ("text/plain",)}, errors=(501,), tag="server"
        )
    )
    def metrics(grant: Grant) -> Response:
        """Return counters of each embedder and language model, and gauges of each backend, for Prometheus.

        For the process that answers, over all namespaces. Refused for a key that is limited to namespaces.
        """
        grant.require_all_namespaces()
        return _page(memory)


def _page(memory: Measured) -> Response:
    """Return the current metrics, from a registry of their own, so that metrics of a host application stay out."""
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.core import Metric
        from prometheus_client.registry import Collector
    except ImportError as error:
        raise MissingExtra("metrics", "GET /metrics", error) from None

    class Current(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from _provider_metrics(_by_labels(memory.usage()))
            yield from _store_metrics(_stores(memory.settings.backend, memory.backend.status()))

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Current())
    return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def _provider_metrics(providers: Mapping[tuple[str, ...], Mapping[str, Any]]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    calls = CounterMetricFamily(f"{_PREFIX}_calls", "Calls, including failed ones.", labels=_LABELS)
    errors = CounterMetricFamily(f"{_PREFIX}_errors", "Failed calls by kind of error.", labels=(*_LABELS, "kind"))
    tokens = CounterMetricFamily(
        f"{_PREFIX}_tokens", "Tokens read (in) and written (out).", labels=(*_LABELS, "direction")
    )
    seconds = CounterMetricFamily(f"{_PREFIX}_seconds", "Time spent in calls.", labels=_LABELS)
    slowest = GaugeMetricFamily(f"{_PREFIX}_slowest_seconds", "The slowest call since the start.", labels=_LABELS)
    for labels, counts in providers.items():
        calls.add_metric(labels, counts["calls"])
        for kind, count in counts["errors"].items():
            errors.add_metric((*labels, kind), count)
        tokens.add_metric((*labels, "in"), counts["tokens_in"])
        tokens.add_metric((*labels, "out"), counts["tokens_out"])
        seconds.add_metric(labels, counts["seconds"])
        slowest.add_metric(labels, counts["slowest_ms"] / 1000)
    yield from (calls, errors, tokens, seconds, slowest)


def _store_metrics(stores: Mapping[str, Mapping[str, Any]]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    for name, what in (("entries", "Entries stored."), ("pending", "Entries that are not embedded yet.")):
        gauge = GaugeMetricFamily(f"agentformer_{name}", what, labels=("backend",))
        for backend, status in stores.items():
            if name in status:
                gauge.add_metric((backend,), status[name])
        yield gauge


def _stores(default: str, status: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the status of each backend by its name, each backend once."""
    backends = status.get("backends")
    if not backends:
        return {default: status}
    return {name: status for name, status in backends.items() if name != _ALIAS or len(backends) == 1}


def _by_labels(usage: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return counts by labels. Those of one model at several addresses are added: addresses are no label."""
    totals: dict[tuple[str, ...], dict[str, Any]] = {}
    for key, counts in usage.items():
        total = totals.setdefault(_labels(key), {"errors": {}, "slowest_ms": 0})
        for name in ("calls", "tokens_in", "tokens_out", "seconds"):
            total[name] = total.get(name, 0) + counts.get(name, 0)
        for kind, count in counts.get("errors", {}).items():
            total["errors"][kind] = total["errors"].get(kind, 0) + count
        total["slowest_ms"] = max(total["slowest_ms"], counts.get("slowest_ms", 0))
    return totals


def _labels(key: str) -> tuple[str, str, str]:
    """Return role, provider and model of a usage key; for a model in a local folder only the folder's name."""
    role, _, rest = key.partition(" ")
    spec, _, last = rest.rpartition(" ")
    if not last.startswith(("http://", "https://")):
        spec = rest
    provider, _, model = spec.partition(":")
    if model.startswith(("/", "~", ".", "\\")) or "\\" in model:
        model = model.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return role, provider, model
