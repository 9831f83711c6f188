"""`seqmlm models`: registered models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import advise, escape, number, print_facts, print_json, print_table, say, tell
from seqmlm.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="List, show, alias, export and recover registered models.")

LOST = (
    "aliases, registration times, and paths and counts of data. champion is now the first version of each "
    "name; set other aliases with seqmlm models alias. The paths are in runs/NAME/config.yaml. Positions, "
    "rows, incidents and verdicts of followed files are also lost: follow the files again with another --out"
)
"""The facts that a new registry lacks, in words."""


@app.command("list")
def list_(json_output: opt.Json = False) -> None:
    """List all versions of all models, newest first.

    Example: seqmlm models list
    """
    from seqmlm.management.models import list_models

    models = list_models()
    if json_output:
        print_json([model.to_dict() for model in models])
        return
    if not models:
        tell("no models in this workspace; to train one: seqmlm train --domain protein my.fasta")
        return
    print_table(
        ["model", "aliases", "domain", "bits/unit", "unigram", "from", "created"],
        [
            [
                escape(model.entry.reference) + ("" if model.entry.present else " [red](missing)[/]"),
                ", ".join(model.entry.aliases),
                model.entry.domain,
                number(model.metrics.get("eval/bits_per_unit")),
                number(model.metrics.get("eval/unigram_bits_per_unit")),
                escape(model.entry.parent or model.entry.init or "scratch"),
                model.entry.created.astimezone().strftime("%Y-%m-%d %H:%M"),
            ]
            for model in models
        ],
    )
    advise(
        "bits/unit is measured without counts, with 15 % of the units masked. If a model has counts, the "
        "last lines of its training mask one unit at a time instead."
    )
    advise(f"next: seqmlm models show {models[0].entry.name}")


@app.command("show")
def show(model: opt.Model, json_output: opt.Json = False) -> None:
    """Show one model: its folder, data, tokenizer, masking, parents, calibrations and metrics.

    Example: seqmlm models show enzymes@champion
    """
    from seqmlm.management.models import show_model

    facts = show_model(model)
    if json_output:
        print_json(facts)
        return
    if "name" not in facts:
        print_facts({"path": facts["path"], **facts["card"], "calibrations": facts["calibrations"]})
        return
    head = facts.get("card", {}).get("head")
    learnt = f"none: fine-tuned on labels, {head['kind']} {head['label']}" if head else ""
    print_facts(
        {
            "model": f"{facts['name']}:{facts['version']}",
            "aliases": ", ".join(facts["aliases"]),
            "domain": facts["domain"],
            "folder": facts["path"] if facts["present"] else f"{facts['path']} (missing)",
            "created": facts["created"],
            "run id": facts["run_id"],
            "initialised from": facts["init"] or "scratch",
            "ancestors": " <- ".join(facts["ancestors"]),
            "tokenizer": f"{facts['tokenizer']['name']}, {facts['tokenizer']['vocabulary_size']:,} tokens",
            "masking": ", ".join(f"{key} {value}" for key, value in facts["masking"].items() if value != {})
            or learnt
            or "none: a linear model predicts each unit from all others",
            "data": ", ".join(facts["dataset"]["sources"]),
            "data fingerprint": facts["dataset"]["fingerprint"],
            "calibrations": facts["calibrations"]
            or ("none" if learnt else "none: seqmlm calibrate creates one from normal data"),
        }
    )
    say("\nmetrics")
    print_facts({f"  {key}": number(value) for key, value in sorted(facts["metrics"].items())})


@app.command("alias")
def alias(
    model: opt.Model,
    alias: Annotated[
        str, typer.Argument(metavar="ALIAS", help="The alias, such as champion; moved if it exists.")
    ],
    json_output: opt.Json = False,
) -> None:
    """Give a model version an alias, so that NAME@ALIAS refers to it.

    Example: seqmlm models alias enzymes:3 champion
    """
    from seqmlm.management.models import alias_model

    entry = alias_model(model, alias, lambda text: tell(f"warning: {text}"))
    if json_output:
        print_json({"name": entry.name, "version": entry.version, "alias": alias})
        return
    say(f"{entry.name}@{alias} is now version {entry.version}")


@app.command("rescan")
def rescan(json_output: opt.Json = False) -> None:
    """Register the models in runs/ that the registry lacks, and replace a damaged registry with a new one.

    Example: seqmlm models rescan
    """
    from seqmlm.management.models import rescan_models

    done = rescan_models()
    if done.aside is not None:
        tell(f"the registry was unusable: it was moved to {done.aside}, and a new one was created")
        tell(f"the new registry lacks facts that model folders do not store: {LOST}")
    for folder, reason in done.broken.items():
        tell(f"{folder}: {reason}")
    added = [model.reference for model in done.added]
    if json_output:
        broken = {str(folder): reason for folder, reason in done.broken.items()}
        damaged_registry = None if done.aside is None else str(done.aside)
        print_json({"added": added, "known": done.known, "aside": damaged_registry, "broken": broken})
    else:
        for name in added:
            say(name)
        tell(f"{len(added):,} models registered, {done.known:,} were already known")
    if done.broken:
        raise typer.Exit(4)


@app.command("export")
def export(
    model: opt.Model,
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Folder to write to; created if missing.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Same as a positional DIR.")] = None,
    format: Annotated[
        str, typer.Option(help="Format of the folder: plain, or sentence (for sentence-transformers).")
    ] = "plain",
    json_output: opt.Json = False,
) -> None:
    """Export a Hugging Face folder that AutoModelForMaskedLM and AutoTokenizer can load.

    AutoModelForSequenceClassification or AutoModelForTokenClassification loads a fine-tuned model.

    Example: seqmlm models export enzymes enzymes-hf
    """
    from seqmlm.management.models import export_model

    folders = [path for path in (folder, out) if path is not None]
    if len(folders) != 1:
        raise UsageError(
            f"{folder} and --out {out} are two output folders; name only one of them"
            if folders
            else f"name the folder to write to, such as: seqmlm models export {model} exported"
        )
    if format not in ("plain", "sentence"):
        raise UsageError(f"--format is plain or sentence, not {format!r}")
    files = export_model(model, folders[0], tell, format="sentence" if format == "sentence" else "plain")
    if json_output:
        print_json({"out": str(folders[0]), "files": [path.name for path in files]})
        return
    for path in files:
        say(path)
