"""The backend `cosmos_db`: a store in a container of Azure Cosmos DB, with a local copy on each node."""

from agentformer.memory.backends.cosmos_db.container import Container, CosmosAddress

__all__ = ["Container", "CosmosAddress"]
