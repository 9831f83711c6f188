"""What a model was trained on: recognised exactly, keyed, sorted, thinned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seqmlm.data import identity
from seqmlm.data.identity import IDENTITIES, SALT, TrainedOn, identity_hash, new_salt, write_trained_on


def prepared(folder: Path, texts: list[str], trains: list[bool]) -> Path:
    folder.mkdir()
    salt = new_salt()
    np.save(folder / SALT, salt)
    hashes = np.array([identity_hash(text, salt.tobytes()) for text in texts], dtype="<u8")
    hashes.tofile(folder / IDENTITIES)
    write_trained_on(folder, np.array(trains))
    return folder


def test_records_that_train_are_recognised_and_others_are_not(tmp_path: Path) -> None:
    texts = [f"text {n} \udcff" for n in range(1000)]
    trains = [n % 3 == 0 for n in range(1000)]
    first = prepared(tmp_path / "a", texts, trains)
    second = prepared(tmp_path / "b", ["other"], [True])
    known = TrainedOn.of_prepared([first, second])
    again = TrainedOn.from_arrays(known.to_arrays())
    for one in (known, again):
        assert [text in one for text in texts] == trains
        assert "other" in one
        assert "Other" not in one
    assert not (first / IDENTITIES).exists()
    hashes = known.corpora[0][0]
    assert (hashes[1:] > hashes[:-1]).all()


def test_hashes_of_two_models_cannot_be_compared(tmp_path: Path) -> None:
    folders = [prepared(tmp_path / name, ["text"], [True]) for name in "ab"]
    known = TrainedOn.of_prepared(folders)
    assert known.corpora[0][0].tolist() != known.corpora[1][0].tolist()


def test_many_records_are_thinned_by_their_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "MOST", 100)
    texts = [str(n) for n in range(1000)]
    known = TrainedOn.of_prepared([prepared(tmp_path / "a", texts, [True] * 1000)])
    salt = known.corpora[0][1]
    smallest = sorted(texts, key=lambda text: identity_hash(text, salt))[:100]
    assert {text for text in texts if text in known} == set(smallest)
