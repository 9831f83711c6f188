"""Reading a model folder from an unknown source: which files are read, and which settings are accepted.

Nothing in such a folder may run code, point to another place, or cost more memory than its weights.
transformers therefore never gets the folder. It gets only the settings that are listed here, for a supported
architecture, and tensors that this module has read. All other keys and files (code, kernels, adapters,
templates) are ignored. They are refused if the model would be a different one without them.

The cost: a checkpoint that needs its own code cannot be used, even by people who trust it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from seqmlm.errors import StateError
from seqmlm.parsing import read_json, word_list

if TYPE_CHECKING:
    from torch import Tensor, nn

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"

LARGEST_CONFIG = 4 << 20
"""Largest accepted size of a JSON file, in bytes."""
LARGEST_HEADER = 16 << 20
"""Largest accepted size of the JSON header of a safetensors file, in bytes.

The header of 100,000 tensors takes about 10 MiB.
"""

# Keys of a config that refer to code, or that change the meaning of the weights.
_REFUSED = {
    "auto_map": "refers to code to run",
    "quantization_config": "says that its weights are quantized",
    "transformers_weights": "refers to another weights file",
    "fusion_config": "replaces parts of the model",
}
# Settings of earlier versions of transformers, which the architectures still read.
_EARLIER = word_list("global_attn_every_n_layers global_rope_theta local_rope_theta rope_theta rope_scaling")
# Fields of a config that no masked LM reads, or that change how results are computed but not the results.
_NOT_READ = word_list(
    "base_config_key sub_configs_defaults attribute_map extra_files extra_config_files base_model_tp_plan "
    "base_model_fsdp_plan base_model_pp_plan base_model_ep_plan _auto_class model_type "
    "transformers_version output_hidden_states return_dict dtype id2label label2id problem_type "
    "esmfold_config is_folding_model vocab_list"
)
# Numbers of layers or groups; each layer or group takes its tensors from the file.
_COUNTS = ("num_hidden_layers", "n_layers", "num_hidden_groups", "inner_group_num")
_PATIENCE = 5.0  # time to wait for an answer of the hub, in seconds
_MISSING = 1 << 20  # numbers that the file may lack, such as those of a head; they are reported later
_MOST_SHARED = 1024  # largest number of layers for an architecture whose layers share their weights

# The name of a file in the cache of the hub; the files of a downloaded model are links to such files.
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@contextmanager
def damaged_file_errors(path: Path | str) -> Iterator[None]:
    """Context that turns errors about a damaged file into a StateError with one sentence.

    Args:
        path: the file, for the message.

    Raises:
        StateError: the file cannot be read.
    """
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise StateError(f"{path} cannot be read: {reason}; copy or download it again") from error


def file_of(reference: str | Path, name: str) -> Path | None:
    """The path of a file in a model folder or hub repository, or None if it does not exist.

    A file of a hub repository is downloaded.

    Args:
        reference: the folder, or the hub id.
        name: name of the file.

    Raises:
        StateError: the path is not a regular file, or is a link that leaves the folder. Also if the hub
            cannot be reached and the model was not downloaded before.
    """
    folder = Path(reference)
    if not folder.is_dir():
        return _hub_file(str(reference), name)
    path = folder / name
    if not path.exists() and not path.is_symlink():
        return None
    real, home = path.resolve(), folder.resolve()
    # A snapshot of the hub's cache holds links to ../../blobs/<hash>.
    in_cache = real.parent == home.parent.parent / "blobs" and _BLOB.fullmatch(real.name)
    if not (real.is_relative_to(home) or in_cache):
        raise StateError(
            f"{path} is a link to {real}, outside the model's folder: put the file itself into the folder"
        )
    if not real.is_file():
        raise StateError(f"{path} is not a regular file; copy or download the model again")
    return path


def _hub_file(reference: str, name: str) -> Path | None:
    """A file of a hub repository: downloaded, or from the cache if the hub cannot be reached."""
    from transformers.utils import cached_file

    if hub_is_reachable():
        path = cached_file(reference, name, _raise_exceptions_for_missing_entries=False)
        return None if path is None else Path(path)
    cached = partial(
        cached_file,
        reference,
        local_files_only=True,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if cached(CONFIG) is None:
        raise StateError(
            f"{reference} is neither a folder here nor a model downloaded before, and the Hugging Face hub "
            "cannot be reached: check the name, or the network"
        )
    path = cached(name)
    return None if path is None else Path(path)


def hub_is_reachable() -> bool:
    """Whether the Hugging Face hub answers; tested once per minute at most, by a single request.

    The library of the hub requests each file five times or more, with increasing pauses, and logs each
    attempt.
    """
    return _hub_answers(int(time.monotonic() // 60))


@lru_cache(maxsize=1)
def _hub_answers(minute: int) -> bool:
    from transformers.utils.hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception:  # the HTTP library behind the hub library, and so its errors, can be replaced
        return False
    return True


def settings(reference: str | Path, name: str = CONFIG) -> dict[str, Any] | None:
    """The keys and values of a JSON file in a folder or hub repository, or None if it does not exist.

    Raises:
        StateError: the file is damaged, or a key refers to code or to weights in another place.
    """
    path = file_of(reference, name)
    if path is None:
        return None
    with damaged_file_errors(path):
        values = read_json(path, largest=LARGEST_CONFIG, finite=True)
        if not isinstance(values, dict):
            raise ValueError("it is not a JSON object")
    for key, why in _REFUSED.items():
        if values.get(key):
            raise StateError(
                f"{path}: {key!r} {why}, which seqmlm never does; use a model without it, saved with its own "
                "architecture in safetensors"
            )
    return values


def model_config(kind: Any, values: Mapping[str, Any]) -> Any:
    """A config of transformers with only the values that its architecture uses.

    Args:
        kind: class of the config.
        values: the contents of config.json.
    """
    fields = {*getattr(kind, "__dataclass_fields__", {}), *kind.attribute_map, *_EARLIER} - {*_NOT_READ}
    return kind.from_dict({key: value for key, value in values.items() if key in fields})


def check_counts(values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a config with more layers than there are tensors, before anything is built.

    Args:
        values: the contents of config.json.
        shapes: shapes of the tensors in the file, by name.

    Raises:
        ValueError: a number of layers is too large, or is not an integer.
    """
    for key in _COUNTS:
        count = values.get(key, 1)
        limit = _MOST_SHARED if "num_hidden_groups" in values and key == "num_hidden_layers" else len(shapes)
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= limit:
            raise ValueError(f"{key} is {count}, but its file has only {len(shapes)} tensors")
    types = values.get("layer_types")
    if isinstance(types, list) and len(types) > max(_MOST_SHARED, len(shapes)):
        raise ValueError(f"layer_types has {len(types)} entries, but its file has only {len(shapes)} tensors")


