"""events.v1 against a slow reading of the same rules, and what it promises: sets, windows, spans, privacy."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import count
from pathlib import Path

import histories as patients
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from seqmlm.domains.ehr.history import Event, History
from seqmlm.domains.ehr.layout import intervals
from seqmlm.domains.ehr.tokenizer import EventsTokenizer
from seqmlm.domains.ehr.vocabulary import Vocabulary
from seqmlm.errors import DataError, StateError, UsageError
from seqmlm.tokenizers.base import fingerprint, options_of

DAY = 86400.0
CHANNELS = ["age", "time", "visit", "segment"]
KNOWN = Vocabulary(
    codes=("DRUG//a", "ICD10//I50.9", "ICD10//I50.1", "LAB//x", "SEX//F", "[odd] code"),
    texts={"LAB//x": ("high",)},
    families=("ICD10//E11", "ICD10//I50"),
    kinds=("inpatient",),
    edges={"LAB//x": (1.5, 3.0)},
)


def made(**options: object) -> EventsTokenizer:
    """A tokenizer of a small vocabulary with these options."""
    from seqmlm.domains.ehr.tokenizer import EventOptions

    return EventsTokenizer(KNOWN, options_of(EventOptions, options, EventsTokenizer.name))


def words(tokenizer: EventsTokenizer, history: History) -> list[str]:
    return [tokenizer.tokens[i] for i in tokenizer.encode(history).ids]


SUBJECTS = count()


def of(*events: Event, birth: float | None = 0.0, subject: str | None = None) -> History:
    """A history, of another subject each time."""
    return History(subject=subject or f"s{next(SUBJECTS)}", birth=birth, events=events)


# -- the rules, one event at a time --------------------------------------------------------------------------


def token_of(tokenizer: EventsTokenizer, event: Event) -> str:
    """The word of an event, by the documented rules."""
    known = set(tokenizer.tokens)
    code = event.code.replace("[odd] code", "%5Bodd]%20code")
    if code in known and not code.startswith("["):
        if event.value is not None and code == "LAB//x":
            return "LAB//x//Q" + str(1 + (event.value > 1.5) + (event.value > 3.0))
        if event.value is None and event.text is not None and f"{code}//={event.text}" in known:
            return f"{code}//={event.text}"
        return code
    family = f"[{code[:10]}]"
    return family if code.startswith("ICD10//") and family in known else "[UNK]"


def visit_keys(events: list[Event], rule: str) -> list[object]:
    """What each event's visit is called."""
    if rule == "gap":
        keys: list[object] = []
        for number, event in enumerate(events):
            apart = number and event.time - events[number - 1].time >= DAY
            keys.append(0 if not number else keys[-1] + int(apart))
        return keys
    keys = []
    for event in events:
        if rule != "day" and event.visit is not None:
            keys.append(event.visit)
        else:
            keys.append(event.time if rule == "id" else math.floor(event.time / DAY))
    return keys


def naive(tokenizer: EventsTokenizer, history: History, rule: str) -> tuple[list[str], list[int]]:
    """Words and positions, one event at a time."""
    order = {token: number for number, token in enumerate(tokenizer.tokens)}

    def distinct(events: list[Event]) -> list[str]:
        found = [token_of(tokenizer, event) for event in events]
        unknown = [word for word in found if word == "[UNK]"]
        return sorted(set(found) - {"[UNK]"}, key=order.__getitem__) + unknown

    told = [event for event in history.events if event.code != "MEDS_BIRTH"]
    background = [event for event in told if event.time is None]
    timed = [event for event in told if event.time is not None]
    out = ["[CLS]", *distinct(background)]
    places = [0] + [1] * (len(out) - 1)
    visits: dict[object, list[Event]] = {}
    for key, event in zip(visit_keys(timed, rule), timed, strict=True):
        visits.setdefault(key, []).append(event)
    before = None
    for number, events in enumerate(sorted(visits.values(), key=lambda own: own[0].time)):
        base, start = 2 + 5 * number, events[0].time
        if before is not None:
            days = math.floor((start - before) / DAY)
            out.append(_interval(days))
            places.append(base)
        before = start
        out.append("[VS]")
        places.append(base + 1)
        kinds = [event.kind for event in events if event.kind]
        if kinds:
            out.append("[VT:inpatient]" if kinds[0] == "inpatient" else "[UNK]")
            places.append(base + 2)
        codes = distinct(events)
        out += [*codes, "[VE]"]
        places += [base + 3] * len(codes) + [base + 4]
    return [*out, "[SEP]"], [*places, 2 + 5 * len(visits)]


