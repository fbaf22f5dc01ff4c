"""Lists of many entries and documents: the first part is drawn at once, and the rest when it comes into sight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentformer import connect
from tests.console.conftest import Seen
from tests.edges.running import Running
from tests.faults.long_form import LONG

pytest.importorskip("flask", reason="the extra `server` is not installed")
expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not LONG, reason="FAULTS_LONG=1 stores 20,000 entries and 1,000 documents"),
]

ENTRIES = 10_000
DOCUMENTS = 1_000
PART = 100  # rows that a list draws at a time


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("many")
    with connect(index_dir=folder / "indexes", upload_dir=folder / "uploads", embedder="hashing", clean_every=0) as af:
        for start in range(0, ENTRIES, 1_000):
            numbers = range(start, min(start + 1_000, ENTRIES))
            af.memory.store_many([{"content": f"Fact {number} of the harbour"} for number in numbers])
            messages = [{"session_id": f"day {n % 250}", "role": "user", "content": f"Message {n}"} for n in numbers]
            af.memory.add_messages(messages)
        for number in range(DOCUMENTS):
            af.rag.upload(f"Document {number} is about berth {number}.".encode(), name=f"berth-{number:04}.txt")
    server = Running(folder, AGENTFORMER_CLEAN_EVERY="0")
    yield server
    server.close()


@pytest.mark.parametrize(
    ("path", "rows", "last"),
    [
        ("memory/known", ENTRIES, "Fact 0 of the harbour"),
        ("memory/sessions", min(250, ENTRIES), "day 0"),
        ("documents", DOCUMENTS, "berth-0000.txt"),
    ],
)
def test_a_long_list_is_drawn_in_parts(browser: Any, many: Running, path: str, rows: int, last: str) -> None:
    """The times of the browser are printed. The test asserts the number of rows."""
    seen = Seen(browser, many)
    page = seen.page
    page.set_default_timeout(60_000)
    page.evaluate("""() => { window.tasks = []; new PerformanceObserver((list) => window.tasks.push(
        ...list.getEntries().map((entry) => Math.round(entry.duration)))).observe({type: "longtask"}); }""")
    page.evaluate("window.began = performance.now()")
    page.goto(f"{page.url.split('#')[0]}#/{path}")
    page.wait_for_selector("#main .line")
    first = page.evaluate("performance.now() - window.began")
    page.wait_for_load_state("networkidle")
    whole = page.evaluate("performance.now() - window.began")
    assert page.locator("#main .line").count() <= 2 * PART
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    expect.set_options(timeout=60_000)
    expect(page.locator("#main .line").nth(min(rows, PART + 1) - 1)).to_be_attached()
    if path != "memory/sessions":
        page.locator("#main input[type=search]").fill(last)
        expect(page.locator("#main .line")).to_have_count(1)
    tasks = page.evaluate("window.tasks")
    print(f"{path}: first rows {first:.0f} ms, all read {whole:.0f} ms, longest task {max(tasks, default=0)} ms")
    assert seen.wrong == []
    seen.context.close()
