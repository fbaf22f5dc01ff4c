"""Conformance suites and fakes for the authors of plugins. AgentFormer's own tests use these suites and fakes, too.

    from agentformer.testing import LeaseConformance, StoreConformance

    class TestMyStore(StoreConformance, LeaseConformance):
        vectors = False

        def open(self, folder, embedder):
            return MyStore(folder)

`StoreConformance` tests `MemoryBackend`, which every store offers. Each protocol of `types.stores` has a suite of its
own; `BackendConformance` is all of them.

pytest runs the inherited tests. To see the compared values in a failure, call
`pytest.register_assert_rewrite("agentformer.testing")` in your conftest. `Reference` computes the expected values in
plain Python and NumPy.
"""

from agentformer.testing.archiving import Backups, KeptVectors, Snapshots, Verifying
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
    "BackupConformance",
    "CountingEmbedder",
    "EmbedderConformance",
    "FlakyEmbedder",
    "LanguageModelConformance",
    "LeaseConformance",
    "OriginalsConformance",
    "OverlapReranker",
    "Reference",
    "RerankerConformance",
    "SnapshotConformance",
    "StoreConformance",
    "VectorConformance",
    "VerifiedConformance",
    "admits",
    "by_words",
    "make_entry",
    "raises",
]


class StoreConformance(
    Storing, Duplicates, Changing, Superseding, Validity, Parts, Uses, Summaries, Scopes, Filtering, Searching
):
    """The contract of `MemoryBackend` as tests. A subclass defines `open(folder, embedder)`, which returns the store
    under test. If the store stores no vectors, the subclass sets `vectors = False`, and the tests of vectors are
    skipped."""


class VectorConformance(Pending, Reembedding):
    """The contract of `VectorStore` as tests."""


class SnapshotConformance(Snapshots):
    """The contract of `SnapshotStore` as tests."""


class BackupConformance(Backups):
    """The contract of `BackupStore` as tests."""


class VerifiedConformance(Verifying):
    """The contract of `VerifiedStore` as tests."""


class LeaseConformance(Leases):
    """The contract of `LeaseStore` as tests."""


class OriginalsConformance(AbsentDocuments):
    """The contract of `OriginalsStore` as tests."""


class BackendConformance(
    StoreConformance,
    VectorConformance,
    SnapshotConformance,
    BackupConformance,
    VerifiedConformance,
    LeaseConformance,
    OriginalsConformance,
    KeptVectors,
):
    """The contract of `CompleteStore` as tests: every suite."""
