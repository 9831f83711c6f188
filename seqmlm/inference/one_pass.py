"""What lets a model be scored in one pass: a correction, derived from its training or fitted, or a head.

one_pass.json                     a correction fitted to normal data, with its error
one_pass_head.safetensors, .json  a head trained on normal data, with its error

Both stand in the model's folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqmlm.config import from_dict
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.correction import Correction, derive, selection_bias
from seqmlm.engine.foreign import shapes_of
from seqmlm.engine.linear import LinearRows
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.engine.one_pass import Fit, fit
from seqmlm.engine.types import Encoding, Floats, Sequences
from seqmlm.engine.units import Mode
from seqmlm.errors import StateError, UsageError
from seqmlm.inference.model_folder import LoadedModel, make_masker, put_file
from seqmlm.parsing import read_json

if TYPE_CHECKING:
    from seqmlm.engine.one_pass import HeadConfig, HeadRows, Trained


FIT = "one_pass.json"
HEAD = "one_pass_head.safetensors"
HEAD_FACTS = "one_pass_head.json"

# A fit is always nearest where it was fitted: it must be so by more than this to replace what is derived.
_MARGIN = 1.05


def correction_for(model: LoadedModel) -> Correction:
    """The correction of a model's outputs at tokens it sees: derived from its training, or the stored fit.

    What is derived is exact for an optimal model; a model of few steps is far from one at tokens it sees,
    of which it was asked few. So a fit is stored, and taken, where it was measured to be nearer to exact.

    Raises:
        UsageError: neither exists; the message says why, and what to do.
        StateError: the stored fit is broken.
    """
    if isinstance(model.rows, LinearRows):
        return Correction()  # what it says of a token does not depend on that token
    _check_tokens(model)
    stored = _stored(model)
    return derived(model) if stored is None else stored


def correction_in(model: LoadedModel, mode: Mode) -> Correction | None:
    """What a mode needs: in one pass all of `correction_for`, else what unequal selection rates ask for.

    Raises:
        UsageError, StateError: as `correction_for`; for a mode that hides units, never.
    """
    if mode.kind == "one-pass":
        return None if mode.head else correction_for(model)
    bias = bias_for(model)
    return None if bias is None else Correction(bias=bias)


def derived(model: LoadedModel) -> Correction:
    """The correction that follows from the masking on the model's card, exact for an optimal model.

    Raises:
        UsageError: none follows.
    """
    if isinstance(model.rows, LinearRows):
        return Correction()
    masking = _masking(model)
    if masking is None:
        raise UsageError(
            f"{model.path} does not say how it was trained, so no one-pass correction follows; fit one to "
            "normal data (seqmlm calibrate MODEL NORMAL), or ask with --mode exact"
        )
    masker = make_masker(masking, model.tokenizer)
    return derive(masking, masker, model.tokenizer.space, single_tokens=model.tokenizer.single_tokens)


def correction_identity(folder: Path, mode: Mode) -> str:
    """Names what corrects a model's answers in a mode, for what rests on it: other answers, another name.

    "none" for modes that hide units, "derived" where the card says all, else the stored file and its digest.
    """
    if mode.kind != "one-pass":
        return "none"
    path = folder / (HEAD if mode.head else FIT)
    if not path.is_file():
        return "derived"
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


def bias_for(model: LoadedModel) -> Floats | None:
    """(V,) what unequal selection rates add to every answer, in nats, for all modes; None for nothing."""
    masking = _masking(model)
    if masking is None:
        return None
    return selection_bias(make_masker(masking, model.tokenizer), model.tokenizer.space)


def fitted(
    model: LoadedModel,
    ask: Conditionals,
    sequences: Sequences | Sequence[Encoding],
    *,
    n: int = 256,
    seed: int = 0,
) -> Fit | None:
    """Fit a correction to normal sequences, and measure beside it what the model's training gives.

    Args:
        model: the model.
        ask: answers for it.
        sequences: windows, none longer than the model's.
        n: positions to ask exactly.
        seed: of their choice.

    Returns:
        The fit; None where units are shown by several tokens.

    Raises:
        DataError: nothing to ask in the sequences.
    """
    if model.tokenizer.overlap > 1:
        return None
    given = None
    with suppress(UsageError):
        given = derived(model)
    return fit(ask, sequences, bias=bias_for(model), derived=given, n=n, seed=seed)


def nearer(model: LoadedModel, found: Fit) -> Correction:
    """The fit, or what follows from the model's training where that is as good."""
    if found.derived_rmse is not None and found.derived_rmse <= found.rmse * _MARGIN:
        return derived(model)
    return found.correction


