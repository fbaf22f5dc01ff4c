"""The endpoint of metrics, in the format of Prometheus."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from flask import Response

from agentformer._version import __version__
from agentformer.access.permissions import Grant
from agentformer.api.operations import Router, Service
from agentformer.api.request_counts import BUCKETS, RequestsSeen
from agentformer.api.store_counts import Counts
from agentformer.errors import MissingExtra
from agentformer.factory import AgentFormer
from agentformer.jobs.store import ACTIVE_STATES, State
from agentformer.records.integrity.disk import sizes
from agentformer.search.steps import TIMES

_LABELS = ("worker", "role", "provider", "model")
_STEP_LABELS = ("worker", "step")
_PREFIX = "agentformer_provider"

router = Router("server")


@router.route("GET", "/metrics", "metrics", {200: ("text/plain",)}, errors=(501,))
def metrics(service: Service, grant: Grant) -> Response:
    """Return metrics for Prometheus: requests and their durations by route, the calls of each embedder and language
    model, the steps of searches, the entries in each backend, the jobs, the size of the files, and the process.

    The metrics include all namespaces. Requests, searches and calls are those of the server process that answers, which
    the label `worker` names: with several processes, sum over it. While the store cannot be read, or does not answer,
    `agentformer_store_up` is 0, and the counts of the store are missing; the response comes in about a second. A key
    needs the right `metrics` or `admin`. A key that is limited to namespaces is refused."""
    grant.require_all_namespaces()
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
        from prometheus_client.registry import Collector
    except ImportError as error:
        raise MissingExtra("metrics", "GET /metrics", error) from None

    class Current(Collector):
        def collect(self) -> Iterator[Any]:
            yield from _server_metrics(service)
            yield from _provider_metrics(_by_labels(service.af.usage()))
            yield from _store_metrics(service.af, service.store_counts.read())

    registry = CollectorRegistry(auto_describe=False)  # a new registry, without the metrics of a host application
    registry.register(Current())
    ProcessCollector(registry=registry)
    return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def _server_metrics(service: Service) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    build = GaugeMetricFamily(
        "agentformer_build_info", "The version that answers. The value is 1.", labels=("version",)
    )
    build.add_metric((__version__,), 1)
    threads = GaugeMetricFamily("agentformer_threads", "Slow requests: running or waiting.", labels=("worker", "state"))
    for state, count in zip(("busy", "waiting"), service.threads.load, strict=True):
        threads.add_metric((str(os.getpid()), state), count)
    yield from (build, threads, *_request_metrics(service.guard.requests), _step_metrics())


def _step_metrics() -> Any:
    from prometheus_client.core import SummaryMetricFamily

    steps = SummaryMetricFamily(
        "agentformer_search_seconds", "Seconds of searches by step. The step `all` is all steps.", labels=_STEP_LABELS
    )
    for step, (count, seconds) in sorted(TIMES.snapshot().items()):
        steps.add_metric((str(os.getpid()), step), count, seconds)
    return steps


def _request_metrics(requests: RequestsSeen) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    worker = str(os.getpid())
    answered, durations = requests.snapshot()
    counter = CounterMetricFamily(
        "agentformer_http_requests",
        "Requests that were answered. A refused request has the status 429.",
        labels=("worker", "method", "route", "status"),
    )
    for (method, route, status), count in sorted(answered.items()):
        counter.add_metric((worker, method, route, str(status)), count)
    histogram = HistogramMetricFamily(
        "agentformer_http_request_duration_seconds",
        "Seconds from the headers of a request to the end of its response.",
        labels=("worker", "route"),
    )
    for route, duration in sorted(durations.items()):
        buckets = [*zip(map(str, BUCKETS), duration.within, strict=True), ("+Inf", duration.requests)]
        histogram.add_metric((worker, route), buckets, duration.seconds)
    yield from (counter, histogram)


def _provider_metrics(providers: Mapping[tuple[str, ...], Mapping[str, Any]]) -> Iterator[Any]:
    """Yield the metrics of the calls of models. The keys of `providers` are (role, provider, model)."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    calls = CounterMetricFamily(f"{_PREFIX}_calls", "Calls, including failed calls.", labels=_LABELS)
    errors = CounterMetricFamily(f"{_PREFIX}_errors", "Failed calls by kind of error.", labels=(*_LABELS, "kind"))
    tokens = CounterMetricFamily(
        f"{_PREFIX}_tokens", "Tokens that the models read (in) and wrote (out).", labels=(*_LABELS, "direction")
    )
    seconds = CounterMetricFamily(f"{_PREFIX}_seconds", "Duration of all calls, in seconds.", labels=_LABELS)
    slowest = GaugeMetricFamily(
        f"{_PREFIX}_slowest_seconds", "Duration of the slowest call, in seconds.", labels=_LABELS
    )
    for names, counts in providers.items():
        labels = (str(os.getpid()), *names)
        calls.add_metric(labels, counts["calls"])
        for kind, count in counts["errors"].items():
            errors.add_metric((*labels, kind), count)
        tokens.add_metric((*labels, "in"), counts["tokens_in"])
        tokens.add_metric((*labels, "out"), counts["tokens_out"])
        seconds.add_metric(labels, counts["seconds"])
        slowest.add_metric(labels, counts["slowest_ms"] / 1000)
    yield from (calls, errors, tokens, seconds, slowest)


def _store_metrics(af: AgentFormer, counts: Counts | None) -> Iterator[Any]:
    """Yield the gauges of the store. The state of the store is one of them, so that its failure is seen, too."""
    from prometheus_client.core import GaugeMetricFamily

    up = counts is not None
    stores, jobs = counts or Counts({}, {})
    yield GaugeMetricFamily("agentformer_store_up", "1 if the store can be read, else 0.", value=up)
    number = GaugeMetricFamily("agentformer_jobs", "Upload jobs that are known, by state.", labels=("state",))
    oldest = GaugeMetricFamily(
        "agentformer_job_age_seconds", "Age of the oldest job that has not ended, by state.", labels=("state",)
    )
    for state in get_args(State) if up else ():
        number.add_metric((state,), jobs.get(state, (0, 0.0))[0])
        if state in ACTIVE_STATES:
            oldest.add_metric((state,), jobs.get(state, (0, 0.0))[1])
    yield from (number, oldest)
    disk = GaugeMetricFamily("agentformer_disk_bytes", "Size of the files in the index folder.", labels=("kind",))
    for kind, size in sizes(af.settings.index_dir).items():
        disk.add_metric((kind,), size)
    yield disk
    for name, text in (("entries", "Entries in the store."), ("pending", "Entries that have no vectors yet.")):
        gauge = GaugeMetricFamily(f"agentformer_{name}", text, labels=("backend",))
        for backend, status in stores.items():
            if name in status:
                gauge.add_metric((backend,), status[name])
        yield gauge


def _by_labels(usage: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the counts of calls by their labels (role, provider, model). If one model is used at several addresses,
    the counts of these addresses are added, because the address is not a label."""
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
    """Return the role, the provider and the model in a key of the mapping that counts the calls of models. The key has
    the form `ROLE PROVIDER:MODEL ADDRESS`, and the address may be absent. If the model is a local folder, return the
    name of the folder without its path."""
    role, _, rest = key.partition(" ")
    spec, _, last = rest.rpartition(" ")
    if not last.startswith(("http://", "https://")):
        spec = rest
    provider, _, model = spec.partition(":")
    if model.startswith(("/", "~", ".", "\\")) or "\\" in model:
        model = model.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return role, provider, model
