"""Read lines of text with a header.

One regular expression per format reads time and message of a whole batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat

from seqmlm.data.clock import MONTH_FIRST, Clock
from seqmlm.domains.logs.readers.events import STAND_INS, Event, Events, Lines
from seqmlm.domains.logs.readers.origins import header_origins

_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERR(?:OR)?|CRIT(?:ICAL)?|FATAL|SEVERE|ALERT|EMERG)"
_DAY = r"\d{4}-\d\d-\d\d"
_HMS = r"\d\d:\d\d:\d\d"
_FRACTION = r"(?:[.,](\d+))?"
_ZONE = r" ?(Z|UTC|[+-]\d\d:?\d\d|)"
_TAG = r"(?P<service>[^\s:\[]*)(?:\[[^\]\s]*\])?: ?"
_QUOTED = r'"(?:[^"\\\n]|\\.)*"'
_FRAME = r"(?:\d+ )?<(?P<priority>\d{1,3})>\d{1,2} "
_ELEMENT = rf'\[[^\s=\]"]+(?: +[^\s=\]"]+={_QUOTED})*'
_CUT = re.compile(r'="[^"\\\n]*(?:\\.[^"\\\n]*)*$', re.MULTILINE)
_OPENED = re.compile(rf'{_FRAME}(?:\S+ ){{5}}(?:{_ELEMENT} *\])*{_ELEMENT} +[^\s=\]"]+="(?:[^"\\]|\\.)*')
_STREAM = re.compile(r"\S+ (std(?:out|err)) ([FP])")


@dataclass(frozen=True)
class Header:
    """The beginning of lines in one format.

    Args:
        head: expression with three groups: the time without fractions of seconds, the fraction, and the zone.
            Other groups have the names that `origins.header_origins` knows.
        message: expression with one group; the text after it is left out.
        label: expression with one group before the head, or None.
        doubtful: whether other formats have priority if they match as well.
        time_prefix: text before each time, which tells the clock how to read it.
    """

    head: str
    message: str = "(.*)"
    label: str | None = None
    doubtful: bool = False
    time_prefix: str = ""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Groups for time, fraction, zone and message (label first), and named groups; matches all lines.

        It matches each line once. The lines of a batch are searched as one text, so no part may match a line
        end.
        """
        return re.compile(f"^(?:{self.label or ''}{self.head})?{self.message}", re.MULTILINE | re.ASCII)

    @cached_property
    def named_groups(self) -> frozenset[int]:
        """Numbers of the groups that have names."""
        return frozenset(self.pattern.groupindex.values())

    @cached_property
    def head_pattern(self) -> re.Pattern[str]:
        """The label and the head, without the message."""
        return re.compile((self.label or "") + self.head, re.ASCII)


