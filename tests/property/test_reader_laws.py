"""Whatever the text: the reader answers or refuses, runs nothing, and a written config reads back the same."""

import random
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onecard.config.reader import NotAConfig, read_config, read_value
from onecard.config.resolve import resolve
from onecard.config.schema import KEYS, RunConfig
from onecard.errors import ConfigError
from tests.share import share

DEFAULTS = {"n_layer": 12, "n_embd": 768, "out_dir": "out", "learning_rate": 6e-4}

# Python raises an audit event before it opens, imports, executes or connects: nothing may pass while we read.
FORBIDDEN = ("open", "exec", "import", "os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.")
_events: list[str] | None = None


def _audit(event: str, arguments: Any) -> None:
    if _events is not None and event.startswith(FORBIDDEN) and arguments[:1] != ("<unknown>",):
        _events.append(event)  # CPython looks for a file "<unknown>" to quote the line of a syntax error


sys.addaudithook(_audit)


@contextmanager
def nothing_happens() -> Iterator[None]:
    global _events
    _events = []
    try:
        yield
        assert _events == [], f"reading a config did this: {_events}"
    finally:
        _events = None


def read_quietly(text: str) -> None:
    with nothing_happens():
        try:
            read_config(text, DEFAULTS)
        except NotAConfig:
            pass


def test_the_guard_sees_an_execution() -> None:
    with pytest.raises(AssertionError, match="exec"), nothing_happens():
        exec("1")


@given(st.text())
@example("n_layer = __import__('os').system('true')")
def test_any_text_is_read_or_refused(text: str) -> None:
    read_quietly(text)


@given(st.sampled_from(sorted(KEYS)), st.text())
def test_any_flag_resolves_or_is_refused(key: str, text: str) -> None:
    read_value(text)
    try:
        resolve(None, flags=[(key, text)])
    except ConfigError as error:
        assert error.what
        assert error.why
        assert error.fix


@given(st.text(alphabet="n_layer=0123456789*()[]'\"+-/%. \n#fxabc,:{}", max_size=200))
def test_texts_that_look_like_configs_resolve_or_are_refused(text: str) -> None:
    try:
        resolve(text, filename="c.py")
    except ConfigError as error:
        assert error.exit_code == 2


def configs() -> st.SearchStrategy[RunConfig]:
    words = st.text(
        alphabet=st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_categories=["Cs"]), max_size=30
    )
    return st.builds(
        lambda heads, size, **keys: RunConfig.model_validate({"n_head": heads, "n_embd": heads * size, **keys}),
        heads=st.integers(1, 64),
        size=st.integers(1, 256),
        n_layer=st.integers(1, 96),
        batch_size=st.integers(1, 512),
        learning_rate=st.floats(0, 1, allow_nan=False),
        dropout=st.floats(0, 0.99),
        max_iters=st.integers(0, 10**9),
        bias=st.booleans(),
        dtype=st.sampled_from(["auto", "bfloat16", "float16", "float32"]),
        out_dir=words,
        wandb_run_name=words,
        memory_limit=st.none() | st.integers(2**20, 2**40),
    )


@given(configs())
def test_a_written_config_reads_back_the_same(config: RunConfig) -> None:
    text = "\n".join(f"{key} = {value!r}" for key, value in config.model_dump().items())
    assert resolve(text, filename="c.py").config == config


def conditions() -> st.SearchStrategy[str]:
    """Expressions with `not`, `and`, `or`, comparisons and choices, over values and the names of a config."""
    values = st.sampled_from(
        ["0", "1", "2.5", "True", "False", "None", "''", "'a'", "'ab'", "n_layer", "(1, 'a')", "[]"]
    )
    signs = st.sampled_from("< <= > >= == != and or in is + // is\tnot not\tin".split(" "))
    return st.recursive(
        values,
        lambda inner: (
            st.builds("(not {})".format, inner)
            | st.builds("({} {} {})".format, inner, signs, inner)
            | st.builds("({} {} {} {} {})".format, inner, signs, inner, signs, inner)
            | st.builds("({} if {} else {})".format, inner, inner, inner)
        ),
        max_leaves=8,
    )


@given(conditions())
@example("(1, 'a') == [1, 'a']")
@example("1 is True")
def test_a_condition_has_the_value_python_gives_it_or_none(text: str) -> None:
    found = read_config(f"key = {text}", DEFAULTS)
    if "key" in found.values:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `1 is 1` is frowned upon
            meant = eval(text, {"n_layer": DEFAULTS["n_layer"]})
        read = found.values["key"]
        assert read == (list(meant) if isinstance(meant, tuple) else meant), text
        assert isinstance(read, bool) == isinstance(meant, bool), text


SEEDS = [
    "out_dir = 'out'\nn_layer = 5 * 8\nlearning_rate = 6e-4 # max\nname = f'{n_layer}-{out_dir}'\nx = [1, 2, (3)]\n",
    "import time\nfrom a import *\nif n_layer > 3:\n    n_layer += 1\nfor i in range(3): pass\nexec('x=1')\n",
    "a = max(1, min(2, int('3')))\nb = round(2.5, 1) ** -2 % 7 // 3\nc = -a + +b\nd = 'x' + str(a) * 2\n",
    "def f(x, *y, **z):\n    return lambda: x\nclass A: n_layer = 1\nwith open('f') as g: pass\n",
    "a = not n_layer\nb = 1 < n_layer <= 9 != n_embd\nc = a and b or 0 in [1]\nd = 1 if a else 2 if b is None else 3\n",
    "a, b = b, a = 1, 2\n(c := 3)\nmatch a:\n    case {'k': v, **rest}: pass\ndel n_layer\nn_layer: int = 4\n",
]
WORDS = (
    "n_layer = ( ) [ ] ' \" * ** \\ # : { } @ -> ... := 1e308 1_000 0x 0b1 é 🙂 lambda: await yield async else if str( "
    "not and or < == in is "
    "import\tos __import__('os').abort() round(1,-10**9) 'a'*10**9 f'{x!r:>9}'"
)
PIECES = [*WORDS.split(" "), "\n", "\t", "\r", "\f", "\x00", "\ud800", "9" * 50]


def mutated(rng: random.Random) -> str:
    text = rng.choice(SEEDS) if rng.random() < 0.9 else ""
    for _ in range(rng.randint(1, 8)):
        at = rng.randint(0, len(text))
        kind = rng.random()
        if kind < 0.5:
            text = text[:at] + rng.choice(PIECES) * rng.choice([1, 1, 1, 2, 40]) + text[at:]
        elif kind < 0.8:
            text = text[:at] + text[at + rng.randint(1, 12) :]
        else:
            other = rng.choice(SEEDS)
            text = text[:at] + other[rng.randint(0, len(other)) :] + text[at:]
    return text


@pytest.mark.slow
def test_a_hundred_thousand_mutated_configs_neither_run_hang_nor_crash() -> None:
    rng = random.Random(20261115)
    slowest = 0.0
    for _ in range(share(100_000)):
        text = mutated(rng)
        start = time.perf_counter()
        read_quietly(text)
        slowest = max(slowest, time.perf_counter() - start)
    assert slowest < 5, f"one text took {slowest:.1f} s"
