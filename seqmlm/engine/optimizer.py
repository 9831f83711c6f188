"""AdamW without weight decay for norms, biases and embeddings, and its state as named tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from seqmlm.errors import StateError

_FUSED = {"cpu", "cuda", "xpu", "mps"}
_NORM = re.compile(r"norm", re.IGNORECASE)


def adamw(
    module: nn.Module,
    *,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float],
    epsilon: float,
) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019), fused if the device supports it.

    Norms, biases and embeddings have no weight decay. A decoder that shares the weights of an embedding
    counts as an embedding.

    Args:
        module: the parameters to train.
        learning_rate: initial learning rate.
        weight_decay: weight decay of all other parameters.
        betas, epsilon: see `torch.optim.AdamW`.
    """
    spared = {
        id(parameter)
        for part in module.modules()
        for parameter in part.parameters(recurse=False)
        if parameter.ndim < 2 or isinstance(part, nn.Embedding) or _NORM.search(type(part).__name__)
    }
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if id(p) not in spared], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) in spared], "weight_decay": 0.0},
    ]
    fused = all(parameter.device.type in _FUSED for parameter in parameters)
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=learning_rate,
        betas=betas,
        eps=epsilon,
        fused=fused,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = value


def whole_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor on the CPU.

    If the tensor is sharded, every process must call this function, in the same order.
    """
    full = tensor.detach()
    if isinstance(full, DTensor):
        full = full.full_tensor()
    return full.cpu()


def module_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Whole parameters and persistent buffers on the CPU; shared ones only under their first name."""
    return {name: whole_tensor(tensor) for name, tensor in _tensors_by_name(module).items()}


def _tensors_by_name(module: nn.Module) -> dict[str, Tensor]:
    persistent = module.state_dict().keys()
    buffers = {name: buffer for name, buffer in module.named_buffers() if name in persistent}
    return {**dict(module.named_parameters()), **buffers}


@torch.no_grad()
def restore_module(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy saved tensors into the existing parameters and buffers.

    Raises:
        StateError: names or shapes differ, because the checkpoint belongs to another model.
    """
    present = _tensors_by_name(module)
    if present.keys() != tensors.keys():
        names = sorted(present.keys() ^ tensors.keys())
        raise StateError(
            f"the checkpoint belongs to another model: only one of the two has {', '.join(names[:3])}"
        )
    for name, tensor in present.items():
        if tensor.shape != tensors[name].shape:
            shapes = f"{tuple(tensors[name].shape)}, here {tuple(tensor.shape)}"
            raise StateError(f"the checkpoint belongs to another model: {name} has shape {shapes}")
        tensor.copy_(_placed_like(tensors[name], tensor))


def optimizer_tensors(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """The state of the optimizer as `parameter name/entry` -> whole tensor on the CPU."""
    return {
        f"{name}/{entry}": whole_tensor(value)
        for name, parameter in module.named_parameters()
        for entry, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, module: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Restore the state from `optimizer_tensors` into a new optimizer.

    Raises:
        StateError: the state belongs to parameters that this module does not have.
    """
    parameters = dict(module.named_parameters())
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        if name not in parameters:
            raise StateError(f"the checkpoint's optimizer has a parameter {name!r} that the model lacks")
        parameter = parameters[name]
        state: dict[str, Any] = optimizer.state[parameter]
        if value.shape == parameter.shape and value.ndim:
            state[entry] = _placed_like(value, parameter).clone()
        else:  # the step count: a scalar, on the device of the parameter for the fused kernel
            state[entry] = value.clone().to(parameter.device)


def _placed_like(value: Tensor, template: Tensor) -> Tensor:
    """`value` on the device of `template`, and sharded in the same way."""
    placed = value.to(template.device)
    if isinstance(template, DTensor):
        return distribute_tensor(placed, template.device_mesh, template.placements)
    return placed
