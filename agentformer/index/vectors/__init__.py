"""The vector index: exact at first, trained later, always up to date."""

from agentformer.index.vectors.index import Base, Image, Near, VectorIndex
from agentformer.index.vectors.outliers import Codes
from agentformer.index.vectors.rows import Numbers, Rows
from agentformer.index.vectors.training import Interrupted, Stored

__all__ = ["Base", "Codes", "Image", "Interrupted", "Near", "Numbers", "Rows", "Stored", "VectorIndex"]
