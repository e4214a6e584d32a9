"""A card with what was measured on it in this machine."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from onecard.plan.calibration import Calibration
from onecard.plan.memory.predict import more_context
from onecard.plan.place import Place
from onecard.units import MIB

CONTEXT_ERROR_BYTES = 2 * MIB  # at least: processes of one config differ by as much


def calibrated(place: Place, calibration: Calibration) -> Place:
    """The place of this machine's card, with the context, the errors and the speeds that were measured on it."""
    card = replace(place.card, calibration=calibration)
    errors = [abs(run.reserved_error) for run in calibration.runs if run.reserved_error is not None]
    if errors:
        card = replace(card, reserved_error=max(errors))
    seen = [(run.config, run.context_bytes) for run in calibration.runs if run.context_bytes]
    if seen:
        card = replace(card, context_source=f"{calibration.source}, by onecard tune")
        plain = [size - more_context(config, card) for config, size in seen]
        context_bytes = max(0, round(median(plain)))
        off = max(abs(size - context_bytes) for size in plain)
        card = replace(card, context_bytes=context_bytes, context_error_bytes=max(off, CONTEXT_ERROR_BYTES))
    return replace(place, card=card)
