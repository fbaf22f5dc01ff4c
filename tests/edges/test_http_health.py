"""Whether the server lives and can work, and who may see its figures."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock

Flask = pytest.importorskip("flask", reason="the extra `server` is not installed").Flask

import agentformer  # noqa: E402
from agentformer.access.keys import KeyStore  # noqa: E402
from agentformer.access.permissions import Grant  # noqa: E402
from agentformer.api.app import close_app, create_app, init_app  # noqa: E402
from agentformer.api.endpoints import server as models  # noqa: E402
from agentformer.errors import Unauthenticated  # noqa: E402
from agentformer.http import patient as patience  # noqa: E402
from agentformer.settings import Settings  # noqa: E402
from tests.edges.mounted import Mounted, grant, mounted, shaped  # noqa: E402

FIGURES = ("/metrics", "/api/status")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path) as host:
        yield host


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check is not called busy because the machine is."""
    monkeypatch.setattr(models, "_CHECK_SECONDS", 10.0)


def ready(host: Mounted, status: int = 200) -> Any:
    told = shaped(models.Readiness, host.ask("GET", "/readyz"), status)
    assert told["status"] == ("ready" if status == 200 else "not ready")
    return told["parts"]


def test_a_process_that_answers_is_alive(host: Mounted) -> None:
    assert shaped(models.Alive, host.ask("GET", "/healthz")) == {"status": "ok"}


def test_life_and_readiness_are_told_to_everybody_and_figures_are_not(tmp_path: Path) -> None:
    def nobody() -> Grant:
        raise Unauthenticated("a key is needed")

    app = Flask("host")
    init_app(app, agentformer.connect(index_dir=tmp_path / "i", embedder="hashing"), authorize=nobody)
    statuses = {path: app.test_client().get(path).status_code for path in ("/healthz", "/readyz", *FIGURES)}
    close_app(app)
    assert statuses == {"/healthz": 200, "/readyz": 200, "/metrics": 401, "/api/status": 401}


