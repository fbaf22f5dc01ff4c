"""Sentence-transformers models: by hub name, by local folder, or the packaged all-MiniLM-L6-v2.

A model runs on torch or on OpenVINO. OpenVINO uses an export of the model, which is made once and loads without torch.
"""

from agentformer.embedders.sbert.embedder import SbertEmbedder
from agentformer.embedders.sbert.runtime import why_unavailable

__all__ = ["SbertEmbedder", "why_unavailable"]