def keep(model: LoadedModel, found: Fit) -> None:
    """Keep a fit in the model's own folder, or none where what the model's training gives is as good.

    Calibrations of one-pass modes rest on what is kept: whoever replaces it replaces them too.

    Raises:
        StateError: the folder cannot be written.
    """
    if nearer(model, found).kind != "fitted":
        put_file(Path(model.path) / FIT, None, private=model.card.sensitive)
        return
    assert found.correction.seen is not None
    values = np.unique(found.correction.seen[model.tokenizer.space.ordinary])
    content = {
        "seen": float(values[0]) if len(values) == 1 else found.correction.seen.tolist(),
        "positions": found.positions,
        **{name: _finite(getattr(found, name)) for name in ("rmse", "raw_rmse", "spearman")},
        "derived_rmse": found.derived_rmse,
    }
    _write(model, FIT, json.dumps(content, indent=2).encode() + b"\n")


def train_and_store_head(
    model: LoadedModel,
    sequences: Sequences | Sequence[Encoding],
    config: HeadConfig,
    *,
    tokens_per_batch: int | None = None,
) -> Trained:
    """Train the head of `--mode one-pass:head` on normal sequences and keep it with the model.

    Raises:
        UsageError: units are shown by several tokens.
        DataError: nothing to ask in the sequences.
        StateError: the folder cannot be written.
    """
    from safetensors.torch import save

    from seqmlm.engine.one_pass import train

    _check_tokens(model)
    ask = Conditionals(model.rows, tokens_per_batch=tokens_per_batch)
    trained = train(ask, sequences, config, bias=bias_for(model))
    tensors = {name: tensor.cpu().contiguous() for name, tensor in trained.change.state_dict().items()}
    facts = {**trained.facts, "spearman": _finite(trained.facts["spearman"])}
    _write(model, HEAD, save(tensors))
    _write(model, HEAD_FACTS, json.dumps({**asdict(config), **facts}, indent=2).encode() + b"\n")
    return trained


def head_for(model: LoadedModel) -> HeadRows:
    """The model with its trained one-pass head.

    Raises:
        UsageError: it has none, or units are shown by several tokens.
        StateError: the head is broken.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from seqmlm.engine.one_pass import restored

    _check_tokens(model)
    path = Path(model.path) / HEAD
    if not path.is_file():
        raise UsageError(f"{model.path} has no one-pass head ({HEAD}): ask with --mode one-pass or exact")
    try:
        shapes_of(path)
        rows = model.rows
        if isinstance(rows, LinearRows):
            raise ValueError("a linear model has no hidden states")
        return restored(rows, load_file(path))
    except (SafetensorError, RuntimeError, KeyError, ValueError, OSError) as error:
        raise StateError(f"{path} is not a one-pass head of this model ({error}); train it again") from None


def _check_tokens(model: LoadedModel) -> None:
    if model.tokenizer.overlap > 1:
        raise UsageError(
            f"no one-pass scores with tokenizer {model.tokenizer.name}: it shows each {model.tokenizer.unit} "
            f"in {model.tokenizer.overlap} tokens, so the others give it away; ask with --mode exact"
        )


def _masking(model: LoadedModel) -> MaskingConfig | None:
    hidden = model.card.masking and not isinstance(model.rows, LinearRows)
    return from_dict(MaskingConfig, model.card.masking) if hidden else None


def _stored(model: LoadedModel) -> Correction | None:
    path = Path(model.path) / FIT
    if not path.is_file():
        return None
    space = model.tokenizer.space
    try:
        content: Mapping[str, Any] = read_json(path, finite=True)
        seen = np.zeros(space.size, dtype=np.float32)
        seen[space.ordinary] = _of(space.size, content["seen"])[space.ordinary]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{path} is not a fitted correction of this model ({error}); fit it again (seqmlm calibrate)"
        ) from None
    return Correction(seen=seen, bias=bias_for(model), kind="fitted")


def _of(size: int, seen: float | Iterable[float]) -> Floats:
    values = np.asarray(seen, dtype=np.float32)
    if not np.isfinite(values).all():
        raise ValueError("a number that is not finite")
    return np.broadcast_to(values, (size,))


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _write(model: LoadedModel, name: str, content: bytes) -> None:
    """Put a file into the model's folder; a sensitive model's for its owner alone."""
    put_file(Path(model.path) / name, content, private=model.card.sensitive)
