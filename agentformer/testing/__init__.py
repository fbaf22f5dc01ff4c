"""Conformance suites and fakes for the authors of plugins. AgentFormer's own tests use these suites and fakes, too.

    from agentformer.testing import BackendConformance

    class TestMyBackend(BackendConformance):
        def open(self, folder, embedder):
            return MyBackend(folder, embedder)

pytest runs the inherited tests. To see the compared values in a failure, call
`pytest.register_assert_rewrite("agentformer.testing")` in your conftest. `Reference` computes the expected values in
plain Python and NumPy.
"""

from agentformer.testing.archiving import Archiving, Verifying
from agentformer.testing.case import (
    CountingEmbedder,
    FlakyEmbedder,
    OverlapReranker,
    Reference,
    admits,
    by_words,
    make_entry,
    raises,
)
from agentformer.testing.changing import Changing, Leases, Parts, Superseding
from agentformer.testing.embedding import Pending, Reembedding
from agentformer.testing.filtering import Filtering
from agentformer.testing.models import EmbedderConformance, LanguageModelConformance, RerankerConformance
from agentformer.testing.searching import Scopes, Searching
from agentformer.testing.storing import AbsentDocuments, Storing
from agentformer.testing.summaries import Summaries
from agentformer.testing.usage import Duplicates, Uses
from agentformer.testing.validity import Validity

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
    Storing,
    AbsentDocuments,
    Duplicates,
    Changing,
    Superseding,
    Validity,
    Parts,
    Uses,
    Leases,
    Summaries,
    Scopes,
    Filtering,
    Searching,
    Pending,
    Reembedding,
    Archiving,
    Verifying,
):
    """The contract of `MemoryBackend` as tests. A subclass defines `open(folder, embedder)`, which returns the backend
    under test. If the backend stores no vectors, the subclass sets `vectors = False`, and the tests of vectors are
    skipped."""
