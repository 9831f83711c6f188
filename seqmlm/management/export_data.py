"""`seqmlm data export`: write records and their encodings to a folder for `datasets.load_from_disk`.

Sensitive data are refused. Only aggregates of them may leave the workspace, and an exported folder is meant
to be copied elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record, encodable
from seqmlm.data.splits import PARTS
from seqmlm.errors import DataError, UsageError
from seqmlm.inference.record_batches import check
from seqmlm.streams.outputs import new_folder
from seqmlm.tokenizers.base import Tokenizer
from seqmlm.training.config import resolve_config
from seqmlm.training.corpus import CorpusReader, load_or_train
from seqmlm.training.launch import complete
from seqmlm.workspace import Workspace

if TYPE_CHECKING:
    from seqmlm.domains.field import Field

TOKENIZER = "tokenizer"
"""Name of the folder with the tokenizer, next to the folders of the splits."""

_BATCH = 512


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """The input of an export, and the folder that it writes.

    Args:
        domain: name of the domain.
        out: a folder that does not exist yet.
        paths: files, folders, data sets (hf:NAME); empty for the domain's sample.
        format: format of the input files; None to detect it.
        options: options of the reader.
        tokenizer: folder of a saved tokenizer or model. None for the domain's own tokenizer, which is trained
            on the data if it has no fixed vocabulary.
        on_error: "raise" stops at the first bad record, "skip" leaves bad records out.
        sensitive: treat the data as sensitive even if the domain is not, so that nothing is exported.
        seed: seed of the random split.
    """

    domain: str
    out: Path
    paths: tuple[str, ...] = ()
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    on_error: Literal["raise", "skip"] = "raise"
    sensitive: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The content of an exported folder: records per split, columns, and bad records by reason."""

    out: str
    splits: Mapping[str, int]
    columns: Sequence[str]
    problems: Mapping[str, int]


def export(config: ExportConfig) -> Exported:
    """Write every record with its sequence and encoding, in the same splits as a training.

    The folder is complete or absent. Each split is written twice: as a stream, then in the format of
    `datasets`. Memory does not grow with the data.

    Raises:
        UsageError: the data are sensitive, or the domain, format or an option is unknown.
        DataError: an input cannot be read, or has no records.
        StateError: the folder exists, or cannot be written.
    """
    domain = plugins.domain(config.domain)
    if domain.sensitive or config.sensitive:
        raise UsageError(
            f"records of sensitive data cannot be exported: "
            f"'seqmlm data inspect --domain {domain.name}' shows aggregates"
        )
    with new_folder(config.out) as building:
        return _exported(config, domain, building)


def _exported(config: ExportConfig, domain: Field, building: Path) -> Exported:
    workspace = Workspace.locate()
    data = {name: getattr(config, name) for name in ("paths", "format", "options", "on_error")}
    tokenizer = {"tokenizer": {"path": config.tokenizer}} if config.tokenizer else {}
    settings = complete(resolve_config(domain, {"data": data, "seed": config.seed}, tokenizer), workspace)
    reader = CorpusReader(settings, domain, workspace)
    problems = Problems(config.on_error)
    with _reading(config):
        spelled = load_or_train(settings.tokenizer, reader.texts)
    counts = _write(reader, spelled, problems, building, config)
    spelled.save(building / TOKENIZER)
    return Exported(
        out=str(config.out),
        splits={part: counts[part] for part in PARTS if counts[part]},
        columns=_schema(domain).names,
        problems=problems.counts,
    )


@contextmanager
def _reading(config: ExportConfig) -> Iterator[None]:
    """Convert an OSError within the context to a DataError, because inputs are read here.

    Elsewhere an OSError comes from the output, and becomes a StateError.
    """
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot be read: {error.strerror or error}",
            source=str(error.filename or ", ".join(config.paths)),
            remedy="check the path",
        ) from None


def _divided(reader: CorpusReader, problems: Problems, config: ExportConfig) -> Iterator[tuple[Record, int]]:
    with _reading(config):
        for name in reader.sources:
            yield from reader.records_with_parts(name, problems)


def _write(
    reader: CorpusReader, tokenizer: Tokenizer, problems: Problems, folder: Path, config: ExportConfig
) -> Counter[str]:
    """Write the splits to a folder, and return the number of records of each split."""
    import pyarrow as pa

    schema = _schema(reader.domain)
    counts: Counter[str] = Counter()
    streams = {part: folder / f".{part}.arrow" for part in PARTS}
    with ExitStack() as stack:
        writers = {
            part: stack.enter_context(pa.ipc.new_stream(str(path), schema)) for part, path in streams.items()
        }
        divided = _divided(reader, problems, config)
        while batch := list(islice(divided, _BATCH)):
            readable_pairs = [pair for pair in batch if check(reader.domain, pair[0], tokenizer, problems)]
            for number, part in enumerate(PARTS):
                records = [record for record, place in readable_pairs if place == number]
                if records:
                    rows = list(_rows(reader.domain, tokenizer, records))
                    writers[part].write_table(pa.Table.from_pylist(rows, schema=schema))
                    counts[part] += len(records)
    if not counts:
        raise problems.nothing()
    _save({part: path for part, path in streams.items() if counts[part]}, folder)
    for path in streams.values():
        path.unlink()
    return counts


def _rows(domain: Field, tokenizer: Tokenizer, records: list[Record]) -> Iterator[dict[str, Any]]:
    encodings = tokenizer.encode_batch([record.raw for record in records])
    for record, encoding in zip(records, encodings, strict=True):
        yield {
            "id": encodable(record.id),  # file names may have bytes that are not text
            **domain.text.row(record),
            "document": encodable(record.document),
            "source": encodable(Path(record.source).name),  # the path of the folder stays private
            "line": record.line,
            "input_ids": encoding.ids,
            "groups": encoding.groups,
        }


def _schema(domain: Field) -> Any:
    import pyarrow as pa

    text, numbers = pa.string(), pa.list_(pa.int32())
    types = {"string": text, "list<string>": pa.list_(text), "list<double>": pa.list_(pa.float64())}
    field_columns = {name: types[kind] for name, kind in domain.text.columns.items()}
    place = {"document": text, "source": text, "line": pa.int64()}
    return pa.schema({"id": text, **field_columns, **place, "input_ids": numbers, "groups": numbers})


def _save(streams: Mapping[str, Path], folder: Path) -> None:
    import datasets

    bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        splits = {part: datasets.Dataset.from_file(str(path)) for part, path in streams.items()}
        datasets.DatasetDict(splits).save_to_disk(str(folder))
    finally:
        if bars:
            datasets.enable_progress_bars()
