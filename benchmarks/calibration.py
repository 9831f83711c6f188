"""Measure whether the share of alarms on new normal data agrees with the requested false-positive rate.

A `tiny` model of each field is trained and calibrated with the code of `seqmlm train`. Its other levels are
calibrated with the code of `seqmlm calibrate` on a part of the held-out data. The rest is scored with the
code of `seqmlm score`:

    held out    the same kind; whole groups are held out
    new         other groups of the same kind: other books, packages, chains, later sessions
    shifted     another kind of data: another language, genome, system

For each level, mode and requested rate, the table has the share of alarms and an interval. The interval
contains 95 % of calibrations with the same number of rows (beta-binomial: Vovk 2012). It assumes independent
rows, but rows of one record depend on each other. Therefore one row of each record is drawn. The number of
calibration rows is counted as about the number of calibration records.

A share with "in" is within the interval in which every calibration row counts as independent. A share with
"(in)" is only within the wider interval that counts records. A rate with "refused" is below the smallest rate
that the calibration guarantees, and the product refuses it too. The interval next to "all rows" is a
bootstrap over records.

    python benchmarks/calibration.py --data ../shared/data                # 2 minutes a model, 3 seeds
    python benchmarks/calibration.py --data ../shared/data --quick        # 1 minute, one seed, fewer records
    python benchmarks/calibration.py --data ../shared/data --only logs --seeds 1
    python benchmarks/calibration.py --data ../shared/data --in-time      # logs: which records calibrate
    python benchmarks/calibration.py --data ../shared/data --few          # fewer than 200 calibration rows

With --few, held-out rows are divided at random many times into a few calibration rows and other rows. Rates
are means over the divisions. With --in-time, models of logs are trained on the beginning of the log. They are
calibrated on the latest tenth of it, or on a tenth spread over it. The rest of the log is then scored. The
table has the alarms at the rate .05 for each tenth of the rest.

Results are kept for each field and seed under --out. An interrupted benchmark continues at the point of
interruption.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_logs import log_flags
from anomaly_models import trained
from calibration_data import KINDS, Items, Kind, Stream, drawn, streams
from numpy.typing import NDArray
from scipy.stats import betabinom

from seqmlm.anomaly.judge import Normal
from seqmlm.data.problems import Problems
from seqmlm.engine.units import Mode
from seqmlm.errors import SeqmlmError, UsageError
from seqmlm.inference.calibrations import Stored, stored_background, stored_calibrations
from seqmlm.inference.detector import Detector, table
from seqmlm.inference.estimate import work_of
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.scoring.calibrate import CalibrateConfig, calibrate_files
from seqmlm.scoring.config import ScoreConfig
from seqmlm.scoring.output import warnings
from seqmlm.scoring.plan import check_rate
from seqmlm.scoring.score import Score
from seqmlm.tasks.run import run
from seqmlm.training import finalize
from seqmlm.training.calibration import calibrate_trained

Row = dict[str, Any]

RATES = (0.001, 0.01, 0.05, 0.1)
IN_TIME = 0.05
FEW_ROWS, FEW_JUDGED, DIVISIONS = 90, 100, 200
FEW_LEVELS = {"ehr": "patient", "text": "sentence", "events": "session"}
FEWEST, LOOKED_AT = 8, 24
"""The smallest number of scored records; they also measure the cost of one record."""

BOOTSTRAPS = 1000
_NORMAL_SHARE = 0.4  # of the held-out records, for calibrating further levels


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of the benchmark.

    Args:
        minutes: length of a training.
        records: largest number of scored records in a set.
        tokens: approximate number of forward tokens in a scoring.
        modes: modes in which the other levels are calibrated, if the model has them.
    """

    minutes: float
    records: int
    tokens: float
    modes: tuple[str, ...] = ("exact", "one-pass")


