#!/usr/bin/env bash
# DNA: of which family is an RNA gene? Genes are read on their own strand (train.augment=false), the label in headers.
# Writes into the current folder, in about two minutes; N (records) and TIME (of each training) make it shorter.
set -euo pipefail
N="${N:-1000}" TIME="${TIME:-60s}"

seqmlm sample --domain dna --out genes --n "$N" --seed 1
seqmlm sample --domain dna --out unseen --n 20 --seed 2
seqmlm train --domain dna genes/rna.genes --name genes --size tiny --max-time "$TIME" --set train.augment=false
seqmlm finetune genes --train genes/rna.genes --label family --name fold --max-time "$TIME"
seqmlm predict fold unseen/rna.genes --out dna.jsonl
