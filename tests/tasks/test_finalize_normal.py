"""Training data that judge themselves: each record by what is counted in the other parts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from log_models import NORMAL, log_model
from time_limits import endless

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.domains.logs.levels import NAMED, LogBackground, PausedLogs, SessionLevel
from seqmlm.engine.types import InMemory
from seqmlm.inference.calibrations import stored_calibration
from seqmlm.inference.session import Session
from seqmlm.training import normal_rows as finalize_normal
from seqmlm.training.config import resolve_config
from seqmlm.training.corpus import Corpus, CorpusReader
from seqmlm.training.launch import TrainRequest
from seqmlm.training.normal_rows import counted_rows
from seqmlm.training.observers import SilentConsole
from seqmlm.training.pretrain import pretrain
from seqmlm.workspace import Workspace


@pytest.fixture
def logs(workspace: Path) -> list[Path]:
    """Two files of windows of four lines; a kind of line that only the first part of each has."""
    files = []
    for day, (name, first) in enumerate({"a": "power supply replaced", "b": "disk fine again"}.items(), 1):
        lines = [NORMAL[n % 4] if n > 20 or n % 7 else first for n in range(240)]
        times = [f"2024-01-0{day} 00:{n // 60:02}:{n % 60:02}" for n in range(240)]
        files.append(workspace / f"{name}.log")
        files[-1].write_text("".join(f"{time} {line}\n" for time, line in zip(times, lines, strict=True)))
    return files


def corpus_of(paths: list[str]) -> Corpus:
    domain = plugins.domain("logs")
    data = {"paths": paths, "options": {"session": "none", "window": 4}}
    config = resolve_config(domain, {"data": data})
    return CorpusReader(config, domain, Workspace.locate()).corpus(str)


def test_each_part_is_judged_by_the_others(logs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalize_normal, "PARTS", 3)
    monkeypatch.setattr(PausedLogs, "parts", lambda self, record, random: (record,))
    corpus = corpus_of([str(path) for path in logs])
    level, session = SessionLevel("session"), Session(log_model(corpus.tokenizer))
    found = counted_rows(level, session, corpus, 0, endless())
    assert found is not None
    numbers = corpus.train.records(range(len(corpus.train)))
    assert found.records.tolist() == numbers.tolist()
    encodings = [corpus.train[n] for n in range(len(numbers))]
    raws = dict(corpus.training(1000))
    assert [line for n in numbers.tolist() for line in raws[n].raw.lines]
    edges = np.quantile(numbers, [1 / 3, 2 / 3], method="higher")
    part = np.searchsorted(edges, numbers, side="right")
    assert np.unique(part).tolist() == [0, 1, 2]
    for at, number in enumerate(numbers.tolist()):
        others = [one for one, own in zip(encodings, part, strict=True) if own != part[at]]
        background = LogBackground.fit(InMemory(others), corpus.tokenizer, seed=0)
        statistics, lengths = level.counting.columns([(raws[number], encodings[at])], background)
        assert lengths.tolist() == [found.lengths[at]]
        for name, own in statistics.items():
            np.testing.assert_array_equal(own, found.statistics[name][[at]], err_msg=name)
    assert np.isinf(found.statistics["unseen"]).any(), "what one part alone has was never seen"
    assert not np.isinf(found.statistics["unseen"]).all()


def test_a_value_that_only_one_part_has_was_never_seen(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rare first segments of paths stand in no template; most of them have one record, some two far apart."""
    monkeypatch.setattr(PausedLogs, "parts", lambda self, record, random: (record,))
    rare = {4_001: "one", 1_003: "both", 3_003: "both", 2_100: "near", 2_101: "near"}
    lines = [f'"GET /{rare.get(n, "items")}/{n} HTTP/1.1" 200 {10 + n % 80}' for n in range(5_000)]
    times = [f"04/Mar/2024:{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02} +0000" for n in range(5_000)]
    path = workspace / "access.log"
    path.write_text("".join(f"::1 - - [{time}] {line}\n" for time, line in zip(times, lines, strict=True)))
    corpus = corpus_of([str(path)])
    found = counted_rows(SessionLevel("session"), Session(log_model(corpus.tokenizer)), corpus, 0, endless())
    assert found is not None
    firsts = {number: raw.raw.lines for number, raw in corpus.training(10_000)}
    never = [
        n for n, one in zip(found.records.tolist(), found.statistics["unseen"], strict=True) if one >= NAMED
    ]
    assert [
        [text for text in ("one", "both", "near") if f"/{text}/" in "".join(firsts[n])] for n in never
    ] == [["near"], ["one"]]


def test_a_few_records_are_spread_and_of_several_corpora_there_are_none(
    logs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finalize_normal, "MOST_RECORDS", 12)
    corpus = corpus_of([str(path) for path in logs])
    session = Session(log_model(corpus.tokenizer))
    found = counted_rows(SessionLevel("session"), session, corpus, 0, endless())
    assert found is not None
    assert len(set(found.records.tolist())) == 12
    assert len({math.floor(n / 40) for n in found.records.tolist()}) >= 3
    mixed = corpus_of([f"one={logs[0]}", f"two={logs[1]}"])
    assert counted_rows(SessionLevel("session"), session, mixed, 0, endless()) is None
    level = SessionLevel("session")
    level.counting = None  # type: ignore[assignment]
    assert counted_rows(level, session, corpus, 0, endless()) is None


def test_a_model_cuts_what_it_scores_as_its_training_data_were_cut(logs: list[Path]) -> None:
    data = {"paths": [str(logs[0])], "options": {"session": "none", "window": 4, "step": 2}}
    flags = {"data": data, "model": {"size": "tiny"}, "train": {"max_steps": 1}}
    pretrain(TrainRequest(domain="logs", name="cut", flags=flags), SilentConsole())
    session = Session.open("cut")
    assert session.card.reading == {"session": "none", "window": 4}
    own = list(session.reader([str(logs[1])])(Problems()))
    assert [len(one.raw.lines) for one in own] == [4] * 60
    others = list(session.reader([str(logs[1])], options={"window": 8})(Problems()))
    assert [len(one.raw.lines) for one in others] == [8] * 30
    stored = stored_calibration(session.model, SessionLevel("session"), "one-pass")
    assert stored is not None
    assert stored.fitted.counts.rows > 2 * stored.rows, "all training windows judge what is counted"
    assert stored.fitted.counts.statistics == SessionLevel.statistics.counted
