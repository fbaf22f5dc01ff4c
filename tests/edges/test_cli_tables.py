"""Tables and widths, and how they look on a real terminal and in a pipe."""

from __future__ import annotations

import io
import os
import re
import select
import struct
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("termios", reason="needs a terminal of POSIX")
import fcntl
import pty
import termios

from agentformer.agent import Agent, Recalled, ToolStart, UsedMemory
from agentformer.cli import output
from agentformer.cli.commands import chat, doctor
from agentformer.cli.commands.chat import Chat
from agentformer.cli.commands.documents import names_of
from agentformer.cli.inputs import hint_namespaces
from agentformer.cli.output import clip, duration, entry_cells, excerpt, moment, plural, table, width
from agentformer.memory.summaries import OUTCOMES
from agentformer.testing import make_entry
from agentformer.types import Check, ToolCall
from tests import forked
from tests.edges.conftest import Invoke

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # man, woman, girl, joined
FINLAND = "\U0001f1eb\U0001f1ee"


def test_width_is_what_a_terminal_shows() -> None:
    for text, cells in [
        ("", 0),
        ("kevät", 5),
        ("keva\u0308t", 5),  # the accent on its own
        ("日本語", 6),
        ("ﾊﾝｶｸ", 4),
        ("Ａ", 2),
        ("☕", 2),
        ("❤\ufe0f", 2),
        ("👍🏽", 2),
        (FAMILY, 2),
        (FINLAND, 2),
        ("각", 2),
        ("\u1100\u1161\u11a8", 2),  # the same syllable in its parts
        ("می\u200cخواهم", 7),
    ]:
        assert width(text) == cells


