#!/usr/bin/env bash
# English: is the subject of a sentence one or several? A model reads sentences, then some whose label is known.
# Writes into the current folder, in about two minutes; N (records) and TIME (of each training) make it shorter.
set -euo pipefail
N="${N:-1000}" TIME="${TIME:-60s}"

seqmlm sample --domain text --out sentences --n "$N" --seed 1
seqmlm sample --domain text --out unseen --n 20 --seed 2
seqmlm train --domain text sentences --name english --size tiny --max-time "$TIME"
seqmlm finetune english --train sentences/text.txt \
  --label-file sentences/labels.json --label number --name number --max-time "$TIME"
seqmlm predict number unseen --out english.jsonl
