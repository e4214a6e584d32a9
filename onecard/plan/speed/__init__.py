"""How fast a run will be: a roofline by operation (docs/explain/speed.md)."""

from onecard.plan.speed.measured import MEASURED_RUNS, ONECARD_RUNS, PUBLIC_RUNS, nearest_measured
from onecard.plan.speed.measured_run import MeasuredRun
from onecard.plan.speed.predict import Speed, SpeedPart, predict_speed
from onecard.plan.speed.work import TrainerName

__all__ = [
    "MEASURED_RUNS",
    "ONECARD_RUNS",
    "PUBLIC_RUNS",
    "MeasuredRun",
    "Speed",
    "SpeedPart",
    "TrainerName",
    "nearest_measured",
    "predict_speed",
]
