#!/usr/bin/env bash
# Code: of which shape is a formula of two lines of Python? The label is a field of JSON lines beside the code.
# Writes into the current folder, in about two minutes; N (records) and TIME (of each training) make it shorter.
set -euo pipefail
N="${N:-1000}" TIME="${TIME:-60s}"

seqmlm sample --domain code --out formulas --n "$N" --seed 1
seqmlm sample --domain code --out unseen --n 20 --seed 2
seqmlm train --domain code formulas/formulas.jsonl --name formulas --size tiny --max-time "$TIME"
seqmlm finetune formulas --train formulas/formulas.jsonl --label shape --name shape --max-time "$TIME"
seqmlm predict shape unseen/formulas.jsonl --out code.jsonl
