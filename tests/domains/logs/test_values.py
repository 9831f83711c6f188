"""Values become marks: each kind, the way back to the line, and words looked up as the whole line is read."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqmlm.domains.logs.values import LogValues, original_spans
from seqmlm.errors import UsageError

VALUES = (
    ("took 12 in 3.5 of -7 and 1,234", "took <NUM> in <NUM> of <NUM> and <NUM>"),
    ("up 12ms 3s 5min, 64KB 2GiB 45%", "up <DUR> <DUR> <DUR>, <SIZE> <SIZE> <NUM>"),
    ("/10.250.14.224:50010: done by 10.0.0.1.", "/<IP>: done by <IP>."),
    ("fe80::1/64 ::1 2001:db8:0:0:1:0:0:1", "<IP> <IP> <IP>"),
    ("std::vector a::b ab::cd", "std::vector a::b ab::cd"),
    ("mac 00:1a:2B:3c:4d:5e at 12:30:45,123", "mac <MAC> at <TIME>"),
    ("2015-07-29T17:41:44.747Z 2005.06.03", "<TIME> <TIME>"),
    ("blk_-160899 part-00123 task_2008_01_m_0", "blk_<ID> part-<ID> task_<ID>"),
    ("id=b48e7f01-17ad-4d1c-a5a0-d1b1d5f1d5f1;", "id=<ID>;"),
    ("0xDEADbeef da39a3ee5e6b4b0d deadbeef", "<HEX> <HEX> deadbeef"),
    ("0x12 1x12 0x99 9x99", "<HEX> 1x12 <HEX> 9x99"),
    ("see http://a.b:80/c?d=1, or hdfs://n/x.", "see <URL>, or <URL>."),
    ("mail root@example.org now", "mail <EMAIL> now"),
    (r"in /var/log/a.log and C:\tmp\b /tmp", r"in <PATH> and <PATH> /tmp"),
    ("sshd[24200]: eth0 x86_64 sha256", "sshd[<NUM>]: eth0 x86_<NUM> sha256"),
    ("already <NUM> and <HEX>", "already <NUM> and <HEX>"),
)
# Pieces that touch the rules' edges, glued together in any order.
pieces = st.sampled_from(
    [
        *"0 1a:F-_./\\@<>=[]%,x+~?#é\xa0\x1c",
        *("  ", "\t", "10.0.0.1", "::", "blk_", "0x", "1x", "<NUM>", "ms", "http://a"),
    ]
)
lines = st.lists(pieces, max_size=25).map("".join)


@pytest.mark.parametrize(("line", "normal"), VALUES)
def test_each_kind_of_value(line, normal):
    assert LogValues().line(line) == normal


@given(line=lines)
@settings(max_examples=400)
def test_words_looked_up_are_those_of_the_line_read_in_one_pass(line):
    values = LogValues()
    whole = values._built_in.sub(values._mark_of, line)
    assert values.line(line) == whole
    assert values.words(line) == tuple(whole.split())
    # A second look finds the table filled by the first.
    assert values.words(line) == tuple(whole.split())


@given(line=lines, digits=st.text(alphabet="0123456789", min_size=60, max_size=60))
@settings(max_examples=200)
def test_digits_are_all_alike_but_for_the_0_of_0x(line, digits):
    fresh = iter(digits * 4)
    other = re.sub("[0-9](?![xX])", lambda _: next(fresh), line)
    values = LogValues()
    assert [m.tolist() for m in values.normalise(line).marks] == [
        m.tolist() for m in values.normalise(other).marks
    ]
    shared = LogValues()
    assert (shared.words(line), shared.words(other)) == (values.words(line), LogValues().words(other))


OWN = (None, {"WORD": r"[a-z]+ ?[0-9]"}, {"JOB": "a[0:]+"})


@given(line=lines, own=st.sampled_from(OWN), secrets=st.booleans())
@settings(max_examples=500)
def test_what_is_no_value_is_where_it_was_and_marks_cover_their_values(line, own, secrets):
    values = LogValues(own, secrets=secrets)
    marked = values.normalise(line)
    assert values.words(line) == tuple(marked.text.split())
    done_new = done_old = 0
    for new_start, new_end, old_start, old_end in marked.marks.tolist():
        assert marked.text[done_new:new_start] == line[done_old:old_start]
        assert marked.text[new_start:new_end][1:-1] in values.kinds
        assert old_start < old_end
        done_new, done_old = new_end, old_end
    assert marked.text[done_new:] == line[done_old:]


@given(line=lines, data=st.data())
@settings(max_examples=200)
def test_spans_go_back_to_the_characters_they_came_from(line, data):
    marked = LogValues({"PAIR": r"=\[|:F"}).normalise(line)
    size = len(marked.text)
    start = data.draw(st.integers(0, size))
    end = data.draw(st.integers(start, size))
    # By hand: each character of the new text came from one, those of a mark from the whole value.
    came: list[tuple[int, int]] = []
    at = 0
    marks = {m[0]: m for m in marked.marks.tolist()}
    while len(came) < size:
        if len(came) in marks:
            new_start, new_end, old_start, old_end = marks[len(came)]
            came += [(old_start, old_end)] * (new_end - new_start)
            at = old_end
        else:
            came.append((at, at + 1))
            at += 1
    if start < end:
        found = original_spans(marked, np.array([[start, end]], dtype=np.int32))[0].tolist()
        assert found == [came[start][0], came[end - 1][1]]


def test_own_patterns_come_first_and_may_cross_words():
    values = LogValues({"JOB": r"job (\d+) of (?P<all>\d+)", "USER": r"(?<=user )\w+"})
    assert values.line("job 3 of 9 for user bob7 at 10") == "<JOB> for user <USER> at <NUM>"
    assert values.words("job 3 of 9") == ("<JOB>",)
    marked = values.normalise("x 1 job 3 of 9 2")
    assert [("x 1 job 3 of 9 2"[a:b]) for a, b in marked.marks[:, 2:].tolist()] == ["1", "job 3 of 9", "2"]


@pytest.mark.parametrize(
    ("patterns", "said"),
    [({"job": "x"}, "cannot be a mark"), ({"JOB": "("}, "not a regular"), ({"JOB": "x*"}, "empty")],
)
def test_bad_patterns_are_refused_by_name(patterns, said):
    with pytest.raises(UsageError, match=said):
        LogValues(patterns)


def test_tables_stay_small(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("seqmlm.domains.logs.values._TABLE", 50)
    values = LogValues()
    plain = LogValues()
    for number in range(500):
        line = f"a{number}b x{'y' * number} {number} {'z' * 300}{number}"
        assert values.words(line) == tuple(plain.line(line).split())
    assert len(values._words) <= 50
    assert len(values._words._shapes) <= 50


SECRETS = (
    ("password=hunter ok", "password=<SECRET> ok"),
    ("login with Password: 'my own words' done", "login with Password: <SECRET> done"),
    ('{"apiKey": "abc", "token":"x y", "n": 5}', '{"apiKey": <SECRET>, "token":<SECRET>, "n": <NUM>}'),
    ("dbPassword=foo aws_secret_access_key = bar", "dbPassword=<SECRET> aws_secret_access_key = <SECRET>"),
    ("Authorization: Bearer abcdef", "Authorization: Bearer <SECRET>"),
    ("run --token deadbeefx -p 3", "run --token <SECRET> -p <NUM>"),
    ("GET https://u:p@h.x/a?token=abc&b=2 ok", "GET <URL> ok"),
    ("open admin:words@tcp(db)", "open admin:<SECRET>@tcp(db)"),
    ("used AKIAIOSFODNN7EXAMPLE once", "used <SECRET> once"),
    ("push ghp_aBcDeFgHiJkLmNoPqRsTuVwXyZabcd", "push <SECRET>"),
    ("is wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "is <SECRET>"),
    ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P", "jwt <SECRET>"),
    ("-----BEGIN RSA PRIVATE KEY-----", "<SECRET>"),
    ("MIIEowIBAAKCAQEAu1SU1LfVLPHCozMxH2Mo4lgOEePzNm0tRgeLezV6ffAt0gun", "<SECRET>"),
    ("Cookie: sid=ab; user=ann", "Cookie: <SECRET>"),
    ("said Tr0ub4dor! or hunter2secret", "said <SECRET> or <SECRET>"),
    ("key xkqjzvbnmwrtplkj", "key <SECRET>"),
    ("card 4111 1111 1111 1111 and 4111111111111111", "card <NUM> <NUM> <NUM> <NUM> and <NUM>"),
    ("ids AB123456C 12345678Z 078-05-1120", "ids <HEX> <SECRET> <NUM>-<NUM>-<NUM>"),
    ("RSSMRA85M01H501Z DE89370400440532013000", "<SECRET> <HEX>"),
    ("mail a.b@c.de", "mail <EMAIL>"),
)
NO_SECRETS = (
    "org.apache.hadoop.hdfs.server.datanode.DataNode$DataXceiver",
    "compass: north, auth::Token, pam_unix(sshd:auth): authentication failure",
    "Failed password for invalid user root",
    "RecordReader.nextKeyValue() getJSONObjectFromXMLHttpRequest",
    "sha256sum and base64 of utf8mb4",
    "a_rather_long_name_of_many_short_words",
)


@pytest.mark.parametrize(("line", "normal"), SECRETS)
def test_what_looks_like_a_secret_is_masked_where_that_is_asked_for(line, normal):
    values = LogValues(secrets=True)
    assert values.line(line) == normal
    assert " ".join(values.words(line)) == normal
    assert "<SECRET>" not in LogValues().line(line)
    found = values.normalise(line)
    secret = [found.text[a:b] == "<SECRET>" for a, b in found.marks[:, :2].tolist()]
    hidden = list(line)
    for start, end in found.marks[secret, 2:].tolist():
        hidden[start:end] = "*" * (end - start)
    assert values.conceal(f"{line}\n{line}") == "\n".join(["".join(hidden)] * 2)
    assert LogValues().conceal(line) == line


@pytest.mark.parametrize("line", NO_SECRETS)
def test_names_that_people_give_stay(line):
    assert LogValues(secrets=True).line(line) == LogValues().line(line)


@pytest.mark.parametrize(
    "piece",
    [
        *("A", "a:", "a.", "password=", 'key="', "eyJaaaaaa.", "eyJ-", "Bearer ", "a@", "a0!", "token "),
        *("key\\", "://"),
    ],
)
@pytest.mark.parametrize("secrets", [False, True])
def test_a_giant_line_is_gone_through_once(piece, secrets):
    """From each of its letters it would take hours."""
    values, line = LogValues(secrets=secrets), piece * (100_000 // len(piece))
    assert tuple(values.line(line).split()) == values.words(line)
    assert len(values.conceal(line)) == len(line)
