"""A session of the OpenAI Agents SDK over a memory on disk. Give it to `Runner.run(agent, text, session=session)`."""

import asyncio
import tempfile

import agentformer
from agentformer.integrations.openai_agents import AgentFormerSession, function_tools


async def talk(af: agentformer.AgentFormer) -> None:
    session = AgentFormerSession("monday", af, user_id="aino")
    await session.add_items([{"role": "user", "content": "I prefer green tea."}])
    print(await session.get_items())
    print(af.memory.search("Which tea?", user_id="aino")[0].entry.content)
    print([tool.name for tool in function_tools(af, ["memory_search", "memory_add"])])


with tempfile.TemporaryDirectory() as folder:
    places = {"index_dir": f"{folder}/indexes", "upload_dir": f"{folder}/uploads"}
    with agentformer.connect(embedder="hashing", **places) as af:
        asyncio.run(talk(af))
