"""How busy the machine is while a run trains."""

from __future__ import annotations

import sys

import psutil

from seqmlm.tracking.ledger import Point


class SystemSampler:
    """CPU, memory and GPU memory in use, under the names MLflow shows in its "System metrics" tab."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        # The first call only sets the start of the interval that the next one reports on.
        psutil.cpu_percent()

    def sample(self, step: int, when: int) -> list[Point]:
        """Points for now. Percentages are of the whole machine, megabytes of this process."""
        values = {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/system_memory_usage_percentage": psutil.virtual_memory().percent,
            "system/process_memory_megabytes": self._process.memory_info().rss / 2**20,
        }
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            values["system/gpu_memory_megabytes"] = torch.cuda.memory_allocated() / 2**20
        return [Point(key, float(value), step, when) for key, value in values.items()]
