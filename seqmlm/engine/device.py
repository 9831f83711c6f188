"""Functions that depend on the device: precision, random state, and memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from seqmlm.engine.types import Precision

_MEMORY_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "status_alloc_failed")


def best_device() -> torch.device:
    """The default device: the accelerator, or the CPU if the machine has no accelerator."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cpu") if accelerator is None else accelerator


def resolve_precision(precision: Precision, device: torch.device | None = None) -> Precision:
    """The precision that is used on a device, "fp32" or "bf16"; see `compute_dtype`.

    Args:
        precision: the requested precision.
        device: the device; None for `best_device`.
    """
    dtype = compute_dtype(precision, best_device() if device is None else device)
    return "bf16" if dtype == torch.bfloat16 else "fp32"


def compute_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """The type of matrix products; "auto" is bfloat16 on CUDA devices that support it, else float32."""
    if precision == "auto":
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if fast else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Context in which forward passes compute in `dtype`; parameters and reductions stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of the generators for dropout: uint8 tensors "cpu" and, on a GPU, "cuda"."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(device: torch.device, state: Mapping[str, Tensor]) -> None:
    """Restore a state from `random_state`; a device that no longer exists is skipped."""
    torch.set_rng_state(state["cpu"].clone())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].clone(), device)


@contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Context that restores the random state at its end."""
    state = random_state(device)
    try:
        yield
    finally:
        set_random_state(device, state)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the device or the machine is out of memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _MEMORY_SIGNS)


def release_memory(device: torch.device) -> None:
    """Return cached memory, so that smaller batches do not fail because of fragments from larger ones."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif sys.platform.startswith("linux") and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)  # only the GNU C library has this function


# From malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE = 2**30


@cache
def keep_freed_memory() -> bool:
    """Keep freed memory blocks of up to 1 GiB in the process instead of returning them to the kernel.

    A training step allocates and frees the same hundreds of megabytes again and again. By default the GNU C
    library unmaps blocks of over 32 MiB at once and trims the end of the heap. The kernel then zeroes every
    page for the next step. This costs 5 to 10 % of a step of a small model on two cores. The peak memory
    does not change.

    Returns:
        Whether the C library accepted the setting. Other libraries keep their own defaults.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE)) and bool(mallopt(_M_TRIM_THRESHOLD, _LARGE))
