"""The domain of patient histories: tables of a hospital or insurer in, events as units."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from seqmlm.anomaly.levels import Level
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.base import Domain, DomainDefaults, Format, dataset_format
from seqmlm.domains.ehr.levels import LEVELS
from seqmlm.domains.ehr.readers import exports, fhir, flat, meds
from seqmlm.domains.holes import Hole, Prompt
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.engine.types import Encoding, Ids
from seqmlm.errors import UsageError
from seqmlm.parsing import duration
from seqmlm.tokenizers.base import Tokenizer
from seqmlm.tokenizers.events_history import Event, History, is_birth, iso

if TYPE_CHECKING:
    from seqmlm.reports.pictures import Picture


_SEX, _AGES = ("SEX//", "GENDER//"), (18, 40, 65)


class EHRDomain(Domain):
    """Health records: one record a subject, a `History` (`tokenizers.events_history`) its raw form.

    Every layer attends to the whole history, for a visit is a set: "64 tokens to each side" would cut it
    somewhere. Codes, whole visits and whole families of codes are masked in turns, since chronic codes repeat
    and could be copied from the next visit.
    """

    name: ClassVar[str] = "ehr"
    planted_in: ClassVar[str] = "subject"
    title: ClassVar[str] = "Patient histories: MEDS, Synthea, OMOP, FHIR, event tables"
    unit: ClassVar[str] = "event"
    structure: ClassVar[str] = "CodesDecoder"
    sensitive: ClassVar[bool] = True
    empty: ClassVar[History] = History(subject="", birth=None, events=())
    formats: ClassVar[Mapping[str, Format]] = {
        "meds": Format(read=meds.read_meds, folder=meds.is_meds),
        "synthea": Format(read=exports.read_synthea, folder=exports.is_synthea),
        "omop": Format(read=exports.read_omop, folder=exports.is_omop),
        "mimic3": Format(read=exports.read_mimic3, folder=exports.is_mimic3),
        "fhir": Format(read=fhir.read_fhir, suffixes=(".ndjson", ".jsonl", ".json"), folder=fhir.is_fhir),
        "events": Format(read=flat.read_long, suffixes=(".csv", ".tsv", ".parquet")),
        "wide": Format(read=flat.read_wide),
        "diabetes130": Format(read=flat.read_diabetes130, folder=flat.is_diabetes130),
    }
    dataset: ClassVar[Format] = dataset_format(flat.read_long)
    defaults: ClassVar[DomainDefaults] = DomainDefaults(
        tokenizer="events.v1",
        masking=MaskingConfig(masker="visit.v1", rate=0.15, mask=0.8, random=0.1, keep=0.1),
        size="small",
        max_length=512,
        model={"layers": "everywhere.v1"},
    )

    @property
    def levels(self) -> tuple[Level, ...]:
        """Visit (what a clinician reviews), event and patient; each as it was known then, or in hindsight."""
        return LEVELS

    def pictures(self, level: Level) -> Sequence[Picture]:
        """Rows over time, and each patient visit by visit."""
        from seqmlm.domains.ehr.picture import History
        from seqmlm.reports.pictures import Timeline

        return Timeline(), History()

    def shows(self, row: Mapping[str, Any], anomaly: Mapping[str, Any]) -> bool:
        """A visit is the anomaly's; of an event, also the code: only rows of visits say what is missing."""
        if row.get("visit_id") != anomaly["visit"]:
            return False
        return "missing" in row or anomaly["code"] in [unit["unit"] for unit in row["top"]]

    def split_key(self, record: Record) -> str:
        """The subject: no patient is on both sides of a split."""
        return str(record.raw.subject)

    def order_key(self, record: Record) -> float | None:
        """When the subject was first seen: the subjects seen last validate a model of those before."""
        times = (
            event.time for event in record.raw.events if event.time is not None and not is_birth(event.code)
        )
        return next(times, None)

    def audit(self, records: Iterator[Record], problems: Problems) -> dict[str, Any]:
        """Subjects, visits, events and codes, with no count of few people."""
        from seqmlm.domains.ehr.audit import audit

        found = audit(records, problems)
        return {key: value for key, value in found.items() if key != "problems"}

    def blank(self, units: int) -> Any:
        """None: events have times.

        Raises:
            UsageError: always.
        """
        raise UsageError("a history begins with a patient: give a file of histories with gaps, not a length")

    def written(self, sequences: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """A table of events as the format `events` reads it."""
        yield "subject_id,time,code\n"
        for name, raw in sequences:
            for event in raw.events:
                cells = (name, "" if event.time is None else iso(event.time), event.code)
                yield ",".join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n"

    def framed(self, raw: Any, template: str, fields: Mapping[str, Any], forms: Sequence[str]) -> Any:
        """Events behind the history, a visit a line: `+30d [MASK]` is one of an unknown code 30 days later.

        Without a time a visit is a day later than what is before it. `{text}` stands for the history.

        Raises:
            UsageError: a time that is none, or lines before the history.
        """
        events, last = list(raw.events), [event.time for event in raw.events if event.time is not None]
        now = last[-1] if last else 0.0
        lines = [line.split() for line in template.splitlines() if line.strip()]
        for number, (first, *rest) in enumerate(lines):
            if first == "{text}" and not rest:
                if number:
                    raise UsageError("a template of patient histories begins with the line {text}")
                continue
            later = duration(first[1:]) if first.startswith("+") else 86_400.0
            if not later:
                raise UsageError(f"{first!r} is no time from one visit to the next: write +30d or +6h")
            now += later
            codes = rest if first.startswith("+") else [first, *rest]
            events += [Event(time=now, code=code) for code in codes]
        return replace(raw, events=tuple(events))

    def prompt(self, raw: Any, forms: Sequence[str]) -> Prompt:
        """An event whose code is a gap, in whatever vocabulary."""
        codes = [event.code.rpartition("//")[2] for event in raw.events]
        gaps = [place for place, code in enumerate(codes) if code in forms]
        return _with_gaps(raw, gaps)

    def filled(self, prompt: Prompt, texts: Sequence[str]) -> Prompt:
        """A code, without value, in place of each gap."""
        starts = [start for start, _ in prompt.raw.code_spans()]
        events, gaps = list(prompt.raw.events), [starts.index(hole.start) for hole in prompt.holes]
        for place, code in zip(gaps, texts, strict=True):
            old = events[place]
            events[place] = Event(time=old.time, code=code, visit=old.visit, kind=old.kind)
        return _with_gaps(replace(prompt.raw, events=tuple(events)), gaps)

    def later(self, raw: Any, time: float, gap: float, *, known: bool = True) -> Prompt:
        """The history until a time, and a visit later of which nothing is known."""
        before = _known(raw, time if known else -math.inf)
        events = (*before, Event(time=time + gap, code=self.gaps[0]))
        return self.prompt(replace(raw, events=events), self.gaps)

    def until(self, raw: Any, time: float) -> Any | None:
        """Background, birth, and the events until a time."""
        events = _known(raw, time)
        dated = any(event.time is not None and not is_birth(event.code) for event in events)
        return replace(raw, events=events) if dated else None

    def ends(self, raw: Any) -> float | None:
        """The last event with a time."""
        return max((event.time for event in raw.events if event.time is not None), default=None)

    def at(self, raw: Any, time: float) -> tuple[Sequence[str], Mapping[str, str]]:
        """Codes until a time; sex where it is known, and age in bands."""
        codes = [event.code for event in raw.events if event.time is not None and event.time <= time]
        groups = {}
        sex = next((e.code.partition("//")[2] for e in raw.events if e.code.startswith(_SEX)), None)
        if sex is not None:
            groups["sex"] = sex
        if raw.birth is not None:
            age = (time - raw.birth) / (365.25 * 86_400)
            groups["age"] = next(
                (f"below {limit}" for limit in _AGES if age < limit), f"{_AGES[-1]} and above"
            )
        return codes, groups

    def candidates(self, tokenizer: Tokenizer) -> Sequence[str]:
        """Clinical events: no interval, and nothing of the frame of visits."""
        found = (tokenizer.spelling.alone(token) for token in range(tokenizer.space.size))
        return [text for text in found if text is not None]

    def show(self, tokenizer: Tokenizer, raw: Any, encoding: Encoding, asked: Ids, predicted: Ids) -> str:
        """Three lines of tokens in order, since a history's own lines would be pages; see `Domain.show`.

        For the eyes of those who may see the records: callers do not ask where data are sensitive, unless the
        user does.
        """
        true = [tokenizer.spelling.surface(int(token)) for token in encoding.ids]
        guessed = [tokenizer.spelling.surface(int(token)) for token in predicted]
        lines = [
            ("masked", self._replaced(true, asked, [self.hidden] * len(asked))),
            ("predicted", self._replaced(true, asked, guessed)),
            ("true", true),
        ]
        return "\n".join(f"{label:<10}{' '.join(words[1:-1])}" for label, words in lines)

    @staticmethod
    def _replaced(words: Sequence[str], asked: Ids, texts: Sequence[str]) -> list[str]:
        changed = list(words)
        for place, text in zip(asked.tolist(), texts, strict=True):
            changed[place] = text
        return changed


def _known(raw: History, time: float) -> tuple[Event, ...]:
    """Background, birth, and the events until a time."""
    return tuple(
        event for event in raw.events if event.time is None or is_birth(event.code) or event.time <= time
    )


def _with_gaps(raw: History, gaps: Sequence[int]) -> Prompt:
    """A history of whose events some are gaps."""
    spans = raw.code_spans()
    return Prompt(raw=raw, holes=tuple(Hole(*spans[place]) for place in gaps))


EHR = EHRDomain()
