"""A memory service of Google ADK. Give it to `Runner(memory_service=service)`."""

import asyncio
import tempfile

from google.adk.events import Event
from google.adk.sessions import Session
from google.genai.types import Content, Part

import agentformer
from agentformer.integrations.adk import AgentFormerMemoryService

with tempfile.TemporaryDirectory() as folder:
    places = {"index_dir": f"{folder}/indexes", "upload_dir": f"{folder}/uploads"}
    with agentformer.connect(embedder="hashing", **places) as af:
        service = AgentFormerMemoryService(af)
        said = Event(id="e1", author="user", content=Content(role="user", parts=[Part(text="I prefer green tea.")]))
        session = Session(id="monday", app_name="shop", user_id="aino", events=[said])
        asyncio.run(service.add_session_to_memory(session))
        asyncio.run(service.add_session_to_memory(session))  # kept once
        found = asyncio.run(service.search_memory(app_name="shop", user_id="aino", query="Which tea?"))
        print([memory.content.parts[0].text for memory in found.memories])
