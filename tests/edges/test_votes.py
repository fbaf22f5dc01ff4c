"""Why a hit stands where it stands, told at every edge: by its ranked lists, its ranks in them, and their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.cli.commands.search import explain_ranks, explain_weight
from agentformer.testing import make_entry
from agentformer.tools.caller import Caller
from agentformer.tools.result_json import brief_hit_json, hit_json, memory_hit_json
from agentformer.types import Factor, Hit, ToolCall, Vote
from tests.edges.conftest import Invoke, Shown

TEA = "Aino prefers tea with honey."
ROOM = "The tea room opens at nine."


def hit(*votes: Vote) -> Hit:
    return Hit(make_entry(TEA), 0.5, votes=votes)


def test_reasons_are_words_that_a_person_understands() -> None:
    words, vectors = Vote("words", 1, 1.0), Vote("vectors", 12, 0.4512)
    assert explain_ranks([hit(words, vectors), hit(Vote("vectors", 3, 0.4512)), hit(Vote("words", 22, 1.0))]) == [
        "1st by words (weight 1), 12th by meaning (weight 0.45)",
        "3rd by meaning (weight 0.45), not found by words",
        "22nd by words (weight 1), not found by meaning",
    ]
    assert explain_ranks([hit(words, Vote("period", 2, 0.5), Vote("reranker", 3, 1.0)), hit(words)]) == [
        "1st by words (weight 1), 2nd by time (weight 0.5), 3rd by reranker, which decides",
        "1st by words (weight 1), not scored by reranker",
    ]
    assert explain_ranks([hit()]) == ["no ranks"] and explain_ranks([]) == []
    assert explain_ranks([hit(Vote("a plugin's own", 113, 2.0))]) == ["113th by a plugin's own (weight 2)"]


def test_the_weight_of_the_vectors_is_told_with_its_reasons() -> None:
    factors = [Factor("setting", 1.0), Factor("usual", 0.7), Factor("missed", 1.0), Factor("code", 3.0)]
    assert explain_weight(factors) == "Weight of meaning: 2.1 = 0.7 (the usual weight) x 3 (a question for source code)"
    assert explain_weight([Factor("alone", 1.0)]) == "Weight of meaning: 1 = 1 (no hit has the words)"
    scored = Hit(make_entry(TEA), 0.5, 0.512, 12.34, votes=(Vote("words", 1, 1.0), Vote("vectors", 2, 0.7)))
    assert explain_ranks([scored]) == ["1st by words (weight 1, BM25 12.3), 2nd by meaning (weight 0.7, cosine 0.51)"]


def test_votes_are_json_and_a_model_is_given_them_only_when_asked_for() -> None:
    told = [{"name": "words", "rank": 2, "weight": 0.3333}]
    one = hit(Vote("words", 2, 1 / 3))
    assert hit_json(one)["votes"] == memory_hit_json(one)["votes"] == told
    assert brief_hit_json(one, 100, explain=True)["votes"] == told
    assert "votes" not in brief_hit_json(one, 100)
    assert hit_json(hit())["votes"] == []


@pytest.mark.parametrize("command", ["search", "recall --all"])
def test_the_command_line_explains_when_asked_to(run: Invoke, shown: Shown, command: str) -> None:
    for text in (TEA, ROOM):
        shown("remember", text)
    lines = run(command, "Does Aino take honey in her tea?", "--explain").stdout.splitlines()
    assert lines[1].strip() == TEA and lines[4].strip() == ROOM
    assert "1st by words (weight" in lines[2] and "2nd by words (weight" in lines[5]
    assert lines[6].startswith("Weight of meaning: ") and "BM25" in lines[2] and "cosine" in lines[2]
    plain = run(command, "Does Aino take honey in her tea?").stdout.splitlines()
    assert plain == [lines[0], lines[1], lines[3], lines[4]]
    votes = shown(*command.split(), "Does Aino take honey in her tea?")["hits"][0]["votes"]
    assert {"words": 1}.items() <= {vote["name"]: vote["rank"] for vote in votes}.items()
    assert all(vote["weight"] >= 0 for vote in votes)


def test_http_tells_the_votes_of_memories_and_of_passages(tmp_path: Path) -> None:
    pytest.importorskip("flask", reason="the extra `server` is not installed")
    from agentformer.api import create_app
    from agentformer.api.app import close_app
    from agentformer.api.models import documents, memory
    from agentformer.settings import load_settings
    from tests.edges.mounted import shaped

    where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}
    app = create_app(load_settings(where))
    try:
        client: Any = app.test_client()
        client.post("/api/memory", json={"content": TEA})
        app.extensions["agentformer"].rag.upload(ROOM.encode(), name="room.txt")
        asked = {"text": "honey in her tea"}
        found = shaped(memory.MemoryHits, client.post("/api/memory/search", json=asked))
        answer = shaped(documents.Answer, client.post("/api/rag/query", json={"question": "When does the room open?"}))
    finally:
        close_app(app)
    for votes in (found["hits"][0]["votes"], answer["hits"][0]["votes"]):
        assert {"name", "rank", "weight"} == {*votes[0]}
        assert ("words", 1) in [(vote["name"], vote["rank"]) for vote in votes]


def test_the_search_tool_tells_them_to_who_asks(tmp_path: Path) -> None:
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        for text in (TEA, ROOM):
            af.memory.store(text)

        def memories(**asked: Any) -> Any:
            outcome = af.toolbox.run(ToolCall("1", "memory_search", {"query": "honey tea", **asked}), Caller())
            assert outcome.value is not None, outcome.text
            return outcome.value["memories"]

        assert all("votes" not in told for told in memories())
        assert ("words", 1) in [(vote["name"], vote["rank"]) for vote in memories(explain=True)[0]["votes"]]


def test_hits_of_several_backends_keep_their_votes(tmp_path: Path) -> None:
    where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}
    with agentformer.connect(**where, routes="kind:note=local_json") as af:
        af.memory.store(TEA, kind="note")
        af.memory.store(ROOM)
        hits = af.memory.search("honey in tea")
    assert [hit.entry.content for hit in hits if ("words", 1) in [vote[:2] for vote in hit.votes]] == [TEA, ROOM]