def test_a_text_is_cut_between_characters_and_never_over_its_cells() -> None:
    for text, cells, kept in [
        ("harbour", 7, "harbour"),
        ("harbour", 6, "harbo…"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("keva\u0308t talo", 6, "keva\u0308t…"),
        (f"{FAMILY} at home", 4, f"{FAMILY}…"),
        ("x", 0, ""),
        ("xy", 1, "…"),
    ]:
        assert clip(text, cells) == kept
        assert width(clip(text, cells)) <= cells


def test_columns_are_aligned_by_cells_and_numbers_stand_right() -> None:
    rows = [("日本", "9", "first"), ("abc", "10", "second")]
    assert list(table(("NAME", "N", "TEXT"), rows, right=(1,), cells=40)) == [
        "NAME   N  TEXT",
        "日本   9  first",
        "abc   10  second",
    ]


def test_in_a_pipe_there_are_no_headings_and_nothing_is_cut() -> None:
    assert list(table(("NAME", "TEXT"), [("a", "x" * 500), ("bb", "line\nbreak")])) == [
        f"a   {'x' * 500}",
        "bb  line break",
    ]


def test_where_the_last_column_has_no_room_it_goes_below() -> None:
    lines = list(table(("ID", "TEXT"), [("i" * 36, "y" * 100)], cells=50))
    assert lines == ["ID", "    TEXT", "i" * 36, f"    {'y' * 45}…"]
    assert all(width(line) <= 50 for line in lines)


def test_a_short_last_column_stays_where_it_fits() -> None:
    assert list(table(("ID", "TEXT"), [("i" * 36, "short")], cells=50)) == [f"ID{' ' * 36}TEXT", f"{'i' * 36}  short"]


def test_a_long_last_column_goes_below_if_it_has_less_than_24_cells() -> None:
    for cells, length, expected in [
        (36, 24, ["i" * 10 + "  " + "y" * 24]),
        (36, 25, ["i" * 10 + "  " + "y" * 23 + "…"]),
        (35, 23, ["i" * 10 + "  " + "y" * 23]),
        (35, 24, ["i" * 10, "    " + "y" * 24]),
    ]:
        lines = list(table(("ID", "TEXT"), [("i" * 10, "y" * length)], cells=cells))
        assert lines[-len(expected) :] == expected, (cells, length)


def test_numbers_and_texts_are_written_for_people() -> None:
    assert [plural(count, "entry") for count in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]
    assert [plural(count, "page") for count in (0, 1, 2)] == ["0 pages", "1 page", "2 pages"]
    seconds = (0, 5.4, 59.4, 59.6, 125, 3599, 3600, 3725)
    assert list(map(duration, seconds)) == ["0:00", "0:05", "0:59", "1:00", "2:05", "59:59", "1:00:00", "1:02:05"]
    assert (excerpt("x" * 300), excerpt("x" * 301)) == ("x" * 300, "x" * 300 + "…")
    assert moment(None) == "" and moment(datetime(2026, 5, 8, 12, 30, tzinfo=timezone(timedelta(hours=3)))) == (
        "2026-05-08 09:30"
    )


def test_an_entry_is_shown_with_its_state_its_speaker_and_its_title() -> None:
    at = datetime(2026, 5, 8, 9, 30, tzinfo=UTC)
    for values, state, text in [
        ({}, "", "Keys."),
        ({"title": "Office", "archived_at": at}, " archived", "[Office] Keys."),
        ({"role": "user", "superseded_by": "x"}, " superseded", "user: Keys."),
        ({"role": "user", "speaker": "Aino", "archived_at": at, "superseded_by": "x"}, " archived", "Aino: Keys."),
    ]:
        entry = make_entry("Keys.", created_at=at, **values)
        assert entry_cells(entry) == (entry.id, f"{entry.tier}/{entry.kind}{state}", "2026-05-08 09:30", text)
    older = make_entry("Keys.", created_at=at, occurred_at=at.replace(year=2025))
    assert entry_cells(older)[2] == "2025-05-08 09:30"


def test_a_hint_names_at_most_twenty_namespaces(capsys: pytest.CaptureFixture[str]) -> None:
    for count, more in ((20, ""), (21, " and 1 more")):
        names = [f"n{number:02}" for number in range(count)]
        backend = SimpleNamespace(namespaces=lambda names=names: names)
        hint_namespaces(SimpleNamespace(backend=backend), "other")  # type: ignore[arg-type]
        named = ", ".join(names[:20])
        assert capsys.readouterr().err.endswith(f"namespaces with entries: {named}{more}\n")
        hint_namespaces(SimpleNamespace(backend=backend), "n00")  # type: ignore[arg-type]
        assert capsys.readouterr().err == ""


def test_a_chat_shows_the_beginning_of_long_arguments_and_the_first_memories(
    capsys: pytest.CaptureFixture[str],
) -> None:
    quoted = '"' + "x" * 56 + '"'
    assert chat._call_text(ToolStart("t", {"a": "x" * 56})) == f"t(a={quoted})"  # 60 characters
    assert chat._call_text(ToolStart("t", {"a": "x" * 57})) == f"t(a={quoted[:-1]}x…)"
    for count, last in ((5, "memory  core/fact  Keys 4."), (6, "memory  and 1 more")):
        memories = tuple(UsedMemory(f"id {n}", "core", "fact", f"Keys {n}.") for n in range(count))
        Chat(cast(Agent, None), "s", as_json=False, verbose=True)._show(Recalled(memories))
        assert capsys.readouterr().err.splitlines()[-1] == last
    Chat(cast(Agent, None), "s", as_json=False, verbose=False)._show(Recalled(memories))
    Chat(cast(Agent, None), "s", as_json=True, verbose=True)._show(Recalled(memories))
    assert capsys.readouterr().err == ""


def test_a_person_is_asked_about_each_argument_up_to_twenty(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer, allowed in (("y\n", True), (" YES \n", True), ("\n", False), ("no\n", False), ("", False)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        assert chat._confirm(ToolCall("1", "t", {}), None) is allowed, answer
    capsys.readouterr()
    for count, last in ((20, "  n19: 19"), (21, "  ... and 1 more arguments")):
        chat._confirm(ToolCall("1", "t", {f"n{n}": n for n in range(count)}), None)
        assert capsys.readouterr().err.splitlines()[-2] == last
    for size, name in ((60, "n" * 60), (61, "n" * 60 + " ... and 1 more characters")):
        chat._confirm(ToolCall("1", "t", {"n" * size: 1}), None)
        assert capsys.readouterr().err.splitlines()[1] == f"  {name}: 1"


def test_doctor_counts_what_is_left_repaired_and_lost(capsys: pytest.CaptureFixture[str]) -> None:
    ends = "each line below FOUND ends with what to do"
    for mended, left, lost, summary in [
        (0, 0, 0, "no problems found"),
        (2, 0, 0, "no problems left; repaired: 2"),
        (0, 3, 0, f"found: 3; {ends}"),
        (2, 3, 0, f"found: 3; repaired: 2; {ends}"),
        (5, 1, 2, "found: 1; repaired: 3; lost, unless a backup has it: 2"),
    ]:
        assert doctor._summary([Check("words", "asked", 9, mended + left, mended, ())], left, lost) == summary
    for found, mended, state, more in [(0, 0, "OK", 0), (2, 1, "FOUND", 0), (3, 3, "repaired", 1)]:
        doctor._print_checks([Check("words", "asked", 9, found, mended, ("one", "two")[:found])])
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"{state:10}words (9 checked") and lines[0].endswith("): asked")
        assert (f", {found} wrong" in lines[0], f", {mended} repaired" in lines[0]) == (bool(found), bool(mended))
        assert (lines[-1] == f"          and {more} more") is bool(more)
    outcomes = dict.fromkeys(OUTCOMES, 0) | {"model": 2, "extractive": 3}
    cleaner = {"outcomes": outcomes, "queued": 0, "last_error": None}
    assert doctor._cleaner(cleaner) == [("cleaner", "5 summaries: 2 by a model, 3 quoted")]
    cleaner = {"outcomes": dict.fromkeys(OUTCOMES, 0), "queued": 1, "last_error": "down"}
    assert doctor._cleaner(cleaner) == [("cleaner", "0 summaries; 1 sessions queued"), ("", "last error: down")]


def test_files_of_the_same_name_are_named_with_their_folders() -> None:
    for files, names in [
        ([("/a/x/r.txt", None), ("/a/y/s.txt", None)], ["r.txt", "s.txt"]),
        ([("/a/x/r.txt", None), ("/a/y/r.txt", None)], ["x/r.txt", "y/r.txt"]),
        ([("/a/x/z/r.txt", None), ("/a/y/z/r.txt", None)], ["x/z/r.txt", "y/z/r.txt"]),
        ([("/a/x/r.txt", None), ("/a/x/r.txt", None)], ["r.txt", "r.txt"]),
        ([("/a/x/r.txt", "/a"), ("/a/r.txt", "/a")], ["x/r.txt", "r.txt"]),
        ([("/r.txt", None), ("/b/r.txt", None)], ["r.txt", "b/r.txt"]),
    ]:
        assert names_of([(Path(file), Path(root) if root else None) for file, root in files]) == names


def test_no_rows_are_no_table() -> None:
    for cells in [None, 80]:
        assert list(table(("ID", "TEXT"), [], cells=cells)) == []


@pytest.fixture
def on_terminal(where: tuple[str, ...], tmp_path: Path) -> Callable[..., str]:
    """What a command shows on a terminal of so many columns."""

    def shown(columns: int, *arguments: str) -> str:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        code = f"from agentformer.cli import main\nmain({[*arguments, *where]})"
        with Path(os.devnull).open("w") as nowhere:
            options: Any = {"cwd": tmp_path, "env": {**environment, "TERM": "xterm"}, "stderr": nowhere}
            child = forked.start(forked.on_terminal(theirs) + code, forked.STORE, **options)
        assert select.select([ours], [], [], 60)[0]  # it has opened the terminal
        os.close(theirs)
        said = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the last end of the terminal was closed
                break
            if not piece:
                break
            said += piece
        os.close(ours)
        assert child.wait(timeout=60) == 0, said
        return said.decode()

    return shown


@pytest.mark.process
def test_a_list_fits_the_terminal_it_is_shown_on(run: Invoke, on_terminal: Callable[..., str], tmp_path: Path) -> None:
    name = "会議の議事録" * 8
    (tmp_path / f"{name}.txt").write_text("The caretaker keeps the keys.")
    assert run("ingest", str(tmp_path / f"{name}.txt")).exit_code == 0
    lines = on_terminal(100, "list").splitlines()
    assert lines[0].split() == ["ID", "STATE", "PAGES", "CHUNKS", "NAME"]
    assert lines[1].endswith("…") and 98 <= width(lines[1]) <= 100
    (piped,) = run("list").stdout.splitlines()
    assert piped.endswith(f"{name}.txt") and piped.split()[1:4] == ["ready", "1", "1"]


@pytest.mark.process
def test_progress_is_shown_on_a_terminal_and_nowhere_else(
    run: Invoke, on_terminal: Callable[..., str], tmp_path: Path
) -> None:
    for letter in "ab":
        (tmp_path / f"{letter}.txt").write_text(f"The caretaker {letter} keeps the keys.")
    assert "1/1 a.txt" in on_terminal(80, "ingest", str(tmp_path / "a.txt"))
    assert run("ingest", str(tmp_path / "b.txt")).stderr == ""


def test_stored_text_moves_no_cursor_and_sets_no_colour(run: Invoke, shown: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The caretaker keeps the keys.")
    shown("ingest", str(tmp_path / "a.txt"))
    shown("remember", "Aino \x1b[31mprefers\x1b[0m tea.\x07", "--title", "\u202eaet", "--tier", "core")
    for command in ("list", "memories", "status", "spaces", "audit"):
        said = run(command).stdout
        assert said and not set("\x1b\x07\u202e") & set(said), command


def test_long_work_prints_lines_of_progress_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with output.bar("entries") as progress, output.watching(lambda: "copying"):
        progress(1, 3)
    assert capsys.readouterr().err == "", "short work prints nothing"
    monkeypatch.setattr(output, "_PIPE_SECONDS", 0.01)
    with output.bar("entries") as progress, output.watching(lambda: "copying"):
        told = ""
        while "copying" not in told:  # told by a thread
            time.sleep(0.02)
            told += capsys.readouterr().err
        progress(2, 3)
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = {re.sub(r"\d:\d\d$", "m:ss", line) for line in (told + shown.err).splitlines()}
    assert lines == {"entries: 2 of 3", "copying, m:ss"}
