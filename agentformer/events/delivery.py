"""Sends the events of a memory to its webhooks, in background threads of its servers.

Each webhook has a cursor in the change feed, which is the queue: an event is sent until the receiver answers with a
status of 2xx, and only then the cursor moves on. So each event is sent at least once, in order, with the same id. A
lease lets one process at a time send to a webhook; if this process is killed, another one continues after the lease has
ended. No lock is held while a receiver answers, so a slow receiver delays only its own events.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from agentformer.access.keys import KeyStore
from agentformer.access.permissions import EVERYTHING
from agentformer.errors import AgentFormerError, FetchFailed, StoreError, Unauthenticated
from agentformer.events.event_log import EventLog, Filter
from agentformer.events.webhooks import DeliveryState, Webhook, Webhooks, signature
from agentformer.memory.background import PeriodicThread
from agentformer.records.events import START
from agentformer.types import LeaseStore, new_id

log = logging.getLogger("agentformer")

POLL_SECONDS = 1.0
_BATCH = 50  # events that are read at a time
_SAVE_SECONDS = 1.0  # at most so long after its delivery, the progress is stored
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 3_600.0  # seconds between two attempts at an event; doubled after each failure
_LONGEST_WAIT = 86_400.0  # seconds that a receiver may ask for with the header Retry-After
_GONE = 410

Post = Callable[[str, bytes, Mapping[str, str]], tuple[int, str]]  # returns the status and the header Retry-After


class Delivery(PeriodicThread):
    """A thread that looks for new events every second, and starts one thread for each webhook that has any. `post`
    sends a request; it must end before a lease of `lease_seconds` does."""

    name = "agentformer-webhooks"

    def __init__(
        self, events: EventLog, webhooks: Webhooks, keys: KeyStore, leases: LeaseStore, post: Post, lease_seconds: float
    ) -> None:
        super().__init__(POLL_SECONDS)
        self._events, self._webhooks, self._keys, self._leases = events, webhooks, keys, leases
        self._post = post
        self._lease_seconds = lease_seconds
        self._threads: dict[str, threading.Thread] = {}  # by the id of the webhook

    def tick(self) -> bool:
        """Start the threads of the webhooks that have something to do. Errors are logged, and the next call tries
        again."""
        try:
            due = [(hook, state) for hook, state in self._webhooks.all() if self._is_due(hook, state)]
            newest = self._events.last() if due else ""
        except AgentFormerError as error:
            if not self._stopped.is_set():
                log.warning("the webhooks could not be read and are tried again later: %s", error)
            return True
        for hook, state in due:
            if state.after != newest:
                thread = threading.Thread(target=self._run, args=(hook,), name=self.name, daemon=True)
                self._threads[hook.id] = thread
                thread.start()
        return False

    def close(self, seconds: float = 2.0) -> None:
        """Stop all threads, and wait up to `seconds` for requests in progress. Idempotent."""
        super().close(seconds)
        end = time.monotonic() + seconds
        for thread in [*self._threads.values()]:
            thread.join(max(0.0, end - time.monotonic()))

    def _is_due(self, hook: Webhook, state: DeliveryState) -> bool:
        thread = self._threads.get(hook.id)
        wait = state.next_at - time.time()
        is_waiting = 0 < wait <= _LONGEST_WAIT  # a longer one means that the clock was set back
        return not state.gone and not is_waiting and (thread is None or not thread.is_alive())

    def _run(self, hook: Webhook) -> None:
        """Send the events of a webhook, unless another process holds its lease."""
        name, holder = f"webhook/{hook.id}", new_id()
        try:
            if self._leases.lease(name, holder, self._lease_seconds):
                try:
                    _Sender(hook, self, lambda: self._leases.lease(name, holder, self._lease_seconds)).run()
                finally:
                    self._leases.release(name, holder)
        except StoreError as error:
            if not self._stopped.is_set():
                log.warning("events for the webhook %s could not be read and are tried again later: %s", hook.id, error)
        except Exception:
            log.exception("internal error; the webhook %s is tried again", hook.id)

    def stopping(self) -> bool:
        """Return whether the threads must end."""
        return self._stopped.is_set()


class _Sender:
    """Sends the events of one webhook until none is left or an attempt fails. `extend` extends the lease, and returns
    False if it was lost."""

    def __init__(self, hook: Webhook, delivery: Delivery, extend: Callable[[], bool]) -> None:
        self._hook, self._delivery, self._extend = hook, delivery, extend
        stored = next((state for each, state in delivery._webhooks.all() if each.id == hook.id), None)
        self._state = self._stored = stored or DeliveryState("", gone=True)
        self._saved_at = self._extended_at = time.monotonic()

    def run(self) -> None:
        """Send the events that wait, until none is left or a request fails."""
        more = not self._state.gone
        while more:
            wanted, problem = self._allowed()
            if wanted is None:
                self._fail(problem, _LONGEST_PAUSE)
                return
            page = self._delivery._events.page(self._state.after, wanted, _BATCH)
            lost = [{"id": f"lost-{self._state.after}", "type": "lost", "timestamp": _now(), "data": {}}]
            for event in [*(lost if page.lost else ()), *page.events]:
                if self._delivery.stopping() or not self._keep_lease():
                    self._save()
                    return
                if not self._send(event["id"], json.dumps(event).encode()):
                    return
            self._state = replace(self._state, after=page.next)
            more = page.more and self._save()
        self._save()

    def _allowed(self) -> tuple[Filter | None, str]:
        """Return the filter of the webhook, within the present rights of the key that made it; or None, and the
        reason."""
        hook, grant = self._hook, EVERYTHING
        if hook.key_id:
            try:
                grant = self._delivery._keys.grant_by_id(hook.key_id)
            except Unauthenticated as error:
                return None, f"key {hook.key_id}: {error}"
        wanted = Filter(hook.events, hook.namespaces, hook.content).allowed(grant)
        return wanted, f"key {hook.key_id}: this key may no longer read these events"

    def _send(self, event_id: str, body: bytes) -> bool:
        """Send one event, and record the result. Return False after a failure."""
        timestamp = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "webhook-id": event_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(self._hook.secret, event_id, timestamp, body),
        }
        try:
            status, retry_after = self._delivery._post(self._hook.url, body, headers)
        except FetchFailed as error:
            self._fail(str(error))
            return False
        if not 200 <= status < 300:
            self._fail(f"the receiver answered with HTTP {status}", _seconds(retry_after), gone=status == _GONE)
            return False
        after = START if event_id.startswith("lost") else event_id
        self._state = DeliveryState(after, delivered=self._state.delivered + 1, delivered_at=_now())
        if time.monotonic() >= self._saved_at + _SAVE_SECONDS:
            return self._save()
        return True

    def _fail(self, error: str, wait: float = 0.0, *, gone: bool = False) -> None:
        failures = self._state.failures + 1
        pause = min(_FIRST_PAUSE * 2.0 ** min(failures - 1, 20), _LONGEST_PAUSE)
        pause *= random.uniform(0.8, 1.2)  # noqa: S311 - servers that failed together retry at different times
        next_at = time.time() + max(pause, wait)
        self._state = replace(self._state, failures=failures, next_at=next_at, error=error[:300], gone=gone)
        self._save()

    def _keep_lease(self) -> bool:
        """Extend the lease after each third of its time. Return False if it was lost."""
        if time.monotonic() < self._extended_at + self._delivery._lease_seconds / 3:
            return True
        self._extended_at = time.monotonic()
        return self._extend()

    def _save(self) -> bool:
        """Store the progress. Return False if the webhook was removed."""
        if self._state == self._stored:
            return True
        self._saved_at, self._stored = time.monotonic(), self._state
        return self._delivery._webhooks.set_state(self._hook.id, self._state)


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _seconds(retry_after: str) -> float:
    """Return the seconds in the header `Retry-After`, or 0 for a date or no header."""
    return min(float(retry_after), _LONGEST_WAIT) if retry_after.isdecimal() and len(retry_after) < 9 else 0.0
