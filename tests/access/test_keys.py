"""API keys: their file, their grants, and changes by other processes."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from agentformer.access import keys
from agentformer.access.authentication import authenticate
from agentformer.access.keys import KeyStore
from agentformer.access.permissions import EVERYTHING
from agentformer.errors import (
    AgentFormerError,
    Busy,
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    StoreDamaged,
    Unauthenticated,
)
from tests import forked


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path)


def test_a_key_grants_what_it_was_made_with(store: KeyStore) -> None:
    key, secret = store.make("office", ["write"], ["team", "lab"], ["memory_delete"])
    grant = store.grant_of(secret)
    assert grant.rights == {"write"}
    assert grant.namespaces == ("team", "lab")
    assert grant.without == {"memory_delete"}
    assert grant.key_id == key.id
    with pytest.raises(Forbidden):
        grant.require("read")


def test_a_key_is_random_and_contains_its_id(store: KeyStore) -> None:
    made = [store.make("office") for _ in range(3)]
    assert len({secret for _, secret in made}) == 3
    for key, secret in made:
        prefix, key_id, random = secret.split("_")
        assert (prefix, key_id) == ("af", key.id)
        assert len(bytes.fromhex(random)) == 32


def test_a_changed_key_keeps_its_text_and_has_the_new_rights(store: KeyStore) -> None:
    key, secret = store.make("office")
    changed = store.change(key.id, rights=["read"], namespaces=["team"], without=["rag_query"])
    assert (changed.name, changed.rights, changed.digest) == ("office", ("read",), key.digest)
    grant = store.grant_of(secret)
    assert (grant.rights, grant.namespaces, grant.without) == ({"read"}, ("team",), {"rag_query"})
    assert store.change(key.id, name="desk").rights == ("read",)
    with pytest.raises(InvalidInput):
        store.change(key.id, rights=[])
    with pytest.raises(NotFound):
        store.change("none", name="x")
    assert [key.name for key in store.all()] == ["desk"]


def test_rights_are_in_order_and_namespaces_are_not_repeated(store: KeyStore) -> None:
    key, _ = store.make("office", ["admin", "read"], ["b", "a", "b"])
    assert (key.rights, key.namespaces, len(key.id)) == (("read", "admin"), ("b", "a"), 8)
    other, _ = store.make("other")
    assert (other.rights, other.namespaces, other.expires_at) == (("read", "write"), (), None)
    assert [stored.id for stored in store.all()] == [key.id, other.id]
    store.revoke(key.id)
    assert store.all() == (other,)
    assert store.make("all", ["admin", "write", "read"])[0].rights == ("read", "write", "admin")


def test_a_request_does_not_wait_for_a_process_that_changes_the_keys(store: KeyStore, tmp_path: Path) -> None:
    _, secret = store.make("office")
    with FileLock(tmp_path / "keys.lock"):
        began = time.monotonic()
        store.grant_of(secret)
        assert time.monotonic() - began < keys._LOCK_SECONDS / 2
    assert store.all()[0].last_used_on is None


def test_a_held_lock_is_busy_and_not_a_full_disk(
    store: KeyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_LOCK_SECONDS", 0.0)
    with FileLock(tmp_path / "keys.lock"), pytest.raises(Busy, match="another process is changing the keys"):
        store.make("office")


def test_the_day_of_use_is_stored_once_a_day_and_for_the_used_key_only(store: KeyStore, tmp_path: Path) -> None:
    store.make("other")
    _, secret = store.make("office")
    store.grant_of(secret)
    changed = (tmp_path / "keys.json").stat().st_mtime_ns
    store.grant_of(secret)
    KeyStore(tmp_path).grant_of(secret)
    assert (tmp_path / "keys.json").stat().st_mtime_ns == changed
    other, office = store.all()
    assert (other.last_used_on, office.last_used_on is None) == (None, False)


def test_the_key_file_has_hashes_only_and_is_private(store: KeyStore, tmp_path: Path) -> None:
    _, secret = store.make("office")
    file = tmp_path / "keys.json"
    text = file.read_text()
    assert hashlib.sha256(secret.encode()).hexdigest() in text
    assert secret.rsplit("_", 1)[1] not in text
    assert secret not in repr(store.all())
    if os.name == "posix":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        store.make("another")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_wrong_keys_get_the_same_message(store: KeyStore) -> None:
    key, secret = store.make("office")
    wrong = [
        "",
        "x",
        key.id,
        secret[:-1],
        secret + "0",
        secret.upper(),
        f"af_{key.id}_{'0' * 64}",
        f"af_00000000_{secret[-64:]}",
        "é" * 70,
        "\udcff",
    ]
    messages = set()
    for text in wrong:
        with pytest.raises(Unauthenticated) as refused:
            store.grant_of(text)
        messages.add(str(refused.value))
    assert len(messages) == 1
    assert store.grant_of(secret).key_id == key.id


def test_a_key_is_found_by_its_digest_and_compared_with_no_other(
    store: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {key.digest: secret for key, secret in map(store.make, "abc")}
    compared: list[tuple[str, str]] = []
    real = keys.hmac.compare_digest
    monkeypatch.setattr(keys.hmac, "compare_digest", lambda a, b: (compared.append((a, b)), real(a, b))[1])
    for secret in made.values():
        store.grant_of(secret)
    with pytest.raises(Unauthenticated):
        store.grant_of(made.popitem()[1][:-1] + "x")
    assert len(compared) == 3 and all(one == other for one, other in compared)


def test_a_revoked_key_is_refused_at_once_by_every_store(tmp_path: Path) -> None:
    server, shell = KeyStore(tmp_path), KeyStore(tmp_path)
    key, secret = shell.make("office")
    assert server.grant_of(secret).key_id == key.id
    assert shell.revoke(key.id).name == "office"
    with pytest.raises(Unauthenticated):
        server.grant_of(secret)
    assert server.ever_made
    assert server.all() == ()


def test_revoking_the_last_key_does_not_open_the_server(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    assert not store.ever_made
    key, _ = store.make("office")
    store.revoke(key.id)
    assert store.ever_made
    assert KeyStore(tmp_path).ever_made
    with pytest.raises(NotFound):
        store.revoke(key.id)


def test_a_reset_after_the_last_key_gives_local_access_to_running_servers(tmp_path: Path) -> None:
    server, shell = KeyStore(tmp_path), KeyStore(tmp_path)
    shell.reset()
    assert not list(tmp_path.iterdir())
    (one, _), (two, _) = shell.make("one"), shell.make("two")
    shell.revoke(one.id)
    with pytest.raises(Conflict, match=two.id):
        shell.reset()
    assert server.ever_made and server.all() == (two,)
    shell.revoke(two.id)
    assert server.ever_made
    shell.reset()
    assert (server.ever_made, server.all(), KeyStore(tmp_path).ever_made) == (False, (), False)
    assert authenticate(server, {}, "127.0.0.1") is EVERYTHING
    with pytest.raises(Unauthenticated):
        authenticate(server, {}, "192.0.2.1")
    key, secret = shell.make("three")
    assert server.ever_made and server.grant_of(secret).key_id == key.id
    shell.revoke(key.id)
    assert server.ever_made and KeyStore(tmp_path).ever_made


def test_a_noted_use_of_a_revoked_key_changes_no_reset(tmp_path: Path) -> None:
    """A request can store the day of its key's last use after the key was revoked and the keys were reset."""
    server, shell = KeyStore(tmp_path), KeyStore(tmp_path)
    key, _ = shell.make("office")
    shell.revoke(key.id)
    shell.reset()
    server._note_use(key, datetime.now(UTC).date())
    assert not KeyStore(tmp_path).ever_made


