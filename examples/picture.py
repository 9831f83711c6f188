"""Draw the picture of the README, docs/picture.svg, from two models of built-in samples in about two minutes.

The left side shows the contacts of a protein by a linear model of its family, and the known contacts. The
right side shows a request in a log that raised an alarm, line by line. The script writes picture.svg and its
working files into the current folder.
"""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import seqmlm
from seqmlm import plugins

N, TIME = int(os.environ.get("N", "2000")), os.environ.get("TIME", "40s")
FAMILY = "greek"


def contacts() -> tuple[Any, set[tuple[int, int]]]:
    """The map of a family's consensus, and its known contacts."""
    plugins.domain("protein").sample.draw(Path("proteins"), n=N, seed=3)
    records = Path("proteins/protein.fasta").read_text().split(">")[1:]
    Path("family.fasta").write_text("".join(f">{one}" for one in records if one.startswith(FAMILY)))
    families = json.loads(Path("proteins/truth.json").read_text())["families"]
    (known,) = (one for one in families if one["name"] == FAMILY)
    model = seqmlm.train(
        "family.fasta", domain="protein", size="linear", max_time=TIME, options={"gaps": "keep"}
    )
    found = model.structure([known["consensus"]])
    return found.matrix(), {tuple(pair) for pair in known["contacts"]}


def alarm() -> tuple[list[tuple[str, float]], str]:
    """The lines of the most unusual session of a log with their bits, and why it is one."""
    for name, n, seed in (("known", N, 1), ("new", 60, 4)):
        plugins.domain("logs").sample.draw(Path(name), n=n, seed=seed)
    model = seqmlm.train("known/service.log", domain="logs", size="tiny", max_time=TIME)
    rows = model.score("new/service.log", fpr=0.1, per_unit=True)
    odd = rows.sort_values("p_value").iloc[0]
    reason = odd["reason"] if isinstance(odd["reason"], str) else ""
    return [(one["unit"], one["surprisal"]) for one in odd["per_unit"]], reason


def draw(values: Any, known: set[tuple[int, int]], lines: list[tuple[str, float]], reason: str) -> Figure:
    """Draw both next to each other."""
    figure = Figure(figsize=(10, 4.2), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2, width_ratios=(4, 6))
    shown = np.triu(np.nan_to_num(values), 1)
    left.imshow(np.where(shown > 0, shown, np.nan), cmap="Blues", vmin=0)
    for i, j in known:
        left.plot(i, j, "s", color="#c62a1c", markersize=3)
    left.set_title("contacts of a protein: found (blue) and known (red)", fontsize=9)
    left.set_xlabel("residue", fontsize=8)
    left.tick_params(labelsize=7)
    right.axis("off")
    right.set_title("a request that raised an alarm: bits of each line", fontsize=9)
    colours = mpl.colormaps["OrRd"]
    for at, (text, bits) in enumerate(lines[:8]):
        box = {"facecolor": colours(min(bits / 12, 1)), "edgecolor": "none", "pad": 2}
        right.text(0.07, 0.95 - 0.09 * at, text[:70], family="monospace", fontsize=8.5, bbox=box)
        right.text(0.0, 0.95 - 0.09 * at, f"{bits:.1f}", fontsize=8.5)
    below = 0.95 - 0.09 * min(len(lines), 8) - 0.02
    right.text(0.0, below, textwrap.fill(reason, 88), fontsize=8, va="top", style="italic")
    return figure


if __name__ == "__main__":
    os.environ.setdefault("SEQMLM_HOME", str(Path.cwd() / "picture"))
    with mpl.rc_context({"svg.hashsalt": "seqmlm", "svg.fonttype": "none"}):
        draw(*contacts(), *alarm()).savefig("picture.svg", metadata={"Date": None})
