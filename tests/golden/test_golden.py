"""Training, scoring, calibrating, evaluating and comparing pairs give what they gave before: six fields.

`scenarios.py` makes the results, `expected/<field>.json` holds what is kept of them. Strings, counts, ids and
the form of every row must be the same; numbers may differ as another processor rounds. What a rounding can
turn over by a whole step (ranks, alarms, the order of alternatives) is not kept row by row. To see changes
down to the last bit, run `scenarios.py` before and after a change on one machine and `--compare` the two.

    python tests/golden/test_golden.py --update [FOLDER]    rewrite what is expected, from results if named
    python tests/golden/test_golden.py --check FOLDER       the same comparison with results that are there
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))  # where this is run as a script

from fork_server import ForkServer  # noqa: E402

FIELDS = ("text", "protein", "dna", "code", "ehr", "logs")
SECONDS = 900  # patience with a busy machine

ROWS = 2  # of each scoring, kept in full
UNITS = 5  # of each such row
PAIRS = 8  # minimal pairs
DIGITS = 6

# Decided by comparing numbers that may lie close together, or with paths: not kept.
TURNS_OVER = {
    *("place", "places"),
    *("top", "expected", "rank", "alarm", "extrapolated", "p_value", "channels", "odd_lines"),
    *("correct", "best", "weight", "worst_visit", "worst_visit_id", "worst_date"),
}
ODDS = re.compile(r"\b1 in \d+")  # in a reason: of a rank
# Of a calibration's header: digests of numbers and of where the data were, and what is fitted to few numbers.
DIGESTS = {"sha256", "counts", "smoothing", "source", "tail"}

# Relative and absolute differences that another processor's rounding may bring.
NEAR = (1e-3, 2e-3)
# Of a whole gradient, in which every rounding meets.
NEAR_GRADIENT = (1e-2, 2e-3)
# Numbers of calibrations: ranks among normal rows, and what is between two of them.
NEAR_RANKS = (1e-3, 2e-2)
# Shares of few rows or pairs: one that is turned over moves them by a step.
SHARES = {"auroc", "average_precision", "accuracy", "macro", "mean p_value"}
NEAR_SHARES = (0.0, 0.05)
# Counts of alarms.
COUNTS = {"alarms", "incidents"}
FLIPS = 2


def rounded(value: float) -> float | str:
    """A number as it is kept."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)


def kept(value: Any, dropped: set[str] = TURNS_OVER) -> Any:
    """A value of JSON without what can turn over, its numbers rounded."""
    if isinstance(value, dict):
        return {key: kept(one, dropped) for key, one in value.items() if key not in dropped}
    if isinstance(value, list):
        return [kept(one, dropped) for one in value]
    return rounded(value) if isinstance(value, float) else value


