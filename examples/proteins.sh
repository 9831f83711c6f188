#!/usr/bin/env bash
# Proteins: of which family is a sequence? The label stands in the header of each, `>greek-000001 family=greek`.
# Writes into the current folder, in about two minutes; N (records) and TIME (of each training) make it shorter.
set -euo pipefail
N="${N:-1000}" TIME="${TIME:-60s}"

seqmlm sample --domain protein --out proteins --n "$N" --seed 1
seqmlm sample --domain protein --out unseen --n 20 --seed 2
seqmlm train --domain protein proteins --name proteins --size tiny --max-time "$TIME"
seqmlm finetune proteins --train proteins/protein.fasta --label family --name family --max-time "$TIME"
seqmlm predict family unseen --out proteins.jsonl
