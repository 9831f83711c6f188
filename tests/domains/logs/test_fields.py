"""Lines that are fields: what is kept of them, what is left out, and what is told of values never seen."""

from __future__ import annotations

import json

import pytest

from seqmlm.domains.logs.fields import MOST, fields_of, shape_of
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.domains.logs.templates import NEW, TemplateTokenizer
from seqmlm.errors import UsageError

ITEMS = ("/items", "/users/{}", "/users/{}/orders", "/health")


def request(number: int, status: int = 200, method: str = "", path: str = "") -> str:
    """A line of an access log."""
    method = method or ("GET", "GET", "POST")[number % 3]
    path = path or ITEMS[number % 4].format(1000 + number)
    return f'"{method} {path}?page={number} HTTP/1.1" {status} {10 ** (number % 3 + 1) + number % 7}'


def served(n: int = 1200) -> list[LogLines]:
    """Windows of an access log."""
    lines = [request(i, 404 if i % 40 == 0 else 200) for i in range(n)]
    return [LogLines(lines=tuple(lines[i : i + 8]), subject=f"session {i}") for i in range(0, n, 8)]


@pytest.fixture(scope="module")
def tokenizer() -> TemplateTokenizer:
    return TemplateTokenizer.train(served(), fields="auto", values=64)


def named(tokenizer: TemplateTokenizer, *lines: str) -> list[str]:
    return [tokenizer.tokens[one] for one in tokenizer.encode(LogLines(lines=lines)).ids[1:-1]]


@pytest.mark.parametrize(
    ("line", "pairs", "message"),
    [
        (
            '"GET /a/b?c=1 HTTP/1.1" 200 12',
            {"method": "GET", "path": "/a/b", "status": "200", "size": "12"},
            "",
        ),
        ('"\\x16\\x03" 400 -', {"method": "malformed", "path": "<*>", "status": "400", "size": "0"}, ""),
        ('time=2024-01-01 level=warn msg="disk full"', {"level": "warn"}, "disk full"),
        ('{"ts": 1, "status": 502, "a": {"b": "c"}}', {"status": "502", "a.b": "c"}, ""),
    ],
)
def test_fields_of_a_line(line, pairs, message):
    found = fields_of(line)
    assert (dict(found[0]), found[1]) == (pairs, message)


@pytest.mark.parametrize(
    "line", ["", "connected to a=b in 3 ms", '"a quotation" is no request', "{broken", "[1]"]
)
def test_lines_of_words_have_no_fields(line):
    assert fields_of(line) is None


def test_paths_have_shapes():
    assert shape_of("/users/17/orders") == shape_of("/users/550e8400-e29b-41d4-a716-446655440000/orders")
    assert shape_of("/users/17") != shape_of("/users/settings")


def test_few_values_stand_in_the_template_and_many_do_not(tokenizer):
    (found,) = named(tokenizer, request(2))
    assert found == "status=200 method=POST path=/users/<*>/orders size=1000"
    assert named(tokenizer, request(2), request(2 + 12 * 50)) == [found, found]
    assert named(tokenizer, request(40, 404))[0].startswith("status=404")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (request(1, status=502), ["status=502"]),
        (request(1, method="PROPFIND"), ["method=PROPFIND"]),
        (request(1, path="/actuator/env"), ["path=/actuator/<*>"]),
        ('"GET /items HTTP/1.1" 200 99999999', ["size=1e+07"]),
    ],
)
def test_a_value_never_seen_makes_a_line_unknown_and_is_told(tokenizer, line, told):
    assert named(tokenizer, line) == [NEW]
    assert tokenizer.unseen_values(line) == told
    assert not tokenizer.unseen_values(request(3))


@pytest.mark.parametrize(
    "rare",
    [
        request(1, status=502),
        request(1, method="PUT"),
        request(1, path="/env"),
        '"GET /items HTTP/1.1" 200 99999',
        '{"message": "Sent 7 in 31 s", "level": "info"}',
    ],
)
def test_what_a_line_is_judged_by_is_what_is_never_seen_without_it(rare):
    slow = tuple(f'{{"message": "Sent {i} in {1 + i % 8} s", "level": "info"}}' for i in range(200))
    others = [*served(), LogLines(lines=slow)]
    alone, more = (
        TemplateTokenizer.train(raws, fields="auto", values=64)
        for raws in (others, [*others, LogLines(lines=(rare,))])
    )
    usual = {value for raw in others for line in raw.lines for value in more.known_values(line)}
    told = [one.split()[-1] for one in more.known_values(rare) if one not in usual]
    assert told == alone.unseen_values(rare)
    assert len(told) == 1
    assert not more.unseen_values(rare)


def test_every_line_has_a_template_or_what_would_be_one(tokenizer):
    for line in (request(2), request(40, 404)):
        assert [tokenizer.template(line)] == named(tokenizer, line)
    new = tokenizer.template('"PROPFIND /users/17 HTTP/1.1" 502 12')
    assert new == "status=502 method=PROPFIND path=/users/<*> size=10"
    assert new == tokenizer.template('"PROPFIND /users/18 HTTP/1.1" 502 13')
    assert tokenizer.template("took 12 ms at 10.0.0.1") == tokenizer.template("took 99 ms at 10.0.0.2")


