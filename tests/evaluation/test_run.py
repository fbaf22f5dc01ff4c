"""Evaluations: ranks and figures as by hand, parts, differences, and a memory that nobody notices was measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentformer.errors import InvalidInput
from agentformer.evaluation.dataset import Dataset, Passage, Question
from agentformer.evaluation.run import EvaluationOptions, evaluate
from agentformer.factory import AgentFormer, connect
from agentformer.types import Hit, Hits, MemoryEntry, Query, Scope
from tests.evaluation.conftest import Opens
from tests.readers.conftest import make_pdf

KEYS = "The caretaker keeps the keys in the blue cupboard."
BOATS = "Boats are lifted out of the water in October."


class Scripted:
    """A search whose results are written down: by mode and question, passages in their order."""

    def __init__(self, found: dict[tuple[str, str], str]) -> None:
        self.found = found
        self.asked: list[Query] = []

    def __call__(self, query: Query) -> Hits:
        self.asked.append(query)
        passages = self.found[query.mode, query.text].split()[: query.limit]
        hits = [
            Hit(MemoryEntry(f"e{n}", "", metadata={"passage": name}), 1 / (n + 1)) for n, name in enumerate(passages)
        ]
        return Hits(hits, ("vectors wait",) if query.mode == "hybrid" else ())


def dataset(*questions: Question) -> Dataset:
    return Dataset("test", (Passage("a", "x"), Passage("b", "y")), questions)


def test_ranks_and_means_are_as_by_hand() -> None:
    search = Scripted(
        {("hybrid", "one"): "x a b", ("hybrid", "two"): "c", ("lexical", "one"): "b a", ("lexical", "two"): "d c"}
    )
    told = evaluate(
        search, dataset(Question("1", "one", ("a", "b")), Question("2", "two", ("c",)), Question("3", "none")),
        EvaluationOptions(("hybrid", "lexical"), metrics=("recall@1", "recall_any@1", "recall@3", "mrr@10")),
    )  # fmt: skip
    assert [each.ranks for each in told.outcomes] == [
        {"hybrid": (2, 3), "lexical": (2, 1)},
        {"hybrid": (1,), "lexical": (2,)},
    ]
    values = {mode: {name: found.value for name, found in of.items()} for mode, of in told.overall.figures.items()}
    assert values == {
        "hybrid": {"recall@1": 0.5, "recall_any@1": 0.5, "recall@3": 1.0, "mrr@10": 0.75},
        "lexical": {"recall@1": 0.25, "recall_any@1": 0.5, "recall@3": 1.0, "mrr@10": 0.75},
    }
    assert told.overall.differences["lexical"]["recall@1"].value == 0.25
    assert (told.values("recall@1"), told.values("mrr@10", "lexical")) == ([0.0, 1.0], [1.0, 0.5])
    assert told.notes == ("1 questions have no answer and were not asked",) and told.warnings == ("vectors wait",)
    shown = json.loads(json.dumps(told.as_json(), allow_nan=False))
    assert shown["results"][0]["ranks"] == {"hybrid": [2, 3], "lexical": [2, 1]} and shown["questions"] == 2
    assert shown["overall"]["figures"]["hybrid"]["recall@1"] == [0.5, 0.0, 1.0]


def test_hits_of_one_passage_count_once_and_more_are_asked_for_where_they_crowd_out_others() -> None:
    search = Scripted({("hybrid", "one"): "x x x x x x x x x x y x a b c d e f g h i j k"})
    told = evaluate(search, dataset(Question("1", "one", ("a", "h", "i"))), EvaluationOptions(modes=("hybrid",)))
    assert told.outcomes[0].ranks == {"hybrid": (3, 10, None)}
    assert [query.limit for query in search.asked] == [10, 40]


def test_figures_of_more_passages_than_were_looked_at_are_not_told() -> None:
    search = Scripted({("hybrid", "one"): "x a b c"})
    told = evaluate(search, dataset(Question("1", "one", ("c",))), EvaluationOptions(modes=("hybrid",), limit=3))
    assert told.outcomes[0].ranks == {"hybrid": (None,)}
    assert "recall@3" in told.metrics and not {"recall@5", "mrr@10"} & set(told.metrics)


def test_parts_are_by_language_and_by_category() -> None:
    questions = [
        Question("1", "Who keeps the keys of the boathouse?", ("a",), {"category": "x", "category_name": "hop"}),
        Question("2", "Where are the boats in the winter?", ("a",), {"category": 7}),
        Question("3", "Turku", ("a",)),
        Question("4", "Missä veneet ovat talvella?", ("a",)),
        Question("5", "Bonjour", ("a",), {"lang": "fr"}),
    ]
    search = Scripted({("dense", each.text): "a" if each.id in "14" else "b" for each in questions})
    told = evaluate(search, dataset(*questions), EvaluationOptions(modes=("dense",), metrics=("recall@1",)))
    parts = {part.name: (part.questions, part.figures["dense"]["recall@1"].value) for part in told.languages}
    assert parts == {"en": (2, 0.5), "fi": (1, 1.0), "fr": (1, 0.0), "unknown": (1, 0.0)}  # of Turku alone
    assert {part.name: part.questions for part in told.categories} == {"7": 1, "hop": 1, "none": 3}
    assert not told.overall.differences
    alone = evaluate(search, dataset(questions[0]), EvaluationOptions(modes=("dense",)))
    assert alone.languages == alone.categories == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"modes": ()}, "modes"),
        ({"modes": "hybrid"}, "modes"),
        ({"modes": ("words",)}, "modes"),
        ({"limit": 0}, "limit"),
        ({"limit": 1000}, "limit"),
        ({"modes": None}, "modes"),
        ({"modes": 5}, "modes"),
        ({"limit": "3"}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": None}, "limit"),
        ({"metrics": ("map@5",)}, "metric"),
        ({"metrics": [5]}, "metric"),
        ({"metrics": None}, "metrics"),
        ({"metrics": "recall@5"}, "metrics"),
    ],
)
def test_a_wrong_argument_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        evaluate(Scripted({}), dataset(Question("1", "one", ("a",))), EvaluationOptions(**options))
    assert error.value.field == said


def test_questions_that_nothing_answers_cannot_be_measured() -> None:
    with pytest.raises(InvalidInput, match="list the ids of passages under 'relevant'"):
        evaluate(Scripted({}), dataset(Question("1", "one")), EvaluationOptions())


def test_a_corpus_is_loaded_and_found_by_its_own_ids(opens: Opens) -> None:
    opened = opens(chunk_tokens=40, chunk_overlap=0)
    passages = (Passage("keys", f"{KEYS} " * 30), Passage("boats", BOATS), Passage("none", ""))
    questions = (Question("1", "Who keeps the keys?", ("keys",)), Question("2", "boats in October", ("boats",)))
    data = Dataset("test", passages, questions)
    opened.load(data)
    told = opened.evaluate(data)
    assert [each.ranks["lexical"] for each in told.outcomes] == [(1,), (1,)]
    assert told.modes == ("hybrid", "lexical", "dense")


# ---------------------------------------------------------------------- the memory that is open


@pytest.fixture(scope="module")
def af(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentFormer]:
    """No test changes what is in it."""
    folder = tmp_path_factory.mktemp("measured")
    with connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing") as opened:
        opened.rag.upload(make_pdf([[BOATS], [KEYS]]), name="rules.pdf")
        opened.rag.upload(b"The crane is behind the boathouse.", name="notes#2.txt")
        opened.memory.store("Aino keeps the spare keys.", source_type="ticket", source_id="4711")
        yield opened


def ranks(told: Any) -> list[Any]:
    return [each.ranks["lexical"] for each in told.outcomes]


@pytest.mark.process
def test_questions_of_the_opened_memory_name_entries_records_pages_and_documents(af: AgentFormer) -> None:
    fact = af.memory.list(kinds=["fact"])[0].id
    told = af.evaluate(
        [
            {"text": "Who keeps the spare keys?", "relevant": [fact]},
            {"text": "Who keeps the spare keys?", "relevant": ["4711"]},
            {"text": "caretaker cupboard", "relevant": ["rules.pdf#2"]},
            {"text": "caretaker cupboard", "relevant": ["rules.pdf#1"]},
            {"text": "caretaker cupboard boats water", "relevant": ["rules.pdf"]},
            {"id": "own", "text": "crane", "relevant": ["notes#2.txt", "rules.pdf"], "meta": {"lang": "en"}},
            Question("q", "crane", ("notes#2.txt#1",)),
            Question("mixed", "caretaker cupboard boats water", ("rules.pdf#2", "notes#2.txt", fact)),
        ],
        modes=("lexical",),
    )
    assert ranks(told) == [(1,), (1,), (1,), (None,), (1,), (1, None), (1,), (2, None, None)]
    assert [each.question.id for each in told.outcomes] == ["1", "2", "3", "4", "5", "own", "q", "mixed"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("questions", "said"),
    [
        ([{"text": "x", "relevant": ["gone", "rules.pdf#3", "rules.pdf#0"]}], "'gone', 'rules.pdf#3', 'rules.pdf#0'"),
        ([{"text": "", "relevant": ["rules.pdf"]}], "question 1: 'text' is empty"),
        ([{"question": "x", "relevant": ["rules.pdf"]}], "'question' is unknown"),
        ([{"text": "x", "relevant": "rules.pdf"}], "must be a list"),
        (["x"], "must be `Question` objects or mappings"),
        ({"text": "x"}, "must be a list of questions or a folder"),
        (7, "must be a list of questions or a folder"),
        ([{"text": "x"}], "list the ids of passages under 'relevant'"),
    ],
)
def test_questions_that_cannot_be_asked_are_told(af: AgentFormer, questions: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        af.evaluate(questions)
    assert said in str(error.value)


@pytest.mark.process
def test_a_name_of_another_namespace_is_none_of_this_one(af: AgentFormer) -> None:
    elsewhere = af.memory.store("Elsewhere.", namespace="other").id
    with pytest.raises(InvalidInput, match="nothing in the namespace default has the name"):
        af.evaluate([{"text": "Elsewhere", "relevant": [elsewhere]}])
    told = af.evaluate([{"text": "Elsewhere", "relevant": [elsewhere]}], namespace="other", modes=("lexical",))
    assert ranks(told) == [(1,)]


@pytest.mark.process
def test_measuring_counts_nothing_as_used(af: AgentFormer) -> None:
    af.evaluate([{"text": "Who keeps the spare keys?", "relevant": ["4711"]}])
    af.memory.status()  # which writes counts that wait
    found = af.backend.list(Scope(), limit=100)
    assert found and all(each.access_count == each.match_count == 0 for each in found)


@pytest.mark.process
def test_a_folder_is_measured_in_a_memory_of_its_own_that_goes(
    af: AgentFormer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, temporary = tmp_path / "data", tmp_path / "tmp"
    for path in (data, temporary):
        path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    (data / "corpus.jsonl").write_text(json.dumps({"id": "p", "text": "Nets lie in the shed."}))
    (data / "queries.jsonl").write_text(json.dumps({"id": "q", "text": "Where are nets?", "relevant": ["p"]}))
    af.backend.search(Query("keys"))
    own = (af.settings.index_dir, af.settings.upload_dir)
    before = [*map(contents, own)]
    told = af.evaluate(data, modes=("lexical", "hybrid"))
    assert ranks(told) == [(1,)] and told.name == "data" and told.passages == 1
    assert [*map(contents, own)] == before
    assert not list(temporary.iterdir()) and not af.backend.search(Query("nets shed", mode="lexical"))


def contents(folder: Path) -> dict[str, str]:
    """Every file with its bytes' hash."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("-shm"))
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
