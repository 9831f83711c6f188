"""Normalise log lines: replace values by marks, so that only the text that the program always writes remains.

    Received block blk_-16089 of size 911 from /10.250.14.224
    Received block blk_<ID> of size <NUM> from /<IP>

One compiled alternation finds every kind of value. The leftmost match wins, and at the same place the first
alternative. No built-in value contains white space, and none depends on text outside its word. A line is
therefore first split at white space, and each word is looked up in a table of earlier words. All alternatives
treat digits alike, except for the 0 of 0x. Words that differ only in digits therefore share one entry of a
second table. Both tables are bounded.

Vocabularies are learned from each line once, even if windows overlap. A line that is counted in every window
that contains it would seem common.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from seqmlm.engine.types import Ids
from seqmlm.errors import DataError, UsageError
from seqmlm.parsing import word_list

_HEX = "[0-9A-Fa-f]"
_EDGE = r"(?<![0-9A-Za-z])", r"(?![0-9A-Za-z])"
_UNITS = {
    "DUR": r"(?:ns|us|µs|ms|msecs?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)",
    "SIZE": r"(?:[KMGTP]i?[Bb]?|[kmgt]i?[Bb]|B|[Bb]ytes?)",
}
# In order of precedence. Each alternative needs a digit, "/", "\" or "@" (see `_VALUE_WORD`).
_KINDS: tuple[tuple[str, str], ...] = (
    ("URL", r"(?<![A-Za-z])[A-Za-z][A-Za-z0-9+.-]{1,15}://[^\s\"'<>|]*[^\s\"'<>|.,;:!?)\]}]"),
    ("EMAIL", r"(?<![\w.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}(?![\w@])"),
    ("ID", rf"{_EDGE[0]}{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}{_EDGE[1]}"),
    ("MAC", rf"(?<![0-9A-Za-z:])(?:{_HEX}{{2}}[:-]){{5}}{_HEX}{{2}}(?![0-9A-Za-z:])"),
    (
        "TIME",
        rf"{_EDGE[0]}(?:[0-9]{{4}}[-/.][0-9]{{2}}[-/.][0-9]{{2}}"
        rf"(?:[T_-][0-9]{{2}}[:.][0-9]{{2}}[:.][0-9]{{2}}(?:[.,][0-9]+)?(?:Z|[+-][0-9]{{2}}:?[0-9]{{2}})?)?"
        rf"|[0-9]{{1,2}}:[0-9]{{2}}:[0-9]{{2}}(?:[.,][0-9]+)?)(?![0-9A-Za-z:])",
    ),
    (
        "IP",
        r"(?<![0-9A-Za-z.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?::[0-9]{1,5}|/[0-9]{1,2})?"
        r"(?![0-9A-Za-z]|\.[0-9])",
    ),
    (
        "IP",
        rf"(?<![0-9A-Za-z:.])(?=[A-Fa-f:]{{0,30}}[0-9])"
        rf"(?:(?:{_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}"
        rf"|(?:{_HEX}{{1,4}}(?::{_HEX}{{1,4}}){{0,6}})?::(?:{_HEX}{{1,4}}(?::{_HEX}{{1,4}}){{0,6}})?)"
        rf"(?:/[0-9]{{1,3}})?(?![0-9A-Za-z:])",
    ),
    (
        "PATH",
        r"(?<![\w/<>.])(?:[A-Za-z]:\\[^\s\"'<>|:*?,;)\]]+|~?(?:/[\w.@%+~$#=-]+){2,}/?(?:\?[^\s\"'<>]*)?)",
    ),
    ("HEX", rf"{_EDGE[0]}0[xX]{_HEX}+{_EDGE[1]}"),
    ("ID", r"(?<=[A-Za-z][_-])-?[0-9][0-9A-Za-z_-]*"),
    (
        "HEX",
        rf"{_EDGE[0]}(?=[0-9]*[A-Fa-f])(?=[A-Fa-f]*[0-9])(?:{_HEX}{{2}}(?::{_HEX}{{2}}){{7,}}|{_HEX}{{8,}})"
        rf"{_EDGE[1]}",
    ),
    *((kind, rf"{_EDGE[0]}[-+]?[0-9]+(?:\.[0-9]+)?{unit}{_EDGE[1]}") for kind, unit in _UNITS.items()),
    ("NUM", rf"{_EDGE[0]}[-+]?[0-9]+(?:[.,][0-9]+)*(?:[eE][-+]?[0-9]+)?%?{_EDGE[1]}"),
)
KINDS = tuple(dict.fromkeys(kind for kind, _ in _KINDS))
SECRET = "SECRET"
"""The additional kind for text that looks like a secret, if secrets are masked."""
# Matches begin only at the start of a word. Otherwise, a giant word without a value would be searched from
# each of its letters.
_VALUE_WORD = re.compile(r"(?<!\S)[^\s0-9/\\@<]*[0-9/\\@<]\S*")
_ANY_WORD = re.compile(r"\S+")
_NAME = re.compile(r"[A-Z]+(?:_[A-Z]+)*")
_NO_PREFIX = re.compile(r"[1-9][xX]")
_ZEROS = str.maketrans("123456789", "0" * 9)
_Place = tuple[int, int, str]  # start and end of a value, and its replacement
_NONE = np.zeros((0, 4), dtype=np.int32)
_TABLE, _LONGEST = 1 << 16, 256  # most words in the cache, and the length of the longest


def mark(kind: str) -> str:
    """The mark for a kind of value in a normalised line."""
    return f"<{kind}>"


class NormalisedText(NamedTuple):
    """A normalised text and the places of its marks.

    Attributes:
        text: the text with marks.
        marks: (M, 4) for each mark its start and end in `text`, and the start and end of its value in the
            original text; ascending.
    """

    text: str
    marks: Ids


class LogValues:
    """Replace values by marks.

    Args:
        patterns: more kinds of values, name to regular expression. They are searched before the built-in
            ones, in this order. Names are capital letters and underscores; a name in `KINDS` adds to that
            kind.
        secrets: whether text that looks like a secret is replaced as well; see `secret_places`.

    Raises:
        UsageError: a name cannot be a mark, or an expression does not compile or matches the empty text.

    >>> LogValues().line("took 12 ms for /10.0.0.7:8080 (sha1=da39a3ee5e6b4b0d)")
    'took <NUM> ms for /<IP> (sha1=<HEX>)'
    """

    def __init__(self, patterns: Mapping[str, str] | None = None, *, secrets: bool = False) -> None:
        self.patterns, self.secrets = dict(patterns or {}), secrets
        self.kinds = tuple(dict.fromkeys((*KINDS, *self.patterns, *([SECRET] if secrets else ()))))
        self._own = _user_pattern(self.patterns)
        self._own_marks = {f"_own{number}": mark(kind) for number, kind in enumerate(self.patterns)}
        # A mark that is already in the text stays there and counts as a mark.
        literal = ("", mark(f"(?:{'|'.join(map(re.escape, self.kinds))})"))
        self._built_in = re.compile("|".join(f"({text})" for _, text in (literal, *_KINDS)))
        self._marks = tuple(mark(kind) for kind, _ in _KINDS)
        self._words = _Words(self)
        self._look_up = self._words.__getitem__

    def words(self, line: str) -> tuple[str, ...]:
        """The words of the normalised line, which are its runs without white space."""
        if self.secrets or self._own is not None:
            line = _put_marks(line, self._line_places(line)).text
        return tuple(map(self._look_up, line.split()))

    def line(self, line: str) -> str:
        """The normalised line, white space unchanged."""
        return self.normalise(line).text

    def normalise(self, line: str) -> NormalisedText:
        """The normalised line, with the places of its marks in the original one."""
        if not self.secrets and self._own is None:
            return _put_marks(line, self._places(line))
        first = _put_marks(line, self._line_places(line))
        second = _put_marks(first.text, self._places(first.text))
        spans = original_spans(first, second.marks[:, 2:])
        return NormalisedText(second.text, np.concatenate([second.marks[:, :2], spans], axis=1))

    def _places(self, text: str) -> list[_Place]:
        """The built-in values of a line, word by word."""
        places: list[_Place] = []
        for word in (_ANY_WORD if self.secrets else _VALUE_WORD).finditer(text):
            start = word.start()
            for first, last, put in self._words.places(word[0]):
                places.append((start + first, start + last, put))
        return places

    def find(self, word: str) -> list[_Place]:
        """The built-in values of a word, without the table."""
        places = [(*match.span(), self._mark_of(match)) for match in self._built_in.finditer(word)]
        return _add_random_places(word, places) if self.secrets else places

    def _mark_of(self, match: re.Match[str]) -> str:
        """The mark for a match. A mark that is already in the text stays unchanged."""
        number = match.lastindex
        assert number is not None
        return match[0] if number == 1 else self._marks[number - 2]

    def _secret_places(self, line: str) -> list[_Place]:
        """The result of `secret_places`. Lines that differ only in digits are searched once."""
        return secret_places(line) if len(line) > _LONGEST else _of_shape(line.translate(_ZEROS))

    def conceal(self, text: str) -> str:
        """Replace each character of text that looks like a secret by a star.

        Without `secrets`, lines are unchanged.
        """
        if not self.secrets:
            return text
        return "\n".join(map(self._conceal_line, text.split("\n")))

    def _conceal_line(self, line: str) -> str:
        """A line with a star for each character of its secrets."""
        normalised = self.normalise(line)
        pieces, done = list[str](), 0
        for begin, end, start, stop in normalised.marks.tolist():
            if normalised.text[begin:end] == mark(SECRET):
                pieces += (line[done:start], "*" * (stop - start))
                done = stop
        return "".join((*pieces, line[done:]))

    def _line_places(self, line: str) -> list[_Place]:
        """Values that depend on the whole line: secrets, then the user's own kinds.

        The built-in ones come later.
        """
        places = list(self._secret_places(line)) if self.secrets else []
        for match in self._own.finditer(line) if self._own is not None else ():
            start, end = match.span()
            if all(end <= first or last <= start for first, last, _ in places):
                # The outermost group closes last.
                places.append((start, end, self._own_marks[match.lastgroup or ""]))
        return sorted(places)


class _Words(dict[str, str]):
    """A table of normalised words; `table[word]` normalises a new word."""

    def __init__(self, values: LogValues) -> None:
        super().__init__()
        self._values = values
        self._shapes: dict[str, tuple[str, list[_Place]] | None] = {}

    def __missing__(self, word: str) -> str:
        if word.isalpha() and not self._values.secrets:
            normal = word
        else:
            normalised = self._shapes.get(word.translate(_ZEROS))
            if normalised is None or "x" in word or "X" in word:
                normalised = self._normalise(word)
            normal = normalised[0]
        if len(word) <= _LONGEST:
            if len(self) >= _TABLE:
                self.clear()
            self[word] = normal
        return normal

    def places(self, word: str) -> list[_Place]:
        """The places of the values in a word."""
        return self._normalise(word)[1]

    def _normalise(self, word: str) -> tuple[str, list[_Place]]:
        """A word with marks for its values, and the places of the values."""
        if len(word) > _LONGEST or _NO_PREFIX.search(word) is not None:
            return self._compute(word)
        shape = word.translate(_ZEROS)
        if shape not in self._shapes:
            if len(self._shapes) >= _TABLE:
                self._shapes.clear()
            fresh = self._compute(shape)
            # Digits that remain belong to the word, so its shape is not enough.
            self._shapes[shape] = None if "0" in fresh[0] else fresh
        normalised = self._shapes[shape]
        return self._compute(word) if normalised is None else normalised

    def _compute(self, word: str) -> tuple[str, list[_Place]]:
        """A word with marks for its values and their places, computed without the table."""
        places = self._values.find(word)
        return _put_marks(word, places).text, places


def original_spans(marked: NormalisedText, spans: Ids) -> Ids:
    """(T, 2) spans in the original text for spans in a normalised text.

    A span that covers part of a mark is extended to the whole value that the mark replaced.
    """
    marks = marked.marks
    if not len(marks):
        return spans
    # The last mark that begins before each offset. Before the first mark, offsets are unchanged.
    at = np.searchsorted(marks[:, 0], spans, side="left") - 1
    inside = (at >= 0) & (spans < marks[at, 1])
    moved = spans + np.where(at >= 0, marks[at, 3] - marks[at, 1], 0)
    return np.where(inside, marks[at, (2, 3)], moved).astype(np.int32)


def _put_marks(text: str, places: Iterable[_Place]) -> NormalisedText:
    """A text with marks at these places."""
    pieces: list[str] = []
    marks: list[tuple[int, int, int, int]] = []
    done = size = 0
    for start, end, put in places:
        pieces += (text[done:start], put)
        size += start - done
        marks.append((size, size + len(put), start, end))
        size += len(put)
        done = end
    return NormalisedText(
        "".join((*pieces, text[done:])), np.array(marks, dtype=np.int32) if marks else _NONE
    )


def _user_pattern(patterns: Mapping[str, str]) -> re.Pattern[str] | None:
    """One expression for all patterns of a user, with a named group for each; None without patterns."""
    for name, text in patterns.items():
        if _NAME.fullmatch(name) is None:
            raise UsageError(
                f"patterns: {name!r} cannot be a mark; use capital letters and underscores (JOB_NAME)"
            )
        try:
            compiled = re.compile(text)
        except re.error as error:
            raise UsageError(f"patterns: {name} is not a regular expression: {error}") from None
        if compiled.match("") is not None:
            raise UsageError(f"patterns: {name} matches the empty text")
    if not patterns:
        return None
    return re.compile("|".join(f"(?P<_own{n}>{text})" for n, text in enumerate(patterns.values())))


# Secrets

_NAMED = (  # names whose values are secrets
    r"(?:pass(?:word|wd|phrase|code)?|pwd|secrets?|tokens?|jwt|key|(?:api|access|private|secret|encryption|ssh)"
    r"[_-]?(?:access[_-]?)?keys?(?:[_-]?id)?|auth(?:orization)?|credentials?|creds|otp|pin|cvv|cvc|ssn|iban)"
)
_SCHEME = r"(?:(?:Bearer|Basic|Digest|Negotiate|Token|ApiKey)\s+)?"
_VALUE = (
    r"\"(?:[^\"\\]|\\.){1,4096}\"|'(?:[^'\\]|\\.){1,4096}'"
    r"|(?:\\{1,4}[\"'])?[^\s,;&\"'<>(){}\[\]|]+"  # a mark is not a value
)
_LIKE_SECRETS = re.compile(
    rf"(?P<address>{dict(_KINDS)['URL']}|{dict(_KINDS)['EMAIL']})"  # replaced as a whole
    # A private key, up to its end or the end of the line.
    r"|(?P<block>-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----|[\s\S]*))"
    # password=..., "apiKey": "...", Authorization: Bearer ..., --token ..., Cookie: ...
    rf"|(?:(?<![A-Za-z])|(?<=[a-z0-9])(?=[A-Z]))(?i:{_NAMED}\\{{0,4}}[\"']?\s{{0,3}}(?:=>|:=|[=:](?![:/]))\s{{0,3}}"
    rf"{_SCHEME})(?P<named>{_VALUE})"
    rf"|(?i:(?<=--){_NAMED}\s{{1,3}})(?P<flag>{_VALUE})"
    r"|(?i:\b(?:Bearer|Basic)\s+)(?P<bearer>(?=\S{0,512}[0-9=])[\w+/=.~-]{8,})"
    r"|(?i:\bcookie\\{0,4}[\"']?\s{0,3}[=:]\s{0,3})(?P<cookie>\S.*)"
    # user:password@host
    r"|(?<![\w/.+-])[\w.+-]{1,64}:(?P<login>[^\s:@/]{1,128})(?=@[\w(])"
    # Keys in their issuers' format: JSON web tokens, AWS, GitHub, GitLab, Slack, Stripe, Google, npm, ...
    # The header of a token is short. Without a limit, "eyJ-eyJ-..." would be searched from each "eyJ".
    r"|(?P<issued>\beyJ[\w-]{5,512}\.[\w-]{5,}(?:\.[\w-]*)?|\b(?:AKIA|ASIA|AGPA|AIDA|AROA|ANPA)[0-9A-Z]{12,}"
    r"|\b(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|(?:sk|pk|rk)[-_](?:live[-_]|test[-_]|proj[-_])?"
    r"|AIza|ya[0-9]{2}\.|npm_|hf_|SG\.)[\w.-]{12,})"
    # Words like Tr0ub4dor!
    r"|(?<!\S)(?P<mixed>(?=\S{0,63}[a-z])(?=\S{0,63}[0-9])(?=\S{1,63}[!@^*%])[\w!@^*%$+~?.-]{8,64})(?!\S)"
)
# A line without any of these in lower case has no such secret. This search takes a tenth of the time.
_SIGNS = word_list(
    """pass pwd secret token jwt key auth cred otp pin cvv cvc ssn iban bearer basic cookie @ ! ^ * % eyj
    akia asia agpa aida aroa anpa ghp_ gho_ ghu_ ghs_ ghr_ _pat_ glpat- xox sk- sk_ pk- pk_ rk- rk_ aiza
    npm_ hf_ sg. ya"""
)
_RUN = re.compile(r"[0-9A-Za-z+/=_~-]{8,}")
_LETTERS_AND_DIGITS = re.compile(r"[0-9A-Za-z]{8,}")
_HUMP = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_CONSONANTS = re.compile(r"[b-df-hj-np-tv-xz]{7}", re.IGNORECASE)
_INNER_DIGIT = re.compile(r"[A-Za-z][0-9]+[A-Za-z]")


def secret_places(line: str) -> list[_Place]:
    """Places of the secrets in a line, by their form.

    These are the text after `password=` and similar names, keys in their issuers' format, private key blocks,
    logins, cookies, and words like Tr0ub4dor! The name itself stays: `password=<SECRET>`. Addresses, e-mail
    addresses and numbers (of cards, of persons) are values of other kinds. Words that look random are found
    later, word by word.
    """
    low = line.lower()
    if not any(sign in low for sign in _SIGNS):
        return []
    matches = ((match.lastgroup, match) for match in _LIKE_SECRETS.finditer(line))
    return [(*match.span(kind), mark(SECRET)) for kind, match in matches if kind and kind != "address"]


_of_shape = lru_cache(_TABLE)(secret_places)


def _add_random_places(word: str, places: Sequence[_Place]) -> list[_Place]:
    """The values of a word, and the text between them that looks random."""
    all_places: list[_Place] = []
    done = 0
    for place in (*places, (len(word), len(word), "")):
        for run in _RUN.finditer(word, done, place[0]):
            all_places += [(start, end, mark(SECRET)) for start, end in _random_places(run[0], run.start())]
        done = place[1]
        if place[2]:
            all_places.append(place)
    return all_places


def _random_places(run: str, at: int) -> list[tuple[int, int]]:
    """Places in a run of letters and digits that look random: keys, tokens and generated passwords.

    Names from people consist of words. Random text changes between capitals, small letters and digits at
    every second or third character.
    """
    size = sum(map(str.isalnum, run))
    if size >= 20 and len(_HUMP.findall(run)) >= 0.3 * size:
        return [(at, at + len(run))]
    places = []
    for part in _LETTERS_AND_DIGITS.finditer(run):
        text = part[0]
        humps, size = _HUMP.findall(text), len(text)
        digits = sum(map(str.isdigit, text))
        if digits in (0, size):
            odd = (
                size >= 16
                and not digits
                and (len(humps) >= 0.3 * size or any(map(_CONSONANTS.search, humps)))
            )
        else:
            numbers = sum(map(str.isdigit, (hump[0] for hump in humps)))
            odd = digits >= 5 or numbers >= 2 or (size >= 10 and _INNER_DIGIT.search(text) is not None)
        if odd:
            places.append((at + part.start(), at + part.end()))
    return places


_LINES_FOLLOWED = 100_000


def fresh_lines(raws: Iterable[Any]) -> Iterator[tuple[Any, Sequence[str]]]:
    """Yield each window or session with only the lines that occurred in no earlier one.

    Windows overlap, and a line may belong to several sessions. If it counted in each of them, a single line
    with a secret would seem common. Text and time identify a line. Without times, a window leaves out the
    lines at the end of the window before it. Event ids are all included. Other lines that happen to be equal
    are left out as well, which only makes counts smaller.
    """
    recent, last_lines = _RecentLines(), None
    for raw in raws:
        lines, times = lines_of(raw), getattr(raw, "times", None)
        if getattr(raw, "keys", False):
            yield raw, lines
        elif times is not None:
            yield raw, [line for line, time in zip(lines, times, strict=True) if recent.add((time, line))]
        else:
            yield raw, lines[0 if last_lines is None else _overlap(last_lines, lines) :]
            last_lines = lines


class _RecentLines:
    """The last 100,000 to 200,000 lines, by hash."""

    def __init__(self) -> None:
        self._now: set[int] = set()
        self._then: set[int] = set()

    def add(self, line: tuple[float, str]) -> bool:
        """Add a line, and return whether it is new."""
        key = hash(line)
        if key in self._now or key in self._then:
            return False
        if len(self._now) >= _LINES_FOLLOWED:
            self._now, self._then = set(), self._now
        self._now.add(key)
        return True


def _overlap(earlier: Sequence[Any], later: Sequence[Any]) -> int:
    """Length of the longest end of `earlier` that `later` begins with."""
    if not later:
        return 0
    for start in range(max(len(earlier) - len(later), 0), len(earlier)):
        if earlier[start] == later[0] and earlier[start:] == later[: len(earlier) - start]:
            return len(earlier) - start
    return 0


def subject_of(raw: Any, number: int) -> int:
    """A number that identifies the subject of lines.

    The subject is the session, or the log file with its rotations, according to `subject`. Without a subject,
    it is the `number` of the record.
    """
    subject = getattr(raw, "subject", None)
    return number if subject is None else hash(subject)


def too_few(product: str, min_subjects: int, has_lines: bool) -> DataError:
    """The error for logs without any `product` ("templates", "words") from enough subjects.

    Args:
        has_lines: whether there were any lines to learn from.
    """
    if min_subjects > 1 and has_lines:
        return DataError(
            f"no log lines are alike in {min_subjects} sessions or files, so there are no {product} to keep",
            remedy="a file and its rotations count once: name the sessions (--option session=REGEX), give "
            "more files, or, if the data are not sensitive, lower tokenizer.options.min_sessions",
        )
    return DataError(
        f"there are no log lines to learn {product} from",
        remedy="give files that contain log lines, or lower min_lines and min_sessions",
    )


def lines_of(raw: Any) -> Sequence[str]:
    """The lines of a window, a session or a text."""
    lines: Sequence[str] = raw.split("\n") if isinstance(raw, str) else raw.lines
    return lines


def are_lines(raw: Any) -> bool:
    """Whether `lines_of` can read a raw sequence."""
    return isinstance(raw, str) or hasattr(raw, "lines")
