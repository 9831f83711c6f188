"""Input channels: additional inputs for each token (age, time, a class) that are added to its embedding.

    embedding(token) + sum over channels of their embeddings,  then the model's own norm and dropout

This is the design of BEHRT (Li et al. 2020) and CEHR-BERT (Pang et al. 2021). It works with any encoder that
accepts `inputs_embeds`. A channel has a kind, and a name that the data and the model share. If a value is
NaN, the channel adds nothing.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from seqmlm.engine.foreign import check_shapes, shapes_of
from seqmlm.engine.optimizer import module_tensors, restore_module
from seqmlm.errors import StateError, UsageError

WEIGHTS = "channels.safetensors"

Kind = Literal["category", "time2vec", "sinusoid"]

# Initial amplitude of token embeddings: waves of amplitude 1 would be much larger than them.
_FIRST_AMPLITUDE = 0.02
_LINEAR_LIMIT = 100.0
_LONGEST_WAVE = 10_000.0


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One additional input.

    Args:
        kind: "category" is an embedding of integers from 0 to size - 1. The others embed (value - center) /
            scale, "time2vec" by a line and learned waves (Kazemi et al. 2019). For "sinusoid", the waves are
            fixed (Vaswani et al. 2017).
        size: number of categories, at least 1; larger values count as the last category.
        center, scale: centre and scale of a number, in its unit; scale > 0.

    Raises:
        UsageError: the kind is unknown, or the size or scale is too small.
    """

    kind: Kind
    size: int = 0
    center: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UsageError(
                f"the kind of an input channel must be one of {', '.join(get_args(Kind))}, not {self.kind!r}"
            )
        if self.kind == "category" and self.size < 1:
            raise UsageError("an input channel of kind 'category' needs a size of at least 1")
        if not self.scale > 0:
            raise UsageError(f"the scale of an input channel must be above 0, not {self.scale}")


def channels_of(values: Mapping[str, Mapping[str, Any]]) -> dict[str, Channel]:
    """Channels from plain values, as a tokenizer declares them and the card of a model stores them.

    Raises:
        UsageError: an unknown kind or setting.
    """
    try:
        return {name: Channel(**settings) for name, settings in values.items()}
    except TypeError as error:
        raise UsageError(f"invalid description of an input channel: {error}") from None


class InputChannels(nn.Module):
    """The channel embeddings of a model.

    Everything is computed in float32, whatever the precision of the encoder is. Times in days have more
    digits than bfloat16.

    Args:
        channels: name to channel, at least one.
        width: H, the size of the token embeddings.
    """

    def __init__(self, channels: Mapping[str, Channel], width: int) -> None:
        super().__init__()
        self.channels = dict(sorted(channels.items()))
        kinds = {"category": _Category, "time2vec": _Time2Vec, "sinusoid": _Sinusoid}
        self.parts = nn.ModuleDict(
            {name: kinds[channel.kind](channel, width) for name, channel in self.channels.items()}
        )

    def forward(self, values: Mapping[str, Tensor]) -> Tensor:
        """(1, T, H) sum of the channel embeddings in float32, from the (1, T) values of every channel."""
        with torch.autocast(next(iter(values.values())).device.type, enabled=False):
            total: Tensor | int = 0
            for name, part in self.parts.items():
                numbers = values[name].float()
                has_value = ~numbers.isnan()
                embedding = part(torch.where(has_value, numbers, 0.0))
                total = total + torch.where(has_value[..., None], embedding, 0.0)
        assert isinstance(total, Tensor)
        return total

    def description(self) -> dict[str, dict[str, Any]]:
        """The channels as plain values for the card of a model; `channels_of` reads them."""
        return {name: asdict(channel) for name, channel in self.channels.items()}

    def save(self, folder: Path) -> None:
        """Write the weights of the channels into the folder of a model."""
        text = json.dumps(self.description(), sort_keys=True)
        save_file(module_tensors(self), folder / WEIGHTS, metadata={"channels": text})

    @classmethod
    def load(cls, folder: Path, description: Mapping[str, Mapping[str, Any]], width: int) -> InputChannels:
        """Load the channels that `save` wrote.

        Args:
            folder: folder of the model.
            description: the channels as plain values, from `description`.
            width: H, the size of the token embeddings.

        Raises:
            StateError: the weights are missing, or belong to other channels.
        """
        channels = channels_of(description)
        try:
            with torch.device("meta"):
                check_shapes(cls(channels, width), shapes_of(folder / WEIGHTS))
            tensors = load_file(folder / WEIGHTS)
        except (OSError, SafetensorError, ValueError, RuntimeError) as error:
            raise StateError(f"{folder / WEIGHTS} cannot be read ({error}); export the model again") from None
        module = cls(channels, width)
        restore_module(module, tensors)
        return module


class _Category(nn.Embedding):
    def __init__(self, channel: Channel, width: int) -> None:
        super().__init__(channel.size, width)
        nn.init.normal_(self.weight, std=_FIRST_AMPLITUDE)

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values.long().clamp(0, self.num_embeddings - 1))


class _Scaled(nn.Module, ABC):
    """Embedding of a number: centred, scaled, turned into waves, and multiplied by one learned amplitude."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._center, self._scale = channel.center, channel.scale
        self.amplitude = nn.Parameter(torch.full((1,), _FIRST_AMPLITUDE))

    def forward(self, values: Tensor) -> Tensor:
        waves: Tensor = self.waves((values[..., None] - self._center) / self._scale)
        return self.amplitude * waves

    @abstractmethod
    def waves(self, scaled: Tensor) -> Tensor:
        """The waves (..., H) of scaled numbers (..., 1)."""


class _Time2Vec(_Scaled):
    def __init__(self, channel: Channel, width: int) -> None:
        super().__init__(channel)
        self.frequency = nn.Parameter(torch.randn(width))
        self.phase = nn.Parameter(torch.randn(width))

    def waves(self, scaled: Tensor) -> Tensor:
        angles = scaled * self.frequency + self.phase
        line = angles[..., :1].clamp(-_LINEAR_LIMIT, _LINEAR_LIMIT)
        return torch.cat([line, angles[..., 1:].cos()], dim=-1)


class _Sinusoid(_Scaled):
    rates: Tensor

    def __init__(self, channel: Channel, width: int) -> None:
        super().__init__(channel)
        rates = torch.exp(-math.log(_LONGEST_WAVE) * torch.arange(0, width, 2) / width)
        self.register_buffer("rates", rates, persistent=False)
        self._width = width

    def waves(self, scaled: Tensor) -> Tensor:
        angles = scaled * self.rates
        return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., : self._width]