HEADERS: Mapping[str, Header] = {
    "hdfs": Header(rf"(\d{{6}} \d{{6}})()() \d+ (?P<severity>{_LEVEL}) (?P<service>[^\s:]+): ?"),
    "spark": Header(rf"(\d\d/\d\d/\d\d {_HMS})()() (?P<severity>{_LEVEL}) +(?P<service>[^\s:]+): ?"),
    # Supercomputers. The alert comes first. Blue Gene then has its own time, place and part. Others
    # (Thunderbird) have a syslog header.
    "bgl": Header(
        r" (\d{9,10})()() \d{4}\.\d\d\.\d\d (?P<host>\S+) "
        r"(?:\d{4}-\d\d-\d\d-\d\d\.\d\d\.\d\d\.\d+ \S+ \S+ (?P<service>\S+) (?P<severity>[A-Z]+) ?|"
        rf"[A-Z][a-z]{{2}} +\d\d? {_HMS} \S+ (?P<service_2>[^\s:\[]*)(?:\[[^\]\s]*\])?: ?)",
        label=r"(\S+)",
    ),
    # Android's `logcat -v threadtime`, and the components of Kubernetes (klog). Times have no year.
    "android": Header(
        rf"(\d\d-\d\d {_HMS}){_FRACTION}() +\d+ +\d+ (?P<severity>[VDIWEFA]) (?P<service>[^:\n]*?) *: ?",
        time_prefix=MONTH_FIRST,
    ),
    "klog": Header(
        rf"(?P<severity>[IWEF])(\d{{4}} {_HMS}){_FRACTION}() +\d+ (?P<service>[^\s:\]]+):\d+\] ?",
        time_prefix=MONTH_FIRST,
    ),
    # RFC 5424: priority, version, time, host, application, process, message id and structured data. Some
    # programs leave out the latter. With octet framing, its length comes first.
    "syslog5424": Header(
        rf"{_FRAME}({_DAY}T{_HMS}|-){_FRACTION}{_ZONE} (?P<host>\S+) (?P<service>\S+) \S+ \S+"
        rf"(?: -(?: |$)| (?:{_ELEMENT} *\])+ ?| |$)(?:\ufeff)?"
    ),
    # RFC 3164, and the form with an ISO time from newer daemons and journalctl: time, host (not a level), tag
    # with process. Other programs may begin in the same way, so without a fraction the tag must be certain.
    "syslog": Header(
        rf"(?:<(?P<priority>\d{{1,3}})>)?([A-Z][a-z]{{2}} [ \d]\d {_HMS}|"
        rf"{_DAY}T{_HMS}(?=\.\d+(?:[+-]\d\d:\d\d|Z) (?!{_LEVEL} )\S+ \S+: |"
        rf"(?:[+-]\d\d:?\d\d|Z) \S+ (?:[^\s\[]+\[\d+\]|kernel): ))"
        rf"{_FRACTION}{_ZONE} (?P<host>\S+) (?: ?-- )?"
        rf"(?:{_TAG}|(?P<service_2>[^\s:\[]+(?: [^\s:\[]+){{1,3}})(?:\[\d+\])?: )?"
    ),
    "apache_error": Header(
        rf"\[([A-Z][a-z]{{2}} [A-Z][a-z]{{2}} [ \d]\d {_HMS}(?:\.\d+)? \d{{4}})()()\] "
        r"\[(?P<severity>[^\]\n]*)\] (?:\[pid [^\]\n]*\] )?"
    ),
    "access": Header(
        rf"\S+ \S+ \S.*? ?\[(\d\d/[A-Z][a-z]{{2}}/\d{{4}}:{_HMS})() ?([+-]\d{{4}})\] ",
        message=rf"({_QUOTED} \d{{3}} \S+|.*)",  # without referrer and browser
    ),
    # Container runtime (CRI): time, stream, F for a full line or P for a part of a line.
    "cri": Header(rf"({_DAY}T{_HMS}){_FRACTION}{_ZONE} std(?:out|err) [FP](?: |$)"),
    "zookeeper": Header(rf"({_DAY} {_HMS}){_FRACTION}() - (?P<severity>{_LEVEL}) +\[.*?\] - "),
    "openstack": Header(
        rf"(?:\S+ )?({_DAY} {_HMS}){_FRACTION}() \d+ (?P<severity>{_LEVEL}) "
        r"(?P<service>\S+) (?:\[[^\]\n]*\] )?"
    ),
    "iso": Header(
        rf"(?:\[?(?P<severity>{_LEVEL})\]?:? +)?\[?(\d{{4}}[-/]\d\d[-/]\d\d[T ]{_HMS})"
        rf"{_FRACTION}{_ZONE}\]?[ \t]*(?:[-|:,] *)?"
        rf"(?:(?:\[?(?P<severity_2>{_LEVEL})\]?|\[(?P<severity_3>(?i:{_LEVEL}))\]|"
        rf"(?<=, )(?P<severity_4>(?i:{_LEVEL})))"
        r"(?![\w.]):?[ \t]*(?:[-|] )?)?",
        doubtful=True,
    ),
    "epoch": Header(r"\[?(\d{10}(?=[.\]\s])|\d{13}|\d{16}|\d{19})(?:\.(\d+))?()\]?[ \t]+", doubtful=True),
}


