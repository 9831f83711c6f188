"""`seqmlm finetune`: what a small labelled set teaches an encoder, as a number beside cheap rivals.

Its run folder has what `train`'s has; killed at any step, `--resume` reaches the same model.
"""

from __future__ import annotations

from typing import Any, TextIO

from seqmlm.finetuning.config import FinetuneConfig
from seqmlm.reports.summary import Summary
from seqmlm.tasks.settings import check_field


class Finetune:
    """Teach a model labels: classes, values, tags of units or entities.

    The task is found from the labels, and what is not given is held out: whole groups (patients, documents,
    packages, equal sequences). The figures are of the held-out part, with 95 % intervals over groups, beside
    the most frequent class, a linear model over units and the frozen encoder.

    Example: seqmlm finetune english --train reviews.csv --label sentiment

    Example: seqmlm finetune enzymes --class active=active.fasta --class dead=dead.fasta --tune lora:8
    """

    Config = FinetuneConfig
    trains = True

    @classmethod
    def launch(
        cls, name: str, config: FinetuneConfig, *, stdout: TextIO | None, progress: Any, as_json: bool
    ) -> Summary:
        """Run it; see `seqmlm.cli.command.Command`."""
        config.check()  # before torch is loaded, which takes seconds
        check_field(config)
        from seqmlm.finetuning.run import Finetuning

        run = Finetuning(config, progress)
        summary = run.summary()
        if not run.processes.is_main:
            raise SystemExit(0 if summary.stopped is None else 128 + summary.stopped)
        return summary
