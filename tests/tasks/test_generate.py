"""Generated sequences: draws depend on the seed alone, and come from the distribution they should."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fork_server import Run
from text_models import text_model
from tiny_models import random_model, saved

from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.protein.tokenizer import STANDARD, ResidueTokenizer
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.session import Session
from seqmlm.tasks.generate import Draw, Generate, GenerateConfig


@pytest.fixture
def protein(tmp_path: Path) -> Path:
    return saved(random_model("protein", ResidueTokenizer()), tmp_path / "model")


def test_sequences_are_written_as_the_field_has_them(protein: Path, seqmlm: Run):
    done = seqmlm("generate", protein, "--length", "5-9", "--n", 7, "--seed", 3).ok()
    lines = done.out.splitlines()
    assert lines[::2] == [f">generated-{number}" for number in range(1, 8)]
    assert all(5 <= len(one) <= 9 and set(one) <= set(STANDARD) for one in lines[1::2])
    assert len(set(lines[1::2])) > 1
    assert done.out == seqmlm("generate", protein, "--length", "5-9", "--n", 7, "--seed", 3).out
    assert done.out != seqmlm("generate", protein, "--length", "5-9", "--n", 7, "--seed", 4).out


def test_what_a_template_says_stays(protein: Path, tmp_path: Path, seqmlm: Run):
    (tmp_path / "t.fasta").write_text(">a\nMK__LL_\n>b\nWWW\n>c\n_A\n")
    gibbs = ("--set", "method=gibbs", "--set", "rounds=2")
    done = seqmlm("generate", protein, tmp_path / "t.fasta", "--n", 3, "--json", *gibbs)
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [len(row["text"]) for row in rows] == [7, 7, 7, 2, 2, 2]
    assert all(row["text"][:2] == "MK" and row["text"][4:6] == "LL" for row in rows[:3])
    assert all(row["text"][1] == "A" and row["filled"] == [row["text"][0]] for row in rows[3:])


def drawn(session: Session, templates: list[str], config: GenerateConfig, together: int) -> list[Any]:
    """The rows of so many draws at a time."""
    task = Generate(config, session)
    draws = [Draw(at, one, None, None) for at, one in enumerate(task.cloze.prompts(templates))]
    parts = [draws[at : at + together] for at in range(0, len(draws), together)]
    return [row for part in parts for (row,) in task.rows(part)]


def test_a_draw_does_not_depend_on_what_is_drawn_with_it(protein: Path):
    session = Session.open(str(protein))
    config = GenerateConfig(model="m", length="1", seed=5, rounds=4)
    templates = ["MK____V", "A__C", "_______W__", "Q_"] * 3
    assert drawn(session, templates, config, 5) == drawn(session, templates, config, 12)


@pytest.mark.parametrize("method", ["mask-predict", "gibbs"])
def test_without_temperature_one_round_is_what_fill_says(protein: Path, seqmlm: Run, method: str):
    filled = seqmlm("fill", protein, "MK_AYI", "--json").json["filled"]
    best = ("--temperature", 0, "--set", f"method={method}")
    done = seqmlm("generate", protein, "--template", "MK_AYI", *best)
    assert done.out.splitlines()[1] == filled


def test_gibbs_sampling_comes_from_the_chain_of_its_conditionals():
    """Two bases, drawn one given the other: against the stationary distribution of the enumerated chain."""
    session = Session(random_model("dna", BaseTokenizer(), spread=40.0))
    cloze = Cloze(session)
    template, places = "ACG__TGA", (3, 4)

    def conditional(other: str, place: int) -> np.ndarray[Any, Any]:
        """p of the four bases at a place, the other one known."""
        letters = list(template)
        letters[sum(places) - place] = other
        [[own]] = cloze.guesses(cloze.opened(cloze.prompts(["".join(letters)])), 4)
        shares = {one.text: np.exp(one.log_prob) for one in own}
        return np.array([shares[base] for base in "ACGT"])

    # A sweep draws both places once, in either order.
    pairs = list(itertools.product(range(4), repeat=2))
    steps = []
    for first in (0, 1):
        step = np.zeros((16, 16))
        for row, pair in enumerate(pairs):
            shares = conditional("ACGT"[pair[1 - first]], places[first])
            for base in range(4):
                new = list(pair)
                new[first] = base
                step[row, pairs.index((new[0], new[1]))] += shares[base]
        steps.append(step)
    sweep = (steps[0] @ steps[1] + steps[1] @ steps[0]) / 2
    expected = np.linalg.matrix_power(sweep, 200)[0]
    config = GenerateConfig(model="m", length="1", method="gibbs", rounds=4, seed=1)
    count = 400
    found = Counter(tuple(row["filled"]) for row in drawn(session, [template] * count, config, 64))
    seen = np.array([found["ACGT"[a], "ACGT"[b]] for a, b in pairs])
    chi_square = float(((seen - count * expected) ** 2 / (count * expected)).sum())
    assert chi_square < 44.3  # 15 degrees of freedom: 1 in 10,000
    assert float(((seen - count / 16) ** 2 / (count / 16)).sum()) > 44.3  # it is not every pair alike


def test_text_has_gaps_of_several_tokens(tmp_path: Path, seqmlm: Run):
    done = seqmlm("generate", text_model(tmp_path), "--template", "the [MASK:3] dog", "--n", 2).ok()
    assert all(line.startswith("the ") and line.endswith(" dog") for line in done.out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "give exactly one of --template"),
        (("--length", "5", "--template", "M_"), 2, "give exactly one of --template"),
        (("--length", "9-3"), 2, "--length must be a number such as 100"),
        (("--template", "MKV"), 2, "has no gap"),
        (("--template", "MK1_"), 3, "'1'"),
        (("--length", "100"), 2, "more than the 64"),
    ],
)
def test_requests_without_sense(protein: Path, seqmlm: Run, arguments: tuple[str, ...], code: int, said: str):
    seqmlm("generate", protein, *arguments).refused(code, said)
