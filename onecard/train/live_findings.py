"""The doctor watches a run while it trains: what has been recorded so far, and what is newly wrong with it."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterable

from onecard.config.schema import RunConfig
from onecard.data.dataset import Dataset
from onecard.data.tokens import val_in_train
from onecard.doctor.case import DataSizes
from onecard.doctor.diagnose import WATCHED_STEPS, watch
from onecard.doctor.live import doctor_failed
from onecard.doctor.rules import rule_name
from onecard.errors import kind_and_line
from onecard.findings import Finding
from onecard.plan.cards import Card
from onecard.runs.records import CardReading, FindingRecord, Record, Step

WATCHED_READINGS = 2_000  # of the card: about three hours
FAILED = rule_name(doctor_failed)


class LiveFindings:
    """The records of a run that the doctor needs: only the last steps and readings of the card, and all else."""

    def __init__(self, config: RunConfig, card: Card | None, dataset: Dataset) -> None:
        self._config = config
        self._card = card
        same = val_in_train(dataset.train, dataset.val)
        self._data = DataSizes(train_tokens=len(dataset.train), val_tokens=len(dataset.val), val_in_train=same)
        self._steps: deque[Step] = deque(maxlen=WATCHED_STEPS)
        self._cards: deque[CardReading] = deque(maxlen=WATCHED_READINGS)
        self._others: list[Record] = []
        self._told = {"val-set-tiny"}  # reported before the first step

    def add(self, record: Record) -> None:
        """Remember a record; a finding is reported once."""
        if isinstance(record, Step):
            self._steps.append(record)
        elif isinstance(record, CardReading):
            self._cards.append(record)
        else:
            self._others.append(record)
        if isinstance(record, FindingRecord):
            self._told.add(record.finding.rule)

    def add_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self.add(record)

    def new_findings(self) -> list[Finding]:
        """New findings. An error inside the doctor never ends the training, and is reported once."""
        ordered = sorted([*self._others, *self._steps, *self._cards], key=lambda record: record.step or 0)
        try:
            return watch(ordered, self._config, self._card, self._data, self._told)
        except Exception as mistake:
            return [] if FAILED in self._told else [_failure(mistake)]


def _failure(mistake: Exception) -> Finding:
    """That the doctor failed, with the traceback as its evidence."""
    return doctor_failed(kind_and_line(mistake, 300), "".join(traceback.format_exception(mistake)).splitlines())
