"""Settings of `seqmlm train`: one frozen dataclass per topic, resolved from defaults, file and flags."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seqmlm import plugins
from seqmlm.config import arguments_of, from_dict, merge, to_dict
from seqmlm.data.files import expand
from seqmlm.data.sources import split_source
from seqmlm.data.splits import CalibrateOn
from seqmlm.engine.masking.base import MaskingConfig, check_options, options_of
from seqmlm.engine.shapes import INITIALIZATIONS, LAYERS, LINEAR, ModelConfig
from seqmlm.errors import UsageError, nearest
from seqmlm.parsing import Share
from seqmlm.tasks.deadline import AFTERWARDS, seconds

if TYPE_CHECKING:
    from seqmlm.domains.field import Field
    from seqmlm.engine.schedule import LoopConfig

# Section, key and kind of the settings that name a plug-in.
PLUGGED: tuple[tuple[str, str, plugins.Kind], ...] = (
    ("tokenizer", "name", "tokenizers"),
    ("masking", "masker", "maskers"),
)

# Settings of the model whose value is a name from a table.
NAMED: Mapping[str, Collection[str]] = {"layers": LAYERS, "initialization": INITIALIZATIONS}

LIMITS = ("max_steps", "max_time", "epochs")
# settings of the data whose defaults depend on the domain
_DIVISION = ("join_documents", "split", "validation", "calibration")
DEFAULT_STEPS = 1000  # if there is no other limit

# Peak learning rates with stable training from scratch at these widths. Second-stage training starts lower. A
# linear model uses a line search instead.
LEARNING_RATES = {"tiny": 2e-3, "small": 1e-3, "base": 5e-4, "linear": 1.0}
SECOND_STAGE_LEARNING_RATE = 5e-5

# A small model and a short training gain from many small steps. A large model needs less noisy gradients. A
# linear model takes all data in one step. Its number is the size of the evaluation's forward passes.
TOKENS_PER_BATCH = {"tiny": 2048, "small": 8192, "base": 32768, "linear": 8192}

LINEAR_EVERY = 20
"""Iterations of a linear model between evaluations. Its training ends when evaluations stop improving."""

LONGEST_ROW = 1 << 16
"""Largest number of tokens in a row for a linear model, which never cuts rows into windows."""


def _at_least_one(section: str, config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UsageError(f"{section}.{name} must be at least 1, not {value}")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Settings of the data: files, how they are read, and how they are divided.

    Args:
        paths: files or folders. NAME=PATH names a corpus, and mixture_alpha sets how several corpora are
            mixed.
        format: a format of the domain (`seqmlm data formats` lists them). Default: detected.
        options: options of the reader, such as the column or field to read.
        on_error: treatment of bad records: raise (stop), skip, or quarantine (skip and save to a file).
        deduplicate: drop records with the same raw text as an earlier record.
        join_documents: fill windows with consecutive sequences of one document (full-sentence packing).
        cuts: where training records longer than a window are cut: always at the same places (fixed.v1), or at
            other places in each epoch (moving.v1). With moving cuts, no unit is always without its
            neighbours.
        split: how validation records are selected. `key` uses a hash of the domain's split key, or the split
            that the data name for a record. `identity` uses clusters of sequences that share many k-mers.
            `chronological` uses the last records in the domain's order: time or genome position.
        validation: share of the split keys held out for validation.
        calibration: share of the split keys held out to calibrate scores. Its default depends on the domain.
            Few records get a larger share, at most a fifth, so that rates of .01 are possible. With 0, the
            model gives no p-values until it is calibrated.
        calibrate_on: which held-out records calibrate with a chronological split. `latest` uses the last
            records and suits systems that change permanently. `spread` uses records from the whole training
            period and suits changes that come and go. With other splits, the records are drawn at random.
        sensitive: the records concern people or contain secrets. No value then appears in messages,
            quarantine files or artifacts. Always on in domains of patients.
        mixture_alpha: exponent of the mixing of corpora. A corpus with the share p of the data is drawn with
            a probability proportional to p ** alpha.
    """

    paths: tuple[str, ...] = ()
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    on_error: Literal["raise", "skip", "quarantine"] = "raise"
    deduplicate: bool = False
    join_documents: bool = False
    cuts: Literal["fixed.v1", "moving.v1"] = "fixed.v1"
    split: Literal["key", "identity", "chronological"] = "key"
    validation: Share = 0.05
    calibration: Share = 0.0
    calibrate_on: CalibrateOn = "latest"
    sensitive: bool = False
    mixture_alpha: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.validation < 1:
            raise UsageError(f"data.validation must lie between 0 and 1, not {self.validation}")
        if not 0 <= self.calibration < 1 - self.validation:
            raise UsageError(
                f"data.calibration must be 0 or more and leave something to train on, not {self.calibration}"
            )
        if not 0 <= self.mixture_alpha < math.inf:
            raise UsageError(f"data.mixture_alpha must be 0 or more, not {self.mixture_alpha}")


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Settings of the tokenizer. A subword tokenizer is trained on the data.

    Args:
        name: name of the tokenizer. Its default depends on the domain.
        vocabulary_size: number of subwords. Default: fitted to the amount of text.
        path: folder of a saved tokenizer to use instead of training one.
        options: other arguments of the tokenizer.
    """

    name: str
    vocabulary_size: int | None = None
    path: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _at_least_one("tokenizer", self, "vocabulary_size")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long and how to train.

    Args:
        max_steps: stop after this many optimizer steps. Default: 1,000 if no limit is set.
        max_time: time limit of the whole command from the start of the process, such as 90s, 10m or 2h. A
            fifth is for evaluation, counts and calibration. Reading the data is never cut short: if it takes
            more than half of the limit, the limit is extended by the excess. The learning rate decays over
            the last fifth of the steps.
        epochs: stop after this many passes over the data.
        tokens_per_batch: tokens of one optimizer step, over all processes. Default: depends on the size of
            the model.
        tokens_per_row: tokens of one packed row, the unit of a forward pass. Default: depends on
            tokens_per_batch.
        learning_rate: peak learning rate. Default: depends on the size of the model.
        schedule: course of the learning rate after the warm-up: cosine, linear or wsd (constant, then a
            decay).
        warmup: length of the warm-up in steps, or as a share of the training if below 1.
        weight_decay: weight decay of AdamW.
        betas: the two decay rates of the moments in AdamW.
        clip: largest norm of the gradient. Larger gradients are scaled down to it.
        precision: number format of matrix products: fp32, bf16, or auto (bf16 on a GPU that supports it, else
            fp32).
        compile: compile the model with torch.compile.
        sharding: none, or fsdp2 to divide the model among the processes.
        loader_workers: number of processes that prepare rows. With 0, the training process prepares them.
        augment: also train on equivalent forms of a sequence that the tokenizer knows, such as the other
            strand.
        evaluate_every: steps between evaluations. Default: a tenth of the training, or 20 steps for a linear
            model.
        evaluation_records: validation sequences of an evaluation during training. The final evaluation reads
            four times as many.
        checkpoint_every_steps: write a checkpoint after this many steps.
        checkpoint_every_seconds: write a checkpoint after this many seconds.
        keep_last: number of latest checkpoints to keep.
        keep_every: also keep each checkpoint at a multiple of this many steps.
        max_bad_steps: end after this many consecutive steps with a loss that is not finite.
    """

    max_steps: int | None = None
    max_time: str | float | None = None
    epochs: float | None = None
    tokens_per_batch: int | None = None
    tokens_per_row: int | None = None
    learning_rate: float | None = None
    schedule: Literal["cosine", "linear", "wsd"] = "cosine"
    warmup: Share = 0.06
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool = False
    sharding: Literal["none", "fsdp2"] = "none"
    loader_workers: int = 0
    augment: bool = True
    evaluate_every: int | None = None
    evaluation_records: int = 400
    checkpoint_every_steps: int = 50
    checkpoint_every_seconds: float = 60.0
    keep_last: int = 2
    keep_every: int | None = None
    max_bad_steps: int = 10

    def __post_init__(self) -> None:
        _at_least_one("train", self, "tokens_per_batch", "tokens_per_row", "evaluation_records")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"train.betas must lie between 0 and 1, not {self.betas}")
        for name in ("epochs", "learning_rate"):
            if getattr(self, name) is not None and not math.isfinite(getattr(self, name)):
                raise UsageError(f"train.{name} must be a finite number, not {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """All settings of one pretraining. The same settings and data give the same model.

    Args:
        domain: field of the sequences: code, dna, ehr, logs, protein, text, or the name of a plug-in.
        tokenizer: how sequences become tokens.
        masking: which tokens are hidden.
        model: the architecture of the model and its first weights.
        data: how the data are read and divided.
        train: the optimizer, the batches and the limits of the training.
        seed: seed of all random draws of the training.
    """

    domain: str
    tokenizer: TokenizerConfig
    masking: MaskingConfig
    model: ModelConfig
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    seed: int = 0

    def __post_init__(self) -> None:
        if not -(2**63) <= self.seed < 2**63:
            raise UsageError(f"seed must be an integer of 64 bits, not {self.seed}")

    def check(self) -> None:
        """Check the settings of the loop without loading torch.

        Raises:
            UsageError: a duration is not valid, or a limit or rate is out of range.
        """
        from seqmlm.engine.schedule import LoopConfig

        train = self.train
        limit = None if train.max_time is None else seconds(train.max_time)
        LoopConfig(**{**_same_fields(train, LoopConfig), "max_seconds": limit})

    @property
    def batch_tokens(self) -> int:
        """Tokens of one optimizer step: the setting or the default of the size, but at least one window."""
        return max(self.train.tokens_per_batch or TOKENS_PER_BATCH[self.model.size], self.model.max_length)

    @property
    def row_tokens(self) -> int:
        """Tokens of a packed row: enough to use the device fully, and at least one window."""
        import torch

        if self.train.tokens_per_row is not None:
            return self.train.tokens_per_row
        comfortable = 65536 if torch.cuda.is_available() else 4096
        rows = -(-self.batch_tokens // comfortable)
        return max(self.model.max_length, -(-self.batch_tokens // rows))

    def loop(self, spent: float | None = None) -> LoopConfig:
        """The settings of the loop.

        Args:
            spent: seconds of the time limit that are not for steps. Default: the share `AFTERWARDS` of the
                limit.

        Raises:
            UsageError: a duration, limit or rate cannot be used.
        """
        from seqmlm.engine.schedule import LoopConfig

        train = self.train
        rate, evaluate_every = train.learning_rate, train.evaluate_every
        if rate is None:
            rate = SECOND_STAGE_LEARNING_RATE if self.model.init else LEARNING_RATES[self.model.size]
        if evaluate_every is None:
            evaluate_every = max(1, train.max_steps // 10) if train.max_steps else 100
            evaluate_every = min(evaluate_every, LINEAR_EVERY) if self.model.is_linear else evaluate_every
        limit = None if train.max_time is None else seconds(train.max_time)
        spent = AFTERWARDS * (limit or 0.0) if spent is None else spent
        settled = {
            "max_seconds": limit,
            "spent": 0.0 if limit is None else spent,
            "learning_rate": rate,
            "rows_per_batch": max(1, round(self.batch_tokens / self.row_tokens)),
            "evaluate_every": evaluate_every,
            "seed": self.seed,
        }
        return LoopConfig(**{**_same_fields(train, LoopConfig), **settled})


def _same_fields(config: object, kind: type[Any]) -> dict[str, Any]:
    """The values of a config for all fields of a dataclass that the config has too."""
    return {field.name: getattr(config, field.name) for field in fields(kind) if hasattr(config, field.name)}


def resolve_config(domain: Field, *layers: Mapping[str, Any]) -> PretrainConfig:
    """Merge user settings over the defaults of the domain, and complete them.

    Args:
        domain: the domain.
        layers: nested settings. Later layers win.

    Raises:
        UsageError: an unknown key or name, or values that exclude each other.
    """
    user_settings = merge({}, *layers)
    values = merge(_domain_defaults(domain, user_settings), user_settings)
    for section, key, kind in PLUGGED:
        if isinstance(values[section], dict) and isinstance(values[section].get(key), str):
            values[section][key] = plugins.versioned(kind, values[section][key])
    for key, table in NAMED.items():
        if isinstance(values["model"], dict) and isinstance(values["model"].get(key), str):
            values["model"][key] = plugins.newest(table, values["model"][key])
    config = from_dict(PretrainConfig, values)
    data, masking, tokenizer, train = config.data, config.masking, config.tokenizer, config.train
    if domain.sensitive and not data.sensitive:
        raise UsageError(
            f"data.sensitive cannot be switched off in the {domain.name} domain: its data concern people"
        )
    masking = replace(masking, options=_masker_options(masking))
    tokenizer = replace(tokenizer, options=_tokenizer_options(tokenizer, data, domain))
    domain.files.check(data.format, data.options)
    if all(getattr(train, limit) is None for limit in LIMITS):
        train = replace(train, max_steps=DEFAULT_STEPS)
    return replace(config, masking=masking, tokenizer=tokenizer, train=train)


def _masker_options(config: MaskingConfig) -> dict[str, Any]:
    """The options of a masker, converted to the types that it takes.

    Raises:
        UsageError: the masker does not have an option.
    """
    kind = plugins.load("maskers", config.masker)
    names = {*options_of(kind), *(("words_file",) if "words" in options_of(kind) else ())}
    check_options(config, names)
    # the option is a list of ids, or words as text
    options = {key: value for key, value in config.options.items() if key != "words"}
    return {**config.options, **arguments_of(kind.__init__, options, "masking.options")}


def _tokenizer_options(config: TokenizerConfig, data: DataConfig, domain: Field) -> dict[str, Any]:
    """The options of a tokenizer for these data, converted to the types that it takes.

    Raises:
        UsageError: the tokenizer does not have an option, or refuses its value.
    """
    kind = plugins.tokenizer_class(config.name)
    discreet = kind.traits.sensitive_options if data.sensitive else {}
    options = {**config.options, **discreet, **config.options}
    if config.path is not None:
        return options
    options = merge(options, domain.reading.tokenizer(data.options))
    maker = kind.train if kind.traits.trainable else kind.__init__
    options = arguments_of(maker, options, "tokenizer.options")
    if kind.traits.trainable:
        try:
            kind.train(iter(()), **options)
        except Exception as error:
            # Training checks the options first. Then it fails for lack of text, which is expected.
            if isinstance(error, UsageError):
                raise
    else:
        parameters = inspect.signature(kind).parameters
        anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        for key in options:
            if key not in parameters and not anything:
                near = nearest(key, parameters) if parameters else "; it takes none"
                raise UsageError(f"{kind.name} has no option {key!r}{near}")
    return options


def _domain_defaults(domain: Field, user_settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the domain.

    The options of its tokenizer and masker are included only if `user_settings` selects no other tokenizer or
    masker.
    """
    defaults = domain.defaults
    base: dict[str, Any] = {
        "domain": domain.name,
        "tokenizer": {"name": defaults.tokenizer, "vocabulary_size": defaults.vocabulary_size},
        "masking": to_dict(defaults.masking),
        "model": {"size": defaults.size, "max_length": defaults.max_length, **defaults.model},
        "data": {
            **{name: getattr(defaults, name) for name in _DIVISION},
            "cuts": "moving.v1",
            "sensitive": domain.sensitive,
        },
    }
    model = user_settings.get("model")
    if isinstance(model, dict) and model.get("size") == LINEAR and model.get("init") is None:
        base["model"]["max_length"] = LONGEST_ROW
        base["data"] |= {"join_documents": False, "cuts": "fixed.v1"}
    options = {"tokenizer": defaults.tokenizer_options, "masking": defaults.masking.options}
    for section, key, kind in PLUGGED:
        name = user_settings[section].get(key) if isinstance(user_settings.get(section), dict) else None
        is_default = not isinstance(name, str) or plugins.versioned(kind, name) == base[section][key]
        base[section]["options"] = dict(options[section]) if is_default else {}
    return base


def check_paths(paths: Iterable[str]) -> None:
    """Check that files and folders exist, before torch is loaded.

    Raises:
        DataError: a file or folder does not exist.
    """
    expand(path for _, path in map(split_source, paths) if not Path(path).is_dir())
