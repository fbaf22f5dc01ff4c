"""`GET /metrics`: counters of providers and gauges of stores, as a Prometheus server reads them."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

flask = pytest.importorskip("flask", reason="the extra `server` is not installed")
parser = pytest.importorskip("prometheus_client.parser", reason="the extra `metrics` is not installed")

from click.testing import CliRunner  # noqa: E402
from ruamel.yaml import YAML  # noqa: E402

import agentformer  # noqa: E402
from agentformer.access import key_storage  # noqa: E402
from agentformer.access.permissions import EVERYTHING  # noqa: E402
from agentformer.api import (  # noqa: E402
    create_app,
    store_counts,
)
from agentformer.api.app import close_app  # noqa: E402
from agentformer.api.concurrency import ThreadLimit  # noqa: E402
from agentformer.api.endpoints.metrics import router  # noqa: E402
from agentformer.api.operations import add_rules  # noqa: E402
from agentformer.api.request_counts import RequestsSeen  # noqa: E402
from agentformer.api.response import handle_errors  # noqa: E402
from agentformer.api.store_counts import StoreCounts  # noqa: E402
from agentformer.cli import main  # noqa: E402
from agentformer.errors import StoreBusy  # noqa: E402
from agentformer.settings import Settings, load_settings  # noqa: E402
from tests.backends.postgres_faults import Proxy  # noqa: E402
from tests.backends.postgres_server import schema_of, stored_keys  # noqa: E402

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store is not called away because the machine is busy."""
    for module, name in (
        (store_counts, "_PROBE_SECONDS"),
        (store_counts, "_COUNT_SECONDS"),
        (key_storage, "_ANSWER_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 60.0)


class Memory:
    """What `/metrics` reads of an opened memory."""

    def __init__(self, usage: Mapping[str, Mapping[str, Any]], status: Mapping[str, Any]) -> None:
        self.settings = Settings()
        self.backend = self
        self._usage = usage
        self._status = status

    def get(self, ids: list[str]) -> list[Any]:
        return []

    def usage(self) -> Mapping[str, Mapping[str, Any]]:
        return self._usage

    def status(self) -> Mapping[str, Any]:
        return self._status


def used(calls: int = 0, **more: Any) -> dict[str, Any]:
    nothing = {"errors": {}, "last_error": "", "tokens_in": 0, "tokens_out": 0, "seconds": 0.0}
    return {"calls": calls, **nothing, "mean_ms": 0.0, "slowest_ms": 0.0, **more}


def page(memory: Memory, jobs: Mapping[str, tuple[int, float]] | None = None) -> Any:
    app = flask.Flask("test")
    blueprint = flask.Blueprint("b", __name__)
    counts = StoreCounts(memory, SimpleNamespace(states=lambda: jobs or {}))  # type: ignore[arg-type]
    guard = SimpleNamespace(requests=RequestsSeen(), authorize=lambda: EVERYTHING)
    parts = {"guard": guard, "threads": ThreadLimit(1, wait_seconds=0), "store_counts": counts}
    add_rules(blueprint, SimpleNamespace(af=memory, operations=router.operations, **parts))
    handle_errors(blueprint)
    app.register_blueprint(blueprint)
    return app.test_client().get("/metrics")


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = parser.text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(text: str, name: str, **labels: str) -> float:
    worker = {"worker": str(os.getpid())} if name.startswith("provider_") else {}
    return samples(text)[f"agentformer_{name}", frozenset({**labels, **worker}.items())]


ENTRIES = {"entries": 7, "pending": 2, "windows": 9}


def test_each_provider_has_its_counters() -> None:
    usage = {
        "llm openai:gpt-4o https://api.openai.com/v1": used(
            5, errors={"LanguageModelUnavailable": 2}, tokens_in=100, tokens_out=30, seconds=1.5, slowest_ms=900.0
        ),
        "embedder hashing": used(3),
    }
    text = page(Memory(usage, ENTRIES)).text
    gpt = {"role": "llm", "provider": "openai", "model": "gpt-4o"}
    assert value(text, "provider_calls_total", **gpt) == 5
    assert value(text, "provider_errors_total", **gpt, kind="LanguageModelUnavailable") == 2
    assert value(text, "provider_tokens_total", **gpt, direction="in") == 100
    assert value(text, "provider_tokens_total", **gpt, direction="out") == 30
    assert value(text, "provider_seconds_total", **gpt) == 1.5
    assert value(text, "provider_slowest_seconds", **gpt) == 0.9
    assert value(text, "provider_calls_total", role="embedder", provider="hashing", model="") == 3
    assert (value(text, "entries", backend="faiss"), value(text, "pending", backend="faiss")) == (7, 2)


def test_one_model_at_two_addresses_is_one_line() -> None:
    usage = {
        "llm openai:qwen3:4b http://127.0.0.1:1/v1": used(1, errors={"A": 1}, slowest_ms=10.0, seconds=1.0),
        "llm openai:qwen3:4b http://127.0.0.1:2/v1": used(2, errors={"A": 1, "B": 4}, slowest_ms=5.0, seconds=2.0),
    }
    text = page(Memory(usage, ENTRIES)).text
    qwen = {"role": "llm", "provider": "openai", "model": "qwen3:4b"}
    assert value(text, "provider_calls_total", **qwen) == 3
    assert value(text, "provider_errors_total", **qwen, kind="A") == 2
    assert value(text, "provider_errors_total", **qwen, kind="B") == 4
    assert value(text, "provider_slowest_seconds", **qwen) == 0.01
    assert value(text, "provider_seconds_total", **qwen) == 3


def test_labels_tell_no_path_and_no_address() -> None:
    for key, model in [
        ("embedder sbert:/home/someone/my models/tiny/", "tiny"),
        ("embedder sbert:C:\\Users\\someone\\tiny", "tiny"),
        ("embedder sbert:sentence-transformers/all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
        ('embedder sbert:odd"name\n', 'odd"name\n'),
    ]:
        text = page(Memory({key: used(1)}, ENTRIES)).text
        assert value(text, "provider_calls_total", role="embedder", provider="sbert", model=model) == 1
        assert "someone" not in text


def test_each_backend_is_told_once() -> None:
    one, two = {"entries": 7, "pending": 2}, {"entries": 1}
    status = {**one, "backends": {"faiss": one, "local_json": two, "hierarchical": one}}
    found = {
        (dict(labels)["backend"], name): number
        for (name, labels), number in samples(page(Memory({}, status)).text).items()
        if "backend" in dict(labels)
    }
    assert found == {
        ("faiss", "agentformer_entries"): 7,
        ("faiss", "agentformer_pending"): 2,
        ("local_json", "agentformer_entries"): 1,
    }


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    answer = page(Memory({}, ENTRIES))
    assert (answer.status_code, answer.content_type) == (501, "application/problem+json")
    assert answer.json["type"] == "urn:agentformer:problem:missing-extra"
    assert "[metrics]" in answer.json["detail"]


def test_a_memory_tells_what_it_did(tmp_path: Path) -> None:
    app = create_app(load_settings({"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}))
    client = app.test_client()
    client.post("/api/rag/upload", data={"file": (io.BytesIO(b"Tea is served at four."), "tea.txt")})
    answer = client.get("/metrics")
    backend = app.extensions["agentformer"].settings.backend
    app.extensions["agentformer"].close()
    assert answer.content_type.startswith("text/plain")
    assert value(answer.text, "entries", backend=backend) == 3  # document, page, chunk
    calls = [n for (name, labels), n in samples(answer.text).items() if name == "agentformer_provider_calls_total"]
    assert calls and sum(calls) >= 1
    assert str(tmp_path) not in answer.text


def test_requests_are_counted_by_route_and_status(tmp_path: Path) -> None:
    app = create_app(Settings(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing"))
    client = app.test_client()
    try:
        entry = client.post("/api/memory", json={"content": "Anna lives in Turku."}).json["id"]
        for path in (entry, "unknown", "unknown/history"):
            client.get(f"/api/memory/{path}")
        client.open("/api/memory", method="FOO123")
        client.get("/nothing/of/the/kind")
        text = client.get("/metrics").text
    finally:
        close_app(app)
    found = {
        (labels["method"], labels["route"], labels["status"]): count
        for (name, pairs), count in samples(text).items()
        if name == "agentformer_http_requests_total" and (labels := dict(pairs))["worker"] == str(os.getpid())
    }
    assert found == {
        ("POST", "/api/memory", "201"): 1,
        ("GET", "/api/memory/<entry_id>", "200"): 1,
        ("GET", "/api/memory/<entry_id>", "404"): 1,
        ("GET", "/api/memory/<entry_id>/history", "404"): 1,
        ("other", "", "405"): 1,
        ("GET", "", "404"): 1,
    }
    buckets = {
        labels["le"]: count
        for (name, pairs), count in samples(text).items()
        if name.endswith("_bucket") and (labels := dict(pairs))["route"] == "/api/memory/<entry_id>"
    }
    assert buckets["+Inf"] == 2 == max(buckets.values())
    assert value(text, "build_info", version=agentformer.__version__) == 1
    assert value(text, "store_up") == 1
    assert value(text, "disk_bytes", kind="database") > 0
    assert samples(text)["process_resident_memory_bytes", frozenset()] > 0


def test_a_store_that_cannot_be_read_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Away(Memory):
        def status(self) -> Mapping[str, Any]:
            raise StoreBusy("the PostgreSQL server cannot be reached")

    text = page(Away({}, {})).text
    assert value(text, "store_up") == 0 and "agentformer_entries{" not in text
    assert "cannot be reached" in caplog.text


def test_jobs_are_counted_by_state_with_the_age_of_the_oldest() -> None:
    text = page(Memory({}, ENTRIES), {"queued": (2, 61.5), "done": (7, 900.0)}).text
    found = {
        (name, dict(labels)["state"]): number
        for (name, labels), number in samples(text).items()
        if name.startswith("agentformer_job")
    }
    states = {"queued": 2, "running": 0, "done": 7, "failed": 0, "cancelled": 0}
    ages = {("agentformer_job_age_seconds", "queued"): 61.5, ("agentformer_job_age_seconds", "running"): 0}
    assert found == {("agentformer_jobs", state): number for state, number in states.items()} | ages


def test_searches_are_counted_by_step(tmp_path: Path) -> None:
    def counts() -> dict[str, float]:
        text = client.get("/metrics").text
        found = samples(text).items()
        return {dict(labels)["step"]: n for (name, labels), n in found if name == "agentformer_search_seconds_count"}

    app = create_app(load_settings({"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}))
    client = app.test_client()
    try:
        client.post("/api/memory", json={"content": "Anna lives in Turku."})
        before = counts()
        for mode in ("hybrid", "lexical"):
            assert client.post("/api/memory/search", json={"text": "Where is Anna?", "mode": mode}).json["hits"]
        after = counts()
    finally:
        close_app(app)
    steps = {step: after[step] - before.get(step, 0) for step in ("analysis", "words", "vectors", "ranking", "all")}
    assert steps == {"analysis": 2, "words": 2, "vectors": 2, "ranking": 2, "all": 2}
    assert after["salience"] - before.get("salience", 0) == 2


def test_a_large_store_shows_the_counts_of_the_last_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    class Large(Memory):
        slow = threading.Event()

        def status(self) -> Mapping[str, Any]:
            if self.slow.is_set():
                answers.wait(60)
            return super().status()

    answers, memory = threading.Event(), Large({}, ENTRIES)
    counts = StoreCounts(memory, SimpleNamespace(states=dict))  # type: ignore[arg-type]
    first = counts.read()
    memory.slow.set()
    monkeypatch.setattr(store_counts, "_COUNT_SECONDS", 0.01)
    assert first is not None and counts.read() == first and first.stores["faiss"]["entries"] == 7
    answers.set()


@pytest.mark.process
def test_metrics_are_answered_while_postgres_hangs(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered, read = [], key_storage.Remembered.read
    monkeypatch.setattr(key_storage.Remembered, "read", lambda self: (remembered.append(self), read(self))[1])
    proxy = Proxy(parse_qs(urlsplit(postgres_url).query)["host"][0])
    where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}
    schema = {"backend": "postgres", "postgres_url": proxy.url, "postgres_schema": schema_of(tmp_path)}
    app = create_app(load_settings({**where, **schema}))
    try:
        _, secret = app.extensions["agentformer"].keys.make("prometheus", ["metrics"])
        client, headers = app.test_client(), {"Authorization": f"Bearer {secret}", "Host": "192.0.2.1:8808"}
        assert value(client.get("/metrics", headers=headers).text, "store_up") == 1
        assert remembered
        remembered.clear()
        assert client.get("/api/memory/metrics", headers=headers).status_code == 403
        assert not remembered, "an entry of this id"
        proxy.lose = lambda _: "drop"
        monkeypatch.setattr(store_counts, "_PROBE_SECONDS", 0.2)
        monkeypatch.setattr(key_storage, "_ANSWER_SECONDS", 0.2)
        for _ in range(2):
            answer = client.get("/metrics", headers=headers)
            assert value(answer.text, "store_up") == 0 and "agentformer_entries{" not in answer.text
            assert "agentformer_http_requests_total{" in answer.text
        assert client.get("/metrics", headers={**headers, "Authorization": "Bearer af_wrong"}).status_code == 401
    finally:
        proxy.lose = lambda _: ""
        close_app(app)
        proxy.close()


def test_every_name_in_the_dashboard_and_the_alerts_is_a_metric(tmp_path: Path) -> None:
    app = create_app(Settings(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing"))
    client = app.test_client()
    try:
        client.post("/api/memory/search", json={"text": "tea"})
        text = client.get("/metrics").text + page(Memory({"llm openai:gpt": used(1, errors={"E": 1})}, ENTRIES)).text
    finally:
        close_app(app)
    names = {re.sub(" .*", "", line).partition("{")[0] for line in text.splitlines() if line[:1] != "#"}
    for file in ("alerts.yml", "dashboard.json"):
        told = (DEPLOY / file).read_text()
        assert {*re.findall(r"(?:agentformer|process)_[a-z_]+", told)} <= names, file
    panels = json.loads((DEPLOY / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == 14


def test_the_scrape_uses_a_key_of_the_right_metrics_and_the_names_of_the_alerts(tmp_path: Path) -> None:
    text = (DEPLOY / "prometheus.yml").read_text()
    config = YAML(typ="safe", pure=True).load(text)
    (job,) = config["scrape_configs"]
    alerts = (DEPLOY / "alerts.yml").read_text()
    assert {*re.findall(r'job="(\w+)"', alerts)} == {job["job_name"]} and config["rule_files"] == ["alerts.yml"]
    assert job["metrics_path"] in {operation.path for operation in router.operations}
    command, _, file = text.partition("agentformer ")[2].splitlines()[0].partition(" > ")
    made = CliRunner().invoke(main, [*command.split(), "--index-dir", str(tmp_path / "i")])
    assert made.exit_code == 0 and job["authorization"] == {"credentials_file": file}
    assert stored_keys(tmp_path / "i").grant_of(made.stdout.strip()).rights == {"metrics"}


@pytest.mark.process
@pytest.mark.skipif(not shutil.which("promtool"), reason="the package prometheus is not installed")
def test_promtool_accepts_the_alerts_the_dashboard_and_the_metrics(tmp_path: Path) -> None:
    def accepted(*command: str, text: str = "") -> None:
        done = subprocess.run(["promtool", *command], input=text, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    accepted("check", "rules", str(DEPLOY / "alerts.yml"))
    accepted("check", "config", "--syntax-only", str(DEPLOY / "prometheus.yml"))
    panels = json.loads((DEPLOY / "dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML
    accepted("check", "rules", str(tmp_path / "panels.yml"))
    accepted("check", "metrics", text=page(Memory({"llm openai:gpt": used(1)}, ENTRIES)).text)