class Timed:
    """Measure the processor seconds of this process for the calibration at the end of trainings."""

    def __init__(self) -> None:
        self.seconds = 0.0
        finalize.calibrate_trained = self  # type: ignore[assignment]

    def __call__(self, *arguments: Any, **named: Any) -> dict[str, float]:
        began = time.process_time()
        try:
            return calibrate_trained(*arguments, **named)
        finally:
            self.seconds += time.process_time() - began


@dataclass(frozen=True, eq=False)
class Bench:
    """The model and data of one field.

    Args:
        kind: the data.
        model: the trained model.
        out: folder for files.
        seed: seed of all draws.
        size: size of the benchmark.
    """

    kind: Kind
    model: LoadedModel
    out: Path
    seed: int
    size: Size

    def rows(self) -> Iterator[Row]:
        """The rows of every calibrated level and mode, on every set of data."""
        held = drawn(self.kind.held, self.seed)
        cut = int(len(held) * _NORMAL_SHARE)
        sets = {("held out", "same kind"): held[cut:]}
        sets |= {("new", name): drawn(items, self.seed) for name, items in self.kind.new.items()}
        sets |= {("shifted", name): drawn(items, self.seed) for name, items in self.kind.shifted.items()}
        default = self.model.domain.level(None).name
        own = {mode for level, mode in self._stored() if level == default}
        refused = self.further(held[:cut])
        for (level, mode), stored in self._stored().items():
            automatic = level == default and mode in own
            if not automatic and mode not in self.size.modes:
                continue  # of an earlier run of another size
            for (role, name), items in sets.items():
                # Further levels see the same kind alone; shifted data are not scored exactly, if possible.
                wanted = role == "held out" or (level == default and (role == "new" or mode != "exact"))
                if wanted or (level == default and own == {"exact"}):
                    yield {
                        "set": name,
                        "role": role,
                        "by": "train" if automatic else "calibrate",
                        **self.scored(name, items, level, mode, stored, role == "shifted"),
                    }
        yield from refused

    def further(self, normal: Items) -> list[Row]:
        """Calibrate the other levels in the modes that the model has; returns the refused ones."""
        failed: list[Row] = []
        known = self._stored()
        for level in self.model.domain.levels:
            if any(name == level.name for name, _ in known):
                continue
            number = self.affordable(normal, level.name, "exact")
            path = self.kind.write(normal[:number], self.out / "normal")
            for mode in self.size.modes:
                if mode != "exact" and not any(one == mode for _, one in known):
                    continue
                config = CalibrateConfig(
                    model=self.model.path,
                    paths=(str(path),),
                    level=level.name,
                    mode=mode,
                    options=self.kind.options,
                    on_error="skip",
                )
                try:
                    calibrate_files(config, lambda text: None)
                except SeqmlmError as error:
                    failed.append(
                        {"role": "not calibrated", "level": level.name, "mode": mode, "why": str(error)}
                    )
        return failed

    def _stored(self) -> dict[tuple[str, str], Stored]:
        return stored_calibrations(Path(self.model.path))

    def affordable(self, items: Items, level: str, mode: str, share: float = 1.0) -> int:
        """The number of records that a scoring may use."""
        if mode == "one-pass":
            return min(len(items), self.size.records)
        path = self.kind.write(items[:LOOKED_AT], self.out / "look")
        found = self.model.domain.level(level)
        asked = Mode.parse(mode)
        work = work_of(Session(self.model), found, [asked], [str(path)], options=self.kind.options)
        tokens = 1.0 if work is None else work.tokens[str(asked)]
        each = tokens / min(len(items), LOOKED_AT)
        return min(len(items), self.size.records, max(FEWEST, int(share * self.size.tokens / each)))

    def _config(self, path: Path, level: str, mode: str, **more: Any) -> ScoreConfig:
        return ScoreConfig(
            model=self.model.path,
            paths=(str(path),),
            level=level,
            mode=mode,
            options=self.kind.options,
            on_error="skip",
            **more,
        )

    def scored(self, name: str, items: Items, level: str, mode: str, stored: Stored, half: bool) -> Row:
        """Score some records with the product, and return the figures."""
        number = self.affordable(items, level, mode, 0.5 if half else 1.0)
        label = f"{level}-{mode}-{name}".replace(" ", "_").replace("'", "")
        path = self.kind.write(items[:number], self.out / f"scored-{label}")
        rows = self.out / f"{label}.jsonl"
        rows.unlink(missing_ok=True)
        summary = run("score", Score, self._config(path, level, mode, out=rows))
        told = warnings(summary.figures)
        lines = [json.loads(line) for line in rows.read_text().splitlines()]
        judged = [one for one in lines if one.get("p_value") is not None]
        owner = np.unique(
            [f"{one['source']}\0{_record(one, self.kind)}" for one in judged], return_inverse=True
        )[1]
        p_values = np.array([one["p_value"] for one in judged])
        found = {
            "level": level,
            "mode": mode,
            "records_given": number,
            "rows": len(p_values),
            "records": int(owner.max()) + 1 if len(owner) else 0,
            "calibration_rows": stored.rows,
            "ranked": stored.fitted.ranked,
            "smallest_rate": stored.fitted.smallest_rate,
            "unscored": len(lines) - len(judged),
            "unfamiliar": summary.figures.get("unfamiliar", 0),
            "unknown": sum(n for why, n in summary.notes.items() if "unknown to the model" in why),
            "units": summary.figures["units"],
            "low_p": summary.figures.get("low_p"),
            "low_p_measured": float((p_values <= 0.5).mean()) if len(p_values) else None,
            "distinct_p": len(np.unique(p_values)),
            "warned": any("p-values below" in one for one in told),
            "warnings": told,
        }
        return {
            **found,
            "rates": [self.realised(rate, p_values, owner, level, mode, stored) for rate in RATES],
        }

    def realised(
        self,
        rate: float,
        p_values: NDArray[np.float64],
        owner: NDArray[np.int64],
        level: str,
        mode: str,
        stored: Stored,
    ) -> Row:
        """Alarms at one rate, and the interval that normal data would give."""
        try:
            check_rate(self._config(Path("-"), level, mode, fpr=rate))
        except UsageError:
            return {"rate": rate, "refused": True}
        if not len(p_values):
            return {"rate": rate, "refused": False}
        alarms = p_values <= rate
        random = np.random.default_rng(self.seed)
        order = random.permutation(len(owner))
        one_each = order[np.unique(owner[order], return_index=True)[1]]
        count, total = int(alarms[one_each].sum()), len(one_each)
        rows = stored.fitted.ranked
        narrow = interval(rate, rows, total)
        wide = interval(rate, max(1, round(rows * total / len(p_values))), total)
        low, high = by_records(alarms, owner, random)
        return {
            "rate": rate,
            "refused": False,
            "all": float(alarms.mean()),
            "all_95": [low, high],
            "alarms": count,
            "of": total,
            "interval": narrow,
            "interval_records": wide,
            "verdict": verdict(count, narrow, wide),
        }


