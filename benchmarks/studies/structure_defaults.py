"""Compare the methods of `seqmlm structure` by cost and AUROC on real data, to select the default.

    protein   one domain from each of some Pfam families, contacts of its structure (C-beta below 8 A, at
              least 6 residues apart); the model is trained on the unaligned rows of all these families
    rna       tRNA, base pairs of the Rfam alignment; every twentieth sequence is mapped, the others train
    text      sentences of 8 to 20 words from the test part of EWT, edges of their trees; the training data
              are its training part

Models are `tiny`, trained for `--steps` steps. Cost is the processor time of only the maps, and the number of
passes. A pass is one copy of a sequence that the model computes. The strongest cheap baseline is the nearness
of two units.

    PYTHONPATH=benchmarks python benchmarks/studies/structure_defaults.py --data ../shared/data
    PYTHONPATH=benchmarks python benchmarks/studies/structure_defaults.py --data ../shared/data --quick

Models and figures are kept under --out. An interrupted benchmark continues at the point of interruption.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from anomaly_models import trained

from seqmlm.data.problems import Problems
from seqmlm.domains.text.conllu import read_conllu
from seqmlm.tasks.run import run
from seqmlm.tasks.structure import Structure, StructureConfig

Row = dict[str, Any]

FAMILIES = ("PF00018", "PF00313", "PF00542", "PF01035", "PF02823")
SMALL: Mapping[str, Row] = {
    "jacobian": {"method": "jacobian"},
    "dependency": {"method": "dependency"},
    "cmi, exact or fast": {"method": "cmi"},
    "cmi, fast": {"method": "cmi", "estimator": "fast"},
    "cmi, topk of 4": {"method": "cmi", "estimator": "topk", "k": 4},
    "cpmi": {"method": "cpmi"},
}
LARGE: Mapping[str, Row] = {
    "cmi, auto (cpmi beyond 12 units)": {"method": "cmi"},
    "cpmi": {"method": "cpmi"},
    **{
        f"cmi, topk of {k}, {f'{distance} units apart at most' if distance else 'any distance'}": {
            "method": "cmi",
            "estimator": "topk",
            "k": k,
            **({"distance": distance} if distance else {}),
        }
        for k, distance in ((2, 8), (4, 8), (8, 8), (4, 16), (4, None))
    },
}
ARMS = {"protein": SMALL, "rna": SMALL, "text": LARGE}


def protein(data: Path, out: Path, most: int) -> tuple[list[Path], list[tuple[Path, Path]]]:
    """Files to train on, and sequences with the truth of each."""
    folder, asked = data / "protein" / "contacts_pfam40", []
    with gzip.open(folder / "domain_sequences.tsv.gz", "rt") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    for family, structure, aligned in rows[1:]:
        if family in FAMILIES[:most]:
            fasta = out / f"{family}.fasta"
            fasta.write_text(f">{structure}\n{aligned.replace('-', '').upper()}\n")
            asked.append((fasta, folder / "pdb" / f"{family}_{structure}.pdb.gz"))
    return [folder / "aln" / f"{family}.fasta.gz" for family in FAMILIES], asked


def rna(data: Path, out: Path, most: int) -> tuple[list[Path], list[tuple[Path, Path]]]:
    """As `protein`."""
    path = data / "dna" / "rna_structure" / "tRNA1415G.sto.gz"
    with gzip.open(path, "rt") as file:
        rows = [line.split() for line in file if line[:1].isalpha()]
    texts = dict.fromkeys((name for name, _ in rows), "")
    for name, row in rows:  # a long alignment is written in blocks
        texts[name] += row.replace("-", "").replace(".", "").upper().replace("U", "T")
    names = list(texts)
    parts = {"train": [x for n, x in enumerate(names) if n % 20], "test": names[::20][:most]}
    for part, own in parts.items():
        (out / f"rna-{part}.fasta").write_text("".join(f">{name}\n{texts[name]}\n" for name in own))
    return [out / "rna-train.fasta"], [(out / "rna-test.fasta", path)]


def text(data: Path, out: Path, most: int) -> tuple[list[Path], list[tuple[Path, Path]]]:
    """As `protein`."""
    folder, chosen = data / "text" / "ud_en_ewt", out / "text-test.conllu"
    with gzip.open(folder / "en_ewt-ud-test.conllu.gz", "rt") as file:
        blocks = file.read().split("\n\n")
    lengths = ((sum(line[:1].isdigit() for line in block.splitlines()), block) for block in blocks)
    some = [*islice((block for words, block in lengths if 8 <= words <= 20), most)]
    chosen.write_text("\n\n".join(some) + "\n\n")
    train = out / "text-train.txt"
    sentences = read_conllu(folder / "en_ewt-ud-train_rebuilt.conllu.gz", Problems("skip"))
    train.write_text("".join(f"{one.raw}\n" for one in sentences))
    return [train], [(chosen, chosen)]


FIELDS = {"protein": ("protein", protein), "rna": ("dna", rna), "text": ("text", text)}


def measured(model: str, pairs: list[tuple[Path, Path]], settings: Row, rows: Path) -> Row:
    """Cost and AUROC of the maps of some sequences, means over them."""
    found: list[Row] = []
    seconds = 0.0
    for number, (path, truth) in enumerate(pairs):
        own = rows.with_name(f"{rows.name}-{number}.jsonl")
        request: Row = {"model": model, "paths": (str(path),), **settings}
        passes = run("structure", Structure, StructureConfig(**request, dry_run=True)).figures["passes"]
        began = time.process_time()
        run("structure", Structure, StructureConfig(**request, out=own))
        seconds += time.process_time() - began
        judged = run("structure", Structure, StructureConfig(**request, edges=own, truth=truth)).figures
        ranking = judged["ranking"]
        found.append(
            {"passes": passes, "auroc": judged["auroc"], "distance": ranking["distance"]["auroc"]["value"]}
        )
    sequences = sum(1 for path, _ in pairs for line in path.read_text().splitlines() if _begins(line))
    mean = {name: sum(one[name] for one in found) / len(found) for name in ("auroc", "distance")}
    return {
        **mean,
        "passes": sum(one["passes"] for one in found) / sequences,
        "seconds": seconds / sequences,
        "sequences": sequences,
    }


def _begins(line: str) -> bool:
    """Whether a line of FASTA or CoNLL-U is the first one of a sequence."""
    return line.startswith((">", "1\t"))


def results(given: argparse.Namespace) -> Iterator[Row]:
    """A row for each field and arm."""
    for field in given.fields:
        domain, prepare = FIELDS[field]
        given.out.mkdir(parents=True, exist_ok=True)
        files, pairs = prepare(given.data, given.out, 2 if given.quick else 5 if field == "protein" else 12)
        flags: Row = {"train": {"max_steps": given.steps, "augment": False}}
        model = trained(given.out, f"defaults-{field}-{given.steps}", domain, files, flags, 0, 1.0)
        for arm, settings in ARMS[field].items():
            name = "".join(letter if letter.isalnum() else "-" for letter in f"{field}-{given.steps}-{arm}")
            kept = given.out / f"{name}{'-quick' * given.quick}.json"
            if not kept.exists():
                separation = {"min_separation": 6} if field == "protein" else {}
                row = measured(str(model.path), pairs, {**settings, **separation}, given.out / name)
                kept.write_text(json.dumps({"field": field, "arm": arm, **row}))
            yield json.loads(kept.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("benchmark-structure-defaults"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--fields", nargs="+", choices=FIELDS, default=[*FIELDS])
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    rows = []
    print("| field | arm | AUROC | distance alone | passes | CPU s a sequence |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in results(given):
        cells = f"{row['auroc']:.3f} | {row['distance']:.3f} | {row['passes']:,.0f} | {row['seconds']:.2f}"
        print(f"| {row['field']} | {row['arm']} | {cells} |", flush=True)
        rows.append(row)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
