"""The commands about memories: what a person sees, what a program gets, and what a wrong argument is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.errors import InvalidInput
from tests.edges.conftest import Invoke, Shown

OLD = "2020-01-01T23:59:59.999999Z"
TEA = "Aino prefers tea."
BOATS = ("Lokki", "Tiira", "Kuikka", "Haahka", "Merimetso", "Joutsen", "Sorsa", "Kajava", "Riskila", "Ruokki")
COMMANDS = (
    "remember", "recall", "search", "update", "supersede", "forget", "context", "memories", "history", "clean",
    "restore", "audit", "core show", "core append", "core replace", "core remove",
)  # fmt: skip


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-m", "agentformer.cli", *arguments],
        capture_output=True,
        timeout=120,
        env=environment,
        **options,
    )


def conversation(where: tuple[str, ...], *said: str) -> list[str]:
    """Store the messages of the session s1, and return their ids."""
    with agentformer.connect(index_dir=where[1], upload_dir=where[3], embedder="hashing", clean_every=0) as af:
        return [af.memory.add_message("s1", "user", text, speaker="Aino").id for text in said]


def boats(count: int) -> list[str]:
    return [f"The boat number {n} is blue." for n in range(count)]


def test_remember_keeps_every_detail_and_memories_lists_it(shown: Callable[..., Any]) -> None:
    kept = shown(
        "remember", TEA, "--kind", "decision", "--title", "Drinks", "--category", "decisions", "--salience", "0.5",
        "--at", "2026-11-20T09:30:00+02:00", "--metadata", '{"cups": 2}', "--source", "note:a:1",
        "--session", "s", "--agent", "a", "--user", "u", "--project", "p",
    )  # fmt: skip
    expected = {
        "content": TEA, "tier": "semantic", "kind": "decision", "namespace": "default", "title": "Drinks",
        "category": "decisions", "salience": 0.5, "occurred_at": "2026-11-20T07:30:00+00:00", "metadata": {"cups": 2},
        "source_type": "note", "source_id": "a:1", "session_id": "s", "agent_id": "a", "user_id": "u", "project": "p",
        "version": 1, "archived_at": None, "superseded_by": None, "derived_from": [],
    }  # fmt: skip
    assert {name: kept[name] for name in expected} == expected
    assert shown("memories") == {"entries": [kept], "next": None}
    assert shown("memories", "--user", "somebody else")["entries"] == []


def test_the_same_fact_is_not_kept_twice(run: Invoke, shown: Callable[..., Any]) -> None:
    first = shown("remember", TEA)
    assert run("remember", TEA).stdout == f"exists already  {first['id']}\n"
    assert len(shown("memories")["entries"]) == 1


def test_memories_are_listed_page_by_page_and_by_tier_and_kind(shown: Callable[..., Any]) -> None:
    ids = [shown("remember", f"Fact {n}")["id"] for n in range(3)]
    event = shown("remember", "The task is done.", "--tier", "episodic", "--kind", "task_complete")
    page = shown("memories", "--limit", "2")
    assert [entry["id"] for entry in page["entries"]] == ids[:2]
    assert [entry["id"] for entry in shown("memories", "--after", page["next"])["entries"]] == [ids[2], event["id"]]
    assert shown("memories", "--tier", "episodic")["entries"] == [event]
    assert shown("memories", "--kind", "task_complete", "--kind", "error")["entries"] == [event]


def test_memories_are_listed_without_documents_and_recalled_with_what_belongs_to_nobody(
    run: Invoke, shown: Shown, tmp_path: Path
) -> None:
    (tmp_path / "tea.txt").write_text("Tea is served at nine.")
    run("ingest", str(tmp_path / "tea.txt"))
    assert shown("memories")["entries"] == []
    own = shown("remember", "Aino drinks tea.", "--user", "aino")["id"]
    shared = shown("remember", "The office drinks tea and coffee.", "--kind", "custom")["id"]
    shown("remember", "Bob drinks no tea.", "--user", "bob")
    assert [entry["user_id"] for entry in shown("memories")["entries"]] == ["aino", None, "bob"]
    assert [entry["id"] for entry in shown("memories", "--user", "aino")["entries"]] == [own, shared]
    assert {entry["kind"] for entry in shown("memories", "--kind", "chunk")["entries"]} == {"chunk"}
    hits = shown("recall", "who drinks tea", "--user", "aino", "--kind", "fact", "--kind", "custom")["hits"]
    assert {hit["id"] for hit in hits} == {own, shared}


def test_search_of_a_user_has_what_belongs_to_the_user_or_to_nobody(run: Invoke, shown: Shown) -> None:
    for text, owner in (("Aino drinks tea.", "aino"), ("Ben drinks tea.", "ben"), ("The office drinks tea.", "")):
        run("remember", text, *(["--user", owner] if owner else []))
    for options, texts in (
        ((), {"Aino drinks tea.", "Ben drinks tea.", "The office drinks tea."}),
        (("--user", "aino"), {"Aino drinks tea.", "The office drinks tea."}),
    ):
        assert {hit["content"] for hit in shown("search", "tea", *options)["hits"]} == texts


def test_ask_and_search_use_only_the_selected_documents(run: Invoke, shown: Shown, tmp_path: Path) -> None:
    for name, year in (("a.txt", "2025"), ("b.txt", '"2025"'), ("c.txt", "2026")):
        (tmp_path / name).write_text(f"The fee in {name} is paid in May.")
        shown("ingest", str(tmp_path / name), "--metadata", f'{{"year": {year}}}')
    (b,) = (each["id"] for each in shown("list")["documents"] if each["name"] == "b.txt")
    for options, names in (
        ((), {"a.txt", "b.txt", "c.txt"}),
        (("--where", "year=2025"), {"a.txt"}),
        (("--where", 'year="2025"'), {"b.txt"}),
        (("--document", "c.txt"), {"c.txt"}),
        (("--document", b), {"b.txt"}),
        (("--document", "c.txt", "--where", "year=2025"), set()),
    ):
        for command in ("ask", "search"):
            hits = shown(command, "When is the fee paid?", *options)["hits"]
            assert {hit["document"] for hit in hits} == names, (command, options)
    for option, value in (("--document", "d.txt"), ("--where", "year"), ("--where", "=1")):
        assert run("ask", "When?", option, value).exit_code == run("search", "fee", option, value).exit_code == 2
    assert run("search", "fee", "--where", "year=1", "--where", "year=2").exit_code == 2


@pytest.mark.usefixtures("empty_memory")
def test_an_empty_list_says_why(run: Invoke, shown: Callable[..., Any]) -> None:
    nothing = "namespace default is empty; add an entry with: agentformer remember TEXT\n"
    assert (run("memories").stdout, run("memories").stderr) == (nothing, "")
    last = shown("remember", TEA)["id"]
    assert run("memories", "--after", last).stdout == "no more entries\n"
    assert run("memories", "--kind", "decision").stdout == "no matching entries\n"
    newer = shown("remember", "Aino prefers coffee.", "--kind", "decision")["id"]
    shown("supersede", last, newer)
    assert "--archived" in run("memories", "--kind", "fact").stdout
    assert TEA in run("memories", "--kind", "fact", "--archived").stdout


@pytest.mark.parametrize(
    "command", [("memories",), ("recall", "tea"), ("recall", "tea", "--references"), ("search", "tea")]
)
def test_in_an_empty_namespace_the_others_are_named(run: Invoke, command: tuple[str, ...]) -> None:
    assert "namespaces" not in run(*command).stderr  # there is none
    for namespace in ("ours", "theirs"):
        assert run("remember", TEA, "--namespace", namespace).exit_code == 0
    note = "note: namespace default is empty; namespaces with entries: ours, theirs\n"
    for options in ((), ("--json",)):
        done = run(*command, *options)
        assert (done.exit_code, note in done.stderr, note in done.stdout) == (0, True, False)
    assert "these namespaces" not in run(*command, "--namespace", "ours").stderr
    assert "these namespaces" not in run("recall", "quantum", "--namespace", "ours").stderr


@pytest.mark.slow
def test_a_recall_that_finds_nothing_gives_the_hints_that_apply(
    run: Invoke, shown: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = shown("remember", TEA), shown("remember", "The harbour opens in May.")
    monkeypatch.setenv("AGENTFORMER_NOISE_FLOOR", "1")  # cosines alone show nothing
    assert run("recall", "quantum").stdout == "nothing relevant found\n"
    assert run("recall", "quantum", "--all").stdout == "nothing found\n"
    monkeypatch.setenv("AGENTFORMER_NOISE_FLOOR", "-1")
    assert run("recall", "quantum").stdout == "nothing relevant found; --all also shows entries that are not relevant\n"
    assert TEA in run("recall", "quantum", "--all").stdout
    monkeypatch.setenv("AGENTFORMER_NOISE_FLOOR", "1")
    shown("supersede", old["id"], new["id"])
    hint = "--archived shows archived and superseded entries, and those that do not hold now\n"
    assert run("recall", "tea").stdout == f"nothing relevant found; {hint}"
    assert run("recall", "tea", "--all").stdout == f"nothing found; {hint}"
    assert run("recall", "quantum", "--archived").stdout == "nothing relevant found\n"
    former = shown("history", old["id"])["current"]
    assert former["match_count"] == 1  # what was only looked at for a hint is not counted
    assert TEA in run("recall", "tea", "--archived").stdout


def test_a_recall_leads_to_what_summaries_stand_for(
    run: Invoke, shown: Callable[..., Any], where: tuple[str, ...]
) -> None:
    conversation(where, *(f"The boat {name} lies at berth {n}." for n, name in enumerate(BOATS)))
    shown("clean", "--session", "s1")
    found = run("recall", "Lokki", "--kind", "message").stdout
    assert found == "nothing relevant found; --archived shows the originals of summaries\n"
    assert "Lokki lies at berth 0" in run("recall", "Lokki", "--kind", "message", "--archived").stdout


def test_a_recall_shows_which_fact_is_former(run: Invoke, shown: Callable[..., Any]) -> None:
    older = shown("remember", "The project deadline is 3 March.", "--at", "2026-01-05T09:00:00Z")
    newer = shown("remember", "The deadline was moved to 24 March.", "--at", "2026-02-05T09:00:00Z")
    assert [hit["newer"] for hit in shown("recall", "When is the project deadline?")["hits"]] == [None, newer["id"]]
    lines = run("recall", "When is the project deadline?").stdout.splitlines()
    assert f"former (2026-01-05 09:00); newer: {newer['id']}" in lines[-1]
    answer = shown("ask", "When is the project deadline?", "--memories")
    assert answer["citations"][0]["entry_id"] == newer["id"] != older["id"]


def test_recall_gives_the_records_of_the_host_application(run: Invoke, shown: Callable[..., Any]) -> None:
    kept = shown("remember", TEA, "--source", "ticket:4711")
    (reference,) = shown("recall", "tea", "--references")["references"]
    assert (reference["source_type"], reference["source_id"]) == ("ticket", "4711")
    assert reference["entry_id"] == kept["id"]
    assert "ticket:4711" in run("recall", "tea", "--references").stdout


def test_salience_filters(shown: Callable[..., Any]) -> None:
    shown("remember", TEA, "--salience", "0.2")
    assert shown("recall", "tea", "--min-salience", "0.3")["hits"] == []
    assert len(shown("recall", "tea", "--min-salience", "0.1")["hits"]) == 1


def test_standard_input_is_kept(run: Invoke, shown: Callable[..., Any]) -> None:
    text = "Kevätkokous pidetään huhtikuussa.\nSiellä on kahvia ☕"
    assert shown("remember", "-", said=f"\ufeff{text}\n".encode())["content"] == text
    assert run("remember", "-", said=b"caf\xe9").exit_code == 2
    assert run("remember", "-", said=b"").exit_code == 2
    over = run("remember", "-", said=b"x" * 4_000_001)
    assert over.exit_code == 2 and "ingest" in over.stderr


def test_forget_by_id(run: Invoke, shown: Callable[..., Any], tmp_path: Path) -> None:
    gone, stays = shown("remember", TEA), shown("remember", "Matti prefers coffee.")
    (tmp_path / "keys.txt").write_text("The caretaker keeps the keys.")
    document = shown("ingest", str(tmp_path / "keys.txt"))["documents"][0]["id"]
    assert "agentformer remove" in run("forget", gone["id"], document).stderr
    run("remove", document)
    assert run("forget", gone["id"], "no-such-id").exit_code == 2
    assert len(shown("memories")["entries"]) == 2  # all or none
    assert shown("forget", gone["id"], gone["id"]) == {"forgotten": 1}
    assert [entry["id"] for entry in shown("memories")["entries"]] == [stays["id"]]
    assert run("history", gone["id"]).exit_code == 2


def test_forget_a_scope_asks_first_and_tells_how_many(
    run: Invoke, shown: Callable[..., Any], where: tuple[str, ...]
) -> None:
    conversation(where, *boats(3))
    kept = shown("remember", TEA, "--user", "aino")
    asked = run("forget", "--session", "s1", said="n\n")
    assert asked.exit_code == 2 and "3 entries" in asked.stderr
    assert run("forget", "--session", "s1").exit_code == 2  # nobody there to answer
    assert len(shown("memories")["entries"]) == 4
    assert run("forget", "--session", "s1", said="y\n").stdout == "entries deleted: 3\n"
    assert shown("memories")["entries"] == [kept]
    assert shown("forget", "--user", "aino", "--yes") == {"forgotten": 1, "jobs": 0}
    assert shown("forget", "--user", "aino") == {"forgotten": 0, "jobs": 0}  # nothing to ask about


def test_forgetting_a_namespace_takes_documents_and_leaves_other_namespaces(
    run: Invoke, shown: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "keys.txt").write_text("The caretaker keeps the keys.")
    shown("ingest", str(tmp_path / "keys.txt"))
    shown("remember", TEA)
    other = shown("remember", TEA, "--namespace", "other")
    assert shown("forget", "--namespace-all", "--yes")["forgotten"] >= 3
    assert (shown("memories")["entries"], shown("list")["documents"]) == ([], [])
    assert list((tmp_path / "u").rglob("*.bin")) == []
    assert shown("memories", "--namespace", "other")["entries"] == [other]


def test_context_stays_within_its_tokens(run: Invoke, shown: Callable[..., Any], where: tuple[str, ...]) -> None:
    shown("remember", "You are the harbour's helper.", "--tier", "core", "--title", "persona")
    shown("remember", TEA)
    conversation(where, *boats(4))
    built = shown("context", "What tea does Aino like?", "--session", "s1", "--max-tokens", "300")
    texts = "\n".join(message["content"] for message in built["messages"])
    assert "harbour's helper" in texts and TEA in texts and "boat number 3" in texts
    assert built["messages"][-1] == {"role": "user", "content": "What tea does Aino like?"}
    assert set(built["report"]) >= {"included", "left_out"}
    assert "harbour's helper" in run("context", "-", said="What tea?").stdout
    assert "max_tokens" in run("context", "What tea?", "--max-tokens", "1").stderr


def test_context_tells_what_was_left_out_and_why(
    run: Invoke, shown: Callable[..., Any], where: tuple[str, ...]
) -> None:
    conversation(where, *boats(12))
    done = run("context", "What tea does Aino like?", "--session", "s1", "--max-tokens", "40")
    report = shown("context", "What tea does Aino like?", "--session", "s1", "--max-tokens", "40")["report"]
    assert done.exit_code == 0 and "does not fit into" not in done.stderr
    assert "of 40 tokens" in done.stderr and f"; {len(report['left_out'])} left out\n" in done.stderr
    lines = [line.split() for line in done.stderr.splitlines() if line.startswith("note: left out ")]
    assert sum(int(line[3]) for line in lines) == len(report["left_out"]) > 0
    assert len(lines) == len({each["reason"].partition(":")[0] for each in report["left_out"]})


@pytest.mark.usefixtures("empty_memory")
@pytest.mark.parametrize("last", ["stored", "given"])
def test_a_task_that_does_not_fit_is_told_first(run: Invoke, shown: Callable[..., Any], last: str) -> None:
    task = "Write a long letter about the boats in the harbour, please. " * 3
    if last == "stored":  # what the user said last in the session is the task
        kept = shown("remember", task, "--session", "s1", "--role", "user", "--speaker", "Aino")
        assert (kept["role"], kept["speaker"]) == ("user", "Aino")
    for options in ((), ("--json",)):
        done = run("context", task, "--session", "s1", "--max-tokens", "12", *options)
        note = "note: the task does not fit into 12 tokens; raise --max-tokens, or shorten the task"
        assert (done.exit_code, done.stderr.splitlines()[0]) == (1, note)
        assert run("context", task, "--session", "s1", *options).exit_code == 0


def test_clean_restore_and_history(run: Invoke, shown: Callable[..., Any], where: tuple[str, ...]) -> None:
    said = conversation(where, *boats(10))
    report = shown("clean", "--session", "s1")
    (summary,) = shown("memories", "--kind", "summary")["entries"]
    assert (report["summaries"], report["archived"]) == ([summary["id"]], 5)
    assert [link["id"] for link in summary["derived_from"]] == said[:5]
    assert [entry["id"] for entry in shown("memories", "--kind", "message")["entries"]] == said[5:]
    assert {entry["id"] for entry in shown("memories", "--archived")["entries"]} == {*said, summary["id"]}
    restored = shown("restore", summary["id"])["entries"]
    assert [(entry["id"], entry["archived_at"]) for entry in restored] == [(entry_id, None) for entry_id in said[:5]]
    again = run("restore", summary["id"])
    assert again.exit_code == 2 and "Traceback" not in again.stderr
    assert run("clean", "--all-namespaces").stdout.startswith("entries archived: 5; new summaries: 1")
    assert shown("clean", "--namespace", "other")["archived"] == 0


def test_history_shows_former_versions(run: Invoke, shown: Callable[..., Any], where: tuple[str, ...]) -> None:
    kept = shown("remember", TEA)
    with agentformer.connect(index_dir=where[1], upload_dir=where[3], embedder="hashing") as af:
        af.memory.update(kept["id"], content="Aino prefers coffee.")
    versions = shown("history", kept["id"])
    assert [entry["content"] for entry in versions["versions"]] == [TEA]
    assert (versions["current"]["content"], versions["current"]["version"]) == ("Aino prefers coffee.", 2)
    assert TEA in run("history", kept["id"]).stdout


def test_audit_lists_and_merges_only_when_asked(run: Invoke, shown: Callable[..., Any], where: tuple[str, ...]) -> None:
    kept = shown("remember", "The harbour opens at 9.", "--tier", "core", "--title", "hours")
    shown("remember", "The harbour opens at 10.", "--tier", "core", "--title", "opening")
    with agentformer.connect(index_dir=where[1], upload_dir=where[3], embedder="hashing") as af:
        entry = af.memory.store(TEA)
        twin = af.backend.store([_twin(entry)])[0]
    report = shown("audit")
    assert [group["ids"] for group in report["duplicates"]] == [[entry.id, twin.id]]
    assert [found["about"] for found in report["contradictions"]] == ["number"]
    assert (report["merged"], kept["id"] in report["contradictions"][0]["ids"]) == ([], True)
    assert "contradiction (number)" in run("audit").stdout
    assert shown("audit", "--merge")["merged"] == [twin.id]
    assert shown("audit")["duplicates"] == []
    assert len(shown("memories", "--archived")["entries"]) == 4


def test_audit_says_what_it_compares_and_names_facts_that_contradict_each_other(run: Invoke, shown: Shown) -> None:
    for text in ("Anna lives in Turku.", "Anna lives in Oslo.", "The office closes at 17."):
        shown("remember", text)
    shown("remember", "Anna lives in Rome.", "--user", "anna")
    report = shown("audit")
    assert report["compared"] == {"texts": 4, "facts": 4, "core_blocks": 0}
    (found,) = report["contradictions"]
    assert (found["about"], found["sentences"]) == ("value", ["Anna lives in Turku.", "Anna lives in Oslo."])
    lines = run("audit").stdout
    assert "searched for contradictions: 4 facts, 0 core blocks" in lines and "contradiction (value)" in lines
    shown("supersede", *found["ids"])
    assert shown("audit")["contradictions"] == []


def _twin(entry: agentformer.MemoryEntry) -> agentformer.MemoryEntry:
    """The same once more, as an import without a look at what is there would store it."""
    return agentformer.MemoryEntry(id=f"{entry.id[:-2]}zz", content=entry.content, context=entry.context)


def test_nothing_crosses_a_namespace(run: Invoke, shown: Callable[..., Any]) -> None:
    kept = shown("remember", TEA, "--namespace", "ours")
    for command in ("history", "forget", "restore"):
        done = run(command, kept["id"])
        assert done.exit_code == 2 and "namespace default" in done.stderr, command
    assert shown("recall", "tea")["hits"] == []
    assert shown("history", kept["id"], "--namespace", "ours")["current"]["content"] == TEA


WRONG: list[tuple[tuple[str, ...], str]] = [
    (("remember", "  "), "content"),
    (("remember", "x", "--salience", "2"), "salience"),
    (("remember", "x", "--at", "yesterday"), "--at"),
    (("remember", "x", "--at", "2026-11-20T09:30:00"), "time zone"),
    (("remember", "x", "--metadata", "[1]"), "--metadata"),
    (("remember", "x", "--metadata", "[" * 100_000), "--metadata"),
    (("remember", "x", "--source", "4711"), "--source"),
    (("remember", "x", "--tier", "eternal"), "--tier"),
    (("remember", "x", "--kind", "document"), "kind"),
    (("remember", "x", "--role", "user"), "--session"),
    (("remember", "x", "--session", "s", "--speaker", "Aino"), "--role"),
    (("remember", "x", "--session", "s", "--role", "boss"), "role"),
    (("remember", "x", "--session", "s", "--role", "user", "--tier", "core"), "--tier"),
    (("remember", "x", "--namespace", ""), "namespace"),
    (("remember", "half \udcff"), "is not a text in the encoding"),
    (("recall", "x", "--min-salience", "7"), "--min-salience"),
    (("forget",), "--namespace-all"),
    (("forget", "id", "--session", "s"), "--namespace-all"),
    (("restore", "no-such-id"), "no-such-id"),
    (("history", "no-such-id"), "no-such-id"),
    (("clean", "--session", "s", "--all-namespaces"), "--session"),
    (("context", "x", "--max-tokens", "0"), "max-tokens"),
]


@pytest.mark.usefixtures("empty_memory")
def test_a_wrong_argument_is_told_and_changes_nothing(run: Invoke, shown: Callable[..., Any]) -> None:
    for arguments, said in WRONG:
        done = run(*arguments)
        assert done.exit_code == 2, (arguments, done.output)
        assert said in done.stderr and "Traceback" not in done.stderr, arguments
    assert shown("memories")["entries"] == []


def test_every_command_explains_itself(run: Invoke) -> None:
    for command in COMMANDS:
        text = run(command, "--help").stdout
        assert all(option in text for option in ("--index-dir", "--upload-dir", "--namespace", "--json")), command


def test_stored_text_cannot_play_tricks_with_a_terminal(run: Invoke, shown: Callable[..., Any]) -> None:
    shown("remember", "tea \x1b[2J\x07 \u202egnp.exe")
    assert "tea [2J gnp.exe" in run("memories").stdout


@pytest.mark.process
def test_a_terminal_without_these_letters_is_no_error(where: tuple[str, ...], tmp_path: Path) -> None:
    poor = {"PYTHONIOENCODING": "iso-8859-1", "PYTHONUTF8": "0", "LC_ALL": "C"}
    text = "Kevätkokous ☕ 会議"
    kept = process("remember", "-", "--json", *where, input=text.encode(), env=poor, cwd=tmp_path)
    assert (kept.returncode, json.loads(kept.stdout)["content"]) == (0, text)
    listed = process("memories", *where, env=poor, cwd=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, b"") and b"Kev\xe4tkokous \\u2615" in listed.stdout


def test_ask_and_search_use_only_the_selected_period(run: Invoke, shown: Shown, tmp_path: Path) -> None:
    """A memory has the time of its event, and a document has the time when it was stored. A day is a whole day in
    UTC."""
    (tmp_path / "rules.txt").write_text("The fee of the harbour is 5 euros.")
    shown("ingest", str(tmp_path / "rules.txt"))
    for day, at in (
        ("first", "2025-03-01T00:00:00Z"),
        ("last", "2025-03-31T23:59:59Z"),
        ("late", "2025-04-01T01:00+02:00"),
    ):
        shown("remember", f"The fee was raised on the {day} day.", "--at", at)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    for options, texts in (
        (("--since", "2025-03-01", "--until", "2025-03-31"), {"first", "last", "late"}),
        (("--since", "2025-03-01T00:00:01Z"), {"last", "late", "rules"}),
        (("--since", "2025-03-01T02:00:00+02:00", "--until", "2025-03-31T23:59:59Z"), {"first", "late"}),
        (("--until", "2025-02-28"), set()),
        (("--since", today), {"rules"}),
        (("--until", "9999-12-31"), {"first", "last", "late", "rules"}),
    ):
        hits = shown("search", "fee", *options)["hits"]
        assert {(hit["document"] and "rules") or hit["content"].split()[-2] for hit in hits} == texts, options
        answer = shown("ask", "What is the fee?", "--documents", *options)
        assert [hit["document"] for hit in answer["hits"]] == ["rules.txt"] * ("rules" in texts), options
        answer = shown("ask", "What is the fee?", "--memories", *options)
        assert {hit["content"].split()[-2] for hit in answer["hits"]} == texts - {"rules"}, options
    for wrong in (("--since", "yesterday"), ("--until", "2025-13-01"), ("--since", "2025-03-01T00:00:00")):
        for command in ("ask", "search"):
            done = run(command, "fee", *wrong)
            assert (done.exit_code, done.stdout) == (2, "") and f"{wrong[0]}: must" in done.stderr, done.stderr
            assert "2026-11-20" in done.stderr
    done = run("search", "fee", "--since", "2025-03-02", "--until", "2025-03-01")
    assert done.exit_code == 2 and "--until: must be after --since" in done.stderr


def test_a_period_is_applied_before_the_best_hits_are_chosen(tmp_path: Path) -> None:
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        items = [{"content": f"The fee is {n} euros.", "occurred_at": "2025-01-01T00:00:00Z"} for n in range(300)]
        af.memory.store_many([*items, {"content": "An old fee, in a longer text about it.", "occurred_at": OLD}])
        (hit,) = af.memory.search("fee", limit=1, until=date(2020, 1, 1))
        assert hit.entry.content.startswith("An old fee")
        assert af.memory.search("fee", limit=1, until="2019-12-31") == []
        with pytest.raises(InvalidInput, match="since"):
            af.rag.query("fee", since=5)
