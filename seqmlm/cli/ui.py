"""`seqmlm ui`: the MLflow UI on the workspace's store."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def ui(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")
    ] = 5000,
) -> None:
    """Open the MLflow UI on this workspace's runs and models; Ctrl-C ends it.

    Example: seqmlm ui --port 5001
    """
    from seqmlm.tasks.doctor import become, plan_ui

    plan = plan_ui(port)
    print(plan.address, flush=True)
    if plan.command is None:
        print("MLFLOW_TRACKING_URI names a server: open that address", file=sys.stderr)
        return
    print(f"runs and models of {plan.folder}; Ctrl-C ends it", file=sys.stderr, flush=True)
    become(plan)