@pytest.mark.parametrize("flag", ["false", "1", '"yes"', "null"])
def test_only_the_value_true_in_the_file_gives_local_access(tmp_path: Path, flag: str) -> None:
    (tmp_path / "keys.json").write_text(f'{{"version": 1, "keys": [], "local_access": {flag}}}')
    assert KeyStore(tmp_path).ever_made


def test_deleting_the_key_file_does_not_open_a_running_server(store: KeyStore, tmp_path: Path) -> None:
    _, secret = store.make("office")
    assert store.ever_made
    (tmp_path / "keys.json").unlink()
    assert store.ever_made
    with pytest.raises(Unauthenticated):
        store.grant_of(secret)


def test_a_key_expires(store: KeyStore, tmp_path: Path) -> None:
    _, secret = store.make("office", expires=datetime.now(UTC) + timedelta(days=1))
    store.grant_of(secret)
    kept = json.loads((tmp_path / "keys.json").read_text())
    del kept["keys"][0]["checksum"]
    kept["keys"][0]["expires_at"] = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    (tmp_path / "keys.json").write_text(json.dumps(kept))
    with pytest.raises(Unauthenticated, match="expired"):
        store.grant_of(secret)


def test_no_flipped_bit_changes_a_key(store: KeyStore, tmp_path: Path) -> None:
    key, secret = store.make("office", ["read"], ["team"])
    key = next(each for each in store.all() if each.id == key.id)
    data = (tmp_path / "keys.json").read_bytes()
    refused = 0
    for position in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        (tmp_path / "keys.json").write_bytes(flipped)
        try:
            assert KeyStore(tmp_path).all() == (key,), flipped
        except StoreDamaged as error:
            refused += 1
            assert str(tmp_path / "keys.json") in str(error)
    assert refused > len(data) * 4
    at = data.index(b"team")
    (tmp_path / "keys.json").write_bytes(data[:at] + b"u" + data[at + 1 :])
    with pytest.raises(StoreDamaged, match=f"the record of the key '{key.id}' does not match its checksum"):
        KeyStore(tmp_path).grant_of(secret)


