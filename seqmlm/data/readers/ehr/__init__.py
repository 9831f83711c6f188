"""Patient records from the systems that keep them: one module a format, one record a subject (`History`)."""

from seqmlm.data.readers.ehr.descriptions import descriptions
from seqmlm.data.readers.ehr.fhir import is_fhir, read_fhir
from seqmlm.data.readers.ehr.long import read_long
from seqmlm.data.readers.ehr.meds import is_meds, read_meds
from seqmlm.data.readers.ehr.mimic import is_mimic3, read_mimic3
from seqmlm.data.readers.ehr.omop import is_omop, read_omop
from seqmlm.data.readers.ehr.synthea import is_synthea, read_synthea
from seqmlm.data.readers.ehr.wide import is_diabetes130, read_diabetes130, read_wide

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
