"""Suites that prove a backend, an embedder, a reranker or a language model right, for plugin authors and for
ourselves; and fakes.

    from agentformer.testing import BackendConformance

    class TestMyBackend(BackendConformance):
        def open(self, folder, embedder):
            return MyBackend(folder, embedder)

pytest runs the inherited tests; `pytest.register_assert_rewrite("agentformer.testing")` in a conftest makes
failures tell the values. Every expectation is computed by `Reference`, a dictionary and NumPy.
"""

from agentformer.testing.archiving import Archiving
from agentformer.testing.case import by_words, raises
from agentformer.testing.changing import Changing
from agentformer.testing.embedder import EmbedderConformance
from agentformer.testing.fakes import CountingEmbedder, FlakyEmbedder, OverlapReranker
from agentformer.testing.language_model import LanguageModelConformance
from agentformer.testing.leasing import Leasing
from agentformer.testing.moving import Moving
from agentformer.testing.queueing import Queueing
from agentformer.testing.reference import Reference, admits, make_entry
from agentformer.testing.reranker import RerankerConformance
from agentformer.testing.scoping import Scoping
from agentformer.testing.searching import Searching
from agentformer.testing.storing import Storing
from agentformer.testing.summarising import Summarising
from agentformer.testing.using import Using
from agentformer.testing.verifying import Verifying

__all__ = [
    "BackendConformance",
    "CountingEmbedder",
    "EmbedderConformance",
    "FlakyEmbedder",
    "LanguageModelConformance",
    "OverlapReranker",
    "Reference",
    "RerankerConformance",
    "admits",
    "by_words",
    "make_entry",
    "raises",
]


class BackendConformance(
    Archiving, Verifying, Storing, Changing, Summarising, Using, Leasing, Scoping, Searching, Queueing, Moving
):
    """Every sentence of `MemoryBackend`, as tests. Subclasses give `open(folder, embedder)`, and those of a backend
    without vectors say `vectors = False`."""
