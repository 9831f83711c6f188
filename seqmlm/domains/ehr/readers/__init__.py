"""Patient records from the systems that keep them: one module a format, one record a subject (`History`)."""

from __future__ import annotations

from seqmlm.domains.ehr.readers.exports import (
    is_mimic3,
    is_omop,
    is_synthea,
    read_mimic3,
    read_omop,
    read_synthea,
)
from seqmlm.domains.ehr.readers.fhir import is_fhir, read_fhir
from seqmlm.domains.ehr.readers.flat import is_diabetes130, read_diabetes130, read_long, read_wide
from seqmlm.domains.ehr.readers.meds import is_meds, read_meds

__all__ = [
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
