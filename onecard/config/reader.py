"""Read a nanoGPT config file without running it.

nanoGPT executes its config files. Ours may come from the internet, so we only evaluate what is plainly a value:
constants, lists, names set earlier or nanoGPT's defaults, arithmetic, comparisons, `not`, `and`, `or`, `x if y else z`,
text joining, plain f-strings, and a handful of functions. Everything else is *unresolved*: its source is kept, nothing
is run, and what uses it is unresolved too.
"""

from __future__ import annotations

import ast
import io
import operator
import tokenize
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

MAX_FILE_BYTES = 64 * 1024
MAX_NUMBER = 2**63
MAX_TEXT = 4096
MAX_ITEMS = 1024

_OPERATORS: dict[type[ast.operator], Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[..., bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_FUNCTIONS: dict[str, Callable[..., object]] = {
    "int": int,
    "float": float,
    "str": str,
    "round": round,
    "min": min,
    "max": max,
}
_HARMLESS_CALLS = {"print", "range", "len", *_FUNCTIONS}

Value = int | float | bool | str | None | list["Value"]
Names = dict[str, Value | Callable[..., object]]  # setting a name hides the function of that name, as in Python


class Unresolved(Exception):
    """A value that only running the file could give."""


class NotAConfig(Exception):
    """Text that is not Python at all; the message says where."""


@dataclass
class ConfigFile:
    """What a file says: values, the lines they stand on, what was not run, and every comment by line."""

    values: dict[str, Value] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    unresolved: dict[str, str] = field(default_factory=dict)  # key -> the source text we did not run
    earlier: dict[str, Value] = field(default_factory=dict)  # key -> its value before a later line set it again
    code: dict[int, str] = field(default_factory=dict)  # line -> a statement that could have changed any value
    used: set[str] = field(default_factory=set)  # names that later lines read
    is_blank: bool = False  # comments and bare text only: nothing is set, and nothing would run
    comments: dict[int, str] = field(default_factory=dict)


def read_config(text: str, defaults: Mapping[str, Value]) -> ConfigFile:
    """The values a nanoGPT config file sets, nothing of it run; NotAConfig if it is not Python."""
    source = text.splitlines()
    statements = _parse(text).body
    found = ConfigFile(comments=comments_in(text), is_blank=all(map(_is_bare_text, statements)))
    names: Names = {**_FUNCTIONS, **defaults}
    for statement in statements:
        snippet = "\n".join(source[statement.lineno - 1 : statement.end_lineno]).strip()[:200]
        found.used |= {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        if _could_set_anything(statement):
            found.code[statement.lineno] = snippet
        for key, node in _bindings(statement):
            found.lines[key] = statement.lineno
            if key in found.values:
                found.earlier[key] = found.values.pop(key)
            names.pop(key, None)  # an unresolved name must never fall back to its default
            if key == "*":
                for other in [*defaults, *found.values]:
                    names.pop(other, None)
                    found.values.pop(other, None)
                    found.unresolved[other] = snippet
                    found.lines[other] = statement.lineno
                continue
            try:
                names[key] = found.values[key] = evaluate(node, names)
                found.unresolved.pop(key, None)
            except Unresolved:
                found.unresolved[key] = snippet
    return found


def read_value(text: str) -> Value:
    """The value of a flag such as `5*8`, `1e-3`, `True` or `'a b'`; any other text is a value itself."""
    try:
        match _parse(text.strip()[:MAX_TEXT]).body:
            case [ast.Expr(value=expression)]:
                return evaluate(expression, dict(_FUNCTIONS))
    except (Unresolved, NotAConfig):
        pass
    return text


def is_too_large(text: str) -> bool:
    """Whether a text is a number that is too large to be read."""
    try:
        return float(text) > MAX_NUMBER and any(letter.isdigit() for letter in text)  # "inf" is not a number here
    except ValueError:
        return False


def evaluate(node: ast.expr | None, names: Names) -> Value:
    """The value of an expression that can be known without running it; Unresolved otherwise."""
    if node is None or not _names_read(node) <= names.keys():
        raise Unresolved
    try:
        return _bounded(_evaluate(node, names))
    except (ArithmeticError, TypeError, ValueError, RecursionError, MemoryError) as problem:
        raise Unresolved from problem


def _parse(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as an odd escape in a path
            return ast.parse(text)
    except SyntaxError as problem:
        raise NotAConfig(f"line {problem.lineno}: {problem.msg}") from problem
    except (ValueError, RecursionError, MemoryError) as problem:
        raise NotAConfig(f"it cannot be parsed ({problem or 'nested too deeply'})") from problem


def comments_in(text: str) -> dict[int, str]:
    """The comments of Python text by line, without their #; up to the first line that is not Python."""
    found: dict[int, str] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.ERRORTOKEN and token.string[:1] in ("'", '"'):
                break  # an unterminated string; later versions of Python raise here
            if token.type == tokenize.COMMENT:
                found[token.start[0]] = token.string.lstrip("#").strip()
    except (tokenize.TokenError, SyntaxError):
        pass  # comments are only hints: keep what was found up to here
    return found


def _bindings(statement: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """Each name a statement may set, with the expression of its value; None where only running it would tell."""
    match statement:
        case ast.Assign(targets=targets, value=value):
            known: dict[str, ast.expr | None] = {}
            for target in targets:
                match target, value:
                    case ast.Name(id=key), _:
                        known[key] = value
                    case ast.Tuple(elts=keys) | ast.List(elts=keys), ast.Tuple(elts=values) | ast.List(elts=values) if (
                        len(keys) == len(values) and not any(isinstance(v, ast.Starred) for v in (*keys, *values))
                    ):
                        pairs = zip(keys, values, strict=True)
                        known |= {k.id: v for k, v in pairs if isinstance(k, ast.Name)}
            # the right side of `a, b = b, a` is read before either is set, and `(x := 3)` sets a name of its own
            swapped = isinstance(targets[0], ast.Tuple | ast.List) and known.keys() & _names_read(value)
            for key in _names_bound(statement):
                yield key, None if swapped else known.get(key)
        case ast.AnnAssign(target=ast.Name(), value=None):
            pass
        case ast.AnnAssign(target=ast.Name(id=target_key), value=ast.expr() as value):
            for key in _names_bound(statement):
                yield key, value if key == target_key else None
        case _:
            for key in _names_bound(statement):
                yield key, None


def _names_read(node: ast.expr) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _names_bound(statement: ast.stmt) -> list[str]:
    """Names a statement sets or deletes in its own scope, in order; "*" for a star import."""
    found: dict[str, None] = {}
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop(0)
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found[name] = None
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found |= dict.fromkeys(alias.asname or alias.name.partition(".")[0] for alias in aliases)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = None
                continue  # what is set inside is local
            case ast.Lambda():
                continue
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found[name] = None
            case ast.MatchMapping(rest=str(name)):
                found[name] = None
        pending.extend(ast.iter_child_nodes(node))
    return list(found)


def _is_bare_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _could_set_anything(statement: ast.stmt) -> bool:
    """Whether a statement calls something for its effect: `exec(...)`, `globals().update(...)`."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return not all(isinstance(t, ast.Name | ast.Tuple | ast.List) for t in targets)
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return any(not (isinstance(c.func, ast.Name) and c.func.id in _HARMLESS_CALLS) for c in calls)


def _evaluate(node: ast.expr, names: Names) -> Value:
    match node:
        case ast.Constant(value=int() | float() | str() | None as constant):
            return _bounded(constant)
        case ast.Name(id=name) if name in names and not callable(value := names[name]):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(_evaluate(operand, names))
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return +_number(_evaluate(operand, names))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _operate(op, _evaluate(left, names), _evaluate(right, names))
        case ast.BoolOp(op=joined, values=[*operands, last]):
            for operand in operands:  # stop at the first that decides, as Python does
                if bool(value := _evaluate(operand, names)) == isinstance(joined, ast.Or):
                    return value
            return _evaluate(last, names)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            sides = [_evaluate(side, names) for side in (left, *comparators)]
            return all(_compare(op, a, b) for op, a, b in zip(ops, sides, sides[1:], strict=False))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _evaluate(body if _evaluate(test, names) else orelse, names)
        case ast.List(elts=items) | ast.Tuple(elts=items) if len(items) <= MAX_ITEMS:
            return [_scalar(_evaluate(item, names)) for item in items]
        case ast.JoinedStr(values=parts):
            return _bounded("".join(str(_scalar(_evaluate(part, names))) for part in parts))
        case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
            return _evaluate(inner, names)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if callable(names.get(name)):
            return _call(name, [_evaluate(argument, names) for argument in arguments])
    raise Unresolved


def _operate(op: ast.operator, left: Value, right: Value) -> Value:
    if isinstance(op, ast.Add) and isinstance(left, str) and isinstance(right, str):
        return _bounded(left + right)
    a, b = _number(left), _number(right)
    if isinstance(op, ast.Pow) and (abs(a) > 2**16 or abs(b) > 64):
        raise Unresolved
    return _bounded(_OPERATORS[type(op)](a, b))


def _compare(op: ast.cmpop, left: Value, right: Value) -> bool:
    if isinstance(op, ast.Is | ast.IsNot) and not {type(left), type(right)} & {bool, type(None)}:
        raise Unresolved  # whether equal numbers or texts are one object depends on Python
    if not isinstance(op, ast.In | ast.NotIn):
        right = _scalar(right)  # a tuple is read as a list, which never equals a tuple
    return _COMPARISONS[type(op)](_scalar(left), right)


def _call(name: str, arguments: list[Value]) -> Value:
    if name == "round" and len(arguments) == 2 and not abs(_number(arguments[1])) <= 20:
        raise Unresolved  # rounding to minus a billion digits takes forever
    if name == "str":
        arguments = [_scalar(argument) for argument in arguments]
    return _bounded(_FUNCTIONS[name](*arguments))


def _number(value: Value) -> int | float:
    if isinstance(value, int | float):
        return value
    raise Unresolved


def _scalar(value: Value) -> Value:
    if isinstance(value, list):
        raise Unresolved  # lists of lists can be made to double on every line
    return value


def _bounded(value: object) -> Value:
    match value:
        case int() | float() if abs(value) <= MAX_NUMBER:
            return value
        case str() if len(value) <= MAX_TEXT:
            return value
        case None:
            return None
        case list():
            return value
    raise Unresolved
