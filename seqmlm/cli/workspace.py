"""`seqmlm doctor`, `seqmlm db` and `seqmlm ui`: check the installation, migrate the database, open MLflow."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from seqmlm.cli.options import Json
from seqmlm.cli.output import print_facts, print_json, say, tell

db = typer.Typer(
    no_args_is_help=True, help="Manage the registry's database; needed only when it is on a server."
)


def doctor(json_output: Json = False) -> None:
    """Check this installation and workspace; exit code 4 if there is a problem.

    Example: seqmlm doctor
    """
    from seqmlm.management.doctor import examine

    examination = asdict(examine())
    problems = examination["problems"]
    if json_output:
        print_json(examination)
    else:
        for topic, facts in examination.items():
            if topic != "problems":
                say(topic)
                texts = {
                    key: _extra(key, value) if topic == "extras" else _text(value)
                    for key, value in facts.items()
                }
                print_facts({f"  {key.replace('_', ' ')}": text for key, text in texts.items()})
                say()
        for problem in problems:
            tell(f"problem: {problem}")
        if not problems:
            say("no problems found")
    if problems:
        raise typer.Exit(4)


def _extra(name: str, facts: dict[str, Any]) -> str:
    if facts["installed"]:
        return f"installed; needed to {facts['enables']}"
    return f"not installed; needed to {facts['enables']}: pip install 'seqmlm[{name}]'"


def _text(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


@db.command("upgrade")
def upgrade_schemas(json_output: Json = False) -> None:
    """Upgrade the registry's tables to the schema of this version of seqmlm.

    A SQLite file in the workspace is upgraded automatically.

    Example: SEQMLM_DATABASE_URL=postgresql://me@server/models seqmlm db upgrade
    """
    from seqmlm.management.doctor import schema
    from seqmlm.watch.tables import STREAMS

    url, old_revision, new_revision = schema(upgrade=True)
    _, old_streams, streams = schema(upgrade=True, of=STREAMS)
    if json_output:
        versions = {"before": old_revision, "after": new_revision}
        print_json({"url": url, **versions, "streams": {"before": old_streams, "after": streams}})
    elif (old_revision, old_streams) == (new_revision, streams):
        say(f"{url} is already at schema {new_revision} (streams: {streams})")
    else:
        models = f"{old_revision or 'none'} -> {new_revision}"
        say(f"{url}: schema {models}, of streams {old_streams or 'none'} -> {streams}")


@db.command("current")
def current(json_output: Json = False) -> None:
    """Show the schema of the registry's database and the one this version needs.

    Example: seqmlm db current
    """
    from seqmlm.management.doctor import schema
    from seqmlm.watch.tables import STREAMS

    url, revision, needed = schema()
    _, streams, streams_needed = schema(of=STREAMS)
    facts = {"url": url, "schema": revision, "needed": needed}
    facts |= {"streams schema": streams, "streams needed": streams_needed}
    print_json(facts) if json_output else print_facts({name: fact or "none" for name, fact in facts.items()})


def ui(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on at 127.0.0.1; 0 picks a free one.")
    ] = 5000,
) -> None:
    """Open the MLflow UI on the runs and models of this workspace; Ctrl-C stops it.

    It prints the address to open: the experiment of the newest run or, if there are no runs, MLflow's
    start page.

    Example: seqmlm ui --port 5001
    """
    from seqmlm.management.doctor import become, plan_ui

    plan = plan_ui(port)
    say(plan.address)
    if plan.experiment is not None:
        tell(f"shows the runs of experiment {plan.experiment}; others are under Experiments")
    if plan.command is None:
        tell("MLFLOW_TRACKING_URI names a server: open that address")
        return
    if plan.experiment is None:
        tell("no run is in MLflow yet, so the address is its first page; run this again after a training")
    tell(f"runs and models of {plan.folder}; Ctrl-C stops the server")
    become(plan)
