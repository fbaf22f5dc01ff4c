"""`agentformer keys`: what is printed where, and what a key made so may do."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentformer.access.keys import KeyStore
from agentformer.tools.toolbox import HINTS
from tests.backends.postgres_server import stored_keys
from tests.edges.conftest import Invoke, Shown

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return stored_keys(tmp_path / "i")


def test_a_key_is_printed_alone_and_once(run: Invoke, store: KeyStore) -> None:
    done = run("keys add", "office")
    assert done.exit_code == 0
    secret = done.stdout.removesuffix("\n")
    assert "\n" not in secret
    grant = store.grant_of(secret)
    assert (grant.rights, grant.namespaces, grant.without) == ({"read", "write"}, (), frozenset())
    assert "not shown again" in done.stderr
    assert "every request" in done.stderr
    random = secret.rpartition("_")[2]
    for listed in (run("keys list"), run("keys list", "--json"), run("keys revoke", grant.key_id)):
        assert listed.exit_code == 0
        assert random not in listed.output
        assert grant.key_id in listed.output


def test_only_the_first_key_changes_who_is_served(run: Invoke) -> None:
    assert "from now on" in run("keys add", "first").stderr
    assert "from now on" not in run("keys add", "second").stderr


def test_a_key_gets_what_its_options_say(run: Invoke, store: KeyStore) -> None:
    before = datetime.now(UTC)
    options = ("--right", "read", "--right", "admin", "--namespace", "team", "--namespace", "lab", "--days", "3")
    secret = run("keys add", "office", *options, "--without", "memory_add").stdout.strip()
    (key,) = store.all()
    assert (key.name, key.rights, key.namespaces) == ("office", ("read", "admin"), ("team", "lab"))
    assert key.expires_at is not None
    assert timedelta() <= key.expires_at - before - timedelta(days=3) < timedelta(minutes=5)
    assert store.grant_of(secret).without == {"memory_add"}


def test_limits_are_given_shown_and_changed(run: Invoke, shown: Shown, store: KeyStore) -> None:
    made = shown("keys add", "team", "--max-entries", "5", "--questions-per-day", "9")
    assert (made["max_entries"], made["max_bytes"], made["questions_per_day"]) == (5, 0, 9)
    assert "5 entries, 9 questions/day" in run("keys list").stdout
    changed = shown("keys change", made["id"], "--max-entries", "0", "--max-bytes", "1000", "--name", "lab")
    assert (changed["name"], changed["max_entries"], changed["max_bytes"], changed["questions_per_day"]) == (
        *("lab", 0, 1000),
        9,
    )
    assert "(lab) is changed: 1000 bytes, 9 questions/day" in run("keys change", made["id"], "--name", "lab").stdout
    for wrong in ("-1", "1000000000000001", "many"):
        assert run("keys change", made["id"], "--max-bytes", wrong).exit_code == 2
    alone = run("keys change", made["id"])
    assert alone.exit_code == 2 and "give --name or a limit, such as --max-entries" in alone.stderr
    assert run("keys change", "00000000", "--max-bytes", "1").exit_code == 2


def test_destructive_tools_are_switched_off_together(run: Invoke, store: KeyStore) -> None:
    assert run("keys add", "office", "--no-destructive", "--without", "memory_add").exit_code == 0
    (key,) = store.all()
    assert key.without == {"memory_add"} | {name for name, hints in HINTS.items() if hints.permission.destructive}
    assert "memory_delete" in key.without


def test_the_list_is_json_for_programs(run: Invoke, shown: Shown, store: KeyStore) -> None:
    assert shown("keys list") == {"keys": []}
    made = shown("keys add", "office", "--namespace", "team")
    assert store.grant_of(made.pop("key")).key_id == made["id"]
    used = datetime.now(UTC).date().isoformat()
    (listed,) = shown("keys list")["keys"]
    assert listed["last_used_on"] in (used, datetime.now(UTC).date().isoformat())
    assert {**listed, "last_used_on": None} == made
    assert shown("keys revoke", made["id"])["revoked"]["name"] == "office"
    assert shown("keys list") == {"keys": []}


def test_an_empty_list_says_whether_the_server_is_open(run: Invoke, store: KeyStore) -> None:
    assert "only this machine can connect" in run("keys list").output
    key, _ = store.make("office")
    store.revoke(key.id)
    assert "every request over HTTP is refused" in run("keys list").output
    assert "agentformer keys reset" in run("keys list").output
    assert run("keys reset").exit_code == 0
    assert not store.ever_made
    assert "only this machine can connect" in run("keys list").output


def test_the_last_key_is_not_revoked_in_silence(run: Invoke, store: KeyStore) -> None:
    first, second = store.make("office")[0].id, store.make("home")[0].id
    assert "reset" not in run("keys revoke", first).stderr
    refused = run("keys reset")
    assert (refused.exit_code, second in refused.stderr, store.ever_made) == (2, True, True)
    assert "agentformer keys reset" in run("keys revoke", second).stderr


@pytest.mark.parametrize(
    ("command", "arguments", "told"),
    [
        ("keys add", ("office", "--without", "memory_ad"), "memory_add"),
        ("keys add", ("office", "--right", "root"), "admin"),
        ("keys add", ("office", "--days", "0"), "--days"),
        ("keys add", ("office", "--namespace", ""), "--namespace"),
        ("keys add", ("office", "--namespace", "*"), "omit --namespace"),
        ("keys add", ("",), "name"),
        ("keys add", (), "NAME"),
        ("keys revoke", ("00000000",), "no key with the id 00000000"),
        ("keys rotate", ("00000000", "--overlap-hours", "nan"), "nan is not a finite number"),
        ("keys add", ("a", "--right", "metrics", "--namespace", "x"), "right metrics"),
    ],
)
def test_a_wrong_argument_makes_and_takes_nothing(
    run: Invoke, store: KeyStore, command: str, arguments: tuple[str, ...], told: str
) -> None:
    done = run(command, *arguments)
    assert done.exit_code == 2
    assert told in done.stderr
    assert done.stdout == ""
    assert not store.ever_made


@pytest.mark.process
@pytest.mark.parametrize("output", [">&-", pytest.param("> /dev/full", marks=needs_full)])
@pytest.mark.parametrize("form", ["", "--json"])
def test_a_key_that_nobody_can_see_is_revoked_again(
    where: tuple[str, ...], store: KeyStore, output: str, form: str
) -> None:
    line = f'"$0" -m agentformer.cli keys add office {form} "$@" {output}'
    done = subprocess.run(
        ["bash", "-c", line, sys.executable, *where], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, "(office) is revoked" in done.stderr) == (3, True)
    assert "needs a key from now on" in done.stderr
    assert (store.ever_made, store.all()) == (True, ())


@pytest.mark.usefixtures("faiss_files")
def test_a_damaged_file_is_told_and_left_as_it_is(run: Invoke, store: KeyStore, tmp_path: Path) -> None:
    store.make("office")
    (tmp_path / "i" / "keys.json").write_text("{")
    for command in (("keys list",), ("keys add", "another"), ("keys revoke", "00000000")):
        done = run(*command)
        assert done.exit_code == 3
        assert "damaged" in done.stderr
    assert (tmp_path / "i" / "keys.json").read_text() == "{"


def test_a_name_cannot_play_tricks_with_the_terminal(run: Invoke, shown: Shown) -> None:
    for name in ("office\x1b[31m", "office\nroot"):
        refused = run("keys add", name)
        assert (refused.exit_code, "control characters" in refused.stderr) == (2, True)
        assert "\x1b" not in refused.output
    assert shown("keys list")["keys"] == []
    assert "\u202e" not in run("keys add", "office\u202e").output
    assert "\u202e" not in run("keys list").output
    (listed,) = shown("keys list")["keys"]
    assert json.dumps(listed["name"]) == '"office\\u202e"'


@pytest.mark.usefixtures("faiss_files")
def test_a_key_that_is_made_before_the_memory_is_in_its_trail(run: Invoke, tmp_path: Path) -> None:
    secret = run("keys add", "office").stdout
    assert not (tmp_path / "u").exists()
    (row,) = [json.loads(line) for line in run("trail", "--json").stdout.splitlines()]
    assert (row["action"], row["subject"]) == ("key-added", secret.split("_")[1])


@pytest.mark.usefixtures("faiss_files")
def test_a_key_that_the_trail_cannot_have_is_made_with_a_warning(run: Invoke, store: KeyStore, tmp_path: Path) -> None:
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / "memory.sqlite3").write_bytes(b"no database" * 1000)
    done = run("keys add", "office")
    assert done.exit_code == 0 and store.grant_of(done.stdout.strip()).may("read")
    assert "the trail has no row for this change of the key" in done.stderr