def form(value: Any) -> Any:
    """All of a value but its numbers: keys, strings, counts, and where there is no value."""
    if isinstance(value, dict):
        return {key: form(one) for key, one in sorted(value.items()) if key not in TURNS_OVER}
    if isinstance(value, list):
        return [form(one) for one in value]
    if isinstance(value, str):
        return ODDS.sub("1 in n", value)
    return "number" if isinstance(value, float) else value


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def numbers(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a row and of its channels, by name."""
    for name, value in row.items():
        if isinstance(value, float) and math.isfinite(value):
            yield prefix + name, value
        elif name == "channels":
            yield from numbers(value, "channel ")


def rows_kept(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of a file of scores: the first rows, the form of all, and the mean of every number."""
    first = [
        {**row, "per_unit": row["per_unit"][:UNITS]} if "per_unit" in row else row for row in rows[:ROWS]
    ]
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in numbers(row):
            columns.setdefault(name, []).append(value)
        for name in ("surprisal", "entropy"):
            found = [unit[name] for unit in row.get("per_unit", ()) if name in unit]
            columns.setdefault(f"unit {name}", []).extend(found)
    means = {
        f"mean {name}": rounded(math.fsum(values) / len(values))
        for name, values in columns.items()
        if values and name not in ("sum", "perplexity")
    }
    return {
        "rows": len(rows),
        "form": digest([form(row) for row in rows]),
        "first": kept(first, TURNS_OVER | {"sum", "perplexity"}),
        "means": means,
    }


def condensed(folder: Path) -> dict[str, Any]:
    """What is kept of one field's results."""
    found: dict[str, Any] = {}
    for file in sorted(folder.iterdir()):
        text = file.read_text(encoding="utf-8")
        name, lines = file.stem, file.suffix == ".jsonl"
        value = [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)
        if name == "metrics":
            keys = dict.fromkeys(key for row in value for key in row)
            value = {key: [kept(row.get(key)) for row in value] for key in keys}
        elif name == "samples":
            # Libraries of other versions write other parquet files of the same rows.
            for part in value.values():
                part.update((key, "") for key in part if key.endswith(".parquet"))
            value = {name: digest(part) for name, part in value.items()}
        elif name.startswith("scores"):
            value = rows_kept(value)
        elif name.startswith("evaluate"):
            value = evaluation_kept(value)
        elif name == "model-trained":
            continue
        elif name == "model-calibrated":
            value = model_kept(value)
        else:
            value = kept(value[:PAIRS] if lines else value)
        found[file.name] = value
    return found


def evaluation_kept(value: dict[str, Any]) -> dict[str, Any]:
    """Counts, and the measures that do not hang on a single row."""
    rankings = [
        {key: kept(one[key]) for key in ("name", "auroc", "average_precision")} for one in value["rankings"]
    ]
    counts = {key: value[key] for key in ("rows", "positives", "groups", "unscored", "missing", "sensitive")}
    return {**counts, "rankings": rankings, "form": digest(list(value))}


def model_kept(value: dict[str, Any]) -> dict[str, Any]:
    """Names, types and shapes of all tensors; the first numbers of those that calibrations consist of."""
    shapes = [[name, one.get("dtype"), one.get("shape")] for name, one in value.items()]
    headers = {name: kept(one, DIGESTS) for name, one in value.items() if name.endswith(":header")}
    first: dict[str, list[Any]] = {}
    for name, one in value.items():
        if name.startswith(("calibration:", "background:")) and str(one.get("dtype")).startswith("float"):
            first.setdefault("/".join(name.split("/")[:2]), []).extend(kept(one["first"][:2]))
    return {"tensors": digest(shapes), "headers": headers, "first": first}


def nearness(key: str) -> tuple[float, float]:
    """Relative and absolute difference that a number under this key may have."""
    if key in SHARES or key.startswith("mean channel"):
        return NEAR_SHARES
    if key == "grad_norm":
        return NEAR_GRADIENT
    return NEAR_RANKS if key.startswith("calibration:") else NEAR


def differences(expected: Any, found: Any, place: str = "", key: str = "") -> Iterator[str]:
    """Where two condensed results differ by more than rounding."""
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        for name in expected:
            yield from differences(expected[name], found[name], f"{place}/{name}", name)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, pair in enumerate(zip(expected, found, strict=True)):
            yield from differences(*pair, f"{place}/{number}", key)
    elif isinstance(expected, float) and isinstance(found, (float, int)):
        relative, absolute = nearness(key)
        if abs(expected - found) > absolute + relative * abs(expected):
            yield f"{place}: {found} instead of {expected}"
    elif key in COUNTS and isinstance(expected, int) and isinstance(found, int):
        if abs(expected - found) > FLIPS:
            yield f"{place}: {found} instead of {expected}"
    elif expected != found:
        yield f"{place}: {str(found)[:200]} instead of {str(expected)[:200]}"


def results(forks: ForkServer, field: str, out: Path, *more: object) -> Path:
    """Run a field's scenario in a process of its own."""
    forks.run(
        out, "--field", field, "--part", "none", *more, script=HERE / "scenarios.py", seconds=SECONDS
    ).ok()
    return out / field


def expected_file(field: str) -> Path:
    return HERE / "expected" / f"{field}.json"


@pytest.mark.slow
@pytest.mark.parametrize("field", FIELDS)
def test_the_same_results_as_before(field: str, tmp_path: Path, forks: ForkServer, empty_store: Path) -> None:
    expected = json.loads(expected_file(field).read_text(encoding="utf-8"))
    found = list(differences(expected, condensed(results(forks, field, tmp_path, "--mlflow", empty_store))))
    assert not found, "\n".join(found[:20])


def main() -> int:
    parser = argparse.ArgumentParser(description="Rewrite or check what is expected of six fields.")
    parser.add_argument("--update", nargs="?", type=Path, const=Path(), metavar="FOLDER")
    parser.add_argument("--check", type=Path, metavar="FOLDER")
    asked = parser.parse_args()
    if asked.check:
        found = [
            f"{field}{one}"
            for field in FIELDS
            for one in differences(
                json.loads(expected_file(field).read_text(encoding="utf-8")), condensed(asked.check / field)
            )
        ]
        print("\n".join(found) or "as expected")
        return int(bool(found))
    if asked.update is None:
        parser.error("say --update or --check FOLDER")
    expected_file("").parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work, ForkServer(Path(work)) as forks:
        for field in FIELDS:
            given = asked.update != Path()
            value = condensed(asked.update / field if given else results(forks, field, Path(work)))
            lines = [f' "{name}": {json.dumps(one, ensure_ascii=False)}' for name, one in value.items()]
            text = "{\n" + ",\n".join(lines) + "\n}\n"
            expected_file(field).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
