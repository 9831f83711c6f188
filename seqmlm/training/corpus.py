"""Read the user's files for a training: create the tokenizer and prepare the records as sequences.

Files are not held in memory. They are read several times: to divide them, to train the tokenizer, to prepare
them, and to calibrate. Expensive results are cached in the workspace under a hash of files and settings.
Without files, the built-in sample of the domain is drawn and cached.
"""

from __future__ import annotations

import filecmp
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqmlm import plugins
from seqmlm.config import to_dict
from seqmlm.data.counts import Cell, released, released_count
from seqmlm.data.duplicates import distinct
from seqmlm.data.fingerprints import combined, file_fingerprint
from seqmlm.data.identity import TrainedOn
from seqmlm.data.mixture import Mixture, rates, resample
from seqmlm.data.prepare import Plan, prepare
from seqmlm.data.problems import OnError, Problems
from seqmlm.data.record import Record, encodable
from seqmlm.data.sources import UNNAMED, shown_name, split_source
from seqmlm.data.splits import TRAIN, ByKey, Chronological, Parts, Split, neighbours, no_label
from seqmlm.data.store import Place, Prepared
from seqmlm.domains.refusals import missing_capability
from seqmlm.domains.samples import Sample
from seqmlm.engine.durable import FileLock, irregular_kind, move_into_place
from seqmlm.engine.types import MovingWindows, Windows
from seqmlm.errors import DataError, StateError, UsageError, number_of, plural
from seqmlm.inference.model_folder import load_tokenizer
from seqmlm.privacy import handling_sensitive_data
from seqmlm.streams.ownership import refuse_foreign, remember
from seqmlm.tokenizers.base import CARD as TOKENIZER_CARD
from seqmlm.tokenizers.base import Growing, Tokenizer, of_length
from seqmlm.tokenizers.base import fingerprint as fingerprint_of
from seqmlm.training.config import DataConfig, PretrainConfig, TokenizerConfig
from seqmlm.training.run import QUARANTINE
from seqmlm.workspace import Workspace

if TYPE_CHECKING:
    from seqmlm.domains.field import Field

CALIBRATING, CALIBRATING_PARTS = 130, 40
"""Smallest number of records that are held out to calibrate, unless it is more than a fifth of all records.

The first applies if each record is one row: a rate of .01 needs about 100 rows, and whole groups are drawn.
The second applies if a record has many rows, which are similar to each other.
"""

_TWO_NUMBERS = np.dtype((np.int64, 2))


def draw_sample(domain: str, out: Path, *, n: int | None = None, seed: int = 0) -> Sample:
    """Write the sample of `domain` into `out`.

    Args:
        domain: name of the domain.
        out: folder of the sample. It is created if missing.
        n: number of records. Default: the number in the sample.
        seed: seed of the random generator.

    Raises:
        UsageError: the domain is unknown, or `out` is or contains a link, pipe or device.
        StateError: the folder cannot be written.
    """
    field = plugins.domain(domain)
    for path in (out, *out.rglob("*")):
        if irregular_kind(path) not in (None, "a folder"):
            raise UsageError(
                f"{path} is {irregular_kind(path)}, and only regular files are written; choose another --out"
            )
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".sample-", dir=out) as building:
            sample = field.sample.draw(Path(building), n=n, seed=seed)
            targets = {path: out / path.relative_to(building) for path in Path(building).rglob("*")}
            files = {path: target for path, target in targets.items() if path.is_file()}
            updates = {path: target for path, target in files.items() if not _equal_files(path, target)}
            for target in updates.values():
                refuse_foreign(target, "the file")
            for path, target in updates.items():
                target.parent.mkdir(parents=True, exist_ok=True)
                move_into_place(path, target)
                remember(target)
        data, extra_files = (
            tuple(targets[path] for path in paths) for paths in (sample.files, sample.extra_files)
        )
        return Sample(files=data, truth=targets[sample.truth], extra_files=extra_files)
    except OSError as error:
        raise StateError(
            f"cannot write the sample to {out}: {error.strerror}; choose another --out"
        ) from None