@pytest.mark.parametrize("damaged", ["", '{"version": ', '{"version": 9, "keys": []}', "\x00" * 100], ids=range(4))
def test_a_server_whose_keys_are_damaged_is_not_ready(
    tmp_path: Path, damaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(Settings(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing"))
    try:
        secret = KeyStore(tmp_path / "i").make("boss", ("admin",))[1]
        told = {"headers": {"Authorization": f"Bearer {secret}", "Host": "192.0.2.7"}}  # as a load balancer asks
        ask = app.test_client().get
        assert {path: ask(path, **told).status_code for path in ("/readyz", *FIGURES)} == {
            "/readyz": 200
        } | dict.fromkeys(FIGURES, 200)
        (tmp_path / "i" / "keys.json").write_text(damaged)
        answer = ask("/readyz", **told)
        assert answer.status_code == 503 and "unreadable" in answer.json["parts"]["keys"]
        assert (answer.json["status"], answer.json["parts"]["store"]) == ("not ready", "ok")
        assert "the key store is not ready" in caplog.text and "keys.json is damaged" in caplog.text
        assert ask("/healthz", **told).status_code == 200
        assert ask("/metrics", **told).status_code == 200, "of the keys that were read last"
        assert ask("/api/status", **told).status_code == 500
        wrong = {"Authorization": "Bearer af_0_0", "Host": "192.0.2.7"}
        assert ask("/metrics", headers=wrong).status_code == 401
    finally:
        close_app(app)


def test_looking_loads_no_model(tmp_path: Path) -> None:
    with mounted(tmp_path, embedder="hashing:256") as host:
        assert "not used yet" in ready(host)["embedder"]
        host.add("Aino prefers tea.")
    with mounted(tmp_path, embedder="hashing:256") as host:
        parts = ready(host)
        assert (parts["store"], parts["index"]) == ("ok", "ok") and "not used yet" in parts["embedder"]
        assert host.af.embedder.current.known_space is None


def test_a_memory_that_was_used_is_ready_in_all_parts(host: Mounted) -> None:
    host.add("Aino prefers tea.", namespace="n")
    assert ready(host) == {"store": "ok", "index": "ok", "keys": "ok", "embedder": "ok"}


@pytest.mark.usefixtures("faiss_files")
def test_looking_makes_the_index_follow_the_records(host: Mounted) -> None:
    host.add("Aino prefers tea.")
    words = host.af.settings.index_dir / "words"
    assert not words.exists()
    ready(host)
    assert words.exists()


def test_looking_is_no_use_of_any_memory(host: Mounted) -> None:
    entry_id = host.add("Whether we are ready.")
    ready(host)
    host.af.memory.close()  # writes what was counted
    assert host.af.backend.get([entry_id])[0].access_count == 0


def test_a_store_that_cannot_be_read_is_503_without_a_path(
    host: Mounted, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host.add("Aino prefers tea.")
    host.af.backend.close()
    with caplog.at_level(logging.ERROR):
        parts = ready(host, 503)
    assert "unreadable" in parts["store"] and "unreadable" in parts["index"]
    assert str(tmp_path) not in str(parts) and "store is not ready" in caplog.text


@pytest.mark.usefixtures("faiss_files")
def test_an_index_that_cannot_be_read_is_503_without_a_path(host: Mounted, tmp_path: Path) -> None:
    host.add("Aino prefers tea.")
    (host.af.settings.index_dir / "words.lock").mkdir()  # neither can it be mended
    parts = ready(host, 503)
    assert parts["store"] == "ok" and "unreadable" in parts["index"]
    assert str(tmp_path) not in str(parts)


@pytest.mark.usefixtures("faiss_files")
@pytest.mark.slow
def test_a_part_that_is_busy_is_ready_and_does_not_hold_up_the_answer(
    host: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.add("Aino prefers tea.")
    before = threading.active_count()
    with FileLock(str(host.af.settings.index_dir / "words.lock")):  # as another process that builds it anew has it
        with monkeypatch.context() as patch:
            patch.setattr(models, "_CHECK_SECONDS", 0.4)
            for _ in range(3):
                assert ready(host)["index"] == "busy"
        assert threading.active_count() <= before + 2  # the check that waits, and the thread that updates the index
    assert ready(host)["index"] == "ok"


def test_a_store_that_hangs_is_503_until_it_answers(
    host: Mounted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers, get = threading.Event(), host.af.backend.get
    monkeypatch.setattr(models, "_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(host.af.backend, "get", lambda ids: (answers.wait(60), get(ids))[1])
    assert ready(host)["store"] == "busy"
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: 1e12))  # much later
    for _ in range(2):
        assert ready(host, 503)["store"] == "does not answer"
    assert caplog.text.count("the store has not answered for more than 3 seconds") == 1
    monkeypatch.undo()
    answers.set()
    deadline = time.monotonic() + 60
    while host.ask("GET", "/readyz").status_code != 200 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ready(host)["store"] == "ok"


@pytest.mark.process
def test_an_embedder_that_is_away_is_told_and_comes_back(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
        settings = {"embedder": "ollama:nomic-embed-text", "ollama_base_url": nobody, "embed_retry_seconds": 0}
        with mounted(tmp_path, **settings) as host:
            host.add("Aino prefers tea.")
            parts = ready(host)
            assert (parts["store"], parts["index"]) == ("ok", "ok") and "unavailable" in parts["embedder"]
            assert "unavailable" in ready(host)["embedder"]  # also when nobody has asked it since
            assert nobody not in str(parts)


@pytest.mark.parametrize("path", FIGURES)
def test_figures_of_every_namespace_are_for_an_admin_of_every_namespace(host: Mounted, path: str) -> None:
    assert host.ask("GET", path, grant("admin")).status_code == 200
    for asking in (grant("read"), grant("write"), grant("read", "write"), grant("admin", only=("default",))):
        assert host.ask("GET", path, asking).status_code == 403


def test_the_state_is_what_the_memory_tells(host: Mounted) -> None:
    host.add("Aino prefers tea.")
    told = shaped(models.State, host.ask("GET", "/api/status"))
    assert (told["entries"], told["kinds"]) == (1, {"fact": 1})
    assert told["cleaner"]["queued"] == 0 and "embedder hashing:256" in told["providers"]
