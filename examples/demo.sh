#!/usr/bin/env bash
# The first three minutes with seqmlm: train on the built-in proteins, look at the model, score two sequences.
set -euo pipefail

export SEQMLM_HOME="${SEQMLM_DEMO:-$PWD/demo}"
if [ -e "$SEQMLM_HOME" ] && [ ! -e "$SEQMLM_HOME/seqmlm.db" ] && [ -n "$(ls -A "$SEQMLM_HOME")" ]; then
  echo "$SEQMLM_HOME exists and is no demo of ours: set SEQMLM_DEMO to another folder" >&2
  exit 4
fi
rm -rf "$SEQMLM_HOME"
mkdir -p "$SEQMLM_HOME"

step() { printf '\n\033[1m$ %s\033[0m\n' "$*" >&2; "$@"; }

echo "Training a tiny protein model on the built-in sample (three protein families), about a minute ..."
step seqmlm train --domain protein --name demo --size tiny --max-time 60s

echo
echo "The registered model:"
step seqmlm models list

echo
echo "How usual is a protein? One of the sample's own, then the same residues in shuffled order."
step seqmlm sample --domain protein --out "$SEQMLM_HOME/sample" --n 300 --seed 7
python - "$SEQMLM_HOME" <<'PY'
import random, sys
from pathlib import Path

home = Path(sys.argv[1])
fasta = next(path for path in sorted((home / "sample").iterdir()) if path.suffix == ".fasta")
name, sequence = fasta.read_text().split(">")[1].split("\n", 1)
sequence = sequence.replace("\n", "")
shuffled = "".join(random.Random(0).sample(sequence, len(sequence)))
(home / "two.fasta").write_text(f">drawn_from_a_family\n{sequence}\n>shuffled\n{shuffled}\n")
PY
step seqmlm score demo "$SEQMLM_HOME/two.fasta"

cat <<'NEXT'

A higher score is more unusual. Three commands to try next (first: export SEQMLM_HOME="$PWD/demo"):

  seqmlm ui                                              the run, its curves and its model in the MLflow UI
  seqmlm score demo YOUR.fasta --per-unit --out scores.jsonl   every residue's surprisal, one JSON line a protein
  seqmlm train --domain protein YOUR.fasta --max-time 10m --name mine   a model of your own proteins
NEXT
