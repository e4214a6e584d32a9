"""Functions whose events are remembered: running them again on inputs of the same shape copies what is on the tape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onecard.paper.tensor import Storage, Tensor

if TYPE_CHECKING:
    from onecard.paper.paper import Paper


@dataclass(slots=True)
class Past:
    """A stretch of the tape, counted from its beginning, and the tensors that were alive at its end."""

    sizes: list[int]
    tags: list[str]
    events: list[int]
    moments: list[tuple[int, str]]
    retags: list[tuple[int, int, str]]
    results: list[tuple[int, Tensor]]  # block, and a tensor of its shape

    def again(self, paper: Paper) -> list[Tensor]:
        """Write it once more; returns its results."""
        tape = paper.tape
        first, since = len(tape.sizes), len(tape.events)
        tape.sizes += self.sizes
        tape.tags += self.tags
        tape.events += [event + first if event >= 0 else event - first for event in self.events]
        tape.moments += [(since + index, what) for index, what in self.moments]
        tape.retags += [(since + index, first + block, tag) for index, block, tag in self.retags]
        made = []
        for block, tensor in self.results:
            made.append(Tensor(Storage(paper, first + block, tape.tags[first + block]), tensor.shape, tensor.dtype))
        return made


class Remembered:
    """A function of tensors that returns one, or None. What it does depends on their shapes and on `state` alone.

    It is remembered when it did nothing for the first time, freed only what it made, and left only its result.
    """

    def __init__(self, paper: Paper, function: Callable[..., Tensor | None], state: Callable[[], object]) -> None:
        self.paper, self.function, self.state = paper, function, state
        self._past: dict[object, Past] = {}

    def __call__(self, *inputs: Tensor) -> Tensor | None:
        key = self.state(), self.paper.captures, *(tensor.shape for tensor in inputs)
        if past := self._past.get(key):
            made = past.again(self.paper)
            return made[0] if made else None
        before = _Here(self.paper)
        result = self.function(*inputs)
        if past := before.past(self.paper, [] if result is None else [result]):
            self._past[key] = past
        return result


class _Here:
    """A place on the tape."""

    def __init__(self, paper: Paper) -> None:
        tape = paper.tape
        self.block, self.event, self.moment = len(tape.sizes), len(tape.events), len(tape.moments)
        self.retag = len(tape.retags)
        self.once = self._once(paper)

    @staticmethod
    def _once(paper: Paper) -> tuple[Any, ...]:
        return len(paper.tape.driver), len(paper.tape.orders), paper.uses

    def past(self, paper: Paper, results: list[Tensor]) -> Past | None:
        """What has been written since; None if it cannot simply be written again."""
        tape, first = paper.tape, self.block
        events = tape.events[self.event :]
        freed = [~event for event in events if event < 0]
        left = len(events) - 2 * len(freed)
        if self.once != self._once(paper) or left != len(results) or min(freed, default=first) < first:
            return None
        return Past(
            sizes=tape.sizes[first:],
            tags=tape.tags[first:],
            events=[event - first if event >= 0 else event + first for event in events],
            moments=[(index - self.event, what) for index, what in tape.moments[self.moment :]],
            retags=[(index - self.event, block - first, tag) for index, block, tag in tape.retags[self.retag :]],
            results=[(tensor.storage.block - first, _shape_of(tensor)) for tensor in results],
        )


def _shape_of(tensor: Tensor) -> Tensor:
    """A tensor without memory, so that remembering it keeps nothing alive."""
    return Tensor(Storage(tensor.storage.paper, -1, tensor.storage.tag), tensor.shape, tensor.dtype)
