"""Without a network a name of the hub is refused at once, in one sentence, without a library's noise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from seqmlm.data.problems import Problems
from seqmlm.domains.text import TEXT
from seqmlm.engine import foreign
from seqmlm.errors import SeqmlmError
from seqmlm.inference import model_folder
from seqmlm.inference.session import Session


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub at a port where nothing listens."""
    monkeypatch.setattr("transformers.utils.hub.constants.ENDPOINT", "http://127.0.0.1:9")
    foreign._hub_answers.cache_clear()
    yield
    foreign._hub_answers.cache_clear()


ASKING: dict[str, Callable[[], object]] = {
    "session": lambda: Session.open("some/model", domain="text"),
    "tokenizer": lambda: model_folder.load_tokenizer("some/model", "text"),
    "weights": lambda: model_folder.load("some/model", domain="protein"),
    "settings": lambda: foreign.settings("some/model"),
    "data set": lambda: list(TEXT.read(["hf:some/data"], Problems())),
    "split": lambda: list(TEXT.read(["hf:some/data:train"], Problems())),
    "commit": lambda: TEXT.files.inputs(["hf:some/data"], options={}),
}


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("name", ASKING)
def test_a_name_of_an_absent_hub(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    before = time.monotonic()
    with pytest.raises(SeqmlmError, match="hub cannot be reached") as error:
        ASKING[name]()
    assert time.monotonic() - before < 20, "nothing is asked again and again"
    assert "\n" not in str(error.value)
    told = "".join(capfd.readouterr())
    assert "Retry" not in told
    assert "thrown" not in told
