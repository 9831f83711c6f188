"""Fixtures of the tests of inference."""

from __future__ import annotations

import pytest
from tiny_models import protein_model

from seqmlm.inference.model_folder import LoadedModel


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return protein_model()
