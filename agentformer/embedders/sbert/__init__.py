"""Embedding models of sentence-transformers: a model from the model hub, a model in a local folder, or the model
all-MiniLM-L6-v2 of the package extra `offline`.

A model runs on torch or on OpenVINO. OpenVINO reads an export, which is a converted copy of the model. The export is
made once, and it can be loaded without torch.
"""

from agentformer.embedders.sbert.embedder import SbertEmbedder
from agentformer.embedders.sbert.runtime import why_unavailable

__all__ = ["SbertEmbedder", "why_unavailable"]
