"""Markdown homes: files and memory stay in step, edits are new versions, and nothing is lost when both sides change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest

import agentformer
from agentformer.archive.markdown.file_matching import HomeReport
from agentformer.archive.markdown.pages import MAX_BYTES
from agentformer.errors import InvalidInput
from agentformer.rag.folder_files import PRIVATE
from agentformer.types import MemoryEntry, Scope
from tests.faults.long_form import LONG
from tests.permissions import ordinary_user

MANY = 1_000 if LONG else 100
DAY = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)


@pytest.fixture
def af(tmp_path: Path) -> Iterator[agentformer.AgentFormer]:
    with connect(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def connect(folder: Path) -> agentformer.AgentFormer:
    return agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing", clean_every=0)


def pages(home: Path) -> dict[str, bytes]:
    """The Markdown files by their paths."""
    return {path.relative_to(home).as_posix(): path.read_bytes() for path in sorted(home.glob("*/**/*.md"))}


def file_of(home: Path, entry: MemoryEntry) -> Path:
    (found,) = (path for path in home.glob("*/**/*.md") if f"id: {entry.id}\n" in path.read_text())
    return found


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def changes(report: HomeReport) -> dict[str, int]:
    names = ("added", "changed", "archived", "restored", "conflicts", "written", "deleted", "pending", "failed")
    return {name: len(getattr(report, name)) for name in names if getattr(report, name)}


def current(af: agentformer.AgentFormer, entry: MemoryEntry) -> MemoryEntry:
    return af.memory.get(entry.id)


def test_an_export_writes_one_readable_file_for_each_memory(af: agentformer.AgentFormer, home: Path) -> None:
    decision = af.memory.store(
        "We use SQLite.\n", kind="decision", title="Storage", occurred_at=DAY, metadata={"tags": ["db"], "id": 7}
    )
    fact = af.memory.store("Aino prefers tea.", salience=0.5, speaker="Bo: the first", project="tea")
    block = af.memory.core.append("persona", "Speaks Finnish.")
    af.memory.add_message("s", "user", "Not a memory of its own.")
    report = af.markdown.export(home)
    assert {*pages(home)} == {f"decisions/{decision.id}.md", f"facts/{fact.id}.md", f"core/{block.id}.md"}
    stored = decision.created_at.isoformat() if decision.created_at else ""
    assert file_of(home, decision).read_text() == (
        f"---\nid: {decision.id}\ntitle: Storage\ncategory: decisions\nkind: decision\nsalience: 1.0\n"
        f"occurred_at: 2026-11-20T09:30:00+00:00\ncreated_at: {stored}\nupdated_at: {stored}\nversion: 1\nlinks: []\n"
        'tags: ["db"]\nmetadata: {"id": 7}\n---\n\nWe use SQLite.\n\n'
    )
    text = file_of(home, fact).read_text()
    assert 'speaker: "Bo: the first"\nproject: tea\n' in text and text.endswith("\n\nAino prefers tea.\n")
    assert changes(report) == {"written": 3} and report.complete
    assert changes(af.markdown.export(home)) == {}


def test_exactly_the_edited_files_differ_after_a_sync_and_another_export(
    af: agentformer.AgentFormer, home: Path
) -> None:
    entries = [
        af.memory.store(f"Fact number {n}.", title=f"T{n}", category="decisions" if n % 2 else "") for n in range(9)
    ]
    af.markdown.export(home)
    before, stamps = pages(home), {path: path.stat().st_mtime_ns for path in home.glob("*/*.md")}
    edit(file_of(home, entries[1]), "Fact number 1.", "Fact number one.")
    edit(file_of(home, entries[4]), "title: T4", "title: Four")
    edit(file_of(home, entries[7]), "salience: 1.0", "salience: 0.25\nplace: north")
    report = af.markdown.sync(home)
    assert changes(report) == {"changed": 3, "written": 3}
    af.markdown.export(home)
    after = pages(home)
    edited = {file_of(home, entries[n]).relative_to(home).as_posix() for n in (1, 4, 7)}
    assert {name for name in after if after[name] != before[name]} == edited and after.keys() == before.keys()
    assert {str(path.relative_to(home)) for path, at in stamps.items() if path.stat().st_mtime_ns != at} == edited
    assert current(af, entries[1]).content == "Fact number one." and current(af, entries[4]).title == "Four"
    assert (current(af, entries[7]).salience, current(af, entries[7]).metadata) == (0.25, {"place": "north"})
    assert [entry.content for entry in af.memory.history(entries[1].id)] == ["Fact number 1."]
    assert {current(af, entry).version for n, entry in enumerate(entries) if n not in (1, 4, 7)} == {1}


def test_an_export_leaves_edited_new_and_deleted_files_to_the_sync(af: agentformer.AgentFormer, home: Path) -> None:
    one, two, three = (af.memory.store(f"Fact {n}.") for n in range(3))
    af.markdown.export(home)
    edit(file_of(home, one), "Fact 0.", "Mine.")
    file_of(home, two).unlink()
    (home / "facts" / "new.md").write_text("New.")
    af.memory.update(one.id, content="Theirs.")
    af.memory.update(three.id, content="Changed.")
    report = af.markdown.export(home)
    assert changes(report) == {"written": 1, "pending": 3}
    assert "Mine." in file_of(home, one).read_text() and "Changed." in file_of(home, three).read_text()
    assert current(af, one).content == "Theirs." and current(af, two).archived_at is None


def test_new_files_are_new_memories_and_get_an_id(af: agentformer.AgentFormer, home: Path) -> None:
    af.memory.store("Known.")
    af.markdown.export(home)
    (home / "decisions" / "sub").mkdir(parents=True)
    (home / "decisions" / "sub" / "Use tabs.md").write_bytes(
        b"\xef\xbb\xbf---\r\ntags:\r\n  - code\r\n---\r\n\r\nIndent\r\nwith tabs.\r\n"
    )
    (home / "core").mkdir()
    (home / "core" / "persona.md").write_text("Speaks Finnish.\n")
    assert changes(af.markdown.sync(home)) == {"added": 2, "written": 2}
    (entry,) = af.memory.list(kinds=("decision",))
    assert (entry.title, entry.content, entry.category) == ("Use tabs", "Indent\nwith tabs.", "decisions")
    assert entry.metadata == {"tags": ["code"]}
    assert af.memory.core.get("persona").content == "Speaks Finnish."
    assert f"id: {entry.id}\n" in (home / "decisions" / "sub" / "Use tabs.md").read_text()
    assert changes(af.markdown.sync(home)) == {}


def test_a_deleted_file_archives_its_memory_and_the_file_or_a_command_brings_it_back(
    af: agentformer.AgentFormer, home: Path
) -> None:
    entries = [af.memory.store(f"The code of door {n} is 47{n}1.") for n in range(5)]
    af.markdown.export(home)
    kept = {n: file_of(home, entries[n]) for n in (0, 1)}
    saved = kept[0].read_bytes()
    for path in kept.values():
        path.unlink()
    assert changes(af.markdown.sync(home)) == {"archived": 2}
    assert {hit.entry.id for hit in af.memory.search("code of door")} == {entry.id for entry in entries[2:]}
    kept[0].write_bytes(saved)
    assert changes(af.markdown.sync(home)) == {"restored": 1, "written": 1}
    assert [entry.id for entry in af.memory.restore(entries[1].id)] == [entries[1].id]
    assert changes(af.markdown.sync(home)) == {"written": 1}
    assert {hit.entry.id for hit in af.memory.search("code of door")} == {entry.id for entry in entries}


def test_a_moved_file_changes_the_category_and_a_renamed_one_nothing(af: agentformer.AgentFormer, home: Path) -> None:
    moved, renamed = af.memory.store("One.", title="Mine"), af.memory.store("Two.", kind="decision")
    af.markdown.export(home)
    (home / "context").mkdir()
    file_of(home, moved).rename(home / "context" / "mine.md")
    file_of(home, renamed).rename(home / "decisions" / "Two words.md")
    assert changes(af.markdown.sync(home)) == {"changed": 1, "written": 1}
    assert (current(af, moved).category, current(af, renamed).version) == ("context", 1)
    assert {*pages(home)} == {"context/mine.md", "decisions/Two words.md"}
    af.memory.update(moved.id, category="decisions")
    assert changes(af.markdown.sync(home)) == {"written": 1}
    assert {*pages(home)} == {"decisions/mine.md", "decisions/Two words.md"}
    edit(home / "decisions" / "mine.md", "category: decisions", "category: context")
    assert changes(af.markdown.sync(home)) == {"changed": 1, "written": 1}
    assert {*pages(home)} == {"context/mine.md", "decisions/Two words.md"}


def test_changes_of_both_sides_are_merged_and_of_the_same_field_both_versions_are_kept(
    af: agentformer.AgentFormer, home: Path
) -> None:
    apart, same, equal = (af.memory.store(f"Fact {n}.") for n in range(3))
    af.markdown.export(home)
    edit(file_of(home, apart), 'title: ""', "title: By hand")
    edit(file_of(home, same), "Fact 1.", "By hand.")
    edit(file_of(home, equal), "Fact 2.", "The same.")
    af.memory.update(apart.id, content="By the agent.")
    af.memory.update(same.id, content="By the agent.", salience=0.5)
    af.memory.update(equal.id, content="The same.")
    report = af.markdown.sync(home)
    assert changes(report) == {"changed": 2, "conflicts": 1, "written": 3} and not report.complete
    assert (current(af, apart).title, current(af, apart).content) == ("By hand", "By the agent.")
    assert (current(af, same).content, current(af, same).salience) == ("By hand.", 0.5)
    assert [e.content for e in af.memory.history(same.id)] == ["Fact 1.", "By the agent."]
    (conflict,) = report.conflicts
    assert conflict.name == f"facts/{same.id}.md" and "content changed on both sides" in conflict.reason
    assert current(af, equal).version == 2
    assert changes(af.markdown.sync(home)) == {}


def test_a_side_that_changed_a_memory_keeps_what_the_other_side_removed(
    af: agentformer.AgentFormer, home: Path
) -> None:
    deleted, archived, forgotten, replaced, newer = (af.memory.store(f"Fact {n}.") for n in range(5))
    quiet = [af.memory.store(f"Quiet {n}.") for n in range(3)]
    af.markdown.export(home)
    file_of(home, deleted).unlink()
    af.memory.update(deleted.id, content="Changed by the agent.")
    for entry in (archived, forgotten, replaced):
        edit(file_of(home, entry), "Fact", "Edited")
    af.backend.update(archived.id, {"archived_at": DAY})
    af.memory.remove(forgotten.id)
    af.memory.supersede(replaced.id, newer.id)
    af.backend.update(quiet[0].id, {"archived_at": DAY})
    af.memory.remove(quiet[1].id)
    report = af.markdown.sync(home)
    assert (len(report.conflicts), len(report.deleted), len(report.restored), report.failed) == (4, 2, 1, [])
    contents = {entry.content for entry in af.memory.list()}
    assert contents == {"Changed by the agent.", "Edited 1.", "Edited 2.", "Edited 3.", "Fact 4.", "Quiet 2."}
    assert {text.split("\n\n")[1].strip() for text in map(bytes.decode, pages(home).values())} == contents
    assert changes(af.markdown.sync(home)) == {}


def test_more_than_half_of_the_files_or_of_their_memories_gone_is_refused(
    af: agentformer.AgentFormer, home: Path, tmp_path: Path
) -> None:
    entries = [af.memory.store(f"Fact {n}.") for n in range(5)]
    af.markdown.export(home)
    for entry in entries[:3]:
        file_of(home, entry).unlink()
    with pytest.raises(InvalidInput, match=r"3 of 5 files of .* are gone, so nothing was changed"):
        af.markdown.sync(home)
    assert af.memory.count() == 5
    assert changes(af.markdown.sync(home, delete=True)) == {"archived": 3}
    with connect(tmp_path / "other") as other:
        with pytest.raises(InvalidInput, match=r"2 of 2 entries of .* are not in this memory"):
            other.markdown.sync(home)
        assert other.memory.count() == 0 and len(pages(home)) == 2
    with pytest.raises(InvalidInput, match="is not a folder"):
        af.markdown.sync(tmp_path / "missing", delete=True)
    with pytest.raises(InvalidInput, match="home of namespace default, not of b"):
        af.markdown.sync(home, namespace="b")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(InvalidInput, match="is not empty and not a memory home"):
        af.markdown.export(tmp_path / "full")


def test_a_file_that_cannot_be_used_is_reported_and_the_rest_goes_on(
    af: agentformer.AgentFormer, home: Path, tmp_path: Path
) -> None:
    entries = [af.memory.store(f"Fact {n}.", category="decisions") for n in range(4)]
    other = af.memory.store("Elsewhere.", namespace="other")
    af.markdown.export(home)
    facts = home / "decisions"
    edit(file_of(home, entries[0]), "Fact 0.", "Edited.")
    (facts / "copy.md").write_bytes(file_of(home, entries[1]).read_bytes())
    wrong: dict[str, bytes] = {
        "alias.md": b"---\na: &x [1, 2]\nb: [*x, *x]\n---\n\ntext",
        "deep.md": b"---\na: " + b"[" * 300 + b"\n---\n\ntext",
        "digits.md": b"---\nn: [1, " + b"1" * 5_000 + b"]\n---\n\ntext",
        "empty.md": b"",
        "foreign.md": f"---\nid: {other.id}\n---\n\ntext".encode(),
        "huge.md": b"x" * (MAX_BYTES + 1),
        "latin.md": "päivä".encode("latin-1"),
        "number.md": b"---\nsalience: much\n---\n\ntext",
        "open.md": b"---\ntitle: x\n\ntext",
        "syntax.md": b"---\ntitle: [x\n---\n\ntext",
        "tag.md": b"---\na: !!python/object/apply:os.system [touch here]\n---\n\ntext",
        "time.md": b"---\noccurred_at: 2026-11-20T09:30:00\n---\n\ntext",
        "twice.md": b"---\ntitle: x\ntitle: y\n---\n\ntext",
        "unknown.md": b"---\nid: 0190b6c2-7d2e-7abc-8000-000000000000\n---\n\ntext",
    }
    for name, data in wrong.items():
        (facts / name).write_bytes(data)
    (home / "desicions").mkdir()
    (home / "desicions" / "typo.md").write_text("text")
    outside = tmp_path / "outside.md"
    outside.write_text("secret")
    (facts / "link.md").symlink_to(outside)
    (home / "linked").symlink_to(tmp_path)
    (tmp_path / "private" / "sub").mkdir(parents=True)
    (home / "forbidden").symlink_to(tmp_path / "private" / "sub")
    (tmp_path / "private").chmod(0)
    os.mkfifo(facts / "pipe.md")
    (home / "README.md").write_text("Beside the categories.")
    with ordinary_user():
        report = af.markdown.sync(home)
    reasons = dict(report.failed)
    assert {*reasons} == {
        *(f"decisions/{name}" for name in (*wrong, "copy.md", "link.md", "pipe.md")),
        *("desicions/typo.md", "forbidden", "linked"),
    }
    for name, words in {
        "alias.md": "anchor or an alias in line 2",
        "copy.md": "several files have the id",
        "digits.md": "has a number with too many digits in line 2; put it in quotes",
        "foreign.md": "is of another namespace or kind",
        "huge.md": f"has more than {MAX_BYTES:,} bytes",
        "latin.md": "is not UTF-8: byte 2 is 0xe4",
        "open.md": "has no line --- at its end",
        "syntax.md": "is not valid YAML in line",
        "tag.md": "has a YAML tag",
        "time.md": "must have a time zone",
        "twice.md": "'title' twice",
        "unknown.md": "is not in this memory",
    }.items():
        assert words in reasons[f"decisions/{name}"], name
    assert "'desicions' is not a known category" in reasons["desicions/typo.md"]
    assert [problem.name for problem in report.skipped] == ["README.md"]
    assert (report.changed, report.added) == ([f"decisions/{entries[0].id}.md"], [])
    assert sorted(entry.content for entry in af.memory.list()) == ["Edited.", "Fact 1.", "Fact 2.", "Fact 3."]
    for name, data in wrong.items():
        assert (facts / name).read_bytes() == data
    assert not (Path.cwd() / "here").exists() and outside.read_text() == "secret"


def test_nothing_is_archived_while_a_file_with_an_error_may_be_the_missing_one(
    af: agentformer.AgentFormer, home: Path
) -> None:
    entries = [af.memory.store(f"Fact {n}.") for n in range(4)]
    af.markdown.export(home)
    file_of(home, entries[0]).write_bytes(b"---\nid: \n: [\n---\n")
    file_of(home, entries[1]).rename(home / "facts" / "moved.md")
    (home / "facts" / "moved.md").write_bytes(b"\xff")
    report = af.markdown.sync(home)
    assert (len(report.failed), len(report.pending), report.archived) == (2, 1, [])
    assert af.memory.count() == 4
    (home / "facts" / "moved.md").unlink()
    assert changes(af.markdown.sync(home)) == {"archived": 1, "failed": 1}


def test_a_field_that_a_file_cannot_change_is_an_error_and_a_missing_line_is_none(
    af: agentformer.AgentFormer, home: Path
) -> None:
    entry = af.memory.store("Fact.", user_id="aino", title="T", speaker="Bo", metadata={"a": 1})
    af.markdown.export(home)
    path = file_of(home, entry)
    edit(path, "user_id: aino", "user_id: bo")
    assert "user_id: cannot be changed in a file" in af.markdown.sync(home).failed[0].reason
    path.write_text(f"---\nid: {entry.id}\ntitle: T\n---\nFact.")
    assert changes(af.markdown.sync(home)) == {"changed": 1, "written": 1}
    after = current(af, entry)
    assert (after.title, after.speaker, after.metadata, after.user_id, after.salience) == ("T", "", {}, "aino", 1.0)
    path.write_text(path.read_text().replace(f"id: {entry.id}\n", ""))  # the path is known
    assert changes(af.markdown.sync(home)) == {"written": 1}
    edit(path, "kind: fact", "kind: summary")
    assert "kind: " in af.markdown.sync(home).failed[0].reason
    edit(path, "kind: summary", "kind: note")
    assert changes(af.markdown.sync(home)) == {"changed": 1, "written": 1}


def test_names_in_both_unicode_forms_are_the_same_category(af: agentformer.AgentFormer, home: Path) -> None:
    entry = af.memory.store("Ä.", category="päätökset")
    af.markdown.export(home)
    (home / "päätökset").rename(home / normalize("NFD", "päätökset"))
    (home / normalize("NFD", "päätökset") / normalize("NFD", "lisää.md")).write_text("Uusi.")
    (home / normalize("NFD", "päätökset") / "lisää.md").write_text("Toinen.")
    assert changes(af.markdown.sync(home)) == {"added": 2, "written": 2}
    assert {e.category for e in af.memory.list()} == {"päätökset"} and current(af, entry).version == 1
    assert {e.title for e in af.memory.list()} == {"", "lisää"}


def test_categories_that_differ_in_case_have_their_own_folders(af: agentformer.AgentFormer, home: Path) -> None:
    one, other = af.memory.store("One.", category="foo"), af.memory.store("Two.", category="Foo")
    af.markdown.export(home)
    if (home / "foo").samefile(home / "Foo"):
        pytest.skip("the file system ignores case")
    file_of(home, one).rename(home / "Foo" / "one.md")
    assert changes(af.markdown.sync(home)) == {"changed": 1, "written": 1}
    assert (current(af, one).category, current(af, other).version) == ("Foo", 1)
    af.memory.update(one.id, category="foo")
    assert changes(af.markdown.sync(home)) == {"written": 1}
    assert file_of(home, one) == home / "foo" / "one.md"


def test_a_folder_with_another_case_is_the_same_on_a_file_system_that_ignores_case(
    af: agentformer.AgentFormer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = af.memory.store("One.", category="foo")
    af.markdown.export(home)
    (home / "foo").rename(home / "Foo")
    assert "'Foo' is not a known category" in af.markdown.sync(home).failed[0].reason
    monkeypatch.setattr(Path, "samefile", lambda self, other: self.name.lower() == other.name.lower())
    assert changes(af.markdown.sync(home)) == {}
    assert (current(af, entry).category, {*pages(home)}) == ("foo", {f"Foo/{entry.id}.md"})


@pytest.mark.parametrize(
    "category", ["core", "facts", "../../etc", "a/b", ".hidden", "con", "Ä" * 150, "a:b", "x.", " "]
)
def test_no_id_and_no_category_leads_out_of_the_folder(
    af: agentformer.AgentFormer, home: Path, tmp_path: Path, category: str
) -> None:
    if category.strip():
        af.memory.store("Any.", category=category)
    af.backend.store([MemoryEntry("../../../../evil", "Evil.")])
    before = {*tmp_path.iterdir()}
    af.markdown.export(home)
    (*_, evil) = sorted(pages(home))
    assert {*tmp_path.iterdir()} - before == {home}
    assert {len(name.split("/")) for name in pages(home)} == {2} and "/." not in evil
    for path in home.glob("*/*.md"):
        path.write_text(path.read_text() + "Edited.\n")
    assert len(af.markdown.sync(home).changed) == len(pages(home))
    assert {entry.category for entry in af.memory.list()} == {category if category.strip() else "", ""}


def test_a_damaged_or_hostile_record_loses_nothing_and_writes_nowhere_else(
    af: agentformer.AgentFormer, home: Path, tmp_path: Path
) -> None:
    entries = [af.memory.store(f"Fact {n}.") for n in range(3)]
    af.markdown.export(home)
    state = home / PRIVATE / "state.json"
    saved = state.read_text()
    edit(file_of(home, entries[0]), "Fact 0.", "By hand.")
    edit(file_of(home, entries[1]), "Fact 1.", "By hand too.")
    af.memory.update(entries[1].id, content="By the agent.")
    state.write_text("{")
    report = af.markdown.sync(home)  # the files say of which version they are
    assert changes(report) == {"changed": 2, "conflicts": 1, "written": 2}
    assert current(af, entries[0]).content == "By hand." and current(af, entries[0]).version == 2
    state.write_text(saved.replace(f"facts/{entries[2].id}.md", "../../outside.md"))
    af.memory.update(entries[2].id, content="Changed.")
    af.markdown.sync(home)
    assert not (tmp_path / "outside.md").exists() and not (tmp_path.parent / "outside.md").exists()
    assert "Changed." in file_of(home, entries[2]).read_text()


def test_a_summary_whose_file_is_deleted_gives_its_messages_back(tmp_path: Path, home: Path) -> None:
    with connect(tmp_path / "store") as af:
        for n in range(12):
            af.memory.add_message("s", "user", f"The meeting number {n} was on 2026-11-{n + 1:02}.")
        assert af.memory.clean().summaries
        af.memory.store("A fact.")
        summaries = af.memory.list(kinds=("summary",))
        af.markdown.export(home)
        for summary in summaries:
            (home / "summaries" / f"{summary.id}.md").unlink()
        assert len(af.markdown.sync(home, delete=True).archived) == len(summaries)
        assert af.memory.count(kinds=("message",)) == 12 and af.memory.count(kinds=("summary",)) == 0


def test_a_file_and_an_entry_that_change_during_the_sync_lose_nothing(
    af: agentformer.AgentFormer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, raced = af.memory.store("Saved 1."), af.memory.store("Raced 1.")
    af.markdown.export(home)
    edit(file_of(home, saved), "Saved 1.", "Saved 2.")
    edit(file_of(home, raced), "Raced 1.", "Raced 2.")
    update, calls = af.backend.update, []

    def racing(entry_id: str, changed: Any, expected: int | None = None) -> MemoryEntry:
        calls.append(entry_id)
        if entry_id == raced.id and calls.count(raced.id) == 1:  # another caller is faster
            update(entry_id, {"title": "By the agent"}, expected)
        result = update(entry_id, changed, expected)
        if entry_id == saved.id and calls.count(saved.id) == 1:  # a person saves once more
            edit(home / "facts" / f"{saved.id}.md", "Saved 2.", "Saved 3, longer.")
        return result

    monkeypatch.setattr(af.backend, "update", racing)
    report = af.markdown.sync(home)
    assert (report.complete, len(report.changed), [p.name for p in report.pending]) == (
        *(True, 2),
        [f"facts/{saved.id}.md"],
    )
    assert (current(af, raced).title, current(af, raced).content) == ("By the agent", "Raced 2.")
    assert changes(af.markdown.sync(home)) == {"changed": 1, "written": 1}
    assert [e.content for e in (*af.memory.history(saved.id), current(af, saved))] == [
        *("Saved 1.", "Saved 2.", "Saved 3, longer."),
    ]


def test_a_home_is_followed_and_its_files_are_no_documents(af: agentformer.AgentFormer, home: Path) -> None:
    entry = af.memory.store("Fact.")
    follower = af.markdown.follow(home)
    assert follower.step() is not None and follower.step() is None
    assert (home / "facts" / f"{entry.id}.md").exists()
    af.memory.update(entry.id, content="Changed.")
    assert (report := follower.step()) and changes(report) == {"written": 1}
    assert (report := follower.step()) and changes(report) == {}  # a change during the sync before is not missed
    assert follower.step() is None
    edit(file_of(home, entry), "Changed.", "Edited.")
    assert (report := follower.step()) and changes(report) == {"changed": 1, "written": 1}
    assert current(af, entry).content == "Edited."
    with pytest.raises(InvalidInput, match="is a memory home"):
        af.rag.sync(home)
    assert af.rag.sync(home.parent).added == () and af.rag.documents() == []
    home.rename(home.with_name("away"))
    with pytest.raises(InvalidInput, match="is gone"):
        follower.step()
    assert af.memory.count() == 1


@pytest.mark.slow
def test_a_round_trip_of_many_memories_is_lossless(tmp_path: Path, home: Path) -> None:
    with connect(tmp_path / "one") as one:
        items = [
            {
                "content": f"Text {n}\r\n---\nid: x\n" if n % 7 == 0 else f"Text {n} of café №{n}",
                "title": f"Title: {n}" if n % 3 else "",
                "kind": ("fact", "decision", "event")[n % 3],
                "tier": "episodic" if n % 3 == 2 else "semantic",
                "category": ("", "", "People & places")[n % 3] if n % 2 else ("", "decisions", "context")[n % 3],
                "salience": (n % 11) / 10,
                "occurred_at": DAY if n % 5 == 0 else None,
                "metadata": {"n": n, "list": [n, None, {"x": 1.5}], "a b": "#"} if n % 4 == 0 else {},
                "user_id": "aino" if n % 6 == 0 else None,
                "source_type": "ticket" if n % 9 == 0 else None,
                "source_id": str(n) if n % 9 == 0 else None,
            }
            for n in range(MANY)
        ]
        entries = one.memory.store_many(items)
        for entry in entries[:50]:
            one.memory.update(entry.id, salience=0.125)
        one.markdown.export(home)
        wanted = stated(one)
    first = pages(home)
    assert len(first) == MANY
    with connect(tmp_path / "two") as two:
        report = two.markdown.sync(home, adopt=True)
        assert changes(report) == {"added": MANY} and report.complete and report.unchanged == MANY
        assert pages(home) == first
        two.markdown.export(tmp_path / "again")
        assert pages(tmp_path / "again") == first
        assert stated(two) == wanted
        assert changes(two.markdown.sync(home)) == {}


def stated(af: agentformer.AgentFormer) -> list[MemoryEntry]:
    """The entries, without what a home does not have: counts of uses, and former versions."""
    return [*af.backend.list(Scope(), limit=10_000)]


def test_times_of_validity_are_lines_of_the_file_and_an_expired_entry_leaves_with_the_cleaning(
    af: agentformer.AgentFormer, home: Path
) -> None:
    summer = af.memory.store("The shop is open on Sundays.", valid_from=DAY, valid_to=DAY.replace(year=2027))
    code = af.memory.store("The door code is 4711.", expires_at=DAY.replace(year=2020))
    af.markdown.export(home)
    assert (
        "valid_from: 2026-11-20T09:30:00+00:00\nvalid_to: 2027-11-20T09:30:00+00:00\n"
        in file_of(home, summer).read_text()
    )
    edit(file_of(home, summer), "valid_to: 2027-11-20T09:30:00+00:00", "valid_to: 2020-01-01\nexpires_at: 2126-01-01")
    edit(file_of(home, summer), "valid_from: 2026-11-20T09:30:00+00:00\n", "")
    assert changes(af.markdown.sync(home)) == {"changed": 1, "written": 1}
    changed = af.memory.get(summer.id)
    assert changed.valid_from is None and changed.valid_to == datetime(2020, 1, 1, tzinfo=UTC)
    assert changed.expires_at == datetime(2126, 1, 1, tzinfo=UTC)
    edit(file_of(home, summer), "2020-01-01", "2019-01-01T00:00:00+00:00\nvalid_from: 2020-01-01")
    (failed,) = af.markdown.sync(home).failed
    assert "valid_to" in failed.reason
    file_of(home, summer).unlink()
    af.memory.clean()
    text = file_of(home, code).read_text()
    report = af.markdown.sync(home)
    assert (len(report.archived), len(report.deleted)) == (1, 1)
    home.joinpath("facts", "again.md").write_text(text)  # put back: it does not expire any more
    assert len(af.markdown.sync(home).restored) == 1
    assert [hit.entry.id for hit in af.memory.search("door code")] == [code.id]
