"""One small cross-encoder for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rerankers.cross_models import cross_encoder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sentence_transformers", reason="the extra `sbert` is not installed")
    return cross_encoder(tmp_path_factory.mktemp("cross"))
