"""What may be told of sensitive data: aggregates, no count under eleven, no file of single records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqmlm.data.small_cells import told

PERSONAL = ("trained_on.safetensors", "calibration.safetensors", "background.safetensors")
"""Files of a model folder that tell of single records: which ones trained, and the score of each that
calibrated, or what it counted. Those of sensitive data stay where the model was made."""

_EXTREMES = ("0.0", "1.0")


def tellable(values: Mapping[str, Any], sensitive: bool) -> dict[str, Any]:
    """Counts as they may leave the workspace.

    Of sensitive data a count from 1 to 10 becomes "<11", in nested mappings too, and the lowest and highest
    quantile, each the value of one record, go.

    >>> tellable({"records": 5, "tokens": 120, "problems": {"no time": 3}}, True)
    {'records': '<11', 'tokens': 120, 'problems': {'no time': '<11'}}
    """
    if not sensitive:
        return dict(values)
    return {key: _told(key, value) for key, value in values.items()}


def _told(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {k: v for k, v in value.items() if not ("quantiles" in key and k in _EXTREMES)}
        return kept if "quantiles" in key else tellable(kept, True)
    if "quantiles" in key and isinstance(value, (list, tuple)):
        return list(value[1:-1])
    return told(value) if isinstance(value, int) and not isinstance(value, bool) else value
