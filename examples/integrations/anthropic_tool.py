"""The memory tool of Claude over a memory on disk. Give `tool` to `client.beta.messages.tool_runner(tools=[tool])`."""

import tempfile

import agentformer
from agentformer.integrations.anthropic import AgentFormerMemoryTool

with tempfile.TemporaryDirectory() as folder:
    places = {"index_dir": f"{folder}/indexes", "upload_dir": f"{folder}/uploads"}
    with agentformer.connect(embedder="hashing", **places) as af:
        tool = AgentFormerMemoryTool(af)
        print(tool.call({"command": "create", "path": "/memories/tea.md", "file_text": "Aino prefers green tea."}))
        print(tool.call({"command": "view", "path": "/memories/tea.md"}))
        print(af.memory.search("Which tea does Aino prefer?")[0].entry.title)