def _equal_files(path: Path, target: Path) -> bool:
    """Whether `target` exists and has the same contents."""
    return target.is_file() and filecmp.cmp(path, target, shallow=False)


def cached_sample(domain: str, workspace: Workspace, seed: int) -> Sample:
    """The sample of `domain` in the cache of the workspace. It is drawn at first use."""
    folder = workspace.cache / "samples" / f"{domain}-{seed}"
    with FileLock(folder.with_suffix(".lock")):
        return draw_sample(domain, folder, seed=seed)


class CorpusReader:
    """Reads the corpora of one training as often as needed. Prepared data are kept in the cache.

    `NAME=PATH` names a corpus, and all other paths are the corpus "data". Without paths, the corpus is the
    sample of the domain.
    """

    def __init__(self, config: PretrainConfig, domain: Field, workspace: Workspace) -> None:
        self.config, self.domain, self.workspace = config, domain, workspace
        self.quarantined: list[Path] = []
        self._parts: dict[str, Parts] = {}
        self.sources: dict[str, list[str]] = {}
        if not config.data.paths:
            sample = cached_sample(domain.name, workspace, config.seed)
            self.sources["sample"] = [str(path) for path in sample.files]
        for text in config.data.paths:
            name, path = split_source(text)
            self.sources.setdefault(name or UNNAMED, []).append(path)

    def corpus(self, say: Callable[[str], None]) -> Corpus:
        """Create the tokenizer and the prepared data of a training, or load them from the cache.

        Args:
            say: receives messages for the user.

        Raises:
            DataError: an input cannot be read, or has too few records to divide.
            UsageError: the settings contradict each other.
        """
        with handling_sensitive_data(self.config.data.sensitive):
            if not self.config.data.paths:
                say(
                    f"no data given: training on the built-in {self.domain.name} sample. To train on your "
                    f"data: seqmlm train PATH --domain {self.domain.name}"
                )
            tokenizer, prepared = self._tokenizer(say), dict[str, Prepared]()
            for name in self.sources:
                prepared[name] = self.prepared(name, tokenizer, _progress(name, say))
                self._announce(name, prepared[name].statistics, say)
            return Corpus(self, tokenizer, prepared)

    def _tokenizer(self, say: Callable[[str], None]) -> Tokenizer:
        """The saved tokenizer, the tokenizer of the initial model, or a new tokenizer trained on the data."""
        config, data = self.config.tokenizer, self.config.data
        init, kind = self.config.model.init, plugins.tokenizer_class(config.name)
        if (config.path or init) is not None or not kind.traits.trainable:
            return load_or_train(
                config, self.texts, domain=self.config.domain, init=init, sensitive=data.sensitive, say=say
            )
        key = combined(
            tokenizer=to_dict(config),
            corpora=[self.fingerprint(name) for name in self.sources],
            alpha=data.mixture_alpha,
            sensitive=data.sensitive,
            trained_on=[
                *(data.split, data.validation, data.calibration, data.join_documents, self.config.seed),
                *_calibrate_on(data),
            ],
            deduplicate=data.deduplicate,
        )
        folder = self.workspace.cache / "tokenizers" / key
        with FileLock(folder.with_suffix(".lock")):
            if not (folder / TOKENIZER_CARD).exists():
                say(f"training a {kind.name} tokenizer")
                trained_tokenizer = load_or_train(config, self.texts)
                folder.mkdir(parents=True, exist_ok=True)
                trained_tokenizer.save(folder)
        return kind.load(folder)

    def _announce(self, name: str, statistics: Mapping[str, Any], say: Callable[[str], None]) -> None:
        facts = released(statistics)
        train, validation = _text(facts["train"]["records"]), _text(facts["validation"]["records"])
        unit = self.domain.unit if facts["units"] == 1 else plural(self.domain.unit)
        say(f"{name}: {_text(facts['units'])} {unit} in {train} training and {validation} validation records")
        if held_out := facts["calibration"]["records"]:
            say(f"{name}: {_text(held_out)} records held out for calibration")
        for reason, count in facts["problems"].items():
            say(f"{name}: {reason}: {_text(count)}")

    def fingerprint(self, name: str) -> str:
        """Hash of the files of a corpus and of how they are read."""
        data = to_dict(self.config.data)
        reading = {key: data[key] for key in ("format", "options", "on_error")}
        config = self.config.data
        files = self.domain.files.inputs(self.sources[name], format=config.format, options=config.options)
        # Suffixes determine how a file is read: its language or format.
        kinds = [Path(file).suffix for file in files]
        return combined(domain=self.domain.name, files=file_fingerprint(files), kinds=kinds, reading=reading)

    def records(self, name: str, problems: Problems) -> Iterator[Record]:
        """Read the records of one corpus, one after another, without the test split."""
        data = self.config.data
        for record in self.domain.read(self.sources[name], problems, format=data.format, **data.options):
            if self.domain.keys.data_split(record) == "test":
                problems.note("a record of the test split, left out")
            else:
                yield record

    def texts(self) -> Iterator[Any]:
        """The training texts for a tokenizer. Corpora are mixed in the same proportions as for the model.

        Held-out records are excluded: a vocabulary, or the bins of a value, must not depend on them.
        """

        kind = plugins.tokenizer_class(self.config.tokenizer.name)

        def texts_of(name: str) -> Iterator[Any]:
            return (record.raw for record in self._readable_records(self._training_records(name), kind))

        if len(self.sources) == 1:
            return texts_of(next(iter(self.sources)))
        amounts = [float(sum(len(str(text)) for text in texts_of(name))) for name in self.sources]
        often = rates(amounts, self.config.data.mixture_alpha).tolist()
        seed = self.config.seed
        return chain.from_iterable(
            resample(texts_of(name), rate, seed=seed) for name, rate in zip(self.sources, often, strict=True)
        )

    def records_with_parts(self, name: str, problems: Problems | None = None) -> Iterator[tuple[Record, int]]:
        """The records of a corpus, each with the index of its part in `PARTS`.

        Args:
            name: name of the corpus.
            problems: collects bad records. None ignores them, because another pass counts them.

        Raises:
            DataError: the corpus has no records.
        """
        if name not in self._parts:
            split, problem_counts = self.split(), self._silent_problems()
            marks = map(split.mark, self._corpus_records(name, problem_counts))
            parts = split.parts(np.fromiter(marks, dtype=_TWO_NUMBERS))
            if not len(parts):
                raise problem_counts.nothing()
            self._parts[name] = parts
        yield from zip(self._corpus_records(name, problems), self._parts[name].tolist(), strict=True)

    def _training_records(self, name: str) -> Iterator[Record]:
        """The training records of a corpus, divided by the same rule as the prepared records."""
        return (record for record, part in self.records_with_parts(name) if part == TRAIN)

    def reread(self, name: str, places: Sequence[Place]) -> Iterator[tuple[int, Record]]:
        """Read some records of a corpus again, with their numbers.

        Data with the same content are prepared only once, so their files may have had other names then. If no
        record is found by the name of its file, the records are found by the number of their file and their
        line.
        """
        matches_names = False
        named = [((at.id, at.source, at.line), at.number) for at in places]
        for pair in self._records_at(
            name, named, lambda record: (encodable(record.id), encodable(record.source), record.line)
        ):
            matches_names = True
            yield pair
        if not matches_names:
            files: dict[str, int] = {}
            yield from self._records_at(
                name,
                [((_id_without_file(at.id, at.source), at.file, at.line), at.number) for at in places],
                lambda record: (
                    encodable(_id_without_file(record.id, record.source)),
                    files.setdefault(record.source, len(files)),
                    record.line,
                ),
            )

    def _records_at(
        self, name: str, places: Sequence[tuple[Hashable, int]], place_of: Callable[[Record], Hashable]
    ) -> Iterator[tuple[int, Record]]:
        """The records of a corpus at some places, with the numbers of the places.

        Several records can be at the same place.
        """
        numbers_by_place: dict[Hashable, list[int]] = {}
        for key, number in reversed(places):
            numbers_by_place.setdefault(key, []).append(number)
        for record in self._corpus_records(name) if numbers_by_place else ():
            if numbers := numbers_by_place.get(key := place_of(record)):
                yield numbers.pop(), record
                if not numbers:
                    del numbers_by_place[key]
                if not numbers_by_place:
                    return

    def _readable_records(self, records: Iterator[Record], kind: type[Tokenizer]) -> Iterator[Record]:
        """The records, after a check that the tokenizer can read the first one.

        Raises:
            UsageError: it cannot.
        """
        for number, record in enumerate(records):
            if not number and not kind.traits.reads(record.raw):
                raise UsageError(
                    f"tokenizer {kind.name} cannot read records of the {self.domain.name} domain; "
                    f"its default tokenizer is {self.domain.defaults.tokenizer}"
                )
            yield record

    def _corpus_records(self, name: str, problems: Problems | None = None) -> Iterator[Record]:
        """The records that will be prepared. Only that pass counts and quarantines bad records."""
        records = self.records(name, problems or self._silent_problems())
        return distinct(records) if self.config.data.deduplicate else records

    def _silent_problems(self) -> Problems:
        """Problems for a pass that neither counts nor quarantines bad records."""
        data = self.config.data
        policy: OnError = "raise" if data.on_error == "raise" else "skip"
        return Problems(policy, sensitive=data.sensitive)

    def prepared(self, name: str, tokenizer: Tokenizer, progress: Callable[[int, int], None]) -> Prepared:
        """Prepare one corpus as memory-mapped encodings, or load it from the cache."""
        config, data = self.config, self.config.data
        moving, linear = data.cuts == "moving.v1", config.model.is_linear
        fingerprint = combined(
            corpus=self.fingerprint(name),
            tokenizer=fingerprint_of(tokenizer),
            settings=[
                *(data.deduplicate, data.join_documents, data.split),
                *(data.validation, data.calibration, data.sensitive),
                *_calibrate_on(data),
                # fixed cuts are left out, so that older cache entries keep their names
                *([data.cuts] if moving else []),
                *(["one length"] if linear else []),
            ],
            max_length=config.model.max_length,
            seed=config.seed,
        )
        cache = self.workspace.cache / "prepared"
        bad_records = cache / f"{fingerprint}.{QUARANTINE}"
        # The file is next to the cache entry, so that a run that finds prepared data also finds the bad
        # records.
        with FileLock(cache / f"{fingerprint}.lock"):
            if not (cache / fingerprint).exists():
                bad_records.unlink(missing_ok=True)
            with Problems(data.on_error, quarantine=bad_records, sensitive=data.sensitive) as problems:
                corpus = prepare(
                    self._readable_records(self.records(name, problems), type(tokenizer)),
                    of_length(tokenizer) if linear else tokenizer,
                    self._prepare_plan(tokenizer),
                    cache=cache,
                    fingerprint=fingerprint,
                    problems=problems,
                    progress=progress,
                )
        if bad_records.exists():
            self.quarantined.append(bad_records)
        return corpus

    def _prepare_plan(self, tokenizer: Tokenizer) -> Plan:
        """The plan for dividing, encoding and cutting records into windows."""
        config, data = self.config, self.config.data
        return Plan(
            space=tokenizer.space,
            max_length=config.model.max_length,
            split=self.split(),
            dedupe=data.deduplicate,
            join_documents=data.join_documents,
            cut=tokenizer.units.windows,
            moving=data.cuts == "moving.v1",
            seed=config.seed,
            identity=self.domain.keys.identity,
            language=self.domain.text.language,
        )

    def split(self) -> Split:
        """A new rule that divides records into training, validation and calibration records."""
        data, seed = self.config.data, self.config.seed
        enough = CALIBRATING if self.domain.level(None).row_per_record else CALIBRATING_PARTS
        # Sequences that share a window must be in the same part. If documents are joined, neighbours share a
        # window.
        key = neighbours if data.join_documents else self.domain.keys.split
        shares: dict[str, Any] = {"share": data.validation, "calibration": data.calibration, "enough": enough}
        if data.split == "chronological":
            order, among = self.domain.keys.order, data.calibrate_on
            return Chronological(key=key, order=order, calibrate_on=among, **shares)
        if data.split == "identity":
            if self.domain.keys.clusters is None:
                raise missing_capability(self.domain, "clusters")
            return ByKey(key=self.domain.keys.clusters(), seed=seed, split_of=no_label, **shares)
        return ByKey(key=key, seed=seed, split_of=self.domain.keys.data_split, **shares)


