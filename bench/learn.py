"""Facts that are learnt from conversations without a language model. `python -m bench.learn`.

The messages of `locomo_dev` (two people) and `beam_dev` (a person and an assistant) are stored and learnt from. The
table has the number of messages of people, and the facts for a hundred of them. `--sample 100 --seed 2 --to FILE`
writes facts that are drawn at random, each with its quote, its speaker and its message, for a person who reads whether
each is true, about the right person and supported by its quote.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import agentformer
from agentformer.types import MemoryEntry
from bench.data import Row, load

SETS = ("locomo_dev", "beam_dev")
_DATES = ("%I:%M %p on %d %B, %Y", "%B-%d-%Y")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, help="number of facts to write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--to", type=Path, help="the file of the sample [default: standard output]")
    chosen = parser.parse_args()
    print("| set | messages of people | facts | for 100 messages | known | dropped |\n|---|---|---|---|---|---|")
    facts: list[tuple[str, MemoryEntry, MemoryEntry]] = []
    for name in SETS:
        messages, report, found = learnt(name)
        facts += [(name, *pair) for pair in found]
        share = 100 * len(found) / messages
        print(f"| {name} | {messages} | {len(found)} | {share:.1f} | {report['known']} | {report['dropped']} |")
    if chosen.sample:
        drawn = random.Random(chosen.seed).sample(facts, min(chosen.sample, len(facts)))
        text = "\n".join(described(n, *fact) for n, fact in enumerate(drawn, 1))
        chosen.to.write_text(text, "utf-8") if chosen.to else sys.stdout.write(text)


def learnt(name: str) -> tuple[int, dict[str, Any], list[tuple[MemoryEntry, MemoryEntry]]]:
    """Return the number of messages of people in a set, the report of the run, and each fact with its message."""
    rows = load(name).corpus
    report: dict[str, Any] = {"known": 0, "dropped": {}}
    found = []
    with (
        tempfile.TemporaryDirectory() as folder,
        agentformer.connect(index_dir=f"{folder}/i", upload_dir=f"{folder}/u", embedder="hashing", clean_every=0) as af,
    ):
        for conversation in sorted({row.meta["conv"] for row in rows}):
            own = [row for row in rows if row.meta["conv"] == conversation]
            stored = {entry.id: entry for entry in af.memory.add_messages(messages_of(own))}
            done = af.memory.learn(namespace=conversation)
            report["known"] += done.known
            report["dropped"] = {key: report["dropped"].get(key, 0) + count for key, count in done.dropped.items()}
            facts = af.memory.list(namespace=conversation, kinds=("fact",), limit=1_000)
            found += [(fact, stored[fact.parent_id or ""]) for fact in facts]
    return sum(row.meta["speaker"] != "assistant" for row in rows), report, found


def messages_of(rows: list[Row]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of `add_messages` for the messages of one conversation."""
    for row in rows:
        speaker = row.meta["speaker"]
        given = {"speaker": speaker} if speaker not in ("user", "assistant") else {}
        moment = next(filter(None, (_date(row.meta["date_time"], pattern) for pattern in _DATES)), None)
        yield {
            "session_id": f"session {row.meta['session']}",
            "role": "assistant" if speaker == "assistant" else "user",
            "content": row.text,
            "namespace": row.meta["conv"],
            **({"occurred_at": moment} if moment else {}),
            **given,
        }


def described(number: int, name: str, fact: MemoryEntry, message: MemoryEntry) -> str:
    """Return a fact as text for a reader."""
    who = fact.speaker or "the user"
    return f"{number}. [{name}] {who}: {fact.content}\n   message: {' '.join(message.content.split())[:500]}\n"


def _date(text: str, pattern: str) -> datetime | None:
    try:
        return datetime.strptime(text, pattern).replace(tzinfo=UTC)
    except ValueError:
        return None


if __name__ == "__main__":
    main()
