"""Several nodes on one PostgreSQL: claims of embedding work, leases by the clock of the server, the list of nodes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentformer.cli.commands import main
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Conflict, EmbedderUnavailable
from agentformer.memory.backends.postgres.backend import PostgresOptions
from agentformer.memory.distributed import _BATCH, DistributedMemory, SharedQueue
from agentformer.records import codec, meta
from agentformer.testing import make_entry
from agentformer.testing.case import EVERYTHING, run_in_threads
from agentformer.types import Matrix, Reembedding
from tests import forked
from tests.backends.postgres_server import schema_of

pytestmark = pytest.mark.process
_LEASE = 1.0
Open = Callable[..., DistributedMemory]


class _Recorder(HashingEmbedder):
    """Records the embedded texts. `before` is called before each batch."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.before = before

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        self.before()
        self.texts += texts
        return super().embed_documents(texts)


class _Down(HashingEmbedder):
    """Has no server."""

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        raise EmbedderUnavailable("no server")


@pytest.fixture
def node(postgres_url: str, tmp_path: Path) -> Iterator[Open]:
    """Open nodes of one store."""
    opened = []

    def open_node(embedder: HashingEmbedder | None = None, seconds: float = 15.0) -> DistributedMemory:
        options = PostgresOptions(schema=schema_of(tmp_path))
        opened.append(DistributedMemory(postgres_url, embedder or _Recorder(), options, lease_seconds=seconds))
        return opened[-1]

    yield open_node
    for memory in opened:
        memory.close()


def _wait(memory: DistributedMemory, count: int) -> list[str]:
    """Store entries that wait for an embedder, and return their texts."""
    entries = [make_entry(f"heron number {number} stands in the reed") for number in range(count)]
    memory.store(entries)
    assert memory.pending(EVERYTHING) == count
    return [entry.content for entry in entries]


def test_nodes_embed_different_batches_at_once(node: Open) -> None:
    texts = _wait(node(_Down()), 3 * _BATCH)
    both = threading.Barrier(2, timeout=30)
    recorders = [_Recorder(), _Recorder()]

    def meet(number: int) -> Callable[[], None]:
        def once() -> None:
            recorders[number].before = lambda: None
            both.wait()  # only passed if the two nodes embed at the same time

        return once

    for number in range(2):
        recorders[number].before = meet(number)
    memories = [node(recorder) for recorder in recorders]
    run_in_threads(2, lambda number: memories[number].embed_pending())
    embedded = [text for recorder in recorders for text in recorder.texts if "heron" in text]
    assert sorted(embedded) == sorted(texts)  # each text once
    assert all(recorder.texts for recorder in recorders)
    status = memories[0].status()
    assert (status["pending"], status["vectors"]) == (0, len(texts))
    assert sum(state.embedded for state in memories[0].nodes()) == len(texts)


def test_the_batch_of_a_dead_node_is_embedded_by_another_one_after_its_lease(node: Open) -> None:
    _wait(node(_Down()), 2)
    dying, living = node(seconds=_LEASE), node(seconds=_LEASE)
    holder = f"{dying.node.id}/1"  # never extended, as after `kill -9`
    shared = dying._queue
    assert isinstance(shared, SharedQueue)
    dying.node.join()
    claimed = shared._claim(holder, 0, False)
    assert len(claimed) == 2
    assert living.queue().claimed == 2
    states = {state.id: state.claimed for state in living.nodes()}
    assert states[dying.node.id] == 2
    assert living._queue.catch_up(wait=False) == 2  # it waits for no other node
    assert living.embed_pending() == 0
    assert living.status()["vectors"] == 2


def test_a_node_whose_claim_has_ended_writes_nothing(node: Open) -> None:
    _wait(node(_Down()), 1)
    other = node()

    def lose() -> None:
        slow.before = lambda: None
        with other._database.statements() as connection:
            connection.execute("UPDATE pending SET claim_ends = 0", [])
        assert other.embed_pending() == 0

    slow = _Recorder(lose)
    late = node(slow)
    before = late.status()["changes"]
    assert late.embed_pending() == 0
    status = late.status()
    assert (status["vectors"], status["windows"], status["changes"]) == (1, 1, before + 1)
    assert {state.embedded for state in late.nodes()} == {0, 1}


