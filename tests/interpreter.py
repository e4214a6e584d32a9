"""A pytest plugin for a process with TRITON_INTERPRET=1: kernels run on the CPU, and are watched.

An address outside the tensors that a kernel was given is an error: on a card it may read garbage, or write it. At the
end of the session, the file that ONECARD_LAUNCHES names gets what ran: each function's arguments that are not tensors,
as the truth values that they had; and the kinds of arguments that each kernel was started with, for a compiler.
tests/train/test_kernels_interpreted.py starts the process.
"""

from __future__ import annotations

import inspect
import json
import os
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter

POINTERS = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.int64: "*i64"}

_started: dict[str, dict[str, Any]] = {}  # a kernel and its kinds of arguments -> those arguments
_seen: dict[str, dict[str, set[bool]]] = defaultdict(lambda: defaultdict(set))
_inside: list[tuple[int, int]] = []  # first and last byte + 1 of each tensor of the kernel that runs


def _note(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    seen = _seen[f"{function.__globals__['__name__']}.{function.__name__}"]
    for name, value in inspect.signature(function).bind(*args, **kwargs).arguments.items():
        plain = getattr(value, "value", value)  # of a constexpr
        if isinstance(plain, bool | int | float | str | None):
            seen[name].add(bool(plain))


def _note_start(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A kernel's arguments as a compiler needs them: types of pointers and numbers, and the values of constants."""
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    constants, types = {}, {}
    for name, annotation in inspect.get_annotations(function).items():
        if "constexpr" in str(annotation):
            constants[name] = getattr(given[name], "value", given[name])
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            types[name] = POINTERS[value.dtype]
        elif name not in constants:
            constants |= {name: None} if value is None else {}
            types |= {} if value is None else {name: "i32"}
    name = f"{function.__globals__['__name__']}.{function.__name__}"
    switches = {key: value for key, value in constants.items() if isinstance(value, bool) or value is None}
    _started.setdefault(f"{name} {types} {switches}", {"kernel": name, "types": types, "constants": constants})


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.itemsize


_launch = interpreter.GridExecutor.__call__
_call = interpreter.InterpretedFunction.__call__


def launch(self: Any, *args: Any, **kwargs: Any) -> None:
    given = {name: value for name, value in kwargs.items() if name in self.arg_names}
    _note(self.fn, args, given)
    _note_start(self.fn, args, given)
    tensors = [value for value in (*args, *given.values()) if isinstance(value, torch.Tensor)]
    _inside[:] = [_extent(tensor) for tensor in tensors]
    _launch(self, *args, **kwargs)


def call(self: Any, *args: Any, **kwargs: Any) -> Any:
    _note(self.fn, args, kwargs)
    return _call(self, *args, **kwargs)


def check(addresses: Any, mask: Any) -> None:
    used = np.asarray(addresses)[np.broadcast_to(mask, np.shape(addresses))]
    inside = np.zeros(used.shape, bool)
    for first, end in _inside:
        inside |= (used >= first) & (used < end)
    assert inside.all(), f"{(~inside).sum()} of {inside.size} addresses are outside the kernel's tensors"


def load(addresses: Any, mask: Any, *rest: Any) -> Any:
    check(addresses, mask)
    return memory.load(addresses, mask, *rest)


def store(addresses: Any, values: Any, mask: Any) -> Any:
    check(addresses, mask)
    return memory.store(addresses, values, mask)


def atomic_rmw(operation: Any, addresses: Any, values: Any, mask: Any, *rest: Any) -> Any:
    check(addresses, mask)
    return memory.atomic_rmw(operation, addresses, values, mask, *rest)


memory = interpreter._interpreter
interpreter._interpreter = SimpleNamespace(
    **{name: getattr(memory, name) for name in dir(memory) if not name.startswith("_")}
    | {"load": load, "store": store, "atomic_rmw": atomic_rmw}
)
interpreter.GridExecutor.__call__ = launch
interpreter.InterpretedFunction.__call__ = call


def pytest_sessionfinish() -> None:
    if path := os.environ.get("ONECARD_LAUNCHES"):
        seen = {function: {name: sorted(of) for name, of in each.items()} for function, each in _seen.items()}
        Path(path).write_text(json.dumps({"seen": seen, "started": list(_started.values())}))