def _interval(days: int) -> str:
    if days < 28:
        return f"[W{days // 7}]"
    return f"[M{min(max(1, days // 30), 11)}]" if days < 365 else "[LT]"


codes = st.sampled_from(
    [
        *("DRUG//a", "DRUG//rare", "LAB//x", "[odd] code", "MEDS_BIRTH", "[MASK]", "[VS]"),
        *("ICD10//I50.9", "ICD10//I50.1", "ICD10//I50.7", "ICD10//E11.2"),
    ]
)


@st.composite
def some_history(draw: st.DrawFn) -> History:
    events = [Event(time=None, code=code) for code in draw(st.lists(codes, max_size=3, unique=True))]
    times = sorted(draw(st.lists(st.integers(-200, 200), max_size=12)))
    for hours in times:
        own = draw(st.integers(0, 3))
        events.append(
            Event(
                time=hours * 3600.0 * draw(st.sampled_from([8])),
                code=draw(codes),
                value=draw(st.sampled_from([None, 0.0, 1.5, 2.0, 99.0])),
                text=draw(st.sampled_from([None, "high", "unheard of"])),
                visit=f"v{own}" if own else None,
                kind=draw(st.sampled_from(["", "", "inpatient", "rare kind"])),
            )
        )
    return History(subject="s", birth=draw(st.sampled_from([None, -1e9])), events=tuple(events))


@pytest.mark.parametrize("rule", ["auto", "id", "day", "gap"])
@given(histories=st.lists(some_history(), min_size=1, max_size=4))
@settings(max_examples=60)
def test_a_batch_equals_the_rules_read_slowly(rule: str, histories: list[History]) -> None:
    tokenizer = made(visits=rule, channels=CHANNELS)
    for history, encoding in zip(histories, tokenizer.encode_batch(histories), strict=True):
        expected, places = naive(tokenizer, history, rule)
        assert [tokenizer.tokens[i] for i in encoding.ids] == expected
        assert encoding.positions.tolist() == places
        units = encoding.groups[encoding.groups >= 0]
        assert units.tolist() == list(range(len(units)))
        inside = (encoding.groups >= 0) & (encoding.positions >= 2)
        plain = [not w.startswith("[") or "//" in w for w in expected]
        assert inside.tolist() == [p and n >= 2 for p, n in zip(plain, places, strict=True)]
        for token, (start, end) in zip(encoding.ids[inside], encoding.spans[inside], strict=True):
            code = str(history)[start:end]
            assert code in {e.code for e in history.events}
            assert tokenizer.spelling.surface(int(token)).strip("[]").startswith(code[:7].strip("["))


def test_a_sequence_in_full() -> None:
    history = of(
        Event(time=None, code="SEX//F"),
        Event(time=0.0, code="MEDS_BIRTH"),
        Event(time=1000 * DAY, code="ICD10//I50.9", visit="a", kind="inpatient"),
        Event(time=1000 * DAY + 60, code="LAB//x", value=7.0, visit="a"),
        Event(time=1000 * DAY + 90, code="ICD10//I50.9", visit="a"),
        Event(time=1010 * DAY, code="ICD10//I50.3", visit="b"),
    )
    tokenizer = made(channels=CHANNELS)
    encoding = tokenizer.encode(history)
    assert " ".join(words(tokenizer, history)) == (
        "[CLS] SEX//F [VS] [VT:inpatient] ICD10//I50.9 LAB//x//Q3 [VE] [W1] [VS] [ICD10//I50] [VE] [SEP]"
    )
    assert encoding.groups.tolist() == [-1, -1, -1, -1, 0, 1, -1, -1, -1, 2, -1, -1]
    assert encoding.symbols.tolist() == [-1, -1, -1, -1, 0, 1, -1, -1, -1, 0, -1, -1]
    segment = [0, 0, 0, 1, 1, 1, 0, 0, 0, 2, 0, 0]
    assert encoding.channels["segment"].tolist() == segment
    nan = float("nan")
    np.testing.assert_array_equal(
        encoding.channels["visit"], np.array([nan, nan, *[0] * 5, *[1] * 4, nan], np.float32)
    )
    assert encoding.channels["time"][[4, 9]].tolist() == [0, 10]
    assert encoding.channels["age"][9] == pytest.approx(1010 / 365.25)
    assert np.isnan(tokenizer.encode(of(*history.events, birth=None)).channels["age"]).all()


