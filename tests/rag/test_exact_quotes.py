"""A quote is the text between its start and end, whatever is asked of whatever is stored; what is from another place is
in its headings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer import AgentFormer
from agentformer.tools.caller import Caller
from agentformer.types import ToolCall
from bench.data import DATA, load

SHEET = """# Costs

| Office | Rent | Power |
|---|---|---|
| Turku | 1000 | 120 |
| Vaasa | 800 | 90 |
| Boat | Length | Berths |
| Aurora | 12 | 6 |
| Vega | 9 | 4 |

House plants:

| plant | toxic to cats | note |
|---|---|---|
| Peace lily | yes | all parts |
| Spider plant | no | mild upset |
| Boston fern | no | |
"""
CONTRACTS = (
    "supplier,city,contract\nAalto Timber,Turku,2026-05-31\nBergs Stål,Vaasa,2025-12-31\nCedar Oy,Turku,2027-01-31\n"
)
RULES = """The keeper of the lighthouse has three duties:

- He lights the lamp at dusk.
- He writes the log, as told in [1].
- He rings the bell in fog.

To start the engine, follow these steps:

1. Open the fuel cock.
2. Wait for the green light.
3. Turn the key.

The harbour office was built in 1921. It was moved in 1950. It has a red roof.

Visitors may enter. Dogs may not be taken to the pier. Photography is not allowed in the tower.
"""
REPORT = """Sales by region (in thousands)
2023 2022
Harbour 410 600
Island 900 880
Forest 350 345
Total 1,660 1,825
"""
OLD = "# Travel policy\n\nVersion 2023.\n\nThe daily allowance for domestic travel is 42 euros.\n"
NEW = "# Travel policy\n\nVersion 2025.\n\nThe daily allowance for domestic travel is 53 euros.\n"
FILES = {
    "sheet.md": SHEET,
    "contracts.csv": CONTRACTS,
    "rules.txt": RULES,
    "report.txt": REPORT,
    "policy-2023.md": OLD,
    "policy-2025.md": NEW,
}
# A question, what the shown answer must have, and what it must not have.
ASKED = [
    ("What is the length of Vega?", ["Boat: Vega | Length: 9"], ["Office: Vega", "Rent"]),
    ("What is the rent in Vaasa?", ["Office: Vaasa | Rent: 800"], ["Boat: Vaasa"]),
    ("Which plants are not toxic to cats?", ["plant: Spider plant", "plant: Boston fern"], ["Peace lily"]),
    ("Which plants are toxic to cats?", ["plant: Peace lily"], ["Spider plant", "Boston fern"]),
    ("Which contracts end before 2026?", ["Bergs Stål"], ["Aalto", "Cedar"]),
    ("Which contracts end after 31 May 2026?", ["Cedar Oy"], ["Aalto", "Bergs"]),
    ("What duties does the keeper of the lighthouse have?", ["three duties", "lights the lamp", "rings the bell"], []),
    ("How do I start the engine?", ["Open the fuel cock", "Turn the key"], []),
    ("Which region had the highest sales in 2023?", ["Island"], []),
    ("What is not allowed in the tower?", ["Photography is not allowed"], ["Visitors"]),
    ("What was the daily allowance in 2023?", ["42 euros"], []),
    ("When was the harbour office moved?", ["1950"], []),
]


@pytest.fixture(scope="module")
def af(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentFormer]:
    folder = tmp_path_factory.mktemp("quotes")
    with agentformer.connect(
        index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing", abstain=0.0
    ) as opened:
        for name, text in FILES.items():
            assert opened.rag.upload(text.encode(), name=name).status == "ready"
        yield opened


def texts_of(af: AgentFormer) -> dict[tuple[str, int], str]:
    documents = [document.id for document in af.rag.documents()]
    return {(each, page.number): page.text for each in documents for page in af.rag.pages(each)}


@pytest.mark.parametrize(("question", "shown", "hidden"), ASKED, ids=[question for question, *_ in ASKED])
def test_the_first_quotes_answer_and_are_exact(
    af: AgentFormer, question: str, shown: list[str], hidden: list[str]
) -> None:
    answer = af.rag.query(question)

    first = answer.text if "\n" not in answer.text or len(shown) > 1 or hidden else answer.text.split("\n")[0]
    assert all(each in first for each in shown), answer.text
    assert not any(each in answer.text for each in hidden), answer.text
    pages = texts_of(af)
    for citation in answer.citations:
        assert pages[citation.document_id, citation.page or 0][citation.start : citation.end] == citation.quote
        assert citation.quote.strip() and not citation.quote.rstrip().endswith(":")


def test_the_headers_of_a_row_are_its_headings(af: AgentFormer) -> None:
    [citation, *_] = af.rag.query("What is the length of Vega?").citations

    assert (citation.quote, citation.headings) == ("| Vega | 9 | 4 |", "Boat | Length | Berths")


def test_every_door_gives_the_exact_quote(af: AgentFormer) -> None:
    pages = texts_of(af)
    pytest.importorskip("flask", reason="the extra `server` is not installed")
    import flask

    from agentformer.api import init_app

    app = flask.Flask(__name__)
    init_app(app, af)
    client = app.test_client()
    for question, *_ in ASKED:
        body = client.post("/api/rag/query", json={"question": question}).get_json()
        told = af.toolbox.run(ToolCall("1", "rag_query", {"question": question}), Caller())
        given = [*body["citations"], *json.loads(told.text)["citations"]]
        assert given
        for each in given:
            assert pages[each["document_id"], each["page"]][each["start"] : each["end"]] == each["quote"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["norquad", "xquad/en", "squad_fi", "jsquad_valid", "pubmedqa", "swefaq"])
def test_quotes_from_a_real_set_are_exact(tmp_path: Path, name: str) -> None:
    if not (DATA / name).is_dir():
        pytest.skip(f"the set {name} is not beside the repository")
    rows = load(name)
    with agentformer.connect(
        index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing", abstain=0.0
    ) as opened:
        wanted = {each for query in rows.queries[:25] for each in query.relevant[:1]}
        for row in rows.corpus:
            if row.id in wanted:
                opened.rag.upload(row.text.encode(), name=f"{row.id.replace('/', '_')}.txt")
        pages = texts_of(opened)
        cited: list[Any] = [c for query in rows.queries[:25] for c in opened.rag.query(query.text).citations]
        assert cited
        assert [c for c in cited if pages[c.document_id, c.page][c.start : c.end] != c.quote] == []
