"""Many messages at once: kept as each alone would be, all or none, and summarised when it is time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agentformer.errors import InvalidInput
from agentformer.factory import AgentFormer, connect

_DAY = datetime(2026, 5, 1, 9, 30, tzinfo=UTC)


@pytest.fixture(params=["faiss", "local_json"])
def af(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentFormer]:
    with connect(
        index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing", backend=request.param, clean_every=4,
        clean_batch=2, clean_keep_recent=2,
    ) as opened:  # fmt: skip
        yield opened


def test_messages_are_kept_in_order_also_when_they_repeat(af: AgentFormer) -> None:
    said = ("Hello.", "Thanks!", "Thanks!")
    common: dict[str, Any] = {"session_id": "s", "role": "user", "speaker": "Aino", "occurred_at": _DAY}
    stored = af.memory.add_messages([{**common, "content": text} for text in said])
    assert [each.content for each in stored] == [each.content for each in af.memory.transcript("s")] == [*said]
    alone = af.memory.add_message("t", "user", "Hello.", speaker="Aino", occurred_at=_DAY)
    names = ("content", "kind", "tier", "role", "speaker", "context", "occurred_at", "category", "metadata", "raw")
    assert [getattr(stored[0], name) for name in names] == [getattr(alone, name) for name in names]
    assert af.memory.add_messages([]) == []


def test_all_are_kept_or_none(af: AgentFormer) -> None:
    with pytest.raises(InvalidInput, match="role: must be one of"):
        af.memory.add_messages(
            [
                {"session_id": "s", "role": "user", "content": "Hello."},
                {"session_id": "s", "role": "captain", "content": "Ahoy."},
            ]
        )
    assert af.memory.transcript("s") == []


def test_a_record_of_the_host_is_replaced_by_its_new_messages(af: AgentFormer) -> None:
    message = {"session_id": "s", "role": "user", "content": "Old.", "source_type": "mail", "source_id": "1"}
    af.memory.add_messages([message])
    af.memory.add_messages([{**message, "content": "New."}, {**message, "content": "Newer."}])
    assert [each.content for each in af.memory.transcript("s")] == ["New.", "Newer."]


def test_their_sessions_are_summarised_as_after_single_messages(af: AgentFormer) -> None:
    af.memory.add_messages(
        [{"session_id": "s", "role": "user", "content": f"The boat number {n} was painted."} for n in range(8)]
    )
    assert [each.kind for each in af.memory.list(session_id="s")].count("summary") > 0


@pytest.mark.parametrize("messages", ["x", {"content": "x"}, 7, ["x"], [None]])
def test_what_is_no_list_of_messages_is_refused(af: AgentFormer, messages: Any) -> None:
    with pytest.raises(InvalidInput, match=r"messages: must (be|contain)"):
        af.memory.add_messages(messages)
