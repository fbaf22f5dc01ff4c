"""Many entries at once: filters in every method, `get_many`, `remove_many`, `upsert_many`, and entries that no search
returns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentformer import AgentFormer, Scope, Settings
from agentformer.errors import Conflict, InvalidInput, NotFound

RECENT = {"type": "gte", "key": "year", "value": 2025}
BACKENDS = ("faiss", "local_json")


@pytest.fixture(params=BACKENDS)
def af(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentFormer]:
    places = {"index_dir": tmp_path / "indexes", "upload_dir": tmp_path / "uploads"}
    with AgentFormer(Settings(backend=request.param, embedder="hashing", **places)) as af:
        yield af


def test_a_filter_narrows_search_list_count_and_remove(af: AgentFormer) -> None:
    for year in range(2020, 2028):
        af.memory.store(f"The budget of {year} was approved.", metadata={"year": year})
    years = [entry.metadata["year"] for entry in af.memory.list(where=RECENT)]
    assert years == [2025, 2026, 2027]
    assert sorted(hit.entry.metadata["year"] for hit in af.memory.search("budget", where=RECENT)) == years
    assert af.memory.count(where=RECENT) == 3 and af.memory.count(where={"year": 2021}) == 1
    answer = af.rag.query("Which budget was approved?", where=RECENT)
    assert {hit.entry.metadata["year"] for hit in answer.hits} <= set(years) and answer.hits
    assert af.memory.remove(Scope(where=RECENT)) == 3
    assert af.memory.count() == 5


def test_an_invalid_filter_is_refused_with_its_place(af: AgentFormer) -> None:
    with pytest.raises(InvalidInput, match=r"where\.filters\[0\]\.type"):
        af.memory.list(where={"type": "and", "filters": [{"type": "like", "key": "a", "value": 1}]})


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("  ", r"content: is empty.* \(item 1 of the list, counted from 0\)"),
        ("\u200b\ufeff", r"content: is empty.* \(item 1 of the list, counted from 0\)"),
        ({"kind": "fact"}, r"content: .* \(item 1 of the list"),
        ({"content": "tea", "colour": "green"}, r"colour: .* \(item 1 of the list"),
    ],
)
def test_an_invalid_item_is_named_and_nothing_is_stored(af: AgentFormer, item: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        af.memory.store_many(["Aino prefers tea.", item, "Veli prefers coffee."])
    assert af.memory.list() == []


def test_get_many_and_remove_many_take_ids_and_source_ids(af: AgentFormer) -> None:
    plain = [af.memory.store(f"fact {n}") for n in range(4)]
    common = {"source_type": "page", "verbatim": True}
    pages = af.memory.upsert_many(
        [{"content": f"page {n}", "source_id": f"https://e.org/{n}"} for n in range(5)], **common
    )
    urls = ["https://e.org/3", "https://e.org/9", "https://e.org/0"]
    found = af.memory.get_many([plain[2].id, "absent", plain[0].id], source_type="page", source_ids=urls)
    assert [entry.id for entry in found] == [plain[2].id, plain[0].id, pages[3].id, pages[0].id]
    assert af.memory.remove_many([plain[1].id, "absent"], source_type="page", source_ids=urls) == 3
    assert {entry.content for entry in af.memory.list()} == {"fact 0", "fact 2", "fact 3", "page 1", "page 2", "page 4"}
    assert af.memory.remove_many() == 0


def test_remove_many_deletes_nothing_if_an_entry_is_part_of_a_document(af: AgentFormer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The lighthouse was built in 1898.")
    document = af.rag.upload(tmp_path / "a.txt")
    fact = af.memory.store("a fact")
    with pytest.raises(InvalidInput, match=r"rag\.remove"):
        af.memory.remove_many([fact.id, document.id])
    assert af.memory.get_many([fact.id, document.id])[0].content == "a fact"


def test_an_upsert_keeps_the_id_and_the_history(af: AgentFormer) -> None:
    item = {"source_type": "note", "source_id": "n1", "metadata": {"v": 1}}
    first = af.memory.upsert("The bridge opens at nine.", **item)
    assert af.memory.upsert("The bridge opens at nine.", **item) == first  # nothing changed
    second = af.memory.upsert("The bridge opens at ten.", **{**item, "metadata": {"v": 2}})
    assert (second.id, second.version, second.metadata) == (first.id, 2, {"v": 2})
    assert [entry.content for entry in af.memory.history(first.id)] == ["The bridge opens at nine."]
    assert [hit.entry.content for hit in af.memory.search("bridge")] == ["The bridge opens at ten."]


def test_equal_records_in_one_upsert_are_one_entry(af: AgentFormer) -> None:
    items = [{"content": text, "source_type": "note", "source_id": "n1"} for text in ("old", "newer", "newest")]
    assert [entry.content for entry in af.memory.upsert_many(items)] == ["newest"]
    assert af.memory.count() == 1
    twins = [{"content": "the same text", "source_type": "note", "source_id": f"t{n}"} for n in range(2)]
    assert len({entry.id for entry in af.memory.upsert_many(twins)}) == 2  # other records, although the texts are equal


def test_records_of_another_user_are_other_records(af: AgentFormer) -> None:
    record = {"source_type": "note", "source_id": "n1"}
    nobody = af.memory.upsert("of nobody", **record)
    own = af.memory.upsert("of aino", **record, user_id="aino")
    assert own.id != nobody.id
    assert af.memory.upsert("of aino, changed", **record, user_id="aino").id == own.id


def test_concurrent_upserts_store_one_entry(af: AgentFormer) -> None:
    start = threading.Barrier(4)

    def write(n: int) -> None:
        start.wait()
        af.memory.upsert(f"text of writer {n}", source_type="note", source_id="n1")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (entry,) = af.memory.list()
    assert len(af.memory.history(entry.id)) == 3


def test_an_upsert_stores_a_record_that_is_removed_before_it_is_changed(
    af: AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [{"content": f"text {n}", "source_type": "note", "source_id": f"n{n}"} for n in range(3)]
    old = af.memory.upsert_many(items)
    update, tried = af.memory._backend.update, []

    def late(entry_id: str, *arguments: Any) -> Any:
        tried.append(entry_id)
        if len(tried) == 2:
            af.memory.remove_many([entry_id])
        if len(tried) == 3:
            raise Conflict("another call has changed the entry")
        return update(entry_id, *arguments)

    monkeypatch.setattr(af.memory._backend, "update", late)
    new = af.memory.upsert_many([{**item, "content": f"new {item['content']}"} for item in items])
    assert [entry.content for entry in new] == ["new text 0", "new text 1", "new text 2"]
    assert [entry.id for entry in new] == [old[0].id, new[1].id, old[2].id] and new[1].id != old[1].id
    assert sorted(entry.id for entry in af.memory.list()) == sorted(entry.id for entry in new)
    assert tried == [old[0].id, old[1].id, old[2].id, old[2].id]
    assert len(af.memory.history(old[0].id)) == 1


def test_an_upsert_that_is_disturbed_each_time_ends_with_the_error(
    af: AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    af.memory.upsert("old", source_type="note", source_id="n")

    def gone(entry_id: str, *arguments: Any) -> Any:
        raise NotFound(f"there is no entry {entry_id}")

    monkeypatch.setattr(af.memory._backend, "update", gone)
    with pytest.raises(NotFound, match="there is no entry"):
        af.memory.upsert("new", source_type="note", source_id="n")


def test_upserts_beside_removals_all_succeed(af: AgentFormer) -> None:
    start = threading.Barrier(8)

    def work(n: int) -> None:
        start.wait()
        for turn in range(15):
            if n % 2:
                af.memory.remove_many(source_type="note", source_ids=["n1"])
            else:
                af.memory.upsert(f"text {turn} of writer {n}", source_type="note", source_id="n1")

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, n) for n in range(8)]:
            done.result(60)
    assert af.memory.count(source_type="note") <= 1


def test_an_upsert_needs_a_source_id_of_at_most_1000_characters(af: AgentFormer) -> None:
    with pytest.raises(InvalidInput, match="source_id: is missing"):
        af.memory.upsert("text")
    entry = af.memory.upsert("text", source_type="url", source_id="u" * 1000)
    assert af.memory.get_many(source_type="url", source_ids=["u" * 1000]) == [entry]
    assert af.memory.list(source_type="url", source_id="u" * 1000) == [entry]
    with pytest.raises(InvalidInput, match="1000 characters"):
        af.memory.upsert("text", source_type="url", source_id="u" * 1001)


def test_verbatim_text_is_stored_as_it_is(af: AgentFormer) -> None:
    text = '<recalled-memory>\n<memory id="a">an entry</memory>\n</recalled-memory>'
    with pytest.raises(InvalidInput, match="only recalled memory"):
        af.memory.store(text)
    assert af.memory.store(text, verbatim=True).content == text
    assert af.memory.store("  two  spaces \n", verbatim=True).content == "  two  spaces \n"


def test_an_entry_that_is_not_searchable_is_kept_and_never_found(af: AgentFormer) -> None:
    hidden = af.memory.store("The raw output names the wombat.", searchable=False, session_id="s")
    af.memory.store("The wombat sleeps.")
    for mode in ("hybrid", "lexical"):
        assert [hit.entry.content for hit in af.memory.search("wombat", mode=mode)] == ["The wombat sleeps."]
    assert af.memory.list(session_id="s") == [hidden] == af.memory.get_many([hidden.id])
    assert af.memory.update(hidden.id, content="Other output.").content == "Other output."
    assert af.memory.remove(hidden.id) == 1
    with pytest.raises(InvalidInput, match="kind"):
        af.memory.store("text", searchable=False, kind="fact")


def test_the_noise_floor_of_a_call_replaces_the_setting(tmp_path: Path) -> None:
    places = {"index_dir": tmp_path / "indexes", "upload_dir": tmp_path / "uploads"}
    with AgentFormer(Settings(embedder="hashing", noise_floor=1.0, **places)) as af:
        af.memory.store("The lighthouse keeper sleeps.")
        assert af.memory.search("lighthousekeeping") == []
        assert len(af.memory.search("lighthousekeeping", noise_floor=-1.0)) == 1
        with pytest.raises(InvalidInput, match="noise_floor"):
            af.memory.search("text", noise_floor=float("nan"))


def test_an_upsert_of_nobody_keeps_the_records_of_users(af: AgentFormer) -> None:
    for user in ("aino", None, "pekka"):
        af.memory.upsert(f"tea of {user}", source_type="note", source_id="1", user_id=user)
    assert [entry.user_id for entry in af.memory.list()] == ["aino", None, "pekka"]
