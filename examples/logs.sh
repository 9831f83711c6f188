#!/usr/bin/env bash
# Logs: has a request a fault? The label is one of a session, the lines of one request, by its id; one in twenty has.
# Writes into the current folder, in about two minutes; N (records) and TIME (of each training) make it shorter.
set -euo pipefail
N="${N:-1000}" TIME="${TIME:-60s}"

seqmlm sample --domain logs --out requests --n "$N" --seed 1
seqmlm sample --domain logs --out unseen --n 20 --seed 2
seqmlm train --domain logs requests/service.log --name requests --size tiny --max-time "$TIME"
seqmlm finetune requests --train requests/service.log \
  --label-file requests/labels.json --label fault --name fault --max-time "$TIME"
seqmlm predict fault unseen/service.log --out logs.jsonl
