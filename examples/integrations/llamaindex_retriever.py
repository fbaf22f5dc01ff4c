"""A retriever of LlamaIndex over documents and memories."""

import tempfile
from pathlib import Path

import agentformer
from agentformer.integrations.llamaindex import AgentFormerRetriever

with tempfile.TemporaryDirectory() as folder:
    places = {"index_dir": f"{folder}/indexes", "upload_dir": f"{folder}/uploads"}
    with agentformer.connect(embedder="hashing", **places) as af:
        (Path(folder) / "rules.txt").write_text("The caretaker keeps the keys.")
        af.rag.upload(Path(folder) / "rules.txt")
        (node,) = AgentFormerRetriever(af, k=1).retrieve("Who keeps the keys?")
        print(node.text, node.metadata["source"], node.metadata["page"])
