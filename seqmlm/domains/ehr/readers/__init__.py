"""Patient records from the systems that keep them: one module a format, one record a subject (`History`)."""

from __future__ import annotations

from pathlib import Path

from seqmlm.data.problems import Problems
from seqmlm.domains.ehr.readers import exports
from seqmlm.domains.ehr.readers.exports import (
    Concepts,
    is_mimic3,
    is_omop,
    is_synthea,
    read_mimic3,
    read_omop,
    read_synthea,
)
from seqmlm.domains.ehr.readers.fhir import is_fhir, read_fhir
from seqmlm.domains.ehr.readers.flat import is_diabetes130, read_diabetes130, read_long, read_wide
from seqmlm.domains.ehr.readers.meds import is_meds, read_meds, root_of
from seqmlm.domains.ehr.readers.tables import described, table_files

__all__ = [
    "descriptions",
    "is_diabetes130",
    "is_fhir",
    "is_meds",
    "is_mimic3",
    "is_omop",
    "is_synthea",
    "read_diabetes130",
    "read_fhir",
    "read_long",
    "read_meds",
    "read_mimic3",
    "read_omop",
    "read_synthea",
    "read_wide",
]


# Descriptions of codes


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
        return dict(described(codes, problems))
    if exports.is_synthea(folder):
        return _of_synthea(folder, problems)
    if is_omop(folder) and not is_mimic3(folder):
        return dict(Concepts(table_files(folder).get("concept", []), problems).names())
    return {}


def _of_synthea(folder: Path, problems: Problems) -> dict[str, str]:
    found: dict[str, str] = {}
    files = table_files(folder)
    for name, vocabulary in exports.VOCABULARIES.items():
        for path in files.get(name, ()):
            for code, text in described(path, problems):
                found.setdefault(f"{vocabulary}//{code}", text)
    return found
