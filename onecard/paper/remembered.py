"""Functions whose events are remembered: run again on tensors of the same shapes, they copy the tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onecard.paper.tensor import Parameter, Shape, Storage, Tensor

if TYPE_CHECKING:
    from onecard.paper.paper import Paper

Variables = list[Tensor | None]


@dataclass(frozen=True, slots=True)
class Result:
    """A tensor that a stretch of the tape leaves behind."""

    block: int  # counted from the beginning of the stretch
    shape: Shape
    dtype: int
    tag: str

    def made(self, paper: Paper, first: int) -> Tensor:
        return Tensor(Storage(paper, first + self.block, self.tag), self.shape, self.dtype)


@dataclass(slots=True)
class Past:
    """A stretch of the tape. Blocks are counted from its beginning; those it took over have negative numbers."""

    sizes: list[int]
    tags: list[str]
    events: list[int]
    frees_taken: dict[int, int]  # event -> which of the tensors that were taken over is freed there
    moments: list[tuple[int, str]]
    retags: list[tuple[int, int, str]]
    results: list[Result | None]
    gradients: list[tuple[Parameter, Result]]  # that parameters got
    work: dict[str, list[float]]

    def again(self, paper: Paper, taken: Sequence[int]) -> Variables:
        """Write it once more, with other tensors taken over; returns its results."""
        tape = paper.tape
        first, since = len(tape.sizes), len(tape.events)
        tape.sizes += self.sizes
        tape.tags += self.tags
        tape.events += [event + first if event >= 0 else event - first for event in self.events]
        for event, which in self.frees_taken.items():
            tape.events[since + event] = ~taken[which]
        tape.moments += [(since + index, what) for index, what in self.moments]
        tape.retags += [(since + index, first + block, tag) for index, block, tag in self.retags]
        for parameter, result in self.gradients:
            parameter.grad = result.made(paper, first)
        paper.work.repeat(self.work)
        return [None if result is None else result.made(paper, first) for result in self.results]


class Remembered:
    """A function whose events depend on the shapes of its tensors, and on whether `parameters` have gradients.

    It is remembered when it did nothing for the first time, and left only its results and the parameters' gradients.
    """

    def __init__(self, paper: Paper, function: Callable[..., Any], parameters: Sequence[Parameter] = ()) -> None:
        self.paper, self.function, self.parameters = paper, function, parameters
        self._past: dict[object, Past] = {}

    def __call__(self, *inputs: Tensor) -> Tensor | None:
        """function(*inputs): one tensor, or None. The inputs stay the caller's."""
        (result,) = self._run([*inputs], lambda: [self.function(*inputs)], taken=[])
        return result

    def take(self, variables: Variables) -> Variables:
        """function(variables), which empties the list, lets go of all that was in it, and returns new variables."""
        taken = [tensor.storage.block for tensor in variables if tensor is not None]
        return self._run(variables, lambda: self.function(variables), taken=taken)

    def _run(self, tensors: Variables, function: Callable[[], Variables], *, taken: list[int]) -> Variables:
        paper = self.paper
        has_gradients = bool(self.parameters) and self.parameters[0].grad is not None
        shapes = [None if tensor is None else tensor.shape for tensor in tensors]
        key = paper.captures, paper.grad_enabled, has_gradients, *shapes
        if past := self._past.get(key):
            for tensor in tensors if taken else ():
                if tensor is not None:
                    tensor.storage.leave()
            return past.again(paper, taken)
        del tensors
        here = _Here(paper)
        results = function()
        made = [] if has_gradients else [each for each in self.parameters if each.grad is not None]
        if past := here.past(paper, results, made, taken):
            self._past[key] = past
        return results


class _Here:
    """A place on the tape."""

    def __init__(self, paper: Paper) -> None:
        tape = paper.tape
        self.block, self.event, self.moment = len(tape.sizes), len(tape.events), len(tape.moments)
        self.retag = len(tape.retags)
        self.work = paper.work.so_far()
        self.once = self._once(paper)

    @staticmethod
    def _once(paper: Paper) -> tuple[int, ...]:
        return len(paper.tape.driver), len(paper.tape.orders), paper.uses

    def past(self, paper: Paper, results: Variables, made: list[Parameter], taken: list[int]) -> Past | None:
        """What has been written since; None if it cannot simply be written again."""
        tape, first = paper.tape, self.block
        events = tape.events[self.event :]
        before = {index: ~event for index, event in enumerate(events) if event < 0 and ~event < first}
        left = sum(1 if event >= 0 else -1 for event in events) + len(before)
        expected = len(made) + sum(result is not None for result in results)
        if self.once != self._once(paper) or left != expected or sorted(before.values()) != sorted(taken):
            return None
        gradients = [(each, each.grad) for each in made]
        return Past(
            sizes=tape.sizes[first:],
            tags=tape.tags[first:],
            events=[event - first if event >= 0 else event + first for event in events],
            frees_taken={index: taken.index(block) for index, block in before.items()},
            moments=[(index - self.event, what) for index, what in tape.moments[self.moment :]],
            retags=[(index - self.event, block - first, tag) for index, block, tag in tape.retags[self.retag :]],
            results=[None if result is None else _result(result, first) for result in results],
            gradients=[(each, _result(grad, first)) for each, grad in gradients if grad is not None],
            work=paper.work.since(self.work),
        )


def _result(tensor: Tensor, first: int) -> Result:
    return Result(tensor.storage.block - first, tensor.shape, tensor.dtype, tensor.storage.tag)