def test_a_file_without_checksums_is_valid_and_gets_them_at_the_next_write(store: KeyStore, tmp_path: Path) -> None:
    key, secret = store.make("office")
    file = tmp_path / "keys.json"
    content = json.loads(file.read_text())
    checksum = content["keys"][0].pop("checksum")
    file.write_text(json.dumps(content))
    assert KeyStore(tmp_path).all() == (key,)
    store.change(key.id, name="office")
    assert json.loads(file.read_text())["keys"][0]["checksum"] == checksum
    assert store.grant_of(secret).key_id == key.id


def test_a_key_is_refused_from_the_very_moment_of_its_expiry(store: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = datetime.now(UTC) + timedelta(days=1)
    _, secret = store.make("office", expires=moment)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return at

    monkeypatch.setattr(keys, "datetime", Clock)
    at = moment - timedelta(microseconds=1)
    store.grant_of(secret)
    at = moment
    with pytest.raises(Unauthenticated, match="expired"):
        store.grant_of(secret)


def test_the_day_of_the_last_use_is_stored(store: KeyStore, tmp_path: Path) -> None:
    _, secret = store.make("office")
    assert store.all()[0].last_used_on is None
    before = datetime.now(UTC).date()
    store.grant_of(secret)
    used = KeyStore(tmp_path).all()[0].last_used_on
    assert used is not None
    assert before <= used <= datetime.now(UTC).date()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a folder that cannot be written")
def test_keys_work_in_a_folder_that_cannot_be_written(store: KeyStore, tmp_path: Path) -> None:
    key, secret = store.make("office")
    tmp_path.chmod(0o500)
    try:
        grant = store.grant_of(secret)
    finally:
        tmp_path.chmod(0o700)
    assert grant.key_id == key.id


def test_invalid_arguments_make_no_key(store: KeyStore) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"name": ""}, "name"),
        ({"name": "a", "rights": []}, "rights"),
        ({"name": "a", "rights": ["root"]}, "rights"),
        ({"name": "a", "rights": ["read", "root"]}, "rights"),
        ({"name": "a", "rights": "read"}, "rights"),
        ({"name": "a", "namespaces": [""]}, "namespaces"),
        ({"name": "a", "expires": datetime(2020, 1, 1, tzinfo=UTC)}, "expires"),
        ({"name": "a", "expires": datetime(2999, 1, 1)}, "expires"),
    ]
    for arguments, field in cases:
        with pytest.raises(InvalidInput) as refused:
            store.make(**arguments)
        assert refused.value.field == field
    assert not store.ever_made


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "id": "1",
        "name": "a",
        "rights": ["read"],
        "namespaces": [],
        "without": [],
        "sha256": "0" * 64,
        "made_at": "2026-01-01T00:00:00+00:00",
        "expires_at": None,
        "last_used_on": None,
        **changes,
    }


