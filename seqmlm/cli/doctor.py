"""`seqmlm doctor`: what is installed, what will be used, what is wrong."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def doctor(
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Examine this installation and workspace; exit code 4 if something is wrong.

    Example: seqmlm doctor
    """
    from dataclasses import asdict

    from seqmlm.cli.output import print_facts, print_json
    from seqmlm.tasks.doctor import examine

    found = asdict(examine())
    problems = found["problems"]
    if json_output:
        print_json(found)
    else:
        for topic, facts in found.items():
            if topic != "problems":
                print(topic)
                print_facts({f"  {key.replace('_', ' ')}": _text(value) for key, value in facts.items()})
                print()
        for problem in problems:
            print(f"problem: {problem}", file=sys.stderr)
        if not problems:
            print("no problems found")
    if problems:
        raise typer.Exit(4)


def _text(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
