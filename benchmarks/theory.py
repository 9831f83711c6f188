"""Check theory on how masked language models learn dependence, on data with an exact truth.

The statements are after Zhang and Hashimoto (2021).

    masked    a Gaussian with a topic: masked regression is two-stage regression by the topic, up to the
              noise that coordinates share; directions of PCA also have an error from unequal noise
    latent    mixtures of chains, and hidden Markov models: I(x_i; x_j | rest) and the same given the latent
              differ by at most 2 H(latent | rest)
    training  a `tiny` model of a Potts chain after several numbers of steps: the error of its conditional
              mutual information, mean log q(x_i | rest) - log q(x_i | rest without x_j), is within its
              divergence
    masking   the same model with other masks in training: shares, whole spans; mean error over pairs and
              seeds
    edges     Ising models of random graphs: information finds pairs that are joined through others as well,
              conditional information only edges; area under the curve, intervals by graph
    linear    the linear model with L1 on such samples is neighbourhood selection with coefficients that
              both ends share (Hoefling and Tibshirani 2009); compared with node by node (Ravikumar et al.
              2010)

Each part gives a table, a picture in --out, and assertions. If a statement is false, the program ends. The
statements are worded for this setting. Each is proved in one line next to its assertion.

    python benchmarks/theory.py [--quick] [--only latent] [--json FILE] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Row = dict[str, Any]
SLACK = 1e-9

# Regression with a topic


def regression(covariance: Doubles, target: int) -> Doubles:
    """(d,) coefficients of a coordinate on all others; 0 at itself."""
    others = np.delete(np.arange(len(covariance)), target)
    found = np.zeros(len(covariance))
    found[others] = np.linalg.solve(covariance[np.ix_(others, others)], covariance[others, target])
    return found


def two_stage(loadings: Doubles, covariance: Doubles, target: int) -> Doubles:
    """(d,) coefficients where the topic is predicted from all others, and the coordinate from the topic."""
    others = np.delete(np.arange(len(covariance)), target)
    found = np.zeros(len(covariance))
    topic = np.linalg.solve(covariance[np.ix_(others, others)], loadings[others])
    found[others] = topic @ loadings[target]
    return found


def masked(
    quick: bool, regress: Callable[[Doubles, int], Doubles] = regression, d: int = 12, topics: int = 2
) -> Iterator[Row]:
    """Both differences and bounds as noise between coordinates shrinks.

    x = A z + e with Cov(e) = D + s O, D diagonal. Regression on the rest is A_i E[z | rest] + E[e_i | rest].
    The second term is 0 without O. Its square is c' S^-1 c <= |c|^2 / least eigenvalue of S, c = s O_i.
    PCA: |sin of the angle| <= 2 sqrt(topics) |Cov(e) - mean D| / least eigenvalue of A A' (Yu et al. 2015).
    """
    random = np.random.default_rng(0)
    loadings = random.normal(size=(d, topics))
    diagonal = random.uniform(0.5, 1.5, size=d)
    noise = random.normal(size=(d, d))
    noise = np.where(np.eye(d, dtype=bool), 0, noise + noise.T)
    noise *= 0.4 / np.linalg.norm(noise, 2)
    signal = loadings @ loadings.T
    for s in (1.0, 0.3, 0.1, 0.03, 0.01, 0.0):
        error = np.diag(diagonal) + s * noise
        covariance, found, bounds = signal + error, [], []
        for target in range(d):
            apart = regress(covariance, target) - two_stage(loadings, covariance, target)
            others = np.delete(np.arange(d), target)
            least = np.linalg.eigvalsh(covariance[np.ix_(others, others)])[0]
            found.append(apart @ covariance @ apart)
            bounds.append(np.square(error[others, target]).sum() / least)
            assert found[-1] <= bounds[-1] + SLACK, f"masked regression, s = {s}: {found[-1]} > {bounds[-1]}"
        first = np.linalg.qr(loadings)[0]
        directions = np.linalg.eigh(covariance)[1][:, -topics:]
        sine = float(np.linalg.norm(directions - first @ (first.T @ directions)))
        away = np.linalg.norm(error - diagonal.mean() * np.eye(d), 2)
        bound = 2 * np.sqrt(topics) * away / np.linalg.eigvalsh(signal)[-topics]
        assert sine <= bound + SLACK, f"PCA, s = {s}: {sine} > {bound}"
        yield {
            "s": s,
            "masked": float(max(found)),
            "masked bound": float(max(bounds)),
            "pca": sine,
            "pca bound": float(bound),
        }


# Exact tables


def entropy(table: Doubles, axes: Sequence[int]) -> float:
    """H of some variables of a joint distribution, nats."""
    shares = table.sum(axis=tuple(n for n in range(table.ndim) if n not in axes)).ravel()
    shares = shares[shares > 0]
    return -float(shares @ np.log(shares))


def information(table: Doubles, i: int, j: int, known: Sequence[int]) -> float:
    """I(x_i; x_j | known), nats."""
    known = [*known]
    one, two, both = [i, *known], [j, *known], [i, j, *known]
    return entropy(table, one) + entropy(table, two) - entropy(table, both) - entropy(table, known)


def mixture(sharp: float, seed: int, places: int = 5, symbols: int = 3) -> Doubles:
    """(2, A, ..., A) probabilities of a topic and a chain whose steps depend on it, more if it is sharper."""
    random = np.random.default_rng(seed)
    begin, steps = random.normal(size=(2, symbols)), random.normal(size=(2, symbols, symbols))
    table = np.zeros((2, *[symbols] * places))
    for cell in product(range(2), *[range(symbols)] * places):
        z, x = cell[0], cell[1:]
        table[cell] = sharp * begin[z, x[0]] + sum(sharp * steps[z, a, b] for a, b in pairwise(x))
    for z in range(2):
        table[z] = np.exp(table[z] - table[z].max())
        table[z] /= 2 * table[z].sum()
    return table


def hidden_markov(sharp: float, seed: int, places: int = 5, symbols: int = 3) -> Doubles:
    """(2^L, A, ..., A) probabilities of all hidden states together and of their symbols."""
    random = np.random.default_rng(seed)
    given = np.exp(sharp * random.normal(size=(2, symbols)))
    given /= given.sum(axis=1, keepdims=True)
    table = np.zeros((2**places, *[symbols] * places))
    for number, states in enumerate(product(range(2), repeat=places)):
        share = 0.5 * np.prod([0.8 if a == b else 0.2 for a, b in pairwise(states)])
        rest = np.array(share)
        for state in states:
            rest = np.multiply.outer(rest, given[state])
        table[number] = rest
    return table


def latent(quick: bool, inform: Callable[..., float] = information) -> Iterator[Row]:
    """The gap of every pair and its bound.

    I(x; y | r) - I(x; y | z, r) = I(x; z | r) - I(x; z | y, r), and both lie in 0..H(z | r).
    """
    for name, make in (("mixture", mixture), ("hidden Markov", hidden_markov)):
        for sharp, seed in product((0.3, 1.0, 3.0) if quick else (0.3, 0.6, 1.0, 2.0, 3.0, 6.0), range(3)):
            table = make(sharp, seed)
            for i, j in combinations(range(1, table.ndim), 2):
                rest = [n for n in range(1, table.ndim) if n not in (i, j)]
                bound = 2 * (entropy(table, [0, *rest]) - entropy(table, rest))
                seen, whole = inform(table, i, j, rest), inform(table, i, j, [0, *rest])
                assert abs(seen - whole) <= bound + SLACK, f"{name}, {i}-{j}: {seen - whole} > {bound}"
                yield {"model": name, "sharp": sharp, "gap": abs(seen - whole), "bound": bound}


# A training


LETTERS, PLACES = "LAGV", 6


def potts() -> Doubles:
    """(A, ..., A) of a chain: a place depends on the place before, the last also on the second."""
    random, size = np.random.default_rng(5), len(LETTERS)
    steps = random.normal(scale=1.2, size=(PLACES, size, size))
    table = np.zeros([size] * PLACES)
    for x in np.ndindex(*table.shape):
        table[x] = sum(steps[n, x[n], x[n + 1]] for n in range(PLACES - 1)) + steps[-1, x[1], x[-1]]
    table = np.exp(table)
    return table / table.sum()


def conditional(table: Doubles, i: int, hidden: Sequence[int] = ()) -> Doubles:
    """p(x_i | all others except the hidden places), in the shape of the table; hidden axes have length 1."""
    joint = table.sum(axis=tuple(hidden), keepdims=True)
    return joint / joint.sum(axis=i, keepdims=True)


def asked(model: Any, i: int, hidden: Sequence[int] = ()) -> Doubles:
    """The same by a model, with [MASK] at the hidden places too."""
    from seqmlm.engine.query import Query
    from seqmlm.engine.reductions import Rows

    tokenizer = model.tokenizer
    ids = np.array([tokenizer.encode(one).ids[1] for one in LETTERS], dtype=np.int32)
    shape = [1 if n in (i, *hidden) else len(LETTERS) for n in range(PLACES)]
    queries = []
    for x in np.ndindex(*shape):
        encoding = tokenizer.encode("".join(LETTERS[n] for n in x))
        places = np.array(sorted([i, *hidden]), dtype=np.int32) + 1
        queries.append(
            Query(encoding=encoding, masked=places, asked=np.array([i + 1], dtype=np.int32), allowed=ids)
        )
    rows = np.exp([one.values[Rows.name][0] for one in model.conditionals().ask(queries, (Rows(),))])
    return np.moveaxis(rows.reshape([*shape, len(LETTERS)]).squeeze(i), -1, i).astype(np.float64)


def errors(
    table: Doubles, own: Callable[[int, Sequence[int]], Doubles], pairs: Sequence[tuple[int, int]]
) -> Iterator[Row]:
    """The error of the information of each pair and its bound.

    The error is E log q(x_i | rest) - E log q(x_i | rest without x_j) - I. It equals the divergence of the
    second less that of the first. Each divergence is at least 0.
    """
    for i, j in pairs:
        rest = [n for n in range(PLACES) if n not in (i, j)]
        logs = [np.log(own(i, ())), np.log(own(i, (j,)))]
        truth = [np.log(conditional(table, i)), np.log(conditional(table, i, (j,)))]
        apart = [float((table * (p - q)).sum()) for p, q in zip(truth, logs, strict=True)]
        exact = information(table, i, j, rest)
        error = float((table * (logs[0] - logs[1])).sum()) - exact
        assert min(apart) >= -1e-6, f"{i}-{j}: a negative divergence {apart}"
        assert abs(error) <= max(apart) + 1e-6, f"{i}-{j}: {error} > {apart}"
        yield {"pair": f"{i}-{j}", "exact": exact, "error": error, "bound": max(apart)}


def chain_samples(out: Path) -> Path:
    """20,000 sequences of the chain."""
    table, fasta = potts(), out / "chain.fasta"
    if not fasta.exists():
        drawn = np.random.default_rng(0).choice(table.size, p=table.ravel(), size=20_000)
        cells = zip(*np.unravel_index(drawn, table.shape), strict=True)
        texts = ("".join(LETTERS[n] for n in cell) for cell in cells)
        fasta.write_text("".join(f">s{n}\n{text}\n" for n, text in enumerate(texts)))
    return fasta


def model_errors(
    out: Path, name: str, flags: Row, seed: int, steps: int, pairs: Sequence[tuple[int, int]]
) -> Iterator[Row]:
    """`errors` of a `tiny` model trained on the chain for a number of steps."""
    from anomaly_models import trained

    from seqmlm.inference.session import Session

    model = trained(out, name, "protein", [chain_samples(out)], flags, seed, steps / 300)
    session, known = Session(model), dict[Any, Doubles]()

    def own(i: int, hidden: Sequence[int]) -> Doubles:
        if (i, *hidden) not in known:
            known[i, *hidden] = asked(session, i, hidden)
        return known[i, *hidden]

    return errors(potts(), own, pairs)


def some_pairs(quick: bool) -> list[tuple[int, int]]:
    return [(0, 1), (0, 2), (1, 5), (2, 3)] if quick else [*combinations(range(PLACES), 2)]


def training(quick: bool, out: Path) -> Iterator[Row]:
    for steps in (10, 30) if quick else (10, 30, 100, 300, 900):
        rows = model_errors(out, f"chain-{steps}", {}, 0, steps, some_pairs(quick))
        yield from ({"steps": steps, **row} for row in rows)


MASKINGS: dict[str, Row] = {
    "15 %": {"rate": 0.15},
    "30 %": {"rate": 0.3},
    "50 %": {"rate": 0.5},
    "spans": {"masker": "span"},
}


def masking(quick: bool, out: Path) -> Iterator[Row]:
    """Mean error of pairs by masking and seed; the number of steps, and so the time, is the same."""
    for seed, (name, own) in product(range(1 if quick else 3), MASKINGS.items()):
        run = f"chain-{name.replace(' %', '')}"
        rows = model_errors(out, run, {"masking": own}, seed, 30 if quick else 300, some_pairs(quick))
        told = [(abs(row["error"]), row["bound"]) for row in rows]
        error, bound = np.mean(told, axis=0).tolist()
        yield {"masking": name, "seed": seed, "error": error, "bound": bound}


# Edges


def graph(seed: int, nodes: int = 10) -> tuple[Doubles, set[tuple[int, int]]]:
    """(2, ..., 2) probabilities of an Ising model of a random tree with an extra edge, and its edges."""
    random = np.random.default_rng(seed)
    edges = {(int(random.integers(n)), n) for n in range(1, nodes)}
    spare = [pair for pair in combinations(range(nodes), 2) if pair not in edges]
    edges.add(spare[int(random.integers(len(spare)))])
    spins = np.indices([2] * nodes) * 2 - 1
    energy = sum(
        random.uniform(0.4, 1.2) * random.choice([-1, 1]) * spins[i] * spins[j] for i, j in sorted(edges)
    )
    table = np.exp(energy)
    return table / table.sum(), edges


def edges(quick: bool, inform: Callable[..., float] = information) -> Iterator[Row]:
    """The area under the curve of both kinds of information; the conditional one is 0 without an edge."""
    from sklearn.metrics import roc_auc_score

    for seed in range(5 if quick else 50):
        table, truth = graph(seed)
        pairs = [*combinations(range(table.ndim), 2)]
        labels = [pair in truth for pair in pairs]
        alone = [inform(table, i, j, ()) for i, j in pairs]
        rest = [[n for n in range(table.ndim) if n not in pair] for pair in pairs]
        given = [inform(table, i, j, known) for (i, j), known in zip(pairs, rest, strict=True)]
        outside = max(value for value, label in zip(given, labels, strict=True) if not label)
        assert outside <= SLACK, f"graph {seed}: {outside} outside of edges"
        assert min(value for value, label in zip(given, labels, strict=True) if label) > 1e-4
        yield {"pmi": float(roc_auc_score(labels, alone)), "cmi": float(roc_auc_score(labels, given))}


def shared_selection(spins: Doubles, weight: float) -> Doubles:
    """(n, n) sizes of the shared couplings in the logistic regressions with L1 of all nodes."""
    from scipy.optimize import minimize

    nodes = spins.shape[1]
    upper = np.triu_indices(nodes, 1)
    pairs = len(upper[0])

    def objective(values: Doubles) -> tuple[float, Doubles]:
        matrix = np.zeros((nodes, nodes))
        matrix[upper] = values[nodes : nodes + pairs] - values[nodes + pairs :]
        margins = spins * (values[:nodes] + spins @ (matrix + matrix.T))
        slopes = -spins / (1 + np.exp(margins))
        both = spins.T @ slopes
        own = (both + both.T)[upper]
        loss = np.logaddexp(0, -margins).sum() + 2 * weight * values[nodes:].sum()
        return loss, np.concatenate([slopes.sum(axis=0), own + 2 * weight, 2 * weight - own])

    bounds = [(None, None)] * nodes + [(0.0, None)] * (2 * pairs)
    start, how = np.zeros(nodes + 2 * pairs), {"maxiter": 5000, "maxfun": 50_000}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=how).x
    sizes = np.zeros((nodes, nodes))
    sizes[upper] = np.abs(found[nodes : nodes + pairs] - found[nodes + pairs :])
    return sizes + sizes.T


def node_by_node(spins: Doubles, weight: float) -> Doubles:
    """(n, n) the same with a separate regression for each node, means of both ends."""
    from sklearn.linear_model import LogisticRegression

    sizes = np.zeros((spins.shape[1], spins.shape[1]))
    for node in range(len(sizes)):
        others = np.delete(np.arange(len(sizes)), node)
        alone = LogisticRegression(l1_ratio=1, solver="liblinear", C=1 / weight, intercept_scaling=100)
        sizes[node, others] = np.abs(alone.fit(spins[:, others], spins[:, node]).coef_[0])
    return (sizes + sizes.T) / 2


def linear_model(spins: Doubles, weight: float) -> Doubles:
    """(n, n) sizes of the couplings of the linear masked model."""
    import torch

    from seqmlm.domains.protein.tokenizer import SPACE, ResidueTokenizer
    from seqmlm.engine.linear import Penalty, coupling_norms
    from seqmlm.engine.pseudolikelihood import AlignedSequences, LinearLoop, prepare
    from seqmlm.engine.schedule import LoopConfig
    from seqmlm.engine.types import InMemory

    torch.set_num_threads(1)
    texts = ["".join("LA"[int(n > 0)] for n in row) for row in spins]
    penalty = Penalty(penalty="l1", fields=0.0, couplings=weight, identity=1.0)
    rows, data = prepare(InMemory(ResidueTokenizer().encode_batch(texts)), SPACE, penalty)
    data = AlignedSequences(data.states, torch.ones_like(data.weights))  # copies count, too
    with tempfile.TemporaryDirectory() as folder:
        LinearLoop(rows, data, penalty, LoopConfig(max_steps=5000), directory=Path(folder)).run()
    return coupling_norms(rows.model)


def linear(quick: bool, fit: Callable[[Doubles, float], Doubles] = linear_model) -> Iterator[Row]:
    """The edges that each method keeps, from 2,000 samples; the first two are the same convex problem."""
    for seed in range(2 if quick else 10):
        table, truth = graph(seed)
        drawn = np.random.default_rng(seed).choice(table.size, p=table.ravel(), size=2000)
        spins = np.stack(np.unravel_index(drawn, table.shape), axis=1) * 2.0 - 1
        weight = float(np.sqrt(len(spins) * np.log(table.ndim)))
        sizes = {"linear": fit(spins, weight), "nodes": node_by_node(spins, weight)}
        apart = float(np.abs(np.nan_to_num(sizes["linear"]) - shared_selection(spins, weight)).max())
        assert apart < 0.01, f"graph {seed}: couplings {apart} apart"
        row = {"apart": apart}
        for name, own in sizes.items():
            kept = {pair for pair in combinations(range(table.ndim), 2) if own[pair] > 1e-3}
            row |= {f"{name} precision": len(kept & truth) / len(kept)}
            row |= {f"{name} recall": len(kept & truth) / len(truth)}
        yield row


PARTS: dict[str, Callable[[bool, Path], Iterator[Row]]] = {
    "masked": lambda quick, out: masked(quick),
    "latent": lambda quick, out: latent(quick),
    "training": training,
    "masking": masking,
    "edges": lambda quick, out: edges(quick),
    "linear": lambda quick, out: linear(quick),
}


def picture(name: str, rows: Sequence[Row], to: Path) -> None:
    """Draw values against the variable they depend on, or bounds against values."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.add_subplot()
    if name == "masked":
        for key in ("masked", "masked bound", "pca", "pca bound"):
            axes.plot([row["s"] + 1e-3 for row in rows], [row[key] + 1e-6 for row in rows], label=key)
        axes.set(xscale="log", yscale="log", xlabel="noise between coordinates")
        axes.legend()
    elif name in ("latent", "training", "masking"):
        key = "gap" if name == "latent" else "error"
        axes.scatter([row["bound"] for row in rows], [abs(row[key]) for row in rows], s=6)
        axes.plot([1e-6, 10], [1e-6, 10])
        axes.set(xscale="log", yscale="log", xlabel="bound, nats", ylabel=f"{key}, nats")
    else:
        numbers = [key for key in rows[0] if isinstance(rows[0][key], float)]
        axes.boxplot([[row[key] for row in rows] for key in numbers])
        axes.set_xticklabels(numbers, rotation=20)
    axes.set_title(name)
    figure.tight_layout()
    figure.savefig(to)


