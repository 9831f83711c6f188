"""Rescoring: the pseudo-log-likelihood joins a first pass's scores, and the best hypothesis may change.

Lists are asked about one after the other; which weight they are ranked by may hang on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import ClassVar, Literal

from seqmlm.data.files import expand
from seqmlm.data.nbest import NBest, read_nbest
from seqmlm.data.problems import Problems
from seqmlm.engine.units import Mode
from seqmlm.errors import UsageError, number_of
from seqmlm.evaluation.intervals import bounds_text
from seqmlm.evaluation.rescoring import Norm, Reranking, parts
from seqmlm.inference.batches import encoded_texts, forward_tokens, unknown_tokens
from seqmlm.inference.expert import Use
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.parsing import Share
from seqmlm.rows.file import Row
from seqmlm.tasks.task import Figures, Table, Task, TaskConfig, place, where


@dataclass(frozen=True, kw_only=True)
class RescoreConfig(TaskConfig):
    """What `seqmlm rescore` can be told.

    Args:
        paths: n-best lists: .json (ESPnet, mlm-scoring), .jsonl or .tsv.
        ref: file of reference texts: .tsv of ID and text, or .jsonl with id and text.
        weights: weights of the pseudo-log-likelihood to try, separated by commas.
        norm: divide totals by: none, length (words) or gnmt.
        dev: choose the weight on this share of the lists, in (0, 1); report on the others.
        temperature: divide the pseudo-log-likelihood by this.
        unit: of the error rate: word or character.
        mode: how log-probabilities are computed: exact, partition:K or one-pass (see `seqmlm score --help`).
        expert: counts of the training data, mixed into the model's probabilities: auto (where that was better
            on validation records), counts (wherever the model has any) or none.
    """

    shown = ("ref", "weights", "norm", "dev", "out", "resume", "report", "on_error")
    inputs = ("ref",)
    metavar: ClassVar[str] = "FILE..."

    ref: str | None = None
    weights: str = "0,0.05,0.1,0.2,0.3,0.5,0.7,1"
    norm: Norm = "none"
    dev: Share | None = None
    temperature: float = 1.0
    unit: Literal["word", "character"] = "word"
    mode: str = "exact"
    expert: Use = "auto"

    @property
    def tried(self) -> tuple[float, ...]:
        """The weights, each once.

        Raises:
            UsageError: something that is no number of at least 0.
        """
        try:
            found = tuple(dict.fromkeys(float(weight) for weight in self.weights.split(",")))
        except ValueError:
            found = (-1,)
        if not all(0 <= weight < float("inf") for weight in found):
            raise UsageError(
                f"--weights {self.weights!r} must be numbers of at least 0, separated by commas, such as "
                "0,0.1,0.3"
            )
        return found

    def check(self) -> None:
        if not self.paths:
            raise UsageError("nothing to rescore: name a file of n-best lists")
        if self.tried and not self.temperature > 0:
            raise UsageError(f"the temperature must be above 0, not {self.temperature}")
        if self.dev is not None and not 0 < self.dev < 1:
            raise UsageError(f"--dev is the share of the lists that choose the weight, not {self.dev}")
        self.check_files()


class Rescore(Task[RescoreConfig, NBest]):
    """Rerank n-best lists by first-pass score + weight x pseudo-log-likelihood.

    With references, reports the error rate of every weight, of the first pass and of the oracle (the best
    hypothesis of each list). Choosing a weight on the lists it is reported on is too optimistic: use --dev.
    Lists are ranked by the weight chosen with --dev, or by the only weight given.

    Example: seqmlm rescore english nbest.json --ref ref.tsv --dev 0.3 --out reranked.jsonl
    """

    Config = RescoreConfig
    unit = "list"
    whole = True

    def __init__(self, config: RescoreConfig, session: Session) -> None:
        super().__init__(config, session)
        session.check_text()
        self.scorer, self.mode = RecordScorer(session), Mode.parse(config.mode)
        self.rule = Reranking(config.tried, config.norm, config.temperature, config.unit == "character")

    def records(self, problems: Problems) -> list[NBest]:
        config = self.config
        lists = [one for path in config.paths for one in read_nbest(path, config.ref, problems)]
        if config.dev is not None and lists:
            if any(one.reference is None for one in lists):
                raise UsageError(
                    "--dev chooses a weight by its errors, which needs references: name them with --ref"
                )
            parts([one.id for one in lists], config.dev)  # refused here, before hours of scoring
        return lists

    def files(self) -> list[str]:
        return expand(self.config.read)

    def cost(self, item: NBest) -> float:
        cost = forward_tokens(self.session.model, self.mode)
        return sum(cost(self.session.tokens(one.text)) for one in item.hypotheses)

    def rows(self, items: Sequence[NBest]) -> Iterator[list[Row]]:
        """A row for each list, in which every hypothesis has its pseudo-log-likelihood."""
        places = [(own, number, one.text) for own in items for number, one in enumerate(own.hypotheses, 1)]
        encodings = encoded_texts(self.session.tokenizer, [text for _, _, text in places])

        def named(number: int) -> str:
            own, hypothesis, _ = places[number]
            name = f"in line {own.line}" if self.session.card.sensitive else repr(own.id)
            return f"{own.source}: hypothesis {hypothesis} of the list {name}"

        scores = self.scorer.sequences(encodings, self.mode, named=named)
        answers = iter(zip(encodings, scores, strict=True))
        for own in items:
            known = list(islice(answers, len(own.hypotheses)))
            unknown = unknown_tokens(self.session.tokenizer, [encoding for encoding, _ in known])
            hypotheses = [
                {"text": one.text, "score": one.score, "pll": score.pll}
                for one, (_, score) in zip(own.hypotheses, known, strict=True)
            ]
            yield [{**place(own), "ref": own.reference, "unknown": unknown, "hyps": hypotheses}]

    def finished(self, rows: Iterator[Row], figures: Figures) -> Iterator[Row]:
        """The lists, best first by the chosen weight, else in the file's order."""
        return (self.rule.reranked(row, figures["weight"]) for row in rows)

    def line(self, row: Row) -> str:
        """The best hypothesis; where no weight was chosen, that of each weight that was tried."""
        if row["weight"] is not None:
            best = [row["hyps"][0]["text"]]
        else:
            found = groupby(row["best"].items(), key=itemgetter(1))
            best = [f"{text} (weight {next(own)[0]}{_last(own)})" for text, own in found]
        return "  ".join([*where(row), *best])

    def figures(self, rows: Iterable[Row]) -> Figures:
        """What was rescored, the weight that was chosen, and the errors of every choice of hypotheses."""
        told = {"precision": self.session.precision, "counts": self.session.expert is not None}
        return {**self.rule.figures(rows, self.config.dev), **told}

    def sentence(self, figures: Figures, items: int) -> str:
        gain, unknown = figures["gain"], figures["unknown"]
        told = [f"rescored {self.counted(items)}"]
        if gain is not None:
            change = f"{-gain['value']:+.2%}{bounds_text(-gain['high'], -gain['low'], '+.2%')}"
            told += [f"weight {figures['weight']:g} compared with the first pass: {change}"]
        told += [f"{number_of(unknown, 'unknown token')} not scored"] if unknown else []
        told += ["counts are mixed in (--set expert=none leaves them out)"] if figures["counts"] else []
        return "; ".join(told)

    def tables(self, figures: Figures) -> Iterator[Table]:
        columns = ("lists", "choice", f"{self.config.unit} error rate", "exact", "changed")
        parts = {"that chose the weight": figures["dev"], "reported": figures["test"]}
        rows = [
            (part, one["name"], f"{one['error_rate']:.2%}", f"{one['exact']:.1%}", one["changed"])
            for part, choices in parts.items()
            for one in choices
        ]
        if rows:
            yield Table("", columns, rows)


def _last(weights: Iterator[tuple[str, str]]) -> str:
    """Up to which weight, behind the first one."""
    others = [weight for weight, _ in weights]
    return f" to {others[-1]}" if others else ""
