"""One small model for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.embedders.sbert_models import bert


@pytest.fixture(scope="session")
def own_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of the same shape."""
    return bert(tmp_path_factory.mktemp("other"), seed=2)
