"""The config reader: what it knows, what it refuses, and that it never runs anything."""

from pathlib import Path

import pytest

from onecard.config.reader import NotAConfig, read_config, read_value

DEFAULTS = {"n_layer": 12, "n_embd": 768, "max_iters": 600_000, "lr_decay_iters": 600_000, "out_dir": "out"}


def values(text: str) -> dict[str, object]:
    return dict(read_config(text, DEFAULTS).values)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5 * 8", 40),
        ("2 ** 10 + 3 // 2 - 7 % 4", 1022),
        ("-1.5e-4", -1.5e-4),
        ("n_embd * 4", 3072),
        ("'run-' + str(n_layer)", "run-12"),
        ("f'gpt-{n_layer}x{n_embd}'", "gpt-12x768"),
        ("[1, 2.5, 'a']", [1, 2.5, "a"]),
        ("max(1, min(n_layer, 5))", 5),
        ("int(1e3)", 1000),
        ("round(2.7)", 3),
        ("True", True),
        ("None", None),
        ("not True", False),
        ("not n_layer", False),
        ("n_layer == 12", True),
        ("n_layer != 12 or out_dir == 'out'", True),
        ("0 < n_layer <= 12 < n_embd", True),
        ("0 < n_layer < 12 < n_embd", False),
        ("'gpt' in out_dir", False),
        ("n_layer not in (6, 24)", True),
        ("None is None", True),
        ("n_layer is not None", True),
        ("0 or 'out' or 3", "out"),  # the operand itself, as in Python
        ("n_layer and 0.1", 0.1),
        ("0 and 5", 0),
        ("64 if n_layer > 6 else 128", 64),
        ("1 if n_layer > 24 else 2 if n_layer > 6 else 3", 2),
        ("8 if not 1 > 2 and True else 4", 8),
        ("n_embd // n_layer if n_layer else 0", 64),
        ("5 if n_layer else 1 / 0", 5),  # Python does not divide here either
    ],
)
def test_plain_values_are_read(text: str, value: object) -> None:
    assert values(f"key = {text}") == {"key": value}


def test_several_targets_are_read() -> None:
    assert values("a = b = 3\nc, d = 4, 'x'") == {"a": 3, "b": 3, "c": 4, "d": "x"}


def test_a_later_line_wins() -> None:
    assert values("a = 1\na = 2") == {"a": 2}


@pytest.mark.parametrize(
    "source",
    [
        "load()",
        "time.time()",
        "__import__('os').system('true')",
        "open('x')",
        "f'{n_layer:03d}'",  # a format spec could mean anything
        "f'{n_layer!r}'",
        "1 / 0",
        "1e308 * 10",
        "float('nan')",
        "float('inf')",
        "(-1) ** 0.5",
        "2 ** 64",
        "10 ** 10 ** 10",
        "'a' * 10",
        "'%s' % 3",
        "[1] * 3",
        "[[1], [2]]",
        "str([1, 2])",
        "round(5, -10**9)",
        "9" * 3000,
        "b'x'",
        "3j",
        "...",
        "lambda: 3",
        "[i for i in range(3)]",
        "{'a': 1}",
        "n_layer if load() else 3",
        "n_layer if True else load()",  # one name that is not known, wherever it stands
        "True or undefined_name",
        "5 if n_layer else torch.cuda.is_available()",
        "not undefined_name",
        "not load()",
        "1 < load()",
        "n_layer < 'a'",
        "1 in 2",
        "n_layer is 12",  # which of equal numbers are one object is Python's affair
        "(1, 2) == [1, 2]",  # a tuple is read as a list
        "[1] in [[1]]",
        "1 / 0 or 5",
        "True if (n_head := 3) else 4",
        "n_layer.bit_length()",
        "undefined_name",
        "max()",
        "int('x')",
        "int(key=3)",
        "a[0]",
    ],
)
def test_everything_else_is_unresolved_not_guessed(source: str) -> None:
    found = read_config(f"key = {source}", DEFAULTS)
    assert found.values == {}
    assert "key" in found.unresolved


