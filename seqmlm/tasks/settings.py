"""The settings that all commands with a model share, and their check against the model's field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from seqmlm import plugins
from seqmlm.data.problems import OnError
from seqmlm.domains.refusals import missing_capability
from seqmlm.engine.types import Precision
from seqmlm.engine.units import Mode
from seqmlm.errors import UsageError
from seqmlm.inference.model_folder import read_card
from seqmlm.registry.references import resolve


@dataclass(frozen=True, kw_only=True)
class CommandConfig:
    """Settings of every command about a model; a field is an option, or goes under `--set`.

    Args:
        model: the model: NAME, NAME@ALIAS, NAME:VERSION, a model folder or a hub id.
        paths: files, folders or Hugging Face data sets (hf:NAME[:SPLIT]) to read; - is standard input.
        domain: field of the sequences; needed only for models that seqmlm did not train.
        format: format of the input files (see `seqmlm data formats`). Default: detected.
        options: KEY=VALUE: option of the file reader, such as column=text; repeatable.
        on_error: bad records: raise (stop), skip, or quarantine (skip and save to a file).
        precision: precision of matrix products: fp32 (exact to rounding), bf16, or auto (bf16 on a GPU that
            supports it).
    """

    option_fields: ClassVar[tuple[str, ...]] = ("options", "on_error")
    """Fields that are options of the command, in the order of the help. The others are set with `--set`."""

    metavar: ClassVar[str] = "PATH|-"
    """The placeholder for the paths in the help; empty for a command without paths."""

    model: str
    paths: tuple[str, ...] = ()
    domain: str | None = field(default=None, metadata={"also": ("-d",)})
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    on_error: OnError = "raise"
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        """Check values and names before a model is loaded.

        Raises:
            UsageError: a value is out of range, or a name is unknown.
        """
        for name, minimum in (("tokens_per_batch", 1), ("seed", 0)):
            value = getattr(self, name, None)
            if value is not None and value < minimum:
                raise UsageError(f"{name} must be at least {minimum}; got {value}")
        if isinstance(mode := getattr(self, "mode", None), str):
            Mode.parse(mode)
        if self.domain is not None:
            plugins.domain(self.domain)


def check_field(config: Any, level: str | None = None, needs: Sequence[str] = ()) -> None:
    """Check that a model's field has the format, level and capabilities in `needs`, without loading it.

    Raises:
        UsageError: the field lacks one of them.
        StateError: the model does not exist, or its card is broken.
    """
    folder = resolve(config.model).path
    card = None if folder is None else read_card(folder)
    name = config.domain if card is None else card.domain
    if name is not None:
        if card is not None and name not in plugins.names("domains"):
            return  # opening the model reports what is wrong with its card
        field = plugins.domain(name)
        if missing := next((capability for capability in needs if getattr(field, capability) is None), None):
            raise missing_capability(field, missing)
        field.files.check(config.format, {})
        field.level(level)