def check_shapes(empty: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a model whose sizes differ from the sizes of its tensors, before memory is allocated.

    Args:
        empty: the model, without memory (on the device "meta").
        shapes: shapes of the tensors in the file, by name.

    Raises:
        ValueError: a parameter has another shape, or parameters and buffers together are far larger than the
            tensors.
    """
    expected = {name: tuple(parameter.shape) for name, parameter in empty.named_parameters()}
    for name, shape in expected.items():
        if shapes.get(name, shape) != shape:
            raise ValueError(f"its settings give {name!r} shape {shape}, but the weights have {shapes[name]}")
    # Buffers are not in the file, and the settings determine the length of tables of positions.
    total = sum(map(prod, expected.values())) + sum(buffer.numel() for buffer in empty.buffers())
    present = sum(map(prod, shapes.values()))
    if total > 2 * present + _MISSING:
        raise ValueError(f"its settings require {total} parameters, but the file has {present}")


class Weights:
    """The tensors of a folder or hub repository, only from safetensors files.

    Only the headers are read before `tensors` is called.

    Args:
        reference: the folder, or the hub id.

    Raises:
        StateError: there are no weights, or they are damaged.
        OSError: the hub cannot be reached.
    """

    def __init__(self, reference: str | Path) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._files: list[Path] = []
        for name in _weight_files(reference):
            path = file_of(reference, name)
            if path is None:
                raise StateError(f"{reference} has no {name}, which {INDEX} lists; copy or download it again")
            self._files.append(path)
            with damaged_file_errors(path):
                self.shapes |= shapes_of(path)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, on the CPU; they are views of the mapped files.

        Raises:
            StateError: a file is damaged, or contains NaN or infinity.
        """
        by_name: dict[str, Tensor] = {}
        for path in self._files:
            with damaged_file_errors(path), safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118
                    by_name[name] = tensor = opened.get_tensor(name)
                    # Computing minimum and maximum needs no copy, and NaN makes both NaN.
                    extremes = tensor.aminmax() if tensor.is_floating_point() and tensor.numel() else ()
                    if not all(isfinite(extreme.item()) for extreme in extremes):
                        raise ValueError(
                            f"{name!r} contains NaN or infinity, so that no score would be a number"
                        )
        return by_name


def _weight_files(reference: str | Path) -> list[str]:
    if file_of(reference, WEIGHTS) is not None:
        return [WEIGHTS]
    index = settings(reference, INDEX)
    if index is None:
        raise StateError(
            f"{reference} has no {WEIGHTS}; weights stored as pickle can run code when they are read: if you "
            "trust them, convert them with AutoModelForMaskedLM.from_pretrained(...).save_pretrained(...)"
        )
    table = index.get("weight_map")
    names = sorted(set(map(str, table.values()))) if isinstance(table, dict) else []
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise StateError(
                f"{reference}: {INDEX} lists {name!r}, which is not a safetensors file in the same folder"
            )
    if not names:
        raise StateError(f"{reference}: {INDEX} lists no files; copy or download the model again")
    return names


def shapes_of(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in a safetensors file, by name, read from its header.

    Raises:
        ValueError: the header is larger than `LARGEST_HEADER`.
        OSError, SafetensorError: the file is damaged, or cannot be read.
    """
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > LARGEST_HEADER:
        raise ValueError(
            f"its header would have {length} bytes: the file is damaged or not a safetensors file"
        )
    with safe_open(path, framework="pt") as opened:
        return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
