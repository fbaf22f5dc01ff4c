"""Sentence-transformers models: by hub name, by local folder, or the packaged all-MiniLM-L6-v2.

They run on torch, or on OpenVINO from an export that is made once and loads without torch.
"""

from agentformer.embedders.sbert.embedder import SbertEmbedder
from agentformer.embedders.sbert.runtime import why_unavailable

__all__ = ["SbertEmbedder", "why_unavailable"]
