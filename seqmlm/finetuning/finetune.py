"""`seqmlm finetune`: train an encoder on a small labelled set, and compare it with simple baselines.

The run folder has the same files as the run folder of `seqmlm train`. If a run is killed at any step,
`--resume` reaches the same model.
"""

from __future__ import annotations

from typing import Any, TextIO

from seqmlm.finetuning.config import FinetuneConfig
from seqmlm.reports.summary import Summary
from seqmlm.tasks.settings import check_field


class Finetune:
    """Train a model to predict labels: classes, values, tags of units, or entities.

    The labels determine the task. Without test data, whole groups are held out: patients, documents, packages
    or equal sequences. The results are for the held-out part, with 95 % intervals over groups. They are
    compared with the most frequent class, a linear model of units, and the frozen encoder.

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
