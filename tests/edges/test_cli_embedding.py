"""`agentformer reindex`, `reembed` and `spaces`, as a person uses them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agentformer.cli import main
from agentformer.errors import EmbedderUnavailable
from agentformer.factory import AgentFormer, connect
from tests.forked import SERVE, start

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def invoke(*arguments: str) -> Result:
        folders = ["--index-dir", str(tmp_path / "i"), "--upload-dir", str(tmp_path / "u")]
        return CliRunner().invoke(main, [*arguments, *folders])

    return invoke


def filled(run: Run) -> None:
    for text in ("Aino prefers tea.", "The keys hang in the blue cupboard."):
        assert run("remember", text, "--embedder", "hashing").exit_code == 0


def test_a_memory_moves_to_another_embedder_and_back_to_being_small(run: Run) -> None:
    filled(run)
    done = run("reembed", "--to", "hashing:64")
    assert done.exit_code == 0, done.output
    assert "moved from hashing:256 to hashing:64 (64 dimensions)" in done.output
    assert "texts embedded: 2" in done.output and "2 of 2 entries" in done.output and "agree on" in done.output
    assert [line.split()[:2] for line in run("spaces").output.splitlines()] == [
        ["kept", "hashing:256"],
        ["active", "hashing:64"],
    ]
    assert "vectors deleted: 2" in run("spaces", "prune").output
    (space,) = json.loads(run("spaces", "--json").stdout)
    assert (space["spec"], space["state"], space["vectors"]) == ("hashing:64", "active", 2)
    assert "already" in run("reembed", "--to", "hashing:64").output
    assert "tea" in run("recall", "tea").output


def test_an_embedder_of_another_space_is_refused_with_the_ways_on(run: Run) -> None:
    filled(run)
    refused = run("recall", "tea", "--embedder", "hashing:64")
    assert refused.exit_code == 3
    assert "--embedder hashing:256" in refused.output and "agentformer reembed --to hashing:64" in refused.output


def test_a_setting_that_names_the_new_embedder_already_does_not_stop_the_move(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(run)
    monkeypatch.setenv("AGENTFORMER_EMBEDDER", "hashing:64")
    assert run("recall", "tea").exit_code == 3
    assert run("reembed", "--to", "hashing:64").exit_code == 0
    assert run("recall", "tea").exit_code == 0


def test_the_comparison_can_be_made_by_queries_of_ones_own(run: Run, tmp_path: Path) -> None:
    filled(run)
    queries = tmp_path / "queries.txt"
    queries.write_text("tea\n\nwhere are the keys\ncupboard\n", encoding="utf-8")
    moved = json.loads(run("reembed", "--to", "hashing:64", "--queries", str(queries), "--json").stdout)
    assert (moved["sample"], moved["overlap"], moved["switched"]) == (3, 1.0, True)
    assert moved["former"]["spec"] == "hashing:256" and moved["space"]["dimension"] == 64


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--to"),
        (("--to", "hashing:64", "--abandon"), "--to"),
        (("--to", "word2vec"), "known names are"),
        (("--to", "hashing:big"), "the dimension must be a number, as in hashing:256"),
    ],
)
def test_bad_arguments_say_what_is_meant(run: Run, arguments: tuple[str, ...], said: str) -> None:
    filled(run)
    refused = run("reembed", *arguments)
    assert refused.exit_code == 2 and said in refused.output
    assert [s["state"] for s in json.loads(run("spaces", "--json").stdout)] == ["active"]


def test_queries_that_are_no_text_are_refused(run: Run, tmp_path: Path) -> None:
    filled(run)
    (tmp_path / "queries").write_bytes(b"\xff\xfe\x00tea")
    assert run("reembed", "--to", "hashing:64", "--queries", str(tmp_path / "queries")).exit_code == 2


@pytest.mark.usefixtures("empty_memory")
def test_an_empty_memory_has_no_spaces_and_nothing_to_give_up(run: Run) -> None:
    assert "no vectors yet" in run("spaces").output
    assert "there is no unfinished move" in run("reembed", "--abandon").output


@pytest.mark.process
def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        af.memory.store_many([{"content": f"fact number {n} of the harbour"} for n in range(200)])
    command = ["reembed", "--to", "hashing:64", "--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u"]
    slow = (
        "import time, agentformer.embedders.hashing as h\n"
        "inner, pauses = h.HashingEmbedder.embed_documents, iter([0])\n"
        "def embed(self, texts):\n"
        "    print('at work', flush=True); time.sleep(next(pauses, 60))\n"
        "    return inner(self, texts)\n"
        "h.HashingEmbedder.embed_documents = embed\n"
        f"from agentformer.cli import main; main({command})\n"
    )
    child = start(slow, SERVE, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.readline()  # the first group is committed, and the second one waits
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and "to continue, run: agentformer reembed" in err, err
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u") as af:
        assert {s.state: s.waiting < 200 for s in af.backend.spaces()} == {"active": True, "building": True}
        moved = af.reembed("hashing:64")
    assert moved.switched and 0 < moved.embedded < 200


def test_what_waits_is_shown_with_its_error_and_embedded_when_it_can_be(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise EmbedderUnavailable("nobody answers at http://127.0.0.1:1")

    with monkeypatch.context() as patch:
        patch.setattr("agentformer.embedders.hashing.HashingEmbedder.from_settings", refuse)
        filled(run)
        shown = run("reindex", "--show", "--embedder", "hashing")
        assert shown.exit_code == 0 and "entries that wait for an embedder: 2" in shown.output
        assert shown.output.count("nobody answers") == 2 and "1 attempt" in shown.output
        tried = run("reindex", "--embedder", "hashing", "--json")
        assert tried.exit_code == 1
        found = json.loads(tried.stdout)
        assert found["pending"] == 2 and [item["attempts"] for item in found["waiting"]] == [2, 2]
    done = run("reindex", "--embedder", "hashing")
    assert done.exit_code == 0 and "all entries are embedded" in done.output


def test_status_tells_spaces_and_what_providers_cost(run: Run) -> None:
    filled(run)
    state = json.loads(run("status", "--json").stdout)
    assert [space["spec"] for space in state["spaces"]] == ["hashing:256"]
    assert all({"calls", "errors", "tokens_in"} <= set(used) for used in state["providers"].values())


def test_usage_counts_the_calls_of_this_process(tmp_path: Path) -> None:
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        assert isinstance(af, AgentFormer)
        af.memory.store("Aino prefers tea.")
        af.memory.search("tea")
        used = af.usage()["embedder hashing:256"]
    assert used["calls"] == 2 and used["errors"] == {} and used["seconds"] >= 0


@pytest.mark.slow
def test_a_text_that_was_kept_without_a_vector_is_told_with_the_reason(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_BASE_URL", "http://127.0.0.1:1")
    kept = run("remember", "Aino prefers tea.", "--embedder", "ollama:x")
    assert kept.exit_code == 0
    assert "the entry has no vector yet" in kept.stderr and "127.0.0.1:1 refused the connection" in kept.stderr
    assert "note" not in run("remember", "The keys hang there.", "--embedder", "hashing", "--namespace", "b").stderr
