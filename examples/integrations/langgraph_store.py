"""A store of LangGraph over a memory on disk."""

import tempfile

import agentformer
from agentformer.integrations.langgraph import AgentFormerStore

with tempfile.TemporaryDirectory() as folder:
    places = {"index_dir": f"{folder}/indexes", "upload_dir": f"{folder}/uploads"}
    with agentformer.connect(embedder="hashing", **places) as af:
        store = AgentFormerStore(af)
        store.put(("users", "aino"), "drink", {"text": "Aino prefers green tea", "sure": 0.9})
        store.put(("users", "aino"), "home", {"text": "Aino lives in Oulu", "sure": 0.5})
        print(store.search(("users",), query="Which tea does she prefer?", limit=1)[0].key)
        print([item.key for item in store.search(("users", "aino"), filter={"sure": {"$lt": 0.8}})])
        print(store.list_namespaces(prefix=("users",)))