DAMAGED_FILES = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[]",
    b"null",
    b'{"version": 2, "keys": []}',
    b'{"version": 1}',
    b'{"version": 1, "keys": [{}]}',
    b"[" * 100_000,
    *(
        json.dumps({"version": 1, "keys": [entry(**wrong)]}).encode()
        for wrong in (
            {"rights": "admin"},
            {"rights": ["root"]},
            {"rights": []},
            {"namespaces": None},
            {"namespaces": "team"},
            {"namespaces": [""]},
            {"without": None},
            {"sha256": "0"},
            {"sha256": None},
            {"expires_at": "soon"},
            {"expires_at": "2999-01-01T00:00:00"},
            {"id": 1},
        )
    ),
    json.dumps({"version": 1, "keys": [entry(), entry()]}).encode(),
]


def test_a_damaged_key_file_refuses_everybody_and_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    store = KeyStore(tmp_path)
    _, secret = store.make("office")
    for damaged in DAMAGED_FILES:
        file.write_bytes(damaged)
        for act in (
            lambda: store.grant_of(secret),
            lambda: store.ever_made,
            lambda: KeyStore(tmp_path).ever_made,
            lambda: store.make("another"),
            lambda: store.revoke("1"),
        ):
            with pytest.raises(StoreDamaged, match=r"keys\.json"):
                act()
        assert file.read_bytes() == damaged


def test_a_folder_in_place_of_the_key_file_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "keys.json").mkdir()
    with pytest.raises(AgentFormerError):
        _ = KeyStore(tmp_path).ever_made


MAKER = """
import sys
from pathlib import Path
from agentformer.access.keys import KeyStore
store = KeyStore(Path(sys.argv[1]))
for number in range(6):
    key, secret = store.make(f"{sys.argv[2]}{number}")
    assert store.grant_of(secret).key_id == key.id
    if number % 2:
        store.revoke(key.id)
"""


@pytest.mark.process
def test_concurrent_processes_lose_no_keys(tmp_path: Path) -> None:
    makers = [forked.program(MAKER, tmp_path, name) for name in "abc"]
    assert [forked.ended(maker).returncode for maker in makers] == [0, 0, 0]
    left = sorted(key.name for key in KeyStore(tmp_path).all())
    assert left == [f"{name}{number}" for name in "abc" for number in (0, 2, 4)]


def test_names_with_control_characters_are_refused(store: KeyStore) -> None:
    for name in ("a\nb", "a\rb", "\x1b[2Jroot", "a\0b", "a\x7fb", "a\x85b", "a\u2028b", "a\u2029b", "\ttab"):
        with pytest.raises(InvalidInput, match="name: has control characters"):
            store.make(name)
    assert not store.ever_made
    key, _ = store.make("Ääkköset 🔑, Åbo office")
    assert store.all() == (key,)
