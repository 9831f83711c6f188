"""`seqmlm structure`: which units of a sequence depend on each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import end_as_asked, tell


def structure(
    model: opt.Model,
    paths: opt.Paths = None,
    data: opt.Data = None,
    method: Annotated[
        str,
        typer.Option(
            help="What dependence is: cmi (conditional mutual information), cpmi (the same of what stands "
            "there alone), jacobian or dependency (how much one place moves with another), couplings (of a "
            "linear model, read from its parameters), or pmi (of counts in the input; asks no model)."
        ),
    ] = "cmi",
    estimator: Annotated[
        str,
        typer.Option(
            help="How cmi is estimated: exact (every symbol at every place), topk (the K most probable), "
            "gibbs (a chain of draws), fast (one pass for each unit and symbol, not each pair), or auto (by "
            "the size of the vocabulary and the length)."
        ),
    ] = "auto",
    distance: Annotated[
        int | None,
        typer.Option(min=1, help="Ask only about pairs at most so many units apart. Default: all pairs."),
    ] = None,
    min_separation: Annotated[
        int | None,
        typer.Option(min=1, help="Judge only pairs at least so many units apart. Default: by domain."),
    ] = None,
    columns: Annotated[
        str, typer.Option(help="How the tokens of a unit are joined in columns: max or mean.")
    ] = "max",
    rows: Annotated[
        str, typer.Option(help="How they are joined in rows, after the columns: max or mean.")
    ] = "mean",
    symmetric: Annotated[
        str, typer.Option(help="How the two directions of a pair are joined: mean or max.")
    ] = "mean",
    apc: Annotated[
        bool | None,
        typer.Option("--apc/--no-apc", help="Correct by the average product of rows. Default: by domain."),
    ] = None,
    steps: Annotated[int, typer.Option(min=2, help="Draws of a chain of --estimator gibbs.")] = 2000,
    k: Annotated[int, typer.Option("--k", min=2, help="Symbols at a place of --estimator topk.")] = 128,
    together: Annotated[
        bool | None,
        typer.Option(
            "--together/--apart",
            help="Hide all units of one name (records of a code) together, and judge each pair of names "
            "once: any record of a code tells what its other records are. Default: by domain.",
        ),
    ] = None,
    both_strands: Annotated[
        bool,
        typer.Option(
            "--both-strands",
            help="Average the map of each sequence with that of its other strand, where there is one: twice "
            "the work. Not for models trained on one strand (train.augment=false).",
        ),
    ] = False,
    null: Annotated[
        int,
        typer.Option(
            min=0,
            help="Compare every pair with those of so many null models of its sequence, about as far apart: "
            "gives z and p, and takes as many times the work. With few, few pairs can have a small p.",
        ),
    ] = 0,
    null_model: Annotated[
        str,
        typer.Option(
            help="What these are: shuffled units, dinucleotide (shuffled so that every pair of neighbours "
            "comes as often as before), or mirrored (read backwards)."
        ),
    ] = "shuffled",
    family: Annotated[
        bool,
        typer.Option(
            "--family",
            help="The files are alignments: one map for each, the mean over its rows in the columns of the "
            "first.",
        ),
    ] = False,
    sequences: Annotated[
        int, typer.Option(min=1, help="Rows of an alignment that are taken, the first and others evenly.")
    ] = 20,
    truth: Annotated[
        Path | None,
        typer.Option(
            help="What is known: truth.json of a sample, or a file of the field, such as CoNLL-U, a "
            "structure, or contacts. Adds AUROC, AUPRC and the field's own measure."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write edges, graphs and a report into this folder."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted --out; no edge is lost or doubled.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Print all pairs, not those alone that are taken for edges.")
    ] = False,
    format_out: Annotated[
        str | None, typer.Option(help="Format of what is printed: jsonl, csv or tsv. Default: jsonl.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only estimate how many passes and seconds it takes.")
    ] = False,
    seed: opt.Seed = 0,
    domain: opt.ModelDomain = None,
    format: opt.Format = None,
    option: opt.Option = None,
    on_error: opt.OnError = "raise",
    tokens_per_batch: opt.TokensPerBatch = None,
    precision: opt.Precision = "fp32",
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object on stdout, and no edges.")
    ] = False,
) -> None:
    """Map which units of a sequence depend on each other: trees, contacts, base pairs, graphs, by domain.

    Two units depend on each other if the model's distribution of one changes with what stands at the other.
    Every pair gets a value, in nats where it is an information, and the domain decides which pairs are edges.

    Without --out the edges are printed, one JSON line each. With it the folder has edges.tsv (all pairs),
    edges.json, edges.graphml, files of the field (such as CoNLL-U), and report.html, which an MLflow run
    keeps. Units count from 0.

    Example: seqmlm structure english sentences.txt --out trees

    Example: seqmlm structure enzymes new.fasta --truth 1abc.pdb --min-separation 6 --out contacts --json

    Example: seqmlm structure enzymes family.a3m --family --sequences 20 --estimator fast --out family

    Example: seqmlm structure app incident.log --dry-run --json
    """
    given = locals()
    import sys

    from seqmlm.cli.console import ScoringConsole
    from seqmlm.cli.output import number, print_facts, print_json
    from seqmlm.tasks.score_plan import about
    from seqmlm.tasks.structure import dry_run as estimate
    from seqmlm.tasks.structure import map_structure
    from seqmlm.tasks.structure_plan import StructureConfig

    estimating = given.pop("dry_run")
    separation, folder = given.pop("min_separation"), given.pop("out")
    config = opt.configured(
        StructureConfig, given, separation=separation, folder=folder, summary=json_output or estimating
    )
    with ScoringConsole() as console:
        if estimating:
            work = estimate(config, console)
        else:
            result = map_structure(config, sys.stdout, console)
    if not estimating:
        tell(result.sentence())
    if estimating and not json_output:
        work["seconds"] = about(work["seconds"])
    told = work if estimating else result.to_dict() if json_output else result.figures()
    if json_output:
        print_json(told)
    elif estimating or config.truth is not None:
        known = {name: one for name, one in told.items() if one == one}  # an interval of one sequence is NaN
        print_facts({name: one if isinstance(one, str) else number(one) for name, one in known.items()})
    if estimating:
        return
    end_as_asked(result.written.stopped, out)
