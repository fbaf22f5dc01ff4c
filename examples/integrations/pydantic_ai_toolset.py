"""The tools of a memory for an agent of Pydantic AI. The test model calls every tool once."""

import tempfile

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

import agentformer
from agentformer.integrations.pydantic_ai import AgentFormerToolset

with tempfile.TemporaryDirectory() as folder:
    places = {"index_dir": f"{folder}/indexes", "upload_dir": f"{folder}/uploads"}
    with agentformer.connect(embedder="hashing", **places) as af:
        agent = Agent(TestModel(), toolsets=[AgentFormerToolset(af, ["memory_add"])])
        agent.run_sync("Remember something.")
        print(af.memory.count())
