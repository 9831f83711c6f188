"""Past-only scores: against asking the cut history by hand, and windows that show nothing of the future."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scored_records
from tiny_domain_models import patients, patients_model

from seqmlm.anomaly.values import ScoredRecord
from seqmlm.data.record import Record
from seqmlm.domains.ehr.history import History
from seqmlm.domains.ehr.layout import CLS, SEP, VE, VS, visit_starts
from seqmlm.domains.ehr.levels import PastView, visit_numbers
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.query import Query
from seqmlm.engine.units import EXACT, ONE_PASS, Mode
from seqmlm.inference.model_folder import LoadedModel


def scored(model: LoadedModel, records: list[Record], mode: Mode = EXACT) -> list[ScoredRecord]:
    return scored_records.scored(model, records, mode, view=PastView())


def until(history: History, visit: int) -> History:
    """The history with nothing after a visit, 0-based."""
    names = list(dict.fromkeys(e.visit for e in history.events if e.visit is not None))
    kept = set(names[: visit + 1])
    return replace(history, events=tuple(e for e in history.events if e.visit is None or e.visit in kept))


def test_equal_to_asking_the_cut_history():
    model = patients_model()
    ask = Conditionals(model.rows)
    for record in patients(6):
        [found] = scored(model, [record])
        whole = model.tokenizer.encode(record.raw)
        count = len(visit_starts(whole.ids))
        bits: list[float] = []
        for visit in range(count):
            cut = model.tokenizer.encode(until(record.raw, visit))
            inside = np.arange(len(cut)) >= visit_starts(cut.ids)[-1]
            masked = np.flatnonzero(inside & (cut.groups >= 0)).astype(np.int32)
            [answer] = ask.ask([Query(encoding=cut, masked=masked, asked=masked)])
            bits += (-answer.values["log_prob"] / np.log(2)).tolist()
        assert found.surprisal.tolist() == pytest.approx(bits, abs=1e-4)


@pytest.mark.parametrize("mode", [EXACT, Mode("partition", 3)])
def test_the_future_does_not_matter(mode):
    model = patients_model()
    record = max(patients(20), key=lambda one: len(one.raw.events))
    [whole] = scored(model, [record], mode)
    number = visit_numbers(whole.encoding, whole.position)
    for visit in range(int(number.max()) + 1):
        [cut] = scored(model, [replace(record, raw=until(record.raw, visit))], mode)
        assert cut.surprisal == pytest.approx(whole.surprisal[number <= visit], abs=1e-4)


@pytest.mark.parametrize("max_length", [13, 20, 33, 300])
def test_windows_show_the_past_and_ask_everything_once(max_length):
    tokenizer = patients_model().tokenizer
    for record in patients(30):
        encoding = tokenizer.encode(record.raw)
        # Positions in the whole sequence are told by giving each token its own symbol.
        encoding = replace(encoding, symbols=np.arange(len(encoding), dtype=np.int32))
        asked: list[int] = []
        for window, owned in PastView().windows(encoding, tokenizer, max_length):
            assert len(window) <= max_length
            own = window.symbols[owned]
            asked += own.tolist()
            assert set(visit_numbers(encoding, own.astype(np.int64)).tolist()) == {
                int(visit_numbers(encoding, np.array([window.symbols[owned][0]]))[0])
            }
            shown = window.symbols[window.ids != SEP]
            assert (np.diff(shown) > 0).all()
            assert (
                visit_numbers(encoding, shown[-1:].astype(np.int64))[0]
                <= visit_numbers(encoding, own[:1].astype(np.int64))[0]
            )
            assert window.ids[0] == CLS
            assert window.ids[-1] == SEP
            if len(visit_starts(window.ids)):
                assert window.ids[-2] == VE
                assert VS in window.ids
            assert (np.diff(window.positions) >= 0).all()
        scorable = np.flatnonzero((encoding.groups >= 0) & ~tokenizer.space.is_special[encoding.ids])
        assert sorted(asked) == scorable.tolist()


def test_a_short_history_is_shown_as_it_is():
    model = patients_model()
    record = patients(1)[0]
    encoding = model.tokenizer.encode(record.raw)
    window, _ = PastView().windows(encoding, model.tokenizer, 256)[-1]
    assert window.ids.tolist() == encoding.ids.tolist()
    assert window.positions.tolist() == encoding.positions.tolist()


def test_a_mode_that_hides_nothing_hides_the_visit_all_the_same():
    model, records = patients_model(), patients(1)
    [one], [exact] = (scored(model, records, mode) for mode in (ONE_PASS, EXACT))
    assert one.surprisal == pytest.approx(exact.surprisal, abs=1e-5)