def interval(rate: float, rows: int, total: int) -> tuple[int, int]:
    """The interval of alarms among `total` rows that contains 95 % of calibrations of this size.

    Both bounds are included.

    >>> interval(0.05, 199, 100), interval(0.05, 10**9, 100)
    ((1, 11), (1, 10))
    """
    first = (
        max(rate * (rows + 1), 1e-9) if rate * (rows + 1) < 1 else float(np.floor(rate * (rows + 1) + 1e-9))
    )
    last = rows + 1 - first
    low, high = betabinom.ppf([0.025, 0.975], total, first, last)
    return int(low), int(high)


def verdict(count: int, narrow: tuple[int, int], wide: tuple[int, int]) -> str:
    """Whether this number of alarms agrees with normal data."""
    if narrow[0] <= count <= narrow[1]:
        return "in"
    if wide[0] <= count <= wide[1]:
        return "(in)"
    return "above" if count > narrow[1] else "below"


def by_records(
    alarms: NDArray[np.bool_], owner: NDArray[np.int64], random: np.random.Generator
) -> tuple[float, float]:
    """95 % interval of the share of alarms among all rows, by bootstrap over records."""
    sums, sizes = np.bincount(owner, weights=alarms), np.bincount(owner)
    draws = random.integers(len(sizes), size=(BOOTSTRAPS, len(sizes)))
    shares = sums[draws].sum(axis=1) / sizes[draws].sum(axis=1)
    low, high = np.quantile(shares, [0.025, 0.975]).tolist()
    return low, high


