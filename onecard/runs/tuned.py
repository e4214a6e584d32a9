"""What `onecard tune` found: the machine, the ways it tried to run a config, and the fastest of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from onecard.config.schema import RunConfig
from onecard.plan.tuning import Tried, Way, best_of


@dataclass
class Tuned:
    """The machine and every way that was tried, as far as they are known."""

    asked: RunConfig
    machine: dict[str, Any] = field(default_factory=dict)  # as train/measure_machine.py prints it
    available_bytes: int | None = None  # free for the run; None where nobody says
    ways: list[Way] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    calibration: str | None = None  # the file that keeps what was measured, for plans

    @property
    def best(self) -> Tried | None:
        return best_of(self.tried, self.available_bytes)

    @property
    def is_on_cpu(self) -> bool:
        return self.machine.get("device") == "cpu"

    @property
    def gain(self) -> float | None:
        """How many times as fast as the config as given the best is; None where that was not measured."""
        given = next((each for each in self.tried if each.tokens_per_second and self.is_as_given(each.way)), None)
        if not given or not self.best or not given.tokens_per_second or not self.best.tokens_per_second:
            return None
        return self.best.tokens_per_second / given.tokens_per_second

    def is_as_given(self, way: Way) -> bool:
        """Whether a way is what `onecard train` does with the config unless it is told otherwise."""
        return not way.patch and way.threads in (None, self.machine.get("cores"))
