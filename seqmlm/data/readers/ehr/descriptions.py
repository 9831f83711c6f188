"""What codes mean, in words, for showing them to people; a training never needs it."""

from __future__ import annotations

from pathlib import Path

from seqmlm.data.problems import Problems
from seqmlm.data.readers.ehr import cells, synthea
from seqmlm.data.readers.ehr.meds import root_of
from seqmlm.data.readers.ehr.mimic import is_mimic3
from seqmlm.data.readers.ehr.omop import Concepts, is_omop
from seqmlm.data.readers.ehr.tables import scan, table_files


def descriptions(path: str | Path) -> dict[str, str]:
    """Code -> description for a data set in a folder; empty where the format has none.

    MEDS: `metadata/codes.parquet`. Synthea: the tables' own columns. OMOP: `concept`. Damaged tables give
    what could be read of them.
    """
    folder = Path(path)
    if not folder.is_dir():
        return {}
    problems = Problems("skip", sensitive=True)
    codes = root_of(folder) / "metadata" / "codes.parquet"
    if codes.exists():
        columns = {"code": ("code",), "description": ("description",)}
        return {
            cells.words(code): cells.words(text)
            for _, (code, text) in scan(codes, problems, columns, list(columns))
            if code and text
        }
    if synthea.is_synthea(folder):
        return _of_synthea(folder, problems)
    if is_omop(folder) and not is_mimic3(folder):
        return dict(Concepts(table_files(folder).get("concept", []), problems).names())
    return {}


def _of_synthea(folder: Path, problems: Problems) -> dict[str, str]:
    columns = {"code": ("code",), "description": ("description",)}
    found: dict[str, str] = {}
    files = table_files(folder)
    for name, vocabulary in synthea.VOCABULARIES.items():
        for path in files.get(name, ()):
            for _, (code, text) in scan(path, problems, columns, list(columns)):
                if code and text:
                    found.setdefault(f"{vocabulary}//{cells.words(code)}", cells.words(text))
    return found