@pytest.mark.parametrize(
    ("days", "name"), [(0, 0), (6, 0), (7, 1), (27, 3), (28, 4), (59, 4), (60, 5), (364, 14), (365, 15)]
)
def test_intervals(days: int, name: int) -> None:
    assert intervals(np.array([days])).tolist() == [name]


# -- sets, windows -------------------------------------------------------------------------------------------


@given(history=some_history(), seed=st.integers(0, 99))
def test_augmenting_keeps_visits_and_units(history: History, seed: int) -> None:
    tokenizer = made(channels=CHANNELS)
    before = tokenizer.encode(history)
    after = tokenizer.units.facts.augment(before, np.random.default_rng(seed))
    assert after.positions.tolist() == before.positions.tolist()
    columns = ("ids", "symbols", "spans")

    def tokens(encoding) -> list[tuple]:
        rows = zip(
            encoding.positions.tolist(),
            *(getattr(encoding, name).tolist() for name in columns),
            *(np.nan_to_num(values, nan=-1).tolist() for values in encoding.channels.values()),
            strict=True,
        )
        return [tuple(map(str, row)) for row in rows]

    assert sorted(tokens(after)) == sorted(tokens(before))
    assert after.groups[after.groups >= 0].tolist() == sorted(after.groups[after.groups >= 0])
    assert set(after.groups.tolist()) == set(before.groups.tolist())

    def units(encoding) -> list[list[int]]:
        numbers = set(encoding.groups.tolist()) - {-1}
        return sorted(encoding.ids[encoding.groups == number].tolist() for number in numbers)

    assert units(after) == units(before)


def test_augmenting_changes_the_order_within_a_visit() -> None:
    tokenizer = EventsTokenizer.train(patients.histories(60), min_subjects=1)
    encoding = tokenizer.encode(patients.history(3))
    augment = tokenizer.units.facts.augment
    orders = {tuple(augment(encoding, np.random.default_rng(n)).ids.tolist()) for n in range(5)}
    assert len(orders) == 5


def test_windows_begin_with_a_visit_and_repeat_the_background() -> None:
    tokenizer = EventsTokenizer.train(patients.histories(60), min_subjects=1, channels=CHANNELS)
    history = max(patients.histories(60), key=lambda own: len(own.events))
    encoding = tokenizer.encode(history)
    longest = 40
    assert len(encoding) > 2 * longest
    found = tokenizer.units.windows(encoding, longest)
    head = tokenizer.encode(history).ids[:2].tolist()
    for window in found:
        assert len(window) <= longest
        assert window.ids[:2].tolist() == head
        assert window.ids[-1] == tokenizer.space.end
        assert tokenizer.tokens[window.ids[2]] == "[VS]" or tokenizer.tokens[window.ids[3]] == "[VS]"
        assert (np.diff(window.positions) >= 0).all()
        assert window.positions[2] <= 3
    groups = np.concatenate([window.groups[window.groups >= 0] for window in found])
    whole = encoding.groups[encoding.groups >= 0]
    assert groups.tolist() == whole.tolist()


def test_a_visit_longer_than_a_window_is_divided() -> None:
    events = [Event(time=60.0 * n, code="LAB//x", value=float(n % 3)) for n in range(3)]
    events += [Event(time=10.0, code=f"DRUG//n{n}") for n in range(30)]
    tokenizer = made()
    encoding = tokenizer.encode(of(*sorted(events, key=lambda e: e.time)))
    found = tokenizer.units.windows(encoding, 12)
    assert max(map(len, found)) <= 12
    inner = np.concatenate([window.ids[1:-1] for window in found])
    assert inner.tolist() == encoding.ids[1:-1].tolist()
    short = of(Event(time=0.0, code="DRUG//a"))
    assert len(tokenizer.units.windows(tokenizer.encode(short), 12)) == 1


