"""`export --markdown`, and `sync` of the folder that it wrote; and the server that keeps such a folder in step."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.cli.commands import sync
from tests.edges.conftest import Copy, Invoke, Shown


@pytest.fixture
def home(tmp_path: Path, run: Invoke) -> Path:
    """A home with one decision and one fact."""
    assert run("remember", "We use SQLite.", "--kind", "decision", "--title", "Storage").exit_code == 0
    assert run("remember", "Aino prefers tea.").exit_code == 0
    assert run("export", "--markdown", str(tmp_path / "home")).exit_code == 0
    return tmp_path / "home"


def the_decision(home: Path) -> Path:
    (path,) = (home / "decisions").glob("*.md")
    return path


def test_export_sync_and_another_export_by_the_command_line(run: Invoke, shown: Shown, home: Path) -> None:
    path = the_decision(home)
    path.write_text(path.read_text().replace("We use SQLite.", "We use PostgreSQL."))
    (home / "facts" / "note.md").write_text("The gate closes at eight.")
    told = shown("sync", str(home))
    assert (told["changed"], told["added"], told["failed"]) == ([f"decisions/{path.name}"], ["facts/note.md"], [])
    assert shown("export", "--markdown", str(home))["written"] == []
    done = run("sync", str(home))
    assert (done.exit_code, done.stdout) == (0, "3 unchanged\n")
    assert "[Storage] We use SQLite." in run("history", "Storage").stdout
    assert "We use PostgreSQL." in run("memories", "--kind", "decision").stdout


def test_conflicts_and_files_that_cannot_be_used_are_shown_and_the_exit_code_is_one(run: Invoke, home: Path) -> None:
    path = the_decision(home)
    path.write_text(path.read_text().replace("We use SQLite.", "By hand."))
    assert run("update", "Storage", "--content", "By the agent.").exit_code == 0
    (home / "facts" / "bad.md").write_bytes(b"\xff\n")
    done = run("sync", str(home))
    assert done.exit_code == 1
    assert "failed     facts/bad.md  (encoding: is not UTF-8: byte 1 is 0xff" in done.stdout
    assert f"conflict   decisions/{path.name}  (content changed on both sides: version 3 has the text of" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 changed, 1 written, 1 conflicts, 1 failed, 1 unchanged"


def test_a_home_is_adopted_by_another_memory_only_on_request(run: Invoke, copy: Copy, home: Path) -> None:
    refused = copy("sync", str(home))
    assert refused.exit_code == 2 and "--adopt stores its files here" in refused.output
    assert copy("sync", str(home), "--adopt").exit_code == 0
    assert json.loads(copy("memories", "--json").stdout)["entries"][0]["content"] == "We use SQLite."
    for arguments in (("--metadata", '{"a": 1}'), ("--namespace", "other")):
        assert run("sync", str(home), *arguments).exit_code == 2
    assert run("export", "--markdown", str(home), "--text").exit_code == 2


def test_files_of_the_memory_and_of_tools_in_a_watched_folder_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watchfiles = pytest.importorskip("watchfiles", reason="the extra `folders` is not installed")
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(watchfiles, "watch", lambda *_, **options: started.append(options) or iter([set()]))
    assert list(sync._changes(str(tmp_path), [tmp_path / "indexes"])) == []
    counts, added = started[0]["watch_filter"], watchfiles.Change.added
    names = ("a.md", "indexes2/a.md", "indexes/a.md", "indexes/deep/a.md", ".git/a.md", "node_modules/a.md")
    assert [name for name in names if counts(added, str(tmp_path / name))] == ["a.md", "indexes2/a.md"]


def test_a_home_is_watched_until_the_command_is_interrupted(
    run: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            path = the_decision(home)
            path.write_text(path.read_text().replace("We use SQLite.", "We use PostgreSQL."))
        if len(looks) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr("agentformer.cli.commands.sync.time.sleep", sleep)
    done = run("sync", str(home), "--watch")
    assert done.exit_code == 130
    assert done.stdout.count("changed    decisions/") == 1 and done.stdout.count("unchanged") == 2
    assert "We use PostgreSQL." in run("memories", "--kind", "decision").stdout


def test_conversations_are_imported_and_exports_still_are(run: Invoke, copy: Copy, tmp_path: Path) -> None:
    lines = [
        {"role": "user", "content": "The gate closes at eight.", "time": "2026-11-20"},
        {"role": "x", "content": "y"},
    ]
    path = tmp_path / "talk.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    done = run("import", str(path), "--session", "monday", "--speaker", "Aino", "--user", "aino")
    assert done.exit_code == 1
    why = "(role: must be user, assistant, system, developer or tool, got 'x')"
    assert f"failed     talk.jsonl, conversation 2  {why}" in done.stdout
    assert "messages imported: 1, in 1 session; there already: 0" in done.stdout
    told = json.loads(run("import", str(path), "--session", "monday", "--user", "aino", "--json").stdout)
    assert (told["messages"], told["there_already"], told["failures"]) == (0, 1, 1)
    assert "Aino" in run("memories", "--session", "monday").stdout
    assert run("export", "--to", str(tmp_path / "export")).exit_code == 0
    assert copy("import", str(tmp_path / "export"), "--speaker", "Aino").exit_code == 2
    assert copy("import", str(tmp_path / "export")).exit_code == 0
    assert "Aino" in copy("memories", "--session", "monday").stdout
    (tmp_path / "diary.txt").write_text("Dear diary")
    for wrong in ("diary.txt", "missing"):
        assert run("import", str(tmp_path / wrong)).exit_code == 2


def test_a_server_keeps_the_home_of_its_settings_in_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with agentformer.connect(
        index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing",
        markdown_home=str(tmp_path / "home"), markdown_seconds=0.05,
    ) as af:  # fmt: skip
        entry = af.memory.store("The gate closes at eight.")
        path = tmp_path / "home" / "facts" / f"{entry.id}.md"
        assert not path.exists()
        af.ready()
        wait_for(path.exists)
        af.memory.update(entry.id, content="The gate closes at nine.")
        wait_for(lambda: "nine" in path.read_text())
        path.write_text(path.read_text().replace("nine", "ten"))
        wait_for(lambda: "ten" in af.memory.get(entry.id).content)
        with caplog.at_level(logging.WARNING, "agentformer"):
            (tmp_path / "home" / "facts" / "bad.md").write_bytes(b"\xff")
            wait_for(lambda: "bad.md: encoding: is not UTF-8" in caplog.text)


def wait_for(condition: object) -> None:
    for _ in range(600):
        if condition():  # type: ignore[operator]
            return
        time.sleep(0.05)
    raise AssertionError("the home did not follow")