class Corpus:
    """All data that a training reads: the prepared corpora of a reader, by name.

    Attributes:
        tokenizer: the tokenizer that created the ids.
        train, validation: the two splits. With several corpora, each is a mixture.
        token_counts: (V,) occurrences in the training split, including special tokens.
        statistics: counts by corpus name.
        held_out: number of records held out to calibrate.
        trained_on: tells whether a record is in the training split.
        unit: the domain's name for a unit.
        fingerprint: hash of files, options and tokenizer.
        sources: files by corpus name.
        shown: the name of each corpus in MLflow: the user's name, else the names of its files unless they are
            sensitive.
        quarantined: files with quarantined records.

    Raises:
        DataError: no record is left for validation.
    """

    def __init__(self, reader: CorpusReader, tokenizer: Tokenizer, prepared: Mapping[str, Prepared]) -> None:
        self.tokenizer, self._reader, self._prepared = tokenizer, reader, prepared
        parts, data, seed = list(prepared.values()), reader.config.data, reader.config.seed
        validated = [part.validation for part in parts if len(part.validation)]
        if not validated:
            raise DataError(
                "no record is left for validation",
                remedy="give more data, raise data.validation, or divide the input into smaller records (for "
                f"the readers' options: seqmlm data formats --domain {reader.domain.name})",
            )
        self.train: MovingWindows = parts[0].train
        self.validation: Windows = validated[0]
        if len(parts) > 1:
            self.train = Mixture([part.train for part in parts], alpha=data.mixture_alpha, seed=seed)
            self.validation = Mixture(validated, alpha=1.0, seed=seed)
        self.token_counts: NDArray[np.int64] = np.sum([part.token_counts for part in parts], axis=0)
        self.statistics = {name: part.statistics for name, part in prepared.items()}
        self._calibrate = {n: int(counts["calibration"]["records"]) for n, counts in self.statistics.items()}
        self.held_out = sum(self._calibrate.values())
        self.trained_on = TrainedOn.of_prepared(part.folder for part in parts)
        folders = [part.folder.name for part in parts]
        self.fingerprint = combined(parts=folders, alpha=data.mixture_alpha)
        self.unit, self.sources, self.quarantined = reader.domain.unit, reader.sources, reader.quarantined
        self.shown = {
            name: shown_name(paths) if name == UNNAMED else name for name, paths in reader.sources.items()
        }

    @property
    def languages(self) -> set[str]:
        """Languages of the records, if the records have languages."""
        return {language for counts in self.statistics.values() for language in counts.get("languages", ())}

    @property
    def unigram(self) -> NDArray[np.float64]:
        """(K,) add-one unigram probabilities of the training split, see `Units.frequencies`."""
        return self.tokenizer.units.frequencies(self.token_counts)

    def calibrating(self, limit: int) -> Iterator[Record]:
        """At most `limit` records held out for calibration, with their raw data and metadata.

        They are spread evenly over all held-out records. Each corpus contributes in proportion to its number
        of records.
        """
        share = min(1.0, limit / max(1, self.held_out))
        for name, count in self._calibrate.items():
            places = self._prepared[name].places("calibration", int(np.ceil(share * count)))
            yield from (record for _, record in self._reader.reread(name, places))

    def training(self, limit: int) -> Iterator[tuple[int, Record]]:
        """At most `limit` training records, each with its number in `train.records`.

        With several corpora there are none, because the numbers of a mixture do not identify records of a
        corpus.
        """
        if len(self._prepared) == 1:
            ((name, prepared),) = self._prepared.items()
            yield from self._reader.reread(name, prepared.places("train", limit))


