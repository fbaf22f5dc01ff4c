"""Keys: made, listed, revoked and recognised. They are kept in one small file beside the records.

A key is `af_ID_SECRET`, with a secret of 256 random bits. Only its SHA-256 is kept: nobody can guess such a secret,
so the slow hashes that passwords need would cost every request time and add nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import unicodedata
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from agentformer.access.grant import RIGHTS, Grant, Right
from agentformer.access.key_file import Key, read_keys, write_keys
from agentformer.errors import Busy, InvalidInput, NotFound, StoreFull, Unauthenticated
from agentformer.records import fields

FILE = "keys.json"
PREFIX = "af_"
_UNSHOWN = ("Cc", "Zl", "Zp")  # categories of control characters, and of what ends a line or a paragraph
_LOCK_SECONDS = 10.0  # a change takes milliseconds


class KeyStore:
    """The keys of one memory. Any number of stores, in any number of processes, may have the same folder: each sees
    what the others changed with its next call. Every method raises `StoreDamaged` for a file that cannot be
    understood and `StoreError` for one that cannot be read, so that nobody gets in meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock = FileLock(folder / "keys.lock", timeout=_LOCK_SECONDS)
        self._read: tuple[bytes, tuple[Key, ...]] | None = None  # the file as it was last seen, and what it says
        self._noted: set[tuple[str, date]] = set()  # uses that this process has written down, or tried to

    @property
    def ever_made(self) -> bool:
        """Whether there was ever a key. From then on requests need one: revoking the last does not open the server,
        nor does taking the file away while a process that has read it runs."""
        return self._keys() is not None

    def all(self) -> tuple[Key, ...]:
        """Every key that was not revoked, expired ones too, the oldest first."""
        return self._keys() or ()

    def make(
        self,
        name: str,
        rights: Iterable[Right] = ("read", "write"),
        namespaces: Iterable[str] = (),
        without: Iterable[str] = (),
        expires: datetime | None = None,
    ) -> tuple[Key, str]:
        """A new key and its text, which nobody can learn again. Without namespaces it reaches every one; `without`
        names tools that are switched off for it. Raises `InvalidInput`, `StoreFull` or `Busy`."""
        wanted = fields.names("rights", rights)
        if not wanted or not set(wanted) <= set(RIGHTS):
            raise InvalidInput("rights", f"must be some of {', '.join(RIGHTS)}")
        now = datetime.now(UTC)
        expires = fields.moment("expires", expires)
        if expires is not None and expires <= now:
            raise InvalidInput("expires", "lies in the past")
        name, reached = _shown_name(name), tuple(dict.fromkeys(fields.names("namespaces", namespaces)))
        switched_off = frozenset(fields.names("without", without))
        kept = tuple(right for right in RIGHTS if right in wanted)
        made: list[tuple[Key, str]] = []

        def add(keys: tuple[Key, ...]) -> tuple[Key, ...]:
            key_id = _unused_id({key.id for key in keys})
            secret = f"{PREFIX}{key_id}_{secrets.token_hex(32)}"
            made.append((Key(key_id, name, kept, reached, switched_off, _digest(secret), now, expires), secret))
            return (*keys, made[0][0])

        self._change(add)
        return made[0]

    def revoke(self, key_id: str) -> Key:
        """Take a key away; the next request with it is refused. Raises `NotFound`."""
        taken: list[Key] = []

        def remove(keys: tuple[Key, ...]) -> tuple[Key, ...]:
            taken.extend(key for key in keys if key.id == key_id)
            if not taken:
                raise NotFound(f"there is no key {key_id[:80]}")
            return tuple(key for key in keys if key.id != key_id)

        self._change(remove)
        return taken[0]

    def grant_of(self, secret: str) -> Grant:
        """What the holder of this key may do. Takes the same time for every wrong key, whatever of it is right.
        Raises `Unauthenticated`."""
        asked = _digest(secret)
        # All are compared, each in constant time, so that the time does not tell which ids there are.
        matching = [key for key in self.all() if hmac.compare_digest(key.digest, asked)]
        if not matching:
            raise Unauthenticated("this key is not valid here")
        key, now = matching[0], datetime.now(UTC)
        if key.expires_at is not None and key.expires_at <= now:
            raise Unauthenticated("this key has expired; ask for a new one")
        self._note_use(key, now.date())
        return Grant(frozenset(key.rights), key.namespaces, key.without, key.id)

    def _note_use(self, key: Key, today: date) -> None:
        """Write down the day, once a day. A request does not wait for it, nor fail by it."""
        if key.last_used_on == today or (key.id, today) in self._noted:
            return
        self._noted.add((key.id, today))
        with contextlib.suppress(StoreFull, Busy):
            self._change(
                lambda keys: tuple(each.used(today) if each.id == key.id else each for each in keys), patience=0
            )

    def _keys(self) -> tuple[Key, ...] | None:
        """Read anew each time, and understood anew when it differs: times of files are too coarse to tell that a key
        was revoked just now."""
        before = self._read
        found = read_keys(self._path, before)
        if found is None and before is not None:
            return ()
        self._read = found
        return None if found is None else found[1]

    def _change(self, change: Callable[[tuple[Key, ...]], tuple[Key, ...]], *, patience: float = _LOCK_SECONDS) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock.acquire(timeout=patience):
                write_keys(self._path, change(self._keys() or ()))
        except Timeout:
            raise Busy("keys", "another process is changing them; try again") from None
        except OSError as error:
            raise StoreFull(f"{self._path} cannot be written: {error.strerror or error}") from None


def _shown_name(name: str) -> str:
    """A name that a list can show, one key a line. Raises `InvalidInput`."""
    if any(unicodedata.category(letter) in _UNSHOWN for letter in fields.name("name", name)):
        raise InvalidInput("name", "has control characters or line breaks; give a plain name, such as office")
    return name


def _unused_id(taken: set[str]) -> str:
    while (key_id := secrets.token_hex(4)) in taken:
        pass
    return key_id


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
