#!/usr/bin/env bash
# The first three minutes with seqmlm: train on the built-in proteins, look at the model, raise alarms with it.
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
echo "Which proteins are odd? Twenty new ones of the sample's families, and five with their residues shuffled."
step seqmlm sample --domain protein --out "$SEQMLM_HOME/sample" --n 20 --seed 7
python - "$SEQMLM_HOME" <<'PY'
import random, sys
from pathlib import Path

home = Path(sys.argv[1])
fasta = next(path for path in sorted((home / "sample").iterdir()) if path.suffix == ".fasta")
records = [text.split("\n", 1) for text in fasta.read_text().split(">")[1:]]
records = [(name.split()[0], sequence.replace("\n", "")) for name, sequence in records]
draw = random.Random(0)
records += [(f"shuffled-{name}", "".join(draw.sample(text, len(text)))) for name, text in records[:5]]
(home / "new.fasta").write_text("".join(f">{name}\n{text}\n" for name, text in records))
PY
step seqmlm score demo "$SEQMLM_HOME/new.fasta" --fpr 0.05 --report "$SEQMLM_HOME/report.html" --out "$SEQMLM_HOME/scores.jsonl"
python - "$SEQMLM_HOME/scores.jsonl" <<'PY'
import json, sys

rows = sorted(map(json.loads, open(sys.argv[1])), key=lambda row: row["p_value"])
print(f"{'protein':28} {'bits/residue':>12} {'p-value':>8}  alarm")
for row in rows[:10]:
    print(f"{row['id']:28} {row['bits_per_unit']:12.2f} {row['p_value']:8.3f}  {'ALARM' if row['alarm'] else ''}")
print(f"... and {len(rows) - 10} more usual ones")
PY

cat <<'NEXT'

The p-value is the share of normal proteins, set aside by the training, that are at least as unusual; --fpr 0.05 lets one
normal protein in twenty raise an alarm. demo/report.html shows where each protein is odd. A minute of training is little:
some shuffled ones pass. Three commands to try next (first: export SEQMLM_HOME="$PWD/demo"):

  seqmlm ui                                              the run, its curves and its model in the MLflow UI
  seqmlm score demo YOUR.fasta --set per_unit=true --out yours.jsonl   every residue's surprisal, one JSON line a protein
  seqmlm train --domain protein YOUR.fasta --max-time 10m --name mine   a model of your own proteins
NEXT