def _record(line: Row, kind: Kind) -> str:
    """The record of a row. The name of a row begins with the name of its record."""
    name = str(line["id"]).split("#")[0]
    return name.split(":")[0] if kind.domain == "dna" else name


def measured(name: str, data: Path, out: Path, seed: int, size: Size) -> Row:
    """The results of one field and seed; cached as JSON."""
    label = f"{name}-{size.minutes:g}min-{size.records}records-{size.tokens:g}tokens-seed{seed}"
    kept = out / f"{label}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    kind = KINDS[name](data, out / "data", size.minutes)
    spent, model = _trained(name, kind, out, seed, size.minutes)
    began = time.process_time()
    bench = Bench(kind, model, out / label, seed, size)
    rows = list(bench.rows())
    found = {
        "field": name,
        "seed": seed,
        "minutes": size.minutes,
        **spent,
        "scoring_seconds": time.process_time() - began,
        "rows": rows,
    }
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial_file = kept.with_suffix(".partial")
    partial_file.write_text(json.dumps(found, indent=2, default=float) + "\n")
    partial_file.replace(kept)
    return found


def _trained(name: str, kind: Kind, out: Path, seed: int, minutes: float) -> tuple[Row, LoadedModel]:
    """The model, and the time of its training and its calibration; both are kept."""
    spent = out / f"spent-{name}-{minutes:g}min-seed{seed}.json"
    timed, began = Timed(), time.process_time()
    model = trained(out, f"calibration-{name}", kind.domain, kind.train, kind.flags, seed, minutes)
    if not spent.exists():
        took = {
            "training_seconds": time.process_time() - began,
            "calibration_seconds": timed.seconds,
        }
        spent.write_text(json.dumps(took) + "\n")
    return dict(json.loads(spent.read_text())), model


def few_rows(name: str, data: Path, out: Path, seed: int, minutes: float) -> Row:
    """Mean alarms over random divisions of held-out rows, for each way to calibrate with few rows.

    "largest" is the earlier rule: all folds ranked together, by the largest of the p-values of a row.
    """
    kind, level_name = KINDS[name](data, out / "data", minutes), FEW_LEVELS[name]
    _, model = _trained(name, kind, out, seed, minutes)
    level = model.domain.level(level_name)
    path = kind.write(drawn(kind.held, seed)[: 2 * (FEW_ROWS + FEW_JUDGED)], out / f"few-{name}")
    detector = Detector(RecordScorer(Session(model)), level, background=stored_background(model, level))
    records = model.domain.read([str(path)], Problems("skip"), **kind.options)
    judged = [one for one in detector.judged_rows(records, Problems("skip")) if one.row.score is not None]
    statistics, lengths = table([one.row for one in judged], level.statistics.judging)
    realised: list[list[float]] = []
    for division in range(DIVISIONS):
        order = np.random.default_rng(division).permutation(len(lengths))
        fit, new = order[:FEW_ROWS], order[FEW_ROWS:][:FEW_JUDGED]
        own, others = ({n: values[rows] for n, values in statistics.items()} for rows in (fit, new))
        calibration = Normal.fit(own, lengths[fit], seed=division, fusion=level.statistics.fusion)
        p_values = calibration.judge(others, lengths[new]).p_value
        realised.append([float((p_values <= rate).mean()) for rate in (0.05, 0.1)])
    at_05, at_1 = np.mean(realised, axis=0).tolist()
    below = np.mean([rates[1] <= 0.02 for rates in realised])
    print(f"{name}, {level_name}: {len(lengths)} rows, {FEW_ROWS} calibrate {FEW_JUDGED}, {DIVISIONS} times")
    print(f"  {at_05:.3f} at .05, {at_1:.3f} at .1 ({below:.0%} of the divisions at most .02)")
    return {"field": name, "level": level_name, "rows": len(lengths), "realised": [at_05, at_1]}


