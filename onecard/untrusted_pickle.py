"""The one check of pickles that may lie: before one is loaded, what loading it would do.

A pickle is a program, for a machine with a stack. We follow it without building anything: how many instructions there
are, what is called, how large tuples are when written out, and what becomes a key. A tuple can hold the same tuple
twice, sixty deep: 300 bytes that no computer can hash. Nothing that passes can take more than a few seconds.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

MOST_INSTRUCTIONS = 1_000_000  # every letter of Unicode as nanoGPT writes them takes 750,000; a checkpoint some 100,000
LONGEST_TEXT = 2**16
LARGEST_TUPLE = 1_000  # values, written out; a tensor's has some ten
LARGEST_KEY = 2**63  # numbers beyond can be chosen so that every one collides with every other

DATA = frozenset(
    "PROTO FRAME STOP MARK POP MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET NONE NEWTRUE NEWFALSE INT LONG "
    "BININT BININT1 BININT2 LONG1 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE EMPTY_DICT DICT SETITEM SETITEMS "
    "EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3".split()
)
CONTAINERS = frozenset({"collections.OrderedDict"})  # that may be called, without anything in it
_MARK = "mark"
_KEYED = frozenset({"SETITEM", "SETITEMS", "DICT"})
_TUPLES = frozenset({"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"})
_WORDS = frozenset({"NONE", "NEWTRUE", "NEWFALSE"})


class BadPickle(ValueError):
    """A pickle that is not loaded; the message says why."""


class Unsafe(BadPickle):
    """It does what no data needs; `called` is what it would call, where that is known."""

    def __init__(self, why: str, called: str = "code") -> None:
        super().__init__(f"it does more than hold data ({why:.60})")
        self.called = called


@dataclass(frozen=True, slots=True)
class _Value:
    """A value on the stack: what kind it is, and how many values it has when written out."""

    kind: str
    size: int = 1


_KEY, _OTHER = _Value("key"), _Value("other")  # what is quick to hash, and what may not be


def check(content: bytes | BinaryIO, *, instructions: frozenset[str], calls: Callable[[str], bool]) -> None:
    """BadPickle unless loading is quick and calls only what `calls` accepts; a file is left after the pickle."""
    _Machine(instructions, calls).run(io.BytesIO(content) if isinstance(content, bytes) else content)


class _Machine:
    def __init__(self, instructions: frozenset[str], calls: Callable[[str], bool]) -> None:
        self._instructions, self._calls = instructions, calls
        self._stack: list[_Value] = []
        self._memo: dict[int, _Value] = {}

    def run(self, file: BinaryIO) -> None:
        try:
            for count, (code, argument, _) in enumerate(pickletools.genops(file), start=1):
                if count > MOST_INSTRUCTIONS:
                    raise BadPickle(f"it has more than {MOST_INSTRUCTIONS:,} instructions")
                if code.name not in self._instructions:
                    raise Unsafe(code.name)
                self._step(code, argument)
        except BadPickle:
            raise
        except Exception as problem:  # damaged pickles raise nearly anything
            raise BadPickle("it is damaged") from problem

    def _step(self, code: pickletools.OpcodeInfo, argument: object) -> None:
        name = code.name
        if name.endswith("PUT") or name == "MEMOIZE":
            place = argument if isinstance(argument, int) else len(self._memo)
            if place > MOST_INSTRUCTIONS:  # it would allocate room for a billion entries at once
                raise BadPickle("it is damaged")
            self._memo[place] = self._top(1)[0]
        elif name.endswith("GET"):
            assert isinstance(argument, int)
            self._stack.append(self._memo[argument])
        elif name == "MARK":
            self._stack.append(_Value(_MARK))
        else:
            used = self._used(code)
            self._stack += [self._made(name, used, argument)] if code.stack_after else []

    def _used(self, code: pickletools.OpcodeInfo) -> list[_Value]:
        """What an instruction takes from the stack: with a mark, all above it, and what it needs below."""
        before, used = code.stack_before, []
        if pickletools.markobject in before:
            while (value := self._stack.pop()).kind != _MARK:
                used.append(value)
            before = before[: before.index(pickletools.markobject)]
        below = self._top(len(before))
        del self._stack[len(self._stack) - len(below) :]
        return below + used[::-1]

    def _top(self, count: int) -> list[_Value]:
        found = self._stack[len(self._stack) - count :] if count <= len(self._stack) else []
        if len(found) < count or any(value.kind == _MARK for value in found):
            raise BadPickle("it is damaged")
        return found

    def _made(self, name: str, used: list[_Value], argument: object) -> _Value:
        """What an instruction leaves on the stack."""
        if name in _KEYED:
            below = 0 if name == "DICT" else 1
            if any(key is not _KEY for key in used[below::2]):
                raise BadPickle("it has a key that is neither a text nor a number")
            return used[0] if below else _OTHER
        if name in ("APPEND", "APPENDS"):
            return used[0]
        if name in ("LIST", "EMPTY_LIST"):
            return _Value("list")
        if name in _TUPLES:
            return self._tuple(used)
        if name == "GLOBAL":
            return self._called(str(argument).replace(" ", "."))
        if name in ("REDUCE", "NEWOBJ"):
            called, given = used
            if given.kind != "tuple" or (called.kind in CONTAINERS and given.size > 1):
                raise BadPickle("it fills a dictionary from a list")  # whose keys nobody has looked at
        if name == "BUILD" and used[1].kind == "list":
            raise BadPickle("it fills a dictionary from a list")
        if isinstance(argument, str) and len(argument) > LONGEST_TEXT:
            raise BadPickle(f"it has a text of {len(argument):,} characters")
        if isinstance(argument, int) and abs(argument) > LARGEST_KEY:
            return _OTHER
        return _KEY if argument is not None or name in _WORDS else _OTHER

    def _called(self, name: str) -> _Value:
        if not self._calls(name):
            raise Unsafe(name, called=name)
        return _Value(name)

    def _tuple(self, used: list[_Value]) -> _Value:
        size = 1 + sum(value.size for value in used)
        if size > LARGEST_TUPLE:
            raise BadPickle(f"it has a tuple of more than {LARGEST_TUPLE:,} values")
        if any(value.kind in CONTAINERS for value in used):  # for another to call
            raise BadPickle("it fills a dictionary from a list")
        return _Value("tuple", size)
