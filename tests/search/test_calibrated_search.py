"""Thresholds for cosines: an embedder whose cosines are all high gets the same results as one whose cosines are low."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from agentformer import AgentFormer, connect
from agentformer.cli.inputs import nothing_recalled
from agentformer.errors import TextTooLong
from agentformer.registry import PARTS
from agentformer.settings import Settings
from agentformer.types import Matrix, Scope, Vector
from tests.embedders.test_calibration import Spelling, Squeezed

FACTS = (
    "The lighthouse keeper sleeps.",
    "Lightning struck the houseboat.",
    "Bread is baked at six.",
    "Bakers rise early.",
    "The harbour master keeps the keys.",
    "The harbour master keeps the keys!",
    "Rain fell on the harbourside.",
    "A keeperless light went out.",
    "Bakeries sell rolls.",
    "The caretaker waters the ferns.",
)
QUERIES = (
    *("lighthousekeeping", "bakery bread", "harbourmaster's keyring", "Who keeps the keys?", "ornithology of wrens"),
    *("caretaking ferny", "What did Napoleon eat in Moscow?", "Who waters ferns?"),
)


class Constant(Spelling):
    """Gives all texts the same vector."""

    def embed_query(self, text: str) -> Vector:
        return np.eye(256, dtype=np.float32)[0]


class Curt(Spelling):
    """Refuses passages of two sentences, so it cannot be calibrated."""

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        if any(". " in text for text in texts):
            raise TextTooLong("two sentences")
        return super().embed_documents(texts)


def plain(model: str, settings: Settings) -> Spelling:
    return {"": Spelling, "squeezed": Squeezed, "constant": Constant, "curt": Curt}[model]()


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], AgentFormer]:
    monkeypatch.setitem(PARTS["embedders"], "plain", f"{__name__}:plain")

    def memory(model: str) -> AgentFormer:
        folder = tmp_path / (model or "plain")
        af = connect(index_dir=folder / "i", upload_dir=folder / "u", embedder=f"plain:{model}", clean_every=0)
        for fact in FACTS:
            af.memory.store(fact)
        return af

    return memory


def decisions(af: AgentFormer, query: str) -> list[object]:
    """Return the results of all that compares a cosine with a constant."""
    answer = af.rag.query(query)
    return [
        sorted(hit.entry.content for hit in af.memory.search(query, limit=20)),
        sorted(hit.entry.content for hit in af.memory.search(query, limit=20, noise_floor=0.5)),
        sorted(hit.entry.content for hit in af.memory.search(query, relevant_only=True)),
        [re.sub(r"id=\S+", "", message.content) for message in af.memory.build_context(query).messages],
        nothing_recalled(af, query, Scope(), every=False),
        (answer.mode, answer.text, round(answer.confidence or 0.0, 3)),
        [len(group.ids) for group in (*af.memory.audit().duplicates, *af.memory.audit().near_duplicates)],
    ]


def test_the_same_is_found_whether_cosines_begin_at_nought_or_at_seven_tenths(
    opened: Callable[[str], AgentFormer],
) -> None:
    with opened("") as low, opened("squeezed") as high:
        found = [(decisions(low, query), decisions(high, query)) for query in QUERIES]
        raw = [hit.dense_score or 0.0 for hit in high.memory.search("Who keeps the keys?", limit=20)]
    for query, (one, other) in zip(QUERIES, found, strict=True):
        assert one == other, query
    assert len({len(one[0]) for one, _ in found}) > 2, "the noise floor drops some hits and keeps others"  # type: ignore[arg-type]
    assert min(raw) > 0.7, "a hit has the cosine of its model"


@pytest.mark.parametrize("model", ["constant", "curt"])
def test_cosines_without_a_scale_keep_no_hit_without_a_word(opened: Callable[[str], AgentFormer], model: str) -> None:
    with opened(model) as af:
        assert [hit.entry.content for hit in af.memory.search("Who waters ferns?")] == [FACTS[-1]]
        assert [hit.entry.content for hit in af.memory.search("waters", relevant_only=True)] == [FACTS[-1]]
        assert af.memory.search("ornithology") == [] == af.memory.search("ornithology", relevant_only=True)
        assert len(af.memory.search("ornithology", limit=20, noise_floor=-1.0)) == len(FACTS)
