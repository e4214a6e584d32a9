"""The most memory the allocator held at a time: in updates, in evaluations, in the whole run."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Peaks:
    """Counts of one device, begun anew before and after every evaluation; None of each off CUDA."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.highest_in_training = 0  # bytes allocated in any update so far
        self._highest_reserved = 0

    def begin(self) -> None:
        """Count from now on; the highest figures of the run so far are remembered."""
        self.reserved_in_run()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def allocated(self) -> int | None:
        """Bytes allocated at most since the count began."""
        return self._counted(torch.cuda.max_memory_allocated)

    def reserved(self) -> int | None:
        """Bytes reserved at most since the count began."""
        return self._counted(torch.cuda.max_memory_reserved)

    def allocated_in_training(self) -> int | None:
        """Bytes allocated at most since the count began, which was before an update; remembered of the run."""
        peak = self.allocated()
        self.highest_in_training = max(self.highest_in_training, peak or 0)
        return peak

    def reserved_in_run(self) -> int | None:
        """Bytes reserved at most so far."""
        peak = self.reserved()
        self._highest_reserved = max(self._highest_reserved, peak or 0)
        return None if peak is None else self._highest_reserved

    def _counted(self, statistic: Callable[[torch.device], int]) -> int | None:
        return statistic(self._device) if self._device.type == "cuda" else None
