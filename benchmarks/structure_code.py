"""Compare maps of held-out Python functions with their syntax trees, and with baselines without a model.

    python benchmarks/structure_code.py --data ../shared/data              # 2 minutes a model, 3 seeds
    python benchmarks/structure_code.py --data ../shared/data --quick      # one seed, 12 functions

The models are those of `alarms.py`, trained on other packages. The functions are from the standard library
and have 12 to 60 lexer tokens. Their source is the truth (docs/reference/structure-fields.md). Two baselines
need no model: neighbours, and the nearest equal names. A third baseline is the same map, with its values
shuffled among pairs at the same distance. Maps are kept under --out. An interrupted benchmark continues at
the point of interruption.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_field_data import FIELDS
from anomaly_models import trained
from attention_maps import Attention
from structure_maps import mapped

from seqmlm.inference.session import Session
from seqmlm.structure.estimators import KINDS

FUNCTIONS, SHORTEST, LONGEST = 60, 12, 60


def measured(data: Path, out: Path, seed: int, minutes: float, method: str, number: int) -> dict[str, Any]:
    """The figures of one model's maps."""
    field = FIELDS["code"](data, out)
    model = trained(out, "code", "code", field.files, field.flags, seed, minutes)
    folder = out / f"code-short-{number}"
    if not folder.exists():
        write_functions(Session(model), field.texts, folder, number)
    found = mapped(
        out / f"code-maps-{number}-{minutes:g}min-seed{seed}-{method}",
        model=str(model.path),
        paths=(str(folder),),
        method=method,
        truth=folder,
    ).figures
    ranked = {name: found[name] for name in ("method", "auroc", "auprc", "prevalence")}
    ranked |= {f"{name}_of_distance": one["value"] for name, one in found["ranking"]["distance"].items()}
    return {"seed": seed, "functions": found["with_truth"], **ranked, **found["measures"]}


def write_functions(session: Session, texts: Any, folder: Path, number: int) -> None:
    """Some short functions, a file each."""
    order = np.random.default_rng(0).permutation(len(texts)).tolist()
    rule, kept = session.tokenizer.units, list[str]()
    for place in order:
        raw = session.domain.text.of_text(texts[place], {"language": "python"})
        if SHORTEST <= len(rule.numbers(session.tokenizer.encode(raw))) <= LONGEST:
            kept.append(texts[place])
        if len(kept) == number:
            break
    folder.mkdir()
    for place, text in enumerate(kept):
        (folder / f"{place:03}.py").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/structure_code"), help="where results are kept"
    )
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=2.0, help="training of one model")
    parser.add_argument("--quick", action="store_true", help="one seed, 12 functions")
    given = parser.parse_args()
    out, rows = given.out.resolve(), []
    out.mkdir(parents=True, exist_ok=True)
    KINDS["attention"] = Attention
    for seed in range(1 if given.quick else given.seeds):
        for method in ("cmi", "attention"):
            number = 12 if given.quick else FUNCTIONS
            rows.append(measured(given.data, out, seed, given.minutes, method, number))
            print(json.dumps(rows[-1]), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