# -- the vocabulary ------------------------------------------------------------------------------------------


def test_every_token_stands_for_enough_people() -> None:
    histories = patients.histories(120)
    odd = of(
        Event(time=0.0, code="ICD10//I50.77", value=123456.789),
        Event(time=0.0, code="CANARY//1", text="canary"),
        Event(time=0.0, code="LAB//2345-7", value=98765.4321, text="canary text", kind="canary kind"),
        Event(time=0.0, code="LAB//2345-7", value=1.0, unit="canary unit"),
    )
    tokenizer = EventsTokenizer.train([*histories, odd], min_subjects=10)
    encodings = tokenizer.encode_batch(histories)
    people = sum(np.bincount(np.unique(e.ids), minlength=tokenizer.space.size) for e in encodings)
    for token in range(23, tokenizer.space.size):
        name = tokenizer.tokens[token]
        known = tokenizer._vocabulary
        if name not in {*known.edges, *known.texts}:  # a bare code stands for the people of all its values
            assert people[token] >= 10, name
    text = json.dumps(tokenizer._vocabulary.to_dict()) + " ".join(tokenizer.tokens)
    for trace in ("I50.77", "123456", "CANARY", "canary", "98765"):
        assert trace not in text
    values = {e.value for h in [*histories, odd] for e in h.events}
    assert not values & {edge for edges in tokenizer._vocabulary.edges.values() for edge in edges}


def test_a_subject_of_many_records_counts_once() -> None:
    canary = [
        Event(time=0.0, code="CANARY//1", kind="canary kind"),
        Event(time=0.0, code="ICD10//Q99.1"),
        Event(time=0.0, code="LAB//5778-6", text="canary text"),
    ]
    yearly = [
        of(*canary, Event(time=float(n), code="LAB//2345-7", value=9e6 + n), subject="p") for n in range(30)
    ]
    tokenizer = EventsTokenizer.train([*patients.histories(120), *yearly], min_subjects=10)
    text = json.dumps(tokenizer._content()) + " ".join(tokenizer.tokens)
    for trace in ("CANARY", "canary", "Q99"):
        assert trace not in text
    assert max(tokenizer._vocabulary.edges["LAB//2345-7"]) < 1e6


def test_bins_hold_equal_shares_of_the_training_values() -> None:
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(size=900))
    train = [of(Event(time=0.0, code="LAB//y", value=float(v))) for v in values]
    tokenizer = EventsTokenizer.train(train)
    ids = np.array([tokenizer.encode(history).ids[2] for history in train])
    names = [tokenizer.tokens[i] for i in ids]
    counts = [names.count(f"LAB//y//Q{n}") for n in range(1, 11)]
    assert sum(counts) == 900
    assert min(counts) > 75
    order = np.argsort(values)
    assert (np.diff(ids[order]) >= 0).all()
    top = tokenizer.encode(of(Event(time=0.0, code="LAB//y", value=1e9)))
    assert tokenizer.tokens[top.ids[2]] == "LAB//y//Q10"
    none = tokenizer.encode(of(Event(time=0.0, code="LAB//y", value=float("nan"))))
    assert tokenizer.tokens[none.ids[2]] == "LAB//y"


def test_values_of_one_size_have_no_bins() -> None:
    train = [of(Event(time=0.0, code="LAB//y", value=1.0)) for _ in range(50)]
    assert "LAB//y//Q1" not in EventsTokenizer.train(train).tokens


def test_rare_codes_become_their_family_if_that_is_frequent() -> None:
    train = [of(Event(time=0.0, code=f"ICD10//I50.{n}")) for n in range(12)]
    train += [of(Event(time=0.0, code=f"LAB//{n}-1")) for n in range(12)]
    train += [of(Event(time=0.0, code="DRUG//a")) for n in range(10)]
    tokenizer = EventsTokenizer.train(train)
    assert words(tokenizer, train[3])[2] == "[ICD10//I50]"
    assert words(tokenizer, train[15])[2] == "[UNK]"
    assert tokenizer.tokens[23:] == ("[ICD10//I50]", "DRUG//a")
    fewer = EventsTokenizer.train(train[:9] + train[-10:])
    assert words(fewer, train[3])[2] == "[UNK]"