def test_leases_end_by_the_clock_of_the_server(node: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = node(), node()
    assert one.lease("clean/monday", "one", 60)
    future = codec.now() + timedelta(days=1)
    for module in (codec, meta):
        monkeypatch.setattr(module, "now", lambda: future)
    assert not other.lease("clean/monday", "other", 60)
    one.release("clean/monday", "one")
    assert other.lease("clean/monday", "other", 60)


def test_a_held_lease_is_extended_and_one_node_embeds_again(node: Open) -> None:
    one, other = node(seconds=_LEASE), node(seconds=_LEASE)
    one.store([make_entry("a heron")])
    with one.node.lease("reembed") as taken:
        assert taken
        with one._database.statements() as connection:
            ends = "SELECT ends_at FROM leases"
            first = connection.execute(ends, []).fetchone()[0]
            one.node.beat()
            assert connection.execute(ends, []).fetchone()[0] > first
        with pytest.raises(Conflict, match="another node"):
            other.reembed(HashingEmbedder(96))
        with pytest.raises(Conflict, match="re-embedding"):
            other.abandon_reembedding()
        assert [state.leases for state in other.nodes() if state.leases] == [("reembed",)]
    assert other.reembed(HashingEmbedder(96)).switched


def test_another_node_completes_the_move_of_a_suspended_one(node: Open) -> None:
    """The suspended node keeps its connection, and its lease ends. When it goes on, it changes nothing."""

    class Suspended(HashingEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Matrix:
            with one._database.statements() as connection:
                connection.execute("UPDATE leases SET ends_at = 0", [])
            moves.append(other.reembed(HashingEmbedder(96)))
            return super().embed_documents(texts)

    one, other, moves = node(), node(), list[Reembedding]()
    (entry,) = one.store([make_entry("a heron at the lake")])
    with pytest.raises(Conflict, match="another process has completed it"):
        one.reembed(Suspended(96))
    assert [move.switched for move in moves] == [True]
    state = other.status()
    assert (state["space"]["dimension"], state["windows"], state["pending"]) == (96, 2, 0)  # in both spaces
    assert other.prune_spaces() == 1 and not [check for check in other.verify() if check.found]
    assert other.get([entry.id])[0].version == 1


def test_nodes_are_listed_until_they_leave(node: Open) -> None:
    one, other = node(), node()
    assert one.nodes() == []  # a process that holds nothing is no node
    one.node.join("worker")
    other.node.join("serve")
    assert [(state.role, state.alive) for state in one.nodes()] == [("worker", True), ("serve", True)]
    with one._database.statements() as connection:
        connection.execute("UPDATE nodes SET ends_at = 0 WHERE role = 'serve'", [])
    assert [state.alive for state in one.nodes()] == [True, False]
    one.node.beat()
    assert [state.role for state in one.nodes()] == ["worker"]  # a node that died long ago is forgotten
    other.node.beat()
    assert len(one.nodes()) == 2
    one.close()
    assert [state.role for state in other.nodes()] == ["serve"]


def test_a_read_after_an_acknowledged_write_on_another_node_sees_it(node: Open) -> None:
    one, other = node(), node()
    for number in range(20):
        writer, reader = (one, other) if number % 2 else (other, one)
        (entry,) = writer.store([make_entry(f"heron {number}")])
        assert reader.get([entry.id]) == [entry]
        assert reader.count(EVERYTHING) == number + 1


def test_a_listener_hears_of_the_changes_of_other_nodes(node: Open) -> None:
    one, other = node(), node(_Down())
    listener = one.listener()
    assert not listener.wait(0.01, "changes")  # connects
    other.store([make_entry("a heron")])
    assert listener.wait(30, "pending")
    _cut(one)
    assert not listener.wait(0.01, "changes")  # the connection is lost: only the time passes
    assert not listener.wait(0.01, "changes")  # connects again
    other.store([make_entry("a puffin")])
    assert listener.wait(30, "changes")
    listener.close()


def _cut(memory: DistributedMemory) -> None:
    """Let the server end all connections that wait for messages."""
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN agentformer'"
    with memory._database.statements() as connection:
        connection.execute(query, [])


def test_a_worker_embeds_what_others_stored_and_is_listed(
    node: Open, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wait(node(_Down()), 3)
    settings = {
        "BACKEND": "postgres", "POSTGRES_URL": postgres_url, "POSTGRES_SCHEMA": schema_of(tmp_path),
        "EMBEDDER": "hashing", "INDEX_DIR": str(tmp_path / "i"), "UPLOAD_DIR": str(tmp_path / "u"),
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(f"AGENTFORMER_{name}", value)
    with forked.command("worker") as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith("working as node ")
        reader = node()
        deadline = time.monotonic() + 60
        while reader.pending(EVERYTHING):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        node(_Down()).store([make_entry("a puffin")])
        while reader.pending(EVERYTHING):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        shown = CliRunner().invoke(main, ["nodes"]).stdout
        assert "worker" in shown and "alive" in shown and "embedding queue: 0 waiting" in shown
        report = CliRunner().invoke(main, ["doctor"]).stdout
        assert "nodes: 1 alive, 0 dead" in report
        worker.terminate()
        assert worker.wait(30) == 0
    listed = CliRunner().invoke(main, ["nodes", "--json"]).stdout
    assert json.loads(listed) == {"nodes": [], "queue": {"waiting": 0, "claimed": 0, "refused": 0, "age": 0.0}}


def test_nodes_need_a_shared_memory(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main, ["worker", "--index-dir", str(tmp_path)], env={"AGENTFORMER_BACKEND": "local_json"}
    )
    assert result.exit_code == 2
    assert "only the backend postgres has nodes" in result.output
