#!/usr/bin/env bash
# Patients: does a condition follow that others cause? Labels as in MEDS: subject_id, prediction_time, boolean_value.
# Writes into the current folder, in about two minutes; N (records) and TIME (of each training) make it shorter.
set -euo pipefail
N="${N:-1000}" TIME="${TIME:-60s}"

seqmlm sample --domain ehr --out patients --n "$N" --seed 1
seqmlm sample --domain ehr --out unseen --n 20 --seed 2
seqmlm train --domain ehr patients/meds --name patients --size tiny --max-time "$TIME"
seqmlm finetune patients --train patients/meds \
  --label-file patients/labels.json --label boolean_value --name outcome --max-time "$TIME"
seqmlm predict outcome unseen/meds --set labels=unseen/labels.json --out patients.jsonl
