"""The processes of a run and what they say to each other, with torch.distributed; torchrun starts them.

Tensors of the CPU go by gloo, those of a card by NCCL. What is said about the work itself (out of memory, a signal, a
loss) is small and always goes by gloo: so a rank that waits for another one waits on the host, where a lost connection
and a timeout are errors that can be caught and explained.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from onecard.errors import OnecardError, first_line, is_out_of_memory, kind_and_line
from onecard.models.ranks import ONE_RANK, Ranks
from onecard.train.meeting import ASKED_TO_STOP, Meeting
from onecard.units import MIB

BUCKET_BYTES = 25 * MIB  # of gradients that are summed together: as torch's DistributedDataParallel
WITH_CARD = "a card of NVIDIA's"  # what a rank says of itself at the meeting


class _ShortElsewhere(Exception):
    """Another rank ran out of memory: what is under way is left, as it is there."""


class Processes:
    """A run's processes as one of them sees them. This one is alone: what it says is what all say."""

    joined = False  # whether torchrun started this process

    def __init__(self, ranks: Ranks = ONE_RANK) -> None:
        self.ranks = ranks

    def any(self, said: bool) -> bool:
        """Whether any rank says yes."""
        return said

    def highest(self, figures: Sequence[float | None]) -> list[float | None]:
        """The highest of each figure; None where no rank has one."""
        return list(figures)

    def gathered(self, value: Any) -> list[Any]:
        """What each rank gives, by rank: anything JSON can hold."""
        return [value]

    def from_first(self, value: Any = None) -> Any:
        """What the first rank gives: anything JSON can hold."""
        return value

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Give tensors the values that they have on the first rank."""

    def make_buckets(self, tensors: Sequence[Tensor]) -> None:
        """Obtain the memory that the sums of such tensors need."""

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks."""

    def lack_memory(self, part: Callable[[], None]) -> str | None:
        """Do a part of the work; if it ran out of memory on any rank, what that rank was told."""
        message, heard = None, False
        try:
            part()
        except _ShortElsewhere:
            heard = True
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            message = first_line(error)  # not the error itself: its frames hold what must be freed
        if not heard and not self._any_short(message is not None):
            return None
        told: list[str | None] = self.gathered(message)
        return next(each for each in told if each is not None)

    def _any_short(self, short: bool) -> bool:
        return short

    def asked_to_stop(self, here: bool) -> str | None:
        """In words that a signal came, to which processes; None if none did."""
        return "this process was asked to stop" if here else None

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """While entered, what torch's backends refuse becomes the error of a rank that lost the others."""
        yield

    @contextmanager
    def together(self) -> Iterator[None]:
        """While entered, the ranks wait for each other: an error of one ends all."""
        yield


ALONE = Processes()


def has_card() -> bool:
    """Whether this process could sum the gradients of a card with others."""
    return torch.cuda.is_available() and dist.is_nccl_available()


