"""`seqmlm db`: the registry's database."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="The registry's database; only a server needs this.")
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


@app.command("upgrade")
def upgrade(json_output: Json = False) -> None:
    """Bring the registry's tables to this version of seqmlm; a file in the workspace does that by itself.

    Example: SEQMLM_DATABASE_URL=postgresql://me@server/models seqmlm db upgrade
    """
    from seqmlm.cli.output import print_json
    from seqmlm.tasks.doctor import upgrade as migrate

    url, before, after = migrate()
    if json_output:
        print_json({"url": url, "before": before, "after": after})
    elif before == after:
        print(f"{url} is at schema {after} already")
    else:
        print(f"{url}: schema {before or 'none'} -> {after}")


@app.command("current")
def current(json_output: Json = False) -> None:
    """Show which schema the registry has and which one this version needs.

    Example: seqmlm db current
    """
    from seqmlm.cli.output import print_facts, print_json
    from seqmlm.tasks.doctor import current_revision

    url, revision, needed = current_revision()
    facts: dict[str, object] = {"url": url, "schema": revision or "none", "needed": needed}
    print_json({**facts, "schema": revision}) if json_output else print_facts(facts)
