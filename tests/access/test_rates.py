"""Limits of keys: requests in a minute, wrong keys from one address; and the rotation of keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentformer.access import keys as keys_module
from agentformer.access.keys import KeyStore
from agentformer.access.limits import MINUTE, WRONG_A_MINUTE, Quota, Rates
from agentformer.errors import Busy, Conflict, InvalidInput, NotFound, Unauthenticated

pytestmark = pytest.mark.unit


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path)


def test_tokens_are_spent_and_grow_back() -> None:
    now = 100.0
    rates = Rates(lambda: now)
    assert [rates.take("a", 3) for _ in range(4)] == [
        (Quota(3, 2, 20), 0),
        (Quota(3, 1, 40), 0),
        (Quota(3, 0, 60), 0),
        (Quota(3, 0, 60), 20),
    ]
    assert rates.take("b", 3)[1] == 0, "each name has its own tokens"
    now += 19
    assert rates.take("a", 3)[1] == pytest.approx(1)
    now += 1
    assert rates.take("a", 3)[1] == 0
    assert rates.take("a", 3)[1] == pytest.approx(20)
    now += MINUTE
    assert [rates.take("a", 3)[1] for _ in range(3)] == [0, 0, 0]
    now -= 30  # a clock that runs backwards gives no tokens and takes none
    assert 0 < rates.take("a", 3)[1] <= MINUTE


def test_the_names_used_longest_ago_are_forgotten() -> None:
    rates = Rates(lambda: 0.0)
    for number in range(10_001):
        rates.take(f"address {number}", 1)
    assert rates.take("address 10000", 1)[1] == MINUTE
    assert rates.take("address 0", 1)[1] == 0


def test_a_key_may_send_its_requests_a_minute(store: KeyStore) -> None:
    _, secret = store.make("limited", requests_per_minute=2)
    _, other = store.make("other")
    allowance = store.grant_of(secret).allowance
    assert allowance is not None and allowance.quotas == {"key": Quota(2, 1, 30)}
    store.grant_of(secret)
    with pytest.raises(Busy, match="may send 2 requests a minute") as caught:
        store.grant_of(secret)
    assert caught.value.limit == "requests_per_minute" and 1 <= caught.value.retry_after <= 30
    assert caught.value.headers["RateLimit"].startswith('"key";r=0;t=')
    assert store.grant_of(other).allowance is None


def test_a_changed_limit_holds_at_once(store: KeyStore) -> None:
    key, secret = store.make("limited", requests_per_minute=1)
    store.grant_of(secret)
    assert store.change(key.id, requests_per_minute=0).limits.requests_per_minute == 0
    assert [store.grant_of(secret).allowance for _ in range(5)] == [None] * 5


@pytest.mark.parametrize("rate", [-1, 1.5, True, "9", 10_000_000, None])
def test_a_limit_is_a_number(store: KeyStore, rate: object) -> None:
    with pytest.raises(InvalidInput, match="requests_per_minute"):
        store.make("a", requests_per_minute=rate)  # type: ignore[arg-type]
    assert not store.ever_made


def test_wrong_keys_from_one_address_are_slowed_and_right_ones_are_not(store: KeyStore) -> None:
    _, secret = store.make("a")
    for _ in range(WRONG_A_MINUTE):
        with pytest.raises(Unauthenticated):
            store.grant_of("af_wrong", "203.0.113.7")
    with pytest.raises(Busy, match="wrong keys") as caught:
        store.grant_of("af_wrong", "203.0.113.7")
    assert caught.value.retry_after > 0
    assert store.grant_of(secret, "203.0.113.7").may("read")
    with pytest.raises(Unauthenticated):
        store.grant_of("af_wrong", "203.0.113.8")


def test_a_rotated_key_and_the_former_one_are_both_accepted_in_the_overlap(
    store: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, old = store.make("team", ("read",), ("notes",), ("rag_sync",), requests_per_minute=100)
    key, new, former = store.rotate(made.id, timedelta(hours=2))
    assert (key.name, key.rights, key.namespaces, key.without, key.limits.requests_per_minute) == (
        *("team", ("read",), ("notes",), frozenset({"rag_sync"})),
        100,
    )
    assert key.id != made.id == former.id and key.expires_at is None
    assert former.expires_at is not None and timedelta(hours=1.9) < former.expires_at - datetime.now(UTC)
    assert store.grant_of(old).key_id == made.id and store.grant_of(new).key_id == key.id

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + timedelta(hours=2, seconds=1)

    monkeypatch.setattr(keys_module, "datetime", Later)
    with pytest.raises(Unauthenticated, match="expired"):
        store.grant_of(old)
    assert store.grant_of(new).key_id == key.id


def test_a_rotation_keeps_the_lifetime_and_lengthens_none(store: KeyStore) -> None:
    made, _ = store.make("team", expires=datetime.now(UTC) + timedelta(days=30))
    key, _, former = store.rotate(made.id, timedelta(days=90))
    assert former.expires_at == made.expires_at
    assert key.expires_at is not None and abs(key.expires_at - datetime.now(UTC) - timedelta(days=30)) < timedelta(
        minutes=1
    )
    with pytest.raises(NotFound):
        store.rotate("unknown")
    for overlap in (timedelta(seconds=-1), timedelta(days=400_000)):
        with pytest.raises(InvalidInput, match="overlap"):
            store.rotate(made.id, overlap)
    assert len(store.all()) == 2


def test_a_key_that_was_replaced_or_has_expired_is_not_rotated(
    store: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = store.make("team")
    key, _, former = store.rotate(made.id)
    with pytest.raises(Conflict, match=f"was replaced by key {key.id}, and expires at 20.* UTC; rotate that key"):
        store.rotate(made.id)
    third, secret, _ = store.rotate(key.id)
    assert third.expires_at is None and store.grant_of(secret).key_id == third.id
    gone, _ = store.make("gone", expires=datetime.now(UTC) + timedelta(hours=1))

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + timedelta(days=2)

    monkeypatch.setattr(keys_module, "datetime", Later)
    for over in (gone, former):
        with pytest.raises(Conflict, match=f"key {over.id} expired at 20"):
            store.rotate(over.id)
    assert len(store.all()) == 4


def test_metrics_are_of_all_namespaces(store: KeyStore) -> None:
    with pytest.raises(InvalidInput, match="namespaces: cannot be used with the right metrics"):
        store.make("scraper", ("metrics",), ("team",))
    key, _ = store.make("scraper", ("metrics",))
    team, _ = store.make("team", ("read",), ("team",))
    for change in (
        lambda: store.change(key.id, namespaces=["team"]),
        lambda: store.change(team.id, rights=["metrics"]),
    ):
        with pytest.raises(InvalidInput, match="right metrics"):
            change()
    assert store.all() == (key, team)
    store.change(team.id, rights=["metrics"], namespaces=[])