FEWEST_TRAINED = 20
"""A training with fewer records, or windows of long records, warns."""


def few_records_warning(corpus: Corpus) -> str:
    """The warning of a training with few records, or "" for enough. Cut records count as several windows."""
    records = sum(int(counts["train"]["records"]) for counts in corpus.statistics.values())
    number = max(records, len(corpus.train))
    if number >= FEWEST_TRAINED:
        return ""
    amount = f"only {number_of(released_count(number), 'training record')}"
    return (
        f"warning: there are {amount}, fewer than {FEWEST_TRAINED}: the model will memorize them, and its "
        "figures on held-out records are unreliable; give more data"
    )


def _id_without_file(id: str, source: str) -> str:
    """An id without the name of its file, with which many ids begin."""
    return id.removeprefix(Path(source).name)


def load_or_train(
    config: TokenizerConfig,
    texts: Callable[[], Iterator[Any]],
    *,
    domain: str | None = None,
    init: str | None = None,
    sensitive: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Tokenizer:
    """The tokenizer for a config: a saved one, one with a fixed vocabulary, or one trained on `texts`.

    The tokenizer of an initial model gets ids for new templates in the texts, if it can grow. With sensitive
    texts it does not grow if it would keep rare templates.

    Args:
        config: settings of the tokenizer.
        texts: returns the training texts.
        domain: name of the domain.
        init: folder or hub id of the initial model.
        sensitive: whether the data are sensitive.
        say: receives messages, such as the number of new templates.
    """
    if config.path is not None:
        return load_tokenizer(config.path, domain)
    if init is not None:
        tokenizer = load_tokenizer(init, domain)
        if not isinstance(tokenizer, Growing):
            return tokenizer
        options = tokenizer.traits.sensitive_options.items()
        if sensitive and any((tokenizer.options.get(name) or 0) < least for name, least in options):
            say("the vocabulary of the initial model is kept, because new entries could reveal rare data")
            return tokenizer
        grown = tokenizer.grown(texts())
        new_templates = number_of(len(grown.tokens) - len(tokenizer.tokens), "new template")
        say(f"{new_templates}; the templates of the initial model keep their ids")
        return grown
    kind = plugins.tokenizer_class(config.name)
    if not kind.traits.trainable:
        return kind(**config.options)
    return kind.train(texts(), vocabulary_size=config.vocabulary_size, **config.options)


def _calibrate_on(data: DataConfig) -> list[str]:
    """`calibrate_on` as part of a fingerprint.

    It is left out if it has the default value or no effect, so that older cache entries keep their names.
    """
    return [data.calibrate_on] if data.split == "chronological" and data.calibrate_on != "latest" else []


def _progress(name: str, say: Callable[[str], None]) -> Callable[[int, int], None]:
    """A function that reports the records and tokens of a corpus so far, once per million records."""
    reported = 0

    def progress(records: int, tokens: int) -> None:
        nonlocal reported
        if records // 1_000_000 > reported:
            reported = records // 1_000_000
            say(f"{name}: {records:,} records, {tokens:,} tokens so far")

    return progress


def _text(count: Cell) -> str:
    return f"{count:,}" if isinstance(count, int) else count
