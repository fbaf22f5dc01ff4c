"""A vector store and a retriever of LangChain over a memory on disk."""

import tempfile

import agentformer
from agentformer.integrations.langchain import AgentFormerRetriever, AgentFormerVectorStore

with tempfile.TemporaryDirectory() as folder:
    places = {"index_dir": f"{folder}/indexes", "upload_dir": f"{folder}/uploads"}
    with agentformer.connect(embedder="hashing", **places) as af:
        store = AgentFormerVectorStore(af)
        texts = ["The caretaker holds the keys.", "Tea is served at four."]
        store.add_texts(texts, [{"year": 2024}, {"year": 2026}], ids=["keys", "tea"])
        recent = {"type": "gte", "key": "year", "value": 2025}
        print([document.id for document in store.similarity_search("Who holds the keys?", k=1)])
        print([document.id for document in store.similarity_search("Who holds the keys?", filter=recent)])
        (found,) = AgentFormerRetriever(af=af, k=1).invoke("When is tea served?")
        print(found.page_content, found.metadata["kind"])
