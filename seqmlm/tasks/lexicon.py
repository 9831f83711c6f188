"""Find the words that distinguish labels, for the masker `lexicon.v1`, which masks these words.

The words come from a logistic regression on word presence. It does not use a language model, so a lexicon can
be made before training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.domains.field import check_public
from seqmlm.engine.durable import replace_file
from seqmlm.errors import DataError, UsageError, number_of
from seqmlm.reports.summary import Summary, Table
from seqmlm.streams.outputs import check_ending, check_outputs
from seqmlm.streams.ownership import remember
from seqmlm.tasks.columns import Labelling, reader_options

WORD = r"\w+(?:['’-]\w+)*"
SUMMARY_WORDS = 20
"""Number of words in a summary, strongest first."""


@dataclass(frozen=True, kw_only=True)
class LexiconConfig:
    """Settings of `seqmlm lexicon`.

    Args:
        paths: labelled texts: files, folders or Hugging Face data sets.
        label: COLUMN: column of the label.
        top: number of words to keep, strongest first.
        out: write the words to this file, one per line, for masking.options.words_file.
        domain: field of the texts.
        format: format of the input files (see `seqmlm data formats`). Default: detected.
        options: KEY=VALUE: option of the file reader, such as column=text; repeatable.
        least: minimum number of texts that contain a word.
    """

    option_fields: ClassVar[tuple[str, ...]] = ("label", "top", "out", "domain", "options")
    metavar: ClassVar[str] = "PATH"

    paths: tuple[str, ...] = ()
    label: str = "label"
    top: int = 1000
    out: Path | None = None
    domain: str = "text"
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    least: int = 5

    def check(self) -> None:
        if not self.paths:
            raise UsageError("nothing to read: give files of labelled texts")
        if self.top < 1 or self.least < 1:
            raise UsageError("top and least must be at least 1")
        plugins.domain(self.domain).files.check(self.format, {})


class Lexicon:
    """Find the words that distinguish the classes of labelled texts, so that training can mask them.

    Words are ranked by their largest coefficient in a logistic regression over all words. The strongest words
    are printed. --json prints all of them. --out writes the list for `seqmlm train`.

    Example: seqmlm lexicon reviews.csv --label sentiment --top 1000 --out words.txt
    """

    Config = LexiconConfig
    trains = False

    @classmethod
    def launch(
        cls, name: str, config: LexiconConfig, *, stdout: TextIO | None, progress: Any, as_json: bool
    ) -> Summary:
        """Read the texts, rank their words and write the list.

        Raises:
            DataError: there is only one class, or no word is frequent enough.
        """
        config.check()
        if config.out is not None:
            check_ending("--out", config.out, (".txt", ".lst"))
        check_outputs({"--out": config.out}, inputs=config.paths)
        with Problems() as problems:
            problems.listener = progress.message
            texts, labels = zip(*_labelled(config, problems), strict=True)
        words = rank_words(texts, labels, config.least)[: config.top]
        if config.out is not None:
            replace_file(config.out, "".join(f"{word}\n" for word, _, _ in words).encode())
            remember(config.out)
        word_figures = [dict(zip(("word", "weight", "class"), word_row, strict=True)) for word_row in words]
        return Summary(
            task=name,
            items=len(texts),
            bad=0,
            notes={},
            figures={"words": word_figures},
            answer=f"{number_of(len(words), 'word')} of {number_of(len(texts), 'text')}",
            tables=[Table("", ["word", "coefficient", "class"], words[:SUMMARY_WORDS])],
            hint=_next_command(config),
        )


def _next_command(config: LexiconConfig) -> str:
    if config.out is None:
        return "next: run this command with --out FILE to write all words for seqmlm train"
    return (
        f"next: seqmlm train PATH --domain {config.domain} --set masking.masker=lexicon "
        f"--set masking.options.words_file={config.out}"
    )


def _labelled(config: LexiconConfig, problems: Problems) -> Iterator[tuple[str, str]]:
    """Yield the text and the label of each labelled record.

    Raises:
        UsageError: records are not texts, or are about people.
        DataError: no record has a label.
    """
    domain = plugins.domain(config.domain)
    check_public(domain, "a lexicon shows their words")
    count = 0
    for path in config.paths:
        labelling = Labelling(labels=(config.label,), format=config.format, options=config.options)
        options = reader_options(domain, labelling, path)
        for record in domain.read([path], problems, format=config.format, scoring=True, **options):
            if not isinstance(record.raw, str):
                raise UsageError(f"records of domain {domain.name} are not texts and have no words")
            if (label := record.meta.get(config.label)) not in (None, ""):
                count += 1
                yield record.raw, str(label)
    if not count:
        raise DataError(
            "no record has a label", source=config.paths[0], remedy="name the column with --label"
        )


def rank_words(texts: Any, labels: Any, min_texts: int) -> list[tuple[str, float, str]]:
    """Rank words by their largest coefficient: (word, coefficient, class), strongest first.

    Args:
        texts, labels: (N,) texts with their labels.
        min_texts: minimum number of texts that contain a word.

    Raises:
        DataError: there is only one class, or no word is in enough texts.
    """
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    kinds = sorted(set(labels))
    if len(kinds) < 2:
        raise DataError(f"all labels are {kinds[0]!r}", remedy="give texts of at least two classes")
    counter = CountVectorizer(token_pattern=WORD, lowercase=False, min_df=min_texts, binary=True)
    try:
        present = counter.fit_transform(texts)
    except ValueError:
        raise DataError(
            f"no word occurs in {min_texts} texts", remedy="give more texts, or use --set least=1"
        ) from None
    fitted = LogisticRegression(max_iter=1000).fit(present, labels)
    weights = fitted.coef_ if len(kinds) > 2 else np.concatenate([-fitted.coef_, fitted.coef_])
    best, size = weights.argmax(axis=0), weights.max(axis=0)
    words = counter.get_feature_names_out()
    order = np.lexsort([words, -size])
    return [(str(words[n]), float(size[n]), kinds[best[n]]) for n in order if size[n] > 0]