def test_the_vocabulary_has_a_limit() -> None:
    histories = patients.histories(80)
    free = EventsTokenizer.train(histories, min_subjects=2)
    capped = EventsTokenizer.train(histories, min_subjects=2, vocabulary_size=45)
    assert capped.space.size <= 45 < free.space.size
    with pytest.raises(UsageError, match="vocabulary_size = 20"):
        EventsTokenizer.train(histories, vocabulary_size=20)
    with pytest.raises(DataError, match="no code occurs in 500 subjects"):
        EventsTokenizer.train(histories, min_subjects=500)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"visit": "day"}, "no option 'visit'; did you mean 'visits'"),
        ({"visits": "week"}, "'visits' must be one of auto, id, day, gap"),
        ({"channels": ["ages"]}, "unknown 'ages'; did you mean 'age'"),
        ({"channels": "age"}, "must be a list"),
        ({"min_subjects": 0}, "at least 1; got 0"),
    ],
)
def test_wrong_options_are_named(options: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        EventsTokenizer.train(patients.histories(20), **options)


# -- units of values -----------------------------------------------------------------------------------------


def measured(code: str, values: list[float], units: list[str | None]) -> list[History]:
    pairs = zip(values, units, strict=True)
    return [of(Event(time=0.0, code=code, value=value, unit=unit)) for value, unit in pairs]


def token(tokenizer: EventsTokenizer, history: History) -> str:
    return words(tokenizer, history)[2]


VALUES = np.random.default_rng(1).normal(100, 20, 400).round(1).tolist()


def test_units_that_can_be_converted_share_their_bins() -> None:
    """Half of the values in another unit: each falls into the bin it had where all were in one."""
    plain = measured("LAB//glucose", VALUES, ["mg/dL"] * 400)
    halves = [value if n % 2 else value / 18.0156 for n, value in enumerate(VALUES)]
    mixed = measured("LAB//glucose", halves, [("mmol/L", "MG/DL")[n % 2] for n in range(400)])
    one, other = EventsTokenizer.train(plain), EventsTokenizer.train(mixed)
    assert one.tokens == other.tokens
    assert one.tokens[23:] == ("LAB//glucose", *(f"LAB//glucose//Q{n}" for n in range(1, 11)))
    bins = np.array(
        [[one.encode(p).ids[2], other.encode(m).ids[2]] for p, m in zip(plain, mixed, strict=True)]
    )
    assert np.abs(np.diff(bins)).max() <= 1  # an edge may lie elsewhere between two values
    assert (bins[:, 0] == bins[:, 1]).mean() > 0.98


def test_units_that_cannot_be_converted_have_bins_as_if_each_were_alone() -> None:
    units = [("U/L", "ukat/L", "U/L")[n % 3] for n in range(400)]
    values = [value / 60 if unit == "ukat/L" else value for value, unit in zip(VALUES, units, strict=True)]
    train = measured("LAB//alt", values, units)
    tokenizer = EventsTokenizer.train(train, bins=4)
    for own in ("U/L", "ukat/L"):
        alone = [history for history, unit in zip(train, units, strict=True) if unit == own]
        other = EventsTokenizer.train(alone, bins=4)
        suffix = f"//={own.lower()}"
        assert [token(tokenizer, history) for history in alone] == [
            token(other, history) + suffix for history in alone
        ]
    assert len(set(tokenizer.tokens)) == len(tokenizer.tokens) == 23 + 1 + 8


def test_a_value_without_unit_is_in_the_codes_only_one_and_else_in_bins_of_its_own() -> None:
    low, high = measured("LAB//x", [60.0, 140.0], [None, None])
    units: list[str | None] = [None if n % 4 == 0 else "U/L" for n in range(400)]
    single = EventsTokenizer.train(measured("LAB//x", VALUES, units), bins=2)
    assert [token(single, low), token(single, high)] == ["LAB//x//Q1", "LAB//x//Q2"]
    units = [(None, "U/L", "ukat/L", "U/L")[n % 4] for n in range(400)]
    values = [value / 60 if unit == "ukat/L" else value for value, unit in zip(VALUES, units, strict=True)]
    several = EventsTokenizer.train(measured("LAB//x", values, units), bins=2)
    assert [token(several, low), token(several, high)] == ["LAB//x//Q1", "LAB//x//Q2"]
    assert token(several, *measured("LAB//x", [140.0], ["U/L"])) == "LAB//x//Q2//=u/l"
    for tokenizer in (single, several):  # in a unit of which the training data know nothing
        assert token(tokenizer, *measured("LAB//x", [140.0], ["furlong"])) == "LAB//x"


def test_a_vocabulary_without_units_reads_values_in_any() -> None:
    tokenizer = made()
    with_unit, without = measured("LAB//x", [2.0, 2.0], ["mmol/L", None])
    assert token(tokenizer, with_unit) == token(tokenizer, without) == "LAB//x//Q2"


# -- what users are shown ------------------------------------------------------------------------------------


def test_the_frame_of_visits_is_not_named_beside_codes() -> None:
    histories = patients.histories(60)
    tokenizer = EventsTokenizer.train(histories)
    hidden = [name for n, name in enumerate(tokenizer.tokens) if tokenizer.spelling.unit_text(n) is None]
    assert set(hidden) == {
        *tokenizer.tokens[:23],
        *("[VT:inpatient]", "[VT:outpatient]", "SEX//F", "SEX//M", "VISIT//start"),
    }


def test_codes_are_told_with_what_they_mean(tmp_path: Path) -> None:
    meanings = {"ICD10//I50.9": "Heart failure", "LAB//2345-7": "Glucose", "RARE//1": "Canary"}
    histories = [replace(one, meanings=meanings) for one in patients.histories(60)]
    tokenizer = EventsTokenizer.train(histories)
    tokenizer.save(tmp_path)
    for one in (tokenizer, EventsTokenizer.load(tmp_path)):
        assert one.spelling.meaning("ICD10//I50.9") == "Heart failure"
        assert one.spelling.meaning("LAB//2345-7") == one.spelling.meaning("LAB//2345-7//Q3") == "Glucose"
        assert one.spelling.meaning("DRUG//furosemide") is None
    assert "Canary" not in (tmp_path / "seqmlm_events.json").read_text()
    plain = EventsTokenizer.train(patients.histories(60))
    assert fingerprint(plain) == fingerprint(tokenizer)  # the ids are the same


# -- files ---------------------------------------------------------------------------------------------------


def test_a_folder_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    made().save(tmp_path)
    (tmp_path / "seqmlm_events.json").write_text('{"codes": 3}')
    with pytest.raises(StateError, match="not the vocabulary of an events tokenizer"):
        EventsTokenizer.load(tmp_path)


def test_hugging_face_reads_the_same_ids_from_the_tokens_spelling(tmp_path: Path) -> None:
    tokenizer = made()
    tokenizer.save(tmp_path)
    fast = AutoTokenizer.from_pretrained(str(tmp_path))
    odd = [Event(time=0.0, code=code) for code in ("[odd] code", "DRUG//a", "[MASK]", "ICD10//I50.9")]
    ids = tokenizer.encode(of(Event(time=None, code="SEX//F"), *odd)).ids.tolist()
    text = " ".join(tokenizer.tokens[i] for i in ids[1:-1])
    assert fast(text)["input_ids"] == ids
    assert (
        tokenizer.spelling.surface(ids[ids.index(tokenizer.tokens.index("%5Bodd]%20code"))]) == "[odd] code"
    )


def test_a_code_cannot_name_a_special_token() -> None:
    train = [
        of(Event(time=0.0, code=c)) for c in ("[MASK]", "[VS]", "LAB//x//Q1", "LAB//x") for _ in range(10)
    ]
    tokenizer = EventsTokenizer.train(train)
    assert len(set(tokenizer.tokens)) == len(tokenizer.tokens)
    for history in train:
        assert not tokenizer.space.is_special[tokenizer.encode(history).ids[2]]
