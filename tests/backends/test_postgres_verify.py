"""`verify` of the backend `postgres` finds damaged words, and repairs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.testing import by_words, make_entry
from tests.backends.postgres_server import open_store, schema_of

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("postgres_url")]


OTTER = "(SELECT num FROM {schema}.entries WHERE content = 'an otter in the river')"


@pytest.mark.parametrize("table", ["word_entries", "words"])
def test_an_entry_whose_words_are_gone_is_found_and_repaired(postgres_url: str, tmp_path: Path, table: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    memory = open_store(tmp_path, HashingEmbedder())
    _, lost = memory.store([make_entry("a heron at the lake"), make_entry("an otter in the river")])
    with psycopg.connect(postgres_url) as connection:
        schema = schema_of(tmp_path)
        connection.execute(f"DELETE FROM {schema}.{table} WHERE num = {OTTER.format(schema=schema)}")
    assert {check.name: check.found for check in memory.verify() if check.found} == {"words": 1}
    memory.verify(repair=True)
    assert not [check for check in memory.verify() if check.found]
    assert by_words(memory, "otter") == [lost.id]
    with psycopg.connect(postgres_url) as connection:  # each term is counted once
        counts = connection.execute(
            f"SELECT count(*) FROM {schema}.word_counts AS c WHERE entries <> "
            f"(SELECT count(*) FROM {schema}.words AS w WHERE w.term = c.term)"
        )
        assert counts.fetchone() == (0,)
    memory.close()
