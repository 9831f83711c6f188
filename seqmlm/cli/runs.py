"""`seqmlm runs`: list, show, compare and synchronise training runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from seqmlm.cli.options import Json
from seqmlm.cli.output import (
    advise,
    duration,
    escape,
    number,
    print_facts,
    print_json,
    print_table,
    say,
    tell,
    when,
)

if TYPE_CHECKING:
    from seqmlm.management.runs import Comparison

_LISTED = ("train/loss", "eval/bits_per_unit", "eval/unigram_bits_per_unit", "tokens_per_second")

app = typer.Typer(no_args_is_help=True, help="List, show and compare runs; synchronise them with MLflow.")


@app.command("list")
def list_(json_output: Json = False) -> None:
    """List all runs, newest first.

    Example: seqmlm runs list
    """
    from seqmlm.management.runs import list_runs

    runs = list_runs(_warn)
    if json_output:
        print_json(runs)
        return
    if not runs:
        tell("no runs in this workspace; to start one: seqmlm train --domain protein my.fasta")
        return
    print_table(
        ["name", "status", "started", "took", "loss", "bits/unit", "unigram", "tokens/s"],
        [
            [
                escape(run.name),
                _status(run.status, run.tracked),
                when(run.started)[5:16],
                duration(run.started, run.ended),
                *(number(run.metrics.get(key)) for key in _LISTED),
            ]
            for run in runs
        ],
    )
    advise("next: seqmlm ui shows their curves")


@app.command("show")
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or id of a run.")], json_output: Json = False
) -> None:
    """Show one run: settings, final metrics and folder.

    Example: seqmlm runs show enzymes
    """
    from seqmlm.management.runs import show_run

    facts = show_run(run, _warn)
    if json_output:
        print_json(facts)
        return
    print_facts(
        {
            "name": facts["name"],
            "status": facts["status"],
            "run id": facts["run_id"] or "(not in MLflow yet)",
            "experiment": facts["experiment"],
            "started": when(facts["started"]),
            "took": duration(facts["started"], facts["ended"]),
            "folder": facts["folder"],
        }
    )
    for title in ("params", "metrics", "tags"):
        say(f"\n{title}")
        indented = {f"  {key}": value for key, value in sorted(facts[title].items())}
        print_facts({k: number(v) for k, v in indented.items()} if title == "metrics" else indented)


@app.command("compare")
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Names or ids of runs.")],
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Metric to compare between two fine-tunings: the value of the first minus the second, on "
            "the same test records.",
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Compare runs: settings that differ, and final metrics with the best one marked.

    With --metric it compares the predictions of two fine-tunings for the same test data. It shows the
    difference, its 95 % interval, and two p-values of the hypothesis that there is no difference. They are
    from a bootstrap and from a randomization test, both over groups.

    Example: seqmlm runs compare uniform whole-word

    Example: seqmlm runs compare english-sentiment tuned --metric accuracy
    """
    from seqmlm.management.runs import compare_predictions, compare_runs

    if metric is not None:
        differences = compare_predictions(runs, metric, _warn)
        print_json(differences) if json_output else say(
            _DIFFERENCE.format(*differences["runs"], **differences)
        )
        return
    comparison = compare_runs(runs, _warn)
    if json_output:
        print_json(comparison.to_dict())
    else:
        _show_comparison(comparison)


_DIFFERENCE = (
    "{metric} of {0} minus {1}: {difference:+.4f} (95 % {low:+.4f} to {high:+.4f}); "
    "p {p_bootstrap:.3g} by bootstrap, {p_randomization:.3g} by randomization"
)


def _show_comparison(comparison: Comparison) -> None:
    names = [escape(run.name) for run in comparison.runs]
    rows: list[list[str]] = [["", "status", *(run.status for run in comparison.runs)]]
    for key, texts in comparison.params.items():
        rows.append(["param", escape(key), *(escape(text or "-") for text in texts)])
    for key, values in comparison.metrics.items():
        cells = [
            f"[bold green]{number(value)} *[/]" if best else number(value) or "-"
            for value, best in zip(values, comparison.best[key], strict=True)
        ]
        rows.append(["metric", escape(key), *cells])
    print_table(["", "", *names], rows)
    if any(any(marks) for marks in comparison.best.values()):
        tell("* best")
    for note in comparison.notes:
        tell(f"note: {note}")


@app.command("sync")
def sync(json_output: Json = False) -> None:
    """Upload the metrics and models that runs recorded while MLflow was unreachable.

    Example: seqmlm runs sync
    """
    from seqmlm.management.runs import sync_runs

    uploaded = sync_runs(_warn)
    if json_output:
        print_json(uploaded)
        return
    for name, count in uploaded.items():
        say(f"{name}: {count:,} metric values uploaded")
    if not uploaded:
        tell("nothing to do: MLflow is complete for every run that has ended")


def _warn(text: str) -> None:
    tell(f"warning: {text}")


def _status(status: str, tracked: bool) -> str:
    color = {"FINISHED": "green", "RUNNING": "cyan", "KILLED": "yellow", "FAILED": "red"}.get(status, "")
    styled = f"[{color}]{status}[/]" if color else status
    return styled if tracked else f"{styled} (not in MLflow)"
