"""Sentence-transformers models: by hub name, by local folder, or the packaged all-MiniLM-L6-v2; on torch, or on
OpenVINO from an export that is made once and loads without torch."""

from agentformer.embedders.sbert.embedder import SbertEmbedder
from agentformer.embedders.sbert.fidelity import PROBE, fingerprint
from agentformer.embedders.sbert.hub import why_unavailable

__all__ = ["PROBE", "SbertEmbedder", "fingerprint", "why_unavailable"]