def likely_format(texts: Iterable[str]) -> str | None:
    """The format whose header most of the lines have, or None if no header is common among them."""
    lines = [text for text in texts if text and not text[0].isspace()]
    matches = {name: sum(1 for line in lines if h.head_pattern.match(line)) for name, h in HEADERS.items()}
    # Lines of a trace have no header, so a fifth of the lines is enough. A certain format counts twice as
    # much as a doubtful one.
    best = max(matches, key=lambda name: matches[name] * (1 if HEADERS[name].doubtful else 2), default=None)
    return best if best is not None and matches[best] * 5 >= max(1, len(lines)) else None


def parse_lines(
    name: str | None, batches: Iterator[Lines], clock: Clock, keep_header: bool
) -> Iterator[Events]:
    """Yield an event for each line. A line without the header has no time and may continue a message.

    Without a format, the whole lines are messages. With `keep_header`, they are too.
    """
    if name is None:
        for numbers, texts in batches:
            yield [Event(n, text, head=False, full_line=text) for n, text in zip(numbers, texts, strict=True)]
        return
    header, nothing = HEADERS[name], repeat(None)
    for numbers, texts in _join_torn_lines(batches) if name == "syslog5424" else batches:
        if not texts:
            yield []
            continue
        groups = list(zip(*header.pattern.findall("\n".join(texts)), strict=True))
        named = {name: groups[number - 1] for name, number in header.pattern.groupindex.items()}
        columns = [column for number, column in enumerate(groups, 1) if number not in header.named_groups]
        labels = columns.pop(0) if header.label else nothing
        seconds, fractions, zones, messages = columns
        moments = [header.time_prefix + text for text in seconds] if header.time_prefix else seconds
        yield list(
            map(
                Event,
                numbers,
                texts if keep_header else messages,
                _times(moments, fractions, zones, clock),
                labels,
                header_origins(named, len(texts)) or nothing,
                nothing,
                map(bool, seconds),
                texts,
            )
        )


_LONGEST = 20  # most lines of a header


def _join_torn_lines(batches: Iterator[Lines]) -> Iterator[Lines]:
    """Yield lines of RFC 5424.

    A line that ends within quotation marks of its header is joined with the next one.
    """
    waiting: list[tuple[int, str]] = []
    for batch in batches:
        if not (waiting or _CUT.search("\n".join(batch.texts))):  # the normal case
            yield batch
            continue
        lines: list[tuple[int, str]] = []
        for line in zip(*batch, strict=True):
            begins = line[1] in STAND_INS or HEADERS["syslog5424"].head_pattern.match(line[1])
            if waiting and begins:  # the line before was torn
                lines, waiting = lines + waiting, []
            waiting.append(line)
            text = " ".join(text for _, text in waiting)
            if not _OPENED.fullmatch(text):
                lines, waiting = [*lines, (waiting[0][0], text)], []
            elif len(waiting) == _LONGEST:
                lines, waiting = lines + waiting, []
        if waiting and not batch.texts:
            lines, waiting = waiting, []
        if lines:
            yield Lines(*map(list, zip(*lines, strict=True)))
        if not batch.texts:
            yield batch
    if waiting:
        yield Lines(*map(list, zip(*waiting, strict=True)))


def runtime_event(event: Event) -> Event:
    """The event of a line from a container runtime (CRI): its stream, and whether the next line continues it.

    After the header of the runtime, there may be the header of a program.
    """
    match = _STREAM.match(event.full_line)
    stream, unfinished = ("", False) if match is None else (match[1], match[2] == "P")
    return event._replace(head=False, unfinished=unfinished, stream=stream)


def _times(
    seconds: Sequence[str], fractions: tuple[str, ...], zones: tuple[str, ...], clock: Clock
) -> list[float]:
    """Seconds since 1970-01-01 UTC of times whose parts are in three columns."""
    texts = seconds if not any(zones) else [a + b for a, b in zip(seconds, zones, strict=True)]
    if not any(fractions):
        return [clock[text] for text in texts]
    return [clock[text] + float("0." + f) for text, f in zip(texts, fractions, strict=True)]
