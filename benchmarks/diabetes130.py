"""Options to read UCI's diabetes data (Strack et al. 2014; UCI 296) as a wide table of inpatient encounters.

The table has no dates. Encounters are therefore in the order of their numbers. The outcome, readmission, is
not an event.
"""

from __future__ import annotations

from typing import Any

_DRUGS = """metformin repaglinide nateglinide chlorpropamide glimepiride acetohexamide glipizide glyburide
    tolbutamide pioglitazone rosiglitazone acarbose miglitol troglitazone tolazamide examide citoglipton
    insulin glyburide-metformin glipizide-metformin glimepiride-pioglitazone metformin-rosiglitazone
    metformin-pioglitazone"""
_STAY = """time_in_hospital num_lab_procedures num_procedures num_medications number_outpatient
    number_emergency number_inpatient number_diagnoses"""
OPTIONS = {
    "patient": "patient_nbr",
    "kind": "inpatient",
    "static": "gender=SEX,race=RACE,age=AGE",
    "columns": "admission_type_id=ADMISSION,admission_source_id=ADMISSION_SOURCE,medical_specialty=SPECIALTY,"
    "diag_1=ICD9,diag_2=ICD9,diag_3=ICD9,discharge_disposition_id=DISCHARGE,payer_code=PAYER,weight=WEIGHT",
    "flags": "max_glu_serum=LAB,A1Cresult=LAB,change=DRUGS,diabetesMed=DRUGS,"
    + ",".join(f"{drug}=DRUG" for drug in _DRUGS.split()),
    "values": ",".join(f"{column}=STAY" for column in _STAY.split()),
}
READING: dict[str, Any] = {"format": "wide", "options": OPTIONS}
"""Settings of `data` in a training, and of a fine-tuning."""
