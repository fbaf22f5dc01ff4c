"""A session that hooks capture and that is imported from the agent's files, too, is stored once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import agentformer
from agentformer.hooks import companion
from agentformer.hooks.agent_formats import event_of
from agentformer.hooks.recall import recalled
from agentformer.hooks.spool import Spool

SAID = [("user", "Which port does the server use?"), ("assistant", "It uses 8808."), ("user", "yes"), ("user", "yes")]


@pytest.fixture
def af(tmp_path: Path) -> Iterator[agentformer.AgentFormer]:
    folders = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    with agentformer.connect(**folders, embedder="hashing", clean_every=0) as memory:
        yield memory


def capture(af: agentformer.AgentFormer, *said: tuple[str, str], **values: str) -> None:
    """Capture messages as the hooks of Claude Code do."""
    spool = Spool(af.settings.index_dir)
    for role, text in said:
        name, field = ("UserPromptSubmit", "prompt") if role == "user" else ("Stop", "last_assistant_message")
        given = {"hook_event_name": name, "session_id": "s1", "cwd": "/work", field: text, **values}
        event = event_of("claude-code", "", json.dumps(given).encode())
        assert event is not None and spool.add(event)
    companion._store(af, [*spool.waiting()])
    assert not [*spool.waiting()]


def transcript(folder: Path, *said: tuple[str, str], at: datetime | None = None) -> Path:
    """Write messages as Claude Code does, three seconds apart."""
    path, at = folder / "s1.jsonl", at or datetime.now(UTC)
    lines = [
        {
            "type": role,
            "uuid": f"u{number}",
            "sessionId": "s1",
            "cwd": "/work",
            "timestamp": (at + timedelta(seconds=3 * number)).isoformat(),
            "message": {"role": role, "content": text},
        }
        for number, (role, text) in enumerate(said)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def stored(af: agentformer.AgentFormer) -> list[str]:
    return sorted(entry.content for entry in af.memory.list(kinds=["message"], session_id="claude-code:s1"))


@pytest.mark.parametrize("first", ["hooks", "import"])
def test_a_session_is_stored_once_in_either_order(af: agentformer.AgentFormer, tmp_path: Path, first: str) -> None:
    path = transcript(tmp_path, *SAID, ("assistant", "Good."))
    if first == "hooks":
        capture(af, *SAID)
        done = af.import_conversations(path)
        assert (done.messages, done.there_already) == (1, 4)
    else:
        af.import_conversations(path)
        capture(af, *SAID)
    assert stored(af) == sorted([*(text for _, text in SAID), "Good."])
    assert af.import_conversations(path).messages == 0
    capture(af, ("user", "And the host?"))
    assert len(stored(af)) == 6


def test_the_same_words_at_another_time_are_another_message(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    capture(af, ("user", "yes"))
    done = af.import_conversations(transcript(tmp_path, ("user", "yes"), at=datetime.now(UTC) - timedelta(hours=1)))
    assert done.messages == 1 and stored(af) == ["yes", "yes"]


def test_what_was_said_in_an_unknown_folder_is_recalled_in_no_other(af: agentformer.AgentFormer) -> None:
    capture(af, ("user", "The alarm code of the shed is on the blue card."), cwd="")
    af.memory.store("The alarm of the shed is tested on Mondays.")

    def asked(project: str) -> str:
        return recalled(af, {"text": "Where is the alarm code of the shed?", "project": project, "session": "s2"})

    unknown = event_of("claude-code", "SessionStart", b"{}")
    assert unknown is not None and "blue card" in asked(unknown.project)
    assert "blue card" not in asked("/work") and "Mondays" in asked("/work")