def summary(name: str, rows: Sequence[Row]) -> list[Row]:
    """Rows as they are printed: means with intervals, or the tightest."""
    from seqmlm.evaluation.intervals import ratio

    if name == "masked":
        return [*rows]
    if name in ("edges", "linear"):
        found = {key: ratio([row[key] for row in rows]) for key in rows[0]}
        return [{"what": k, "mean": one.value, "low": one.low, "high": one.high} for k, one in found.items()]
    told = {"latent": "model", "training": "steps"}.get(name, name)
    key = "gap" if name == "latent" else "error"
    groups = dict.fromkeys((row[told], row.get("sharp", 0)) for row in rows)
    made = []
    for group in groups:
        own = [row for row in rows if (row[told], row.get("sharp", 0)) == group]
        values, bounds = np.abs([row[key] for row in own]), np.array([row["bound"] for row in own])
        made.append(
            {told: group[0], "sharp": group[1], "rows": len(own), f"largest {key}": float(values.max())}
            | {"mean": float(values.mean()), "mean bound": float(bounds.mean())}
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/theory"))
    parser.add_argument("--only", choices=sorted(PARTS), action="append", help="only these parts")
    parser.add_argument("--quick", action="store_true", help="fewer models and steps")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    told = {}
    for name in options.only or PARTS:
        told[name] = [*PARTS[name](options.quick, out)]
        picture(name, told[name], out / f"{name}.svg")
        print(f"\n{name}: holds in all {len(told[name])}")
        for row in summary(name, told[name]):
            print(
                "  "
                + "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            )
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