class Joined(Processes):
    """A process among those that torchrun started."""

    joined = True

    def __init__(self, meeting: Meeting) -> None:
        super().__init__(meeting.ranks)
        self.meeting = meeting
        self.apart = False  # whether the ranks can no longer speak to each other
        self._buckets: list[Tensor] = []

    def connect(self) -> None:
        """Connect with all ranks; returns once all have connected."""
        backend = "cpu:gloo,cuda:nccl" if all(said[WITH_CARD] for said in self.meeting.said) else "gloo"
        rank, count = self.ranks.rank, self.ranks.world_size

        def init(store: Store) -> None:
            dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=self.meeting.timeout)

        try:
            self.meeting.connect(init)
        except (RuntimeError, ValueError) as problem:
            self.apart = True
            raise self.meeting.lost(problem, connected=False) from problem

    def asked_to_stop(self, here: bool) -> str | None:
        """In words that a signal came to some ranks, and which; None if none did."""
        if not self.any(here):
            return None
        asked = [rank for rank, said in enumerate(self.gathered(here)) if said]
        who = "all ranks" if len(asked) == self.ranks.world_size > 1 else self.meeting.named(asked)
        return f"{who} {'was' if len(asked) == 1 else 'were'} asked to stop"

    def any(self, said: bool) -> bool:
        found, short = self._flags(said, False)
        if short:
            raise _ShortElsewhere
        return found

    def _any_short(self, short: bool) -> bool:
        return self._flags(False, short)[1]

    def _flags(self, *said: bool) -> list[bool]:
        flags = torch.tensor(said, dtype=torch.uint8)
        with self.speaking():
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        return [bool(flag) for flag in flags.tolist()]

    def highest(self, figures: Sequence[float | None]) -> list[float | None]:
        found = torch.tensor([-1.0 if figure is None else figure for figure in figures], dtype=torch.float64)
        with self.speaking():
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return [None if figure < 0 else figure for figure in found.tolist()]

    def gathered(self, value: Any) -> list[Any]:
        text = json.dumps(value).encode()
        sizes = torch.zeros(self.ranks.world_size, dtype=torch.int64)
        sizes[self.ranks.rank] = len(text)
        with self.speaking():
            dist.all_reduce(sizes)
            padded = [torch.zeros(int(sizes.max()), dtype=torch.uint8) for _ in range(self.ranks.world_size)]
            own = torch.zeros_like(padded[0])
            own[: len(text)] = _bytes(text)
            dist.all_gather(padded, own)
        return [json.loads(_text(each[:size])) for each, size in zip(padded, sizes.tolist(), strict=True)]

    def from_first(self, value: Any = None) -> Any:
        text = json.dumps(value).encode() if self.ranks.rank == 0 else b""
        size = torch.tensor(len(text))
        with self.speaking():
            dist.broadcast(size, src=0)
            content = _bytes(text) if self.ranks.rank == 0 else torch.zeros(int(size), dtype=torch.uint8)
            dist.broadcast(content, src=0)
        return json.loads(_text(content))

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        with torch.no_grad(), self.speaking():
            for tensor in tensors:
                dist.broadcast(tensor.detach(), src=0)

    def make_buckets(self, tensors: Sequence[Tensor]) -> None:
        if not self._buckets:
            numbers = sum(each.numel() for each in tensors)
            size = min(numbers, BUCKET_BYTES // tensors[0].element_size())
            self._buckets = [tensors[0].new_empty(size) for _ in range(2)]

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """In buckets; a tensor that is no smaller than a bucket where it is. One bucket is filled while another is
        under way. Every rank gets the same bits: each number is added up in one place."""
        self.make_buckets(tensors)
        under_way: list[Callable[[], None]] = []
        with torch.no_grad(), self.speaking():
            for number, bucket in enumerate(in_buckets(tensors, self._buckets[0].numel())):
                if len(under_way) == len(self._buckets):
                    under_way.pop(0)()
                under_way.append(self._begin_sum(bucket, self._buckets[number % 2]))
            for finish in under_way:
                finish()

    def _begin_sum(self, tensors: list[Tensor], buffer: Tensor) -> Callable[[], None]:
        """Start to sum a bucket; returns what waits for it and puts the sums in their places."""
        if len(tensors) == 1 and tensors[0].is_contiguous():
            whole = dist.all_reduce(tensors[0], async_op=True)
            return lambda: _finish(whole)
        sizes = [each.numel() for each in tensors]
        flat = buffer[: sum(sizes)]
        parts = [part.view_as(each) for part, each in zip(torch.split(flat, sizes), tensors, strict=True)]
        torch._foreach_copy_(parts, tensors)
        work = dist.all_reduce(flat, async_op=True)

        def finish() -> None:
            _finish(work)
            torch._foreach_copy_(tensors, parts)

        return finish

    @contextmanager
    def together(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            if self.apart:
                raise
            self.apart = True
            killed = self.meeting.killed()
            if killed:
                raise killed from None
            self.meeting.say_last(ASKED_TO_STOP, told=False)
            raise
        except BaseException as error:
            if not self.apart:
                self._name_rank(error)
            raise

    def _name_rank(self, error: BaseException) -> None:
        """An error of this rank ends all: it says which rank it is of, here and to the others."""
        self.apart = True
        own = self.meeting.named([self.ranks.rank])
        if isinstance(error, OnecardError):
            self.meeting.say_last(error.what, told=True)
            error.what = error.what if self.ranks.writes else f"{own}: {error.what}"
        else:
            self.meeting.say_last(kind_and_line(error, 240), told=True)
            error.add_note(f"this was on {own}")

    def leave(self) -> None:
        """Say goodbye: the ranks have nothing more to say to each other."""
        self.apart = True
        with suppress(RuntimeError):
            self.meeting.say_here()
        with suppress(RuntimeError):
            dist.destroy_process_group()

    @contextmanager
    def speaking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as problem:  # torch's errors of a backend are such
            if is_out_of_memory(problem):
                raise
            self.apart = True
            raise self.meeting.lost(problem) from problem


def in_buckets(tensors: Iterable[Tensor], most: int) -> Iterator[list[Tensor]]:
    """The tensors in their order, as many together as have at most `most` numbers; a larger one by itself."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(each.numel() for each in bucket) + tensor.numel() > most:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _finish(work: dist.Work | None) -> None:
    assert work
    work.wait()


def _bytes(text: bytes) -> Tensor:
    return torch.tensor(list(text), dtype=torch.uint8)


def _text(content: Tensor) -> bytes:
    return bytes(content.tolist())
