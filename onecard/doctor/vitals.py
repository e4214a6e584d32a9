"""The five signs by which a run is called healthy: which of them its records let anybody look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onecard.doctor.case import Case
from onecard.doctor.course import FEWEST_POINTS, training_losses
from onecard.doctor.evidence import pairs, vals
from onecard.doctor.rules.learning import LEAST_NORMS, gradient_norms
from onecard.doctor.rules.pace import LEAST_TIMES, paces
from onecard.doctor.trend import LEAST_EVALUATIONS

# What was looked at, by name: whether the run has enough of it for the rules about it.
VITALS: Mapping[str, Callable[[Case], bool]] = {
    "training loss": lambda case: len(training_losses(case)) > 1 or any(e.train_loss is not None for e in case.evals),
    "trend": lambda case: len(training_losses(case)) >= FEWEST_POINTS or len(vals(case)) >= LEAST_EVALUATIONS,
    "speed": lambda case: len(paces(case)) >= LEAST_TIMES,
    "gradient norm": lambda case: len(gradient_norms(case)) >= LEAST_NORMS,
    "split": lambda case: len(pairs(case)) > 1,
}


def not_looked_at(case: Case) -> tuple[str, ...]:
    """The signs that the run says too little about, by name."""
    return tuple(name for name, enough in VITALS.items() if not enough(case))
