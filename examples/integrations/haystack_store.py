"""A document store and a retriever for Haystack."""

import tempfile

from haystack import Document, Pipeline

import agentformer
from agentformer.integrations.haystack import AgentFormerDocumentStore, AgentFormerRetriever

with (
    tempfile.TemporaryDirectory() as folder,
    agentformer.connect(index_dir=folder, upload_dir=folder, embedder="hashing") as af,
):
    store = AgentFormerDocumentStore(af)
    store.write_documents([Document(content="The caretaker keeps the keys.", meta={"year": 2026})])

    pipeline = Pipeline()
    pipeline.add_component("retriever", AgentFormerRetriever(store, top_k=3))
    recent = {"field": "meta.year", "operator": ">=", "value": 2026}
    found = pipeline.run({"retriever": {"query": "Who keeps the keys?", "filters": recent}})
    print([document.content for document in found["retriever"]["documents"]])