def in_time(name: str, stream: Stream, out: Path, seed: int, minutes: float) -> Row:
    """Alarms at .05 by tenths of the later log, for each choice of calibration records; cached as JSON."""
    kept = out / f"in-time-{name}-{minutes:g}min-seed{seed}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    found: Row = {"data": name, "seed": seed}
    for on in ("latest", "spread"):
        flags = log_flags(minutes)
        flags["data"] = {**flags["data"], "options": stream.options, "calibrate_on": on}
        model = trained(out, f"in-time-{name}-{on}", "logs", [stream.train], flags, seed, minutes)
        rows = out / f"in-time-{name}-{on}-seed{seed}.jsonl"
        rows.unlink(missing_ok=True)
        config = ScoreConfig(
            model=model.path,
            paths=(str(stream.later),),
            mode=str(model.domain.defaults.mode),
            options=stream.options,
            on_error="skip",
            out=rows,
        )
        summary = run("score", Score, config)
        p_values = [json.loads(line).get("p_value") for line in rows.read_text().splitlines()]
        # A row without a score holds nothing the model knows: an alarm.
        alarms = np.array([p is None or p <= IN_TIME for p in p_values])
        tenths = np.array_split(alarms, 10)
        stored = stored_calibrations(Path(model.path))["session", str(model.domain.defaults.mode)]
        found[on] = {
            "calibration_rows": stored.rows,
            "smallest_rate": stored.fitted.smallest_rate,
            "rows": len(alarms),
            "all": float(alarms.mean()),
            "tenths": [float(tenth.mean()) for tenth in tenths],
            "warnings": warnings(summary.figures),
        }
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found, indent=2, default=float) + "\n")
    return found


def show_in_time(results: Sequence[Row]) -> None:
    """Print the shares of alarms, for the whole log after training and by tenths."""
    print(f"{'data':<24}{'seed':>5}  {'calibrates':<12}{'rows':>6}{'later':>7}{'all':>7}  by tenths")
    for one in results:
        for on in ("latest", "spread"):
            own = one[on]
            tenths = " ".join(f"{share:.2f}".lstrip("0") for share in own["tenths"])
            told = "; warned" if own["warnings"] else ""
            line = f"{one['data']:<24}{one['seed']:>5}  {on:<12}{own['calibration_rows']:>6}{own['rows']:>7}"
            print(f"{line}{own['all']:>7.3f}  {tenths}{told}")


