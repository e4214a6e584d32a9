"""The learning rate of every update, as the plan and the doctor know it too."""

from onecard.plan.schedule import DECAY_SHARE, learning_rate

__all__ = ["DECAY_SHARE", "learning_rate"]
