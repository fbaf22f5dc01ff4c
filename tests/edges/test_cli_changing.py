"""The commands that change memories, and those that edit core blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.edges.conftest import Invoke, Shown

TEA, COFFEE = "Aino prefers tea.", "Aino prefers coffee."


def test_update_changes_what_is_given_and_nothing_else(shown: Shown) -> None:
    kept = shown("remember", TEA, "--title", "Drinks", "--metadata", '{"cups": 2}', "--salience", "0.5")
    changed = shown("update", kept["id"], "--content", COFFEE, "--expected-version", "1")
    differ = {name for name in kept if kept[name] != changed[name]}
    assert differ <= {"content", "version", "updated_at", "last_accessed", "access_count"}
    assert (changed["content"], changed["version"]) == (COFFEE, 2)
    options = ("--title", "", "--metadata", "{}", "--category", "context", "--salience", "1", "--kind", "decision")
    changed = shown("update", kept["id"], "--content", "-", *options, said="Kahvia ☕\n".encode())
    names = ("content", "title", "metadata", "category", "salience", "kind")
    assert [changed[name] for name in names] == ["Kahvia ☕", "", {}, "context", 1.0, "decision"]
    versions = shown("history", kept["id"])["versions"]
    assert [version["content"] for version in versions] == [TEA, COFFEE]


def test_update_refuses_a_stale_version(run: Invoke, shown: Shown) -> None:
    kept = shown("remember", TEA)
    assert "version 2" in run("update", kept["id"], "--content", COFFEE).stdout
    stale = run("update", kept["id"], "--content", "Aino prefers cocoa.", "--expected-version", "1")
    assert (stale.exit_code, "version 2, not 1" in stale.stderr) == (2, True)
    assert shown("history", kept["id"])["current"]["content"] == COFFEE


def test_superseding_takes_an_entry_out_of_the_results_and_restore_brings_it_back(run: Invoke, shown: Shown) -> None:
    old, new = shown("remember", TEA), shown("remember", COFFEE)
    assert shown("supersede", old["id"], new["id"])["superseded_by"] == new["id"]
    assert [entry["id"] for entry in shown("memories")["entries"]] == [new["id"]]
    assert run("supersede", old["id"], new["id"]).exit_code == 2
    assert [entry["id"] for entry in shown("restore", old["id"])["entries"]] == [old["id"]]
    assert run("supersede", old["id"], new["id"]).stdout == f"superseded  {old['id']}  by {new['id']}\n"


def test_documents_are_not_changed_as_memories(run: Invoke, shown: Shown, tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("The caretaker keeps the keys.")
    document = shown("ingest", str(tmp_path / "keys.txt"))["documents"][0]["id"]
    chunk = shown("search", "keys")["hits"][0]["id"]
    kept = shown("remember", TEA)["id"]
    for one in (document, chunk):
        for command in (("update", one, "--title", "x"), ("supersede", one, kept), ("supersede", kept, one)):
            done = run(*command)
            assert (done.exit_code, document in done.stderr, "ingest" in done.stderr) == (2, True, True), command
        done = run("forget", kept, one)
        assert (done.exit_code, "agentformer remove" in done.stderr) == (2, True)
    assert shown("search", "keys")["hits"][0]["id"] == chunk
    assert shown("history", kept)["versions"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("update", "ID"), "--content"),
        (("update", "ID", "--content", " "), "content"),
        (("update", "ID", "--metadata", "[]"), "--metadata"),
        (("update", "ID", "--salience", "nan"), "salience"),
        (("update", "ID", "--kind", "document"), "kind"),
        (("update", "ID", "--title", "half \udcff"), "TITLE: is not a text in the encoding"),
        (("update", "ID", "--title", "x", "--expected-version", "0"), "expected-version"),
        (("update", "no-such-id", "--title", "x"), "no-such-id"),
        (("update", "ID", "--title", "x", "--namespace", "other"), "namespace other"),
        (("supersede", "ID", "ID"), "new_id"),
        (("supersede", "ID", "no-such-id"), "no-such-id"),
        (("supersede", "ID", "ID", "--namespace", "other"), "namespace other"),
    ],
)
def test_a_wrong_change_is_told_and_changes_nothing(
    run: Invoke, shown: Shown, arguments: tuple[str, ...], said: str
) -> None:
    kept = shown("remember", TEA)
    done = run(*(kept["id"] if argument == "ID" else argument for argument in arguments))
    assert done.exit_code == 2, done.output
    assert said in done.stderr and "Traceback" not in done.stderr
    after = shown("history", kept["id"])
    assert (after["versions"], after["current"]["content"]) == ([], TEA)


@pytest.mark.usefixtures("empty_memory")
def test_core_blocks_are_begun_edited_shown_and_removed(run: Invoke, shown: Shown) -> None:
    assert "core append NAME TEXT" in run("core show").stdout
    begun = shown("core append", "persona", "You help the harbour office.")
    assert (begun["tier"], begun["title"], begun["content"]) == ("core", "persona", "You help the harbour office.")
    longer = shown("core append", "persona", "-", said="Be short.\n")
    assert (longer["id"], longer["content"]) == (begun["id"], "You help the harbour office.\nBe short.")
    edited = run("core replace", "persona", "the harbour office", "Turku")
    assert edited.stdout == "[persona]\nYou help Turku.\nBe short.\n"
    shown("core append", "human", "Aino.")
    assert run("core show").stdout == f"[human]\nAino.\n{edited.stdout}"
    assert [block["title"] for block in shown("core show", "human")["blocks"]] == ["human"]
    refused = run("core remove", "human", said="n\n")
    assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)
    assert run("core remove", "human", said="y\n").stdout == "removed 1\n"
    assert shown("core remove", "persona", "--yes") == {"removed": [begun["id"]]}
    assert shown("core show") == {"blocks": []}


def test_blocks_of_agents_and_users_are_their_own(run: Invoke, shown: Shown) -> None:
    owners = [(), ("--agent", "a"), ("--user", "u"), ("--agent", "a", "--user", "u"), ("--namespace", "n")]
    for number, owner in enumerate(owners[1:], 1):
        shown("core append", "persona", f"Number {number}.", *owner)
    assert "use --agent or --user to show the blocks" in run("core show").stdout
    shown("core append", "persona", "Number 0.")
    for number, owner in enumerate(owners):
        (block,) = shown("core show", "persona", *owner)["blocks"]
        assert block["content"] == f"Number {number}."
    assert [block["content"] for block in shown("core show")["blocks"]] == ["Number 0."]
    assert "[persona --agent a]\nNumber 1.\n" in run("core show", "--agent", "a").stdout


def test_a_block_that_is_there_leads_to_its_commands(run: Invoke, shown: Shown) -> None:
    shown("core append", "who am I", "You help.", "--user", "aino")
    again = ("--tier", "core", "--title", "who am I", "--user", "aino")
    done = run("remember", "You rule.", *again)
    assert done.exit_code == 2
    for command in ("show 'who am I'", "append 'who am I' TEXT", "replace 'who am I' OLD NEW"):
        assert f"core {command} --user aino" in done.stderr
    assert shown("core show", "who am I", "--user", "aino")["blocks"][0]["content"] == "You help."
    assert shown("remember", "You help.", *again)["content"] == "You help."  # the same is no conflict


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "nobody"), "Existing blocks: persona"),
        (("replace", "nobody", "a", "b"), "Existing blocks: persona"),
        (("remove", "nobody", "--yes"), "Existing blocks: persona"),
        (("replace", "persona", "nowhere", "b"), "occurs 0 times"),
        (("replace", "persona", "l", "b"), "occurs 2 times"),
        (("replace", "persona", "You help the fleet", ""), "remove the block"),
        (("append", "persona", " "), "content"),
        (("append", "persona", "word " * 2000), "over its limit of 500"),
        (("append", " ", "x"), "name"),
        (("append", "persona", "x", "--agent", "\udcff"), "AGENT_ID: is not a text in the encoding"),
        (("show", "--namespace", " "), "namespace"),
    ],
)
def test_a_wrong_edit_is_told_and_changes_nothing(
    run: Invoke, shown: Shown, arguments: tuple[str, ...], said: str
) -> None:
    shown("core append", "persona", "You help the fleet")
    done = run(f"core {arguments[0]}", *arguments[1:])
    assert done.exit_code == 2, done.output
    assert said in done.stderr and "Traceback" not in done.stderr
    assert [block["content"] for block in shown("core show")["blocks"]] == ["You help the fleet"]