def show(results: Sequence[Row]) -> None:
    """Print both tables, and the time of the calibrations."""
    print(f"{'field':<9}{'seed':>5}{'training s':>12}{'calibration s':>15}{'share':>8}")
    for one in results:
        share = one["calibration_seconds"] / max(one["training_seconds"], 1e-9)
        print(
            f"{one['field']:<9}{one['seed']:>5}{one['training_seconds']:>12.0f}"
            f"{one['calibration_seconds']:>15.0f}{share:>8.0%}"
        )
    head = f"\n{'field seed level mode':<34}{'set':<24}{'cal.rows':>9}{'ranked':>7}"
    head += f"{'from':>7}{'rows':>7}{'rec.':>6}"
    print(head + "".join(f"{f'at {rate:g}: all rows; drawn':>34}" for rate in RATES))
    for label, row in _labelled(results, ("held out", "new")):
        cells = "".join(f"{_cell(one):>34}" for one in row["rates"])
        print(f"{label}{row['rows']:>7}{row['records']:>6}{cells}")
    print(f"\n{head.strip()}{'p<=.5':>7}{'warned':>8}{'at .05':>8}{'unknown':>9}{'unfam.':>7}")
    for label, row in _labelled(results, ("held out", "new", "shifted")):
        unknown = row["unknown"]
        share = f"{unknown / max(unknown + row['units'], 1):.1%}" if isinstance(unknown, int) else unknown
        at = [one.get("all") for one in row["rates"] if one["rate"] == 0.05]
        told = f"{row['low_p']:.2f}" if row["low_p"] is not None else "few"
        print(
            f"{label}{row['rows']:>7}{row['records']:>6}{told:>7}{'yes' if row['warned'] else 'no':>8}"
            f"{'' if at[0] is None else f'{at[0]:.3f}':>8}{share:>9}{row['unfamiliar']:>7}"
        )
    for one in results:
        for row in one["rows"]:
            if row["role"] == "not calibrated":
                print(f"{one['field']} {row['level']} {row['mode']}: {row['why']}")


def _labelled(results: Sequence[Row], roles: Sequence[str]) -> Iterator[tuple[str, Row]]:
    for one in results:
        for row in one["rows"]:
            if row["role"] in roles:
                name = f"{one['field']} {one['seed']} {row['level']} {row['mode']}"
                label = f"{name:<34}{row['set']:<24}{row['calibration_rows']:>9}{row['ranked']:>7}"
                yield f"{label}{row['smallest_rate']:>7.4f}", row


def _cell(one: Row) -> str:
    if one["refused"]:
        return "refused"
    if "all" not in one:
        return "no rows"
    low, high = one["interval"]
    return f"{one['all']:.3f}; {one['alarms']}/{one['of']} [{low}, {high}] {one['verdict']}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/calibration"))
    parser.add_argument("--only", choices=sorted(KINDS), action="append", help="only these fields")
    parser.add_argument("--seeds", type=int, help="models of each field (3, or 1 with --quick)")
    parser.add_argument("--minutes", type=float, default=2.0, help="training of one model")
    parser.add_argument("--records", type=int, default=2000, help="largest number of scored records in a set")
    parser.add_argument(
        "--tokens", type=float, default=8e6, help="approximate number of forward tokens in one scoring"
    )
    parser.add_argument("--quick", action="store_true", help="one minute, one seed, fewer records")
    parser.add_argument("--few", action="store_true", help="calibrate with few rows")
    parser.add_argument(
        "--in-time",
        action="store_true",
        help="logs: alarms after the training, by choice of calibration records",
    )
    options = parser.parse_args()
    size = Size(minutes=options.minutes, records=options.records, tokens=options.tokens)
    options.seeds = options.seeds or (1 if options.quick else 3)
    if options.quick:
        size = Size(minutes=1.0, records=300, tokens=6e5, modes=("exact",))
    out, results = options.out.resolve(), list[Row]()
    if options.few:
        for name in options.only or list(FEW_LEVELS):
            results.append(few_rows(name, options.data, out, 0, size.minutes))
    elif options.in_time:
        for name, stream in streams(options.data, out / "data").items():
            for seed in range(options.seeds):
                print(f"{name}, seed {seed} ...", file=sys.stderr)
                results.append(in_time(name, stream, out, seed, size.minutes))
        show_in_time(results)
    else:
        for name in options.only or list(KINDS):
            for seed in range(options.seeds):
                print(f"{name}, seed {seed} ...", file=sys.stderr)
                results.append(measured(name, options.data, out, seed, size))
        show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
