"""`seqmlm data export`: records and their encodings as a folder that `datasets.load_from_disk` loads.

Sensitive data are refused. Of them only aggregates leave the workspace, and a folder of records, whatever its
mode, is made to be taken elsewhere.
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
"""Folder of the tokenizer beside the splits."""

_BATCH = 512


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """The input of an export, and the folder that it writes.

    Args:
        domain: its name.
        out: a folder that does not exist yet.
        paths: files, folders, data sets (hf:NAME); none for the domain's sample.
        format, options: format of the input files, and options of its reader.
        tokenizer: a saved tokenizer or a model's folder; None for the domain's own, trained where it has no
            fixed vocabulary.
        on_error: "raise" ends at the first bad record, "skip" leaves bad ones out.
        sensitive: treat the data as sensitive, also where the domain is not: nothing is exported.
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
    """The content of an exported folder: records of each split, columns, and bad records by reason."""

    out: str
    splits: Mapping[str, int]
    columns: Sequence[str]
    problems: Mapping[str, int]


def export(config: ExportConfig) -> Exported:
    """Write every record with its sequence and its encoding, divided as a training would divide them.

    The folder is whole or not there. A split is written twice (as a stream, then as `datasets` keeps it), in
    memory that does not grow with it.

    Raises:
        UsageError: sensitive data, or an unknown domain, format or option.
        DataError: an input that cannot be read, or holds no record.
        StateError: the folder is there already, or cannot be written.
    """
    domain = plugins.domain(config.domain)
    if domain.sensitive or config.sensitive:
        raise UsageError(
            f"records of sensitive data are not exported, only aggregates leave the workspace: "
            f"'seqmlm data inspect --domain {domain.name}' shows these"
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
    """Raise a DataError where an input cannot be read: the same OSError of an output is a StateError."""
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
    """Write the splits into a folder; gives the records of each."""
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
            "id": encodable(record.id),  # names of files may hold bytes that are no text
            **domain.text.row(record),
            "document": encodable(record.document),
            "source": encodable(Path(record.source).name),  # the folder is nobody else's business
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