@pytest.mark.parametrize(
    "statement",
    [
        "max_iters = load()",
        "if True:\n    max_iters = 5",
        "for max_iters in range(3): pass",
        "max_iters += 1",
        "from settings import max_iters",
        "import settings as max_iters",
        "with open('x') as max_iters: pass",
        "try:\n    pass\nexcept Exception as max_iters:\n    pass",
        "def max_iters(): pass",
        "class max_iters: pass",
        "del max_iters",
        "other = (max_iters := 5)",
        "other = True or (max_iters := 5)",
        "max_iters = 5 if load() else 6",
        "match 3:\n    case max_iters: pass",
        "max_iters, other = load()",
        "[max_iters, *rest] = [1, 2, 3]",
        "from settings import *",
    ],
)
def test_an_unresolved_name_poisons_what_uses_it(statement: str) -> None:
    found = read_config(f"{statement}\nlr_decay_iters = max_iters", DEFAULTS)
    assert "lr_decay_iters" not in found.values, "it quietly became the default"
    assert "lr_decay_iters" in found.unresolved


def test_a_star_import_may_have_set_anything_until_a_line_says_otherwise() -> None:
    found = read_config("n_embd = 5\nfrom base import *\nn_layer = 6", DEFAULTS)
    assert found.values == {"n_layer": 6}
    assert "n_embd" in found.unresolved


def test_a_bare_annotation_sets_nothing() -> None:
    assert values("n_layer: int\nx = n_layer") == {"x": 12}


def test_a_function_hidden_by_a_name_is_not_called() -> None:
    assert "a" in read_config("from mine import round\na = round(2.5)", DEFAULTS).unresolved
    assert "a" in read_config("int = 3\na = int(2.5)", DEFAULTS).unresolved


def test_names_inside_functions_are_local() -> None:
    assert values("def f():\n    n_layer = 3\nx = n_layer") == {"x": 12}


def test_code_that_could_change_anything_is_reported() -> None:
    found = read_config("exec('n_layer = 3')\nprint('hello')\nglobals()['n_embd'] = 4", DEFAULTS)
    assert sorted(found.code) == [1, 3]


def test_swapping_is_not_misread() -> None:
    found = read_config("a = 1\nb = 2\na, b = b, a", DEFAULTS)
    assert not {"a", "b"} & found.values.keys()


def test_comments_are_kept_with_their_lines() -> None:
    found = read_config("# Model (~125M)\nn_embd = 384  # 16 * 32 = 512\nx = '# no comment'\n", DEFAULTS)
    assert found.comments == {1: "Model (~125M)", 2: "16 * 32 = 512"}


@pytest.mark.parametrize(
    "text", ["n_layer = = 3", "n_layer = (", "\0", "(" * 5000, "1" + "+1" * 30_000, "-" * 60_000 + "1"]
)
def test_what_is_not_python_is_refused_without_harm(text: str) -> None:
    try:
        found = read_config(text, DEFAULTS)
    except NotAConfig:
        return
    assert found.values == {}


def test_growing_lists_and_texts_are_bounded() -> None:
    doubling = "a = 'x' * 1\na = 'xxxxxxxx'\n" + "a = a + a\n" * 40
    assert values(doubling) == {}
    nested = "a = [1]\n" + "a = [a, a]\n" * 40
    assert values(nested) == {}


def test_reading_never_runs_the_file(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    text = (
        f"import pathlib; pathlib.Path({str(trap)!r}).touch()\n"
        f"__import__('pathlib').Path({str(trap)!r}).touch()\n"
        f"n_layer = open({str(trap)!r}, 'w') or 3\n"
        f"n_layer = 3 if True else open({str(trap)!r}, 'w')\n"
        f"n_layer = not open({str(trap)!r}, 'w')\n"
        f"n_layer = 1 < open({str(trap)!r}, 'w')\n"
        f"x = f\"{{open({str(trap)!r}, 'w')}}\"\n"
    )
    read_config(text, DEFAULTS)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("5*8", 40),
        ("not True", False),
        ("6 if True else 4", 6),
        ("this or that", "this or that"),
        ("1e-3", 1e-3),
        ("True", True),
        ("float16", "float16"),
        ("'a b'", "a b"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_flag_values_are_read_like_file_values_and_text_stands_for_itself(text: str, value: object) -> None:
    assert read_value(text) == value
