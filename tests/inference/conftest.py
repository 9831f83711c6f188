"""Fixtures of the tests of inference."""

from __future__ import annotations

import pytest
from tiny_models import random_model

from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.inference.model_folder import LoadedModel


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """Its answers depend on what it sees: those of two windows of a record differ."""
    return random_model("protein", ResidueTokenizer(), max_length=22)