def test_training_lines_are_all_known(tokenizer):
    assert not any(NEW in named(tokenizer, *raw.lines) for raw in served())


def test_many_values_are_left_out_and_kept_on_request():
    lines = [f"level=info user=u{i} job=j{i % (MOST + 6)} zone=z{i % 3}" for i in range(700)]
    raws = [LogLines(lines=tuple(lines[i : i + 10])) for i in range(0, 700, 10)]
    usual = TemplateTokenizer.train(raws, fields="auto")
    assert named(usual, lines[4]) == ["level=info zone=z1"]
    assert usual.facts["user"] == "700 values, left out"
    assert usual.facts["zone"] == "3 values, kept"
    asked = TemplateTokenizer.train(raws, fields="auto", keep=("job",), mask=("zone",))
    assert named(asked, lines[4]) == ["level=info job=j4"]
    assert asked.unseen_values("level=info user=a job=other zone=new") == ["job=other"]
    with pytest.raises(UsageError, match="no line has the field 'jobb'"):
        TemplateTokenizer.train(raws, fields="auto", keep=("jobb",))
    with pytest.raises(UsageError, match="in keep and in mask"):
        TemplateTokenizer.train(raws, fields="auto", keep=("job",), mask=("job",))
    with pytest.raises(UsageError, match="set fields=auto"):
        TemplateTokenizer.train(raws, keep=("job",))


def test_a_field_with_a_long_value_is_left_out_whatever_comes_last():
    agents = ["shop-app/3", f"Mozilla/5.0 ({'x' * 100})", f"Opera ({'y' * 100})", "curl/8"]
    lines = [json.dumps({"status": 200 + i % 2, "agent": agents[i % 4]}) for i in range(400)]
    windows = [LogLines(lines=tuple(lines[i : i + 8]), subject=f"s{i}") for i in range(0, 400, 8)]
    made = TemplateTokenizer.train(windows, fields="auto", values=64)
    assert made.facts["agent"] == "4 values, left out"
    assert set(named(made, *lines[:8])) == {"status=200", "status=201"}


def test_the_message_among_fields_has_its_template():
    lines = [
        json.dumps({"ts": i, "level": "info" if i % 9 else "error", "msg": f"took {i} ms for job {i}"})
        for i in range(200)
    ]
    tokenizer = TemplateTokenizer.train([LogLines(lines=tuple(lines))], fields="auto")
    assert named(tokenizer, lines[5]) == ["took <NUM> ms for job <NUM> level=info"]
    new = '{"level": "fatal", "msg": "took 1 ms for job 2"}'
    assert tokenizer.unseen_values(new) == ["level=fatal"]
    assert tokenizer.template(new) == "took <NUM> ms for job <NUM> level=fatal"


def test_without_fields_lines_are_read_whole():
    raw = LogLines(lines=(request(1), request(2, status=502), "words alone", request(40, 404)))
    without, asked = TemplateTokenizer.train(served()), TemplateTokenizer.train(served(), fields="none")
    assert without.encode(raw).ids.tolist() == asked.encode(raw).ids.tolist()
    assert all("status=" not in token for token in without.tokens)


def test_values_of_few_subjects_are_in_no_sensitive_vocabulary():
    raws = [
        LogLines(lines=(f"level=info user={'ann' if i == 3 else 'bob'} code=c{i % 2}",) * 20, subject=f"s{i}")
        for i in range(30)
    ]
    tokenizer = TemplateTokenizer.train(raws, fields="auto", values=64, min_sessions=10, mask_secrets=True)
    assert "ann" not in json.dumps([*tokenizer.tokens, dict(tokenizer.facts)])
    assert any("user=bob" in token for token in tokenizer.tokens) or "left out" in tokenizer.facts["user"]
    assert "ann" not in json.dumps(tokenizer._content())


def test_few_templates_are_worth_a_warning(tokenizer):
    plain = TemplateTokenizer.train([LogLines(lines=tuple(f"job {i} done" for i in range(2000)))])
    counts = [0] * plain.space.size
    counts[plain.encode("job 3 done").ids[1]] = 2000
    assert "1 template covers 100% of 2,000 lines" in (plain.advice(counts) or "")
    assert plain.advice([one // 10 for one in counts]) is None
    assert tokenizer.advice([100] * tokenizer.space.size) is None


def test_a_message_that_tells_a_longer_time_than_its_template_knows_has_none():
    lines = tuple(f"Built image {i} in {100 + i * 7 % 800} ms" for i in range(200))
    lines += tuple(f'{{"message": "Sent {i} in {1 + i % 8} s", "level": "info"}}' for i in range(200))
    lines += tuple(f"Slept {i + 1} minutes" for i in range(99))
    made = TemplateTokenizer.train([LogLines(lines=lines)], fields="auto", values=64)
    usual = "Built image 7 in 350 ms", '{"message": "Sent 7 in 9 s", "level": "info"}', "Slept 7 minutes"
    slow = "Built image 7 in 1.5 seconds", '{"message": "Sent 7 in 31 s", "level": "info"}'
    assert NEW not in named(made, *usual, "Slept 9000 minutes", "Built image 7 in 5 ms")
    assert named(made, *slow) == [NEW, NEW]
    assert [made.unseen_values(line) for line in (*slow, usual[0])] == [["duration=1s"], ["duration=10s"], []]
