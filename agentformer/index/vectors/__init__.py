"""The vector index: exact at first, trained later, always up to date."""

from agentformer.index.vectors.apart import Codes
from agentformer.index.vectors.growing import Base, Image, Near, VectorIndex
from agentformer.index.vectors.rows import Numbers, Rows
from agentformer.index.vectors.training import Interrupted, Stored

__all__ = ["Base", "Codes", "Image", "Interrupted", "Near", "Numbers", "Rows", "Stored", "VectorIndex"]
