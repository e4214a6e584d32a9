"""defaults < file < flags, with the origin of every value and clear refusals."""

from decimal import Decimal
from enum import Enum
from pathlib import Path

import pytest

from onecard.config.plain import plain
from onecard.config.resolve import resolve, resolve_mapping
from onecard.config.schema import KEYS, NANOGPT_KEYS, RunConfig
from onecard.errors import ConfigError


def refused(text: str | None, **flags: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        resolve(text, filename="c.py", flags=flags.items())
    return caught.value


def test_flags_beat_the_file_and_the_file_beats_defaults() -> None:
    found = resolve("n_layer = 6\nn_head = 6\nn_embd = 384\n", filename="c.py", flags=[("n_layer", "3")])
    assert (found.config.n_layer, found.config.n_head, found.config.block_size) == (3, 6, 1024)
    assert found.origins["n_layer"] == "--n_layer"
    assert found.origins["n_head"] == "c.py:2"
    assert found.origins["block_size"] == "default"


def test_nanogpt_defaults_are_nanogpts() -> None:
    c = RunConfig()
    assert (c.n_layer, c.n_head, c.n_embd, c.block_size, c.batch_size) == (12, 12, 768, 1024, 12)
    assert (c.gradient_accumulation_steps, c.learning_rate, c.min_lr, c.max_iters) == (40, 6e-4, 6e-5, 600_000)
    assert c.tokens_per_step == 491_520  # nanoGPT's train_gpt2.py says 491,520
    assert len(NANOGPT_KEYS) == 33


def test_the_packaged_default_is_used_without_a_file() -> None:
    found = resolve(None)
    assert found.source is None
    assert found.origins["n_layer"] == "packaged default"
    assert found.config.dataset == "python-stdlib"
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("key", "text"), [("max_iters", "6e5"), ("learning_rate", "1"), ("compile", "false"), ("compile", "True")]
)
def test_exact_numbers_and_yes_or_no_are_accepted(key: str, text: str) -> None:
    resolve(None, flags=[(key, text)])


def test_zero_and_one_are_no_and_yes() -> None:
    """As in nanoGPT, whose `if wandb_log:` takes them alike."""
    found = resolve("wandb_log = 0\nbias = 1\ncompile = 0\n", filename="c.py", flags=[("decay_lr", "0")]).config
    assert (found.wandb_log, found.bias, found.compile, found.decay_lr) == (False, True, False, False)
    assert resolve_mapping({"eval_only": 1}).config.eval_only is True
    assert resolve("grad_checkpoint = 1\n", filename="c.py").config.grad_checkpoint == "full"


@pytest.mark.parametrize("text", ["2", "-1", "0.0", "1.0", "'0'", "no"])
def test_other_numbers_and_words_are_not_a_yes_or_no(text: str) -> None:
    problem = refused(f"wandb_log = {text}\n") if text != "no" else refused(None, wandb_log=text)
    assert (problem.name, "is not True or False" in problem.what) == ("bad-value", True)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("n_layer", "'12'"),
        ("n_layer", "twelve"),
        ("n_layer", "1.5"),
        ("n_layer", "True"),
        ("n_layer", "0"),
        ("n_layer", "-3"),
        ("n_layer", "10**12"),
        ("n_layer", "[1,2]"),
        ("n_layer", "None"),
        ("batch_size", "-2"),
        ("dropout", "1.0"),
        ("dropout", "nan"),
        ("compile", "2"),
        ("compile", "maybe"),
        ("dtype", "fp8"),
        ("memory_limit", "lots"),
        ("memory_limit", "0"),
        ("memory_limit", "12"),
        ("memory_limit", "500k"),
        ("learning_rate", "-1"),
        ("eval_block_size", "4096"),
        ("n_head", "7"),
    ],
)
def test_wrong_values_are_refused_by_name(key: str, text: str) -> None:
    error = refused(None, **{key: text})
    assert key in error.what
    assert f"--{key}" in error.why
    assert error.fix
    assert error.exit_code == 2


def test_text_keys_take_text_as_it_stands() -> None:
    found = resolve(None, flags=[("out_dir", "a=b"), ("dataset", "123"), ("wandb_run_name", "1e3")]).config
    assert (found.out_dir, found.dataset, found.wandb_run_name) == ("a=b", "123", "1e3")


def test_sizes_are_sizes() -> None:
    assert resolve(None, flags=[("memory_limit", "12GiB")]).config.memory_limit == 12 * 2**30


def test_a_forgotten_unit_is_offered() -> None:
    assert refused(None, memory_limit="12").fix == "--memory_limit=12GiB"


def test_a_comma_in_a_size_is_no_point_and_is_offered_as_one() -> None:
    error = refused(None, memory_limit="9,5GiB")
    assert error.what == "memory_limit='9,5GiB' is not a size"
    assert error.fix == "--memory_limit=9.5GiB"
    assert refused(None, memory_limit="0.5").fix == "--memory_limit=0.5GiB"


@pytest.mark.parametrize(("key", "text"), [("seed", "9" * 23), ("learning_rate", "1e308"), ("max_hours", "1e400")])
def test_a_number_beyond_all_that_are_read_is_too_large_and_still_a_number(key: str, text: str) -> None:
    assert refused(None, **{key: text}).what.startswith(f"{key}={text} is too large")


@pytest.mark.parametrize("text", ["inf", "nan", "much"])
def test_what_is_no_number_is_not_too_large(text: str) -> None:
    assert refused(None, learning_rate=text).what == f"learning_rate={text!r} is not a number"


@pytest.mark.parametrize("key", ["out_dir", "dataset", "init_from"])
def test_a_path_after_an_equals_sign_is_never_empty_and_its_tilde_is_home(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert getattr(resolve(None, flags=[(key, "~/some/x")]).config, key) == "/home/me/some/x"
    assert getattr(resolve(None, flags=[(key, "a/~b")]).config, key) == "a/~b"
    for empty in ("", "''", " "):
        with pytest.raises(ConfigError) as caught:
            resolve(None, flags=[(key, empty)])
        assert caught.value.what == f"--{key} is empty"


def test_checkpointing_may_be_said_as_yes_or_no() -> None:
    assert resolve(None, flags=[("grad_checkpoint", "true")]).config.grad_checkpoint == "full"
    assert resolve(None, flags=[("grad_checkpoint", "False")]).config.grad_checkpoint == "none"


def test_an_unknown_flag_names_the_nearest_key() -> None:
    assert "--n_layer=6" in refused(None, n_layr="6").fix
    assert "--batch_size=6" in refused(None, **{"batch-size": "6"}).fix


def test_an_unknown_key_in_a_file_is_one_warning() -> None:
    found = resolve(
        "n_layers = 3\neval_batch_size = 2\n_private = 1\nimport time\nk = 5\nbatch_size = k\n", filename="c.py"
    )
    (warning,) = found.warnings
    assert "n_layers (n_layer?)" in warning
    assert "nanoGPT would silently ignore eval_batch_size" in warning
    assert "time" not in warning
    assert " k" not in warning, "a helper that a later line reads is no typo"
    assert found.config.eval_batch_size == 2
    assert found.config.batch_size == 5


def test_unresolved_is_a_warning_until_it_matters() -> None:
    found = resolve("import time\nwandb_run_name = 'x' + str(time.time())\nn_layer = 3", filename="c.py")
    assert "wandb_run_name" in found.warnings[0]
    assert found.config.wandb_run_name == "gpt2"
    error = refused("n_layer = layers()")
    assert error.name == "unresolved-key"
    assert "--n_layer=VALUE" in error.fix
    assert resolve("n_layer = layers()", flags=[("n_layer", "3")]).config.n_layer == 3


def test_all_keys_that_only_code_says_are_told_in_one_error() -> None:
    error = refused("n_layer = layers()\nn_head, n_embd = shape()\nwandb_run_name = now()\nbatch_size = 4\n")
    assert error.what == "c.py, lines 1 and 2: the values of n_layer, n_head and n_embd are not known"
    assert error.why.endswith("never run: n_layer = layers(); n_head, n_embd = shape()")
    assert error.fix == "set them on the command line: --n_layer=VALUE --n_head=VALUE --n_embd=VALUE"
    assert error.name == "unresolved-key"
    left = refused("n_layer = layers()\nn_head, n_embd = shape()\n", n_layer="6", n_head="6")
    assert left.what == "c.py:2: the value of n_embd is not known"


def test_a_star_import_is_told_once() -> None:
    error = refused("from base import *\n")
    assert error.what.startswith("c.py:1: the values of gradient_accumulation_steps, batch_size, ")
    assert error.why.count("from base import *") == 1
    assert refused("from base import *\n").what == error.what


def test_a_switch_may_be_said_with_a_condition() -> None:
    found = resolve("compile = not True\nbatch_size = 8 if n_layer > 6 else 16\nbias = device == 'cpu'\n").config
    assert (found.compile, found.batch_size, found.bias) == (False, 8, False)


def test_a_mapping_is_over_nanogpts_defaults() -> None:
    assert resolve_mapping({}).config == RunConfig()
    found = resolve_mapping({"n_layer": 6}, flags=[("n_head", "6")])
    assert (found.config.n_layer, found.config.n_head, found.config.block_size) == (6, 6, 1024)
    assert (found.origins["n_layer"], found.origins["n_head"]) == ("config:1", "--n_head")
    assert found.source == "config"


def test_an_unknown_key_of_a_mapping_is_refused_as_a_flag_is() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_mapping({"n_layers": 3, "batch_size": 4, "datset": "a b", 7: 8})  # type: ignore[dict-item]
    assert caught.value.name == "unknown-key"
    assert caught.value.what == "n_layers, datset and 7 are not config keys"
    assert caught.value.fix == "did you mean n_layer=3 dataset='a b' ?"
    assert refused(None, n_layr="6", hed="2").what == "--n_layr and --hed are not config keys"


def test_values_of_a_mapping_are_checked_not_read_as_text() -> None:
    for key, value in (("dropout", float("nan")), ("n_layer", 10**30), ("n_layer", "12"), ("init_from", [1])):
        with pytest.raises(ConfigError) as caught:
            resolve_mapping({key: value})
        assert caught.value.name == "bad-value"
        assert caught.value.what.startswith(f"{key}={value!r}")


class Scalar:
    """A number of another library, with the method it is known by."""

    def __init__(self, method: str, value: object) -> None:
        self.method, self.value = method, value

    def __getattr__(self, name: str) -> object:
        if name != self.method:
            raise AttributeError(name)
        return lambda: self.value


class Name(str, Enum):  # noqa: UP042  # the older way, whose str() is the name
    SHORT = "gpt2"


@pytest.mark.parametrize(
    ("value", "same"),
    [
        (Scalar("item", True), True),
        (Scalar("__index__", 6), 6),
        (Scalar("__float__", 0.5), 0.5),
        (Decimal("0.5"), 0.5),
        (Path("a/b"), "a/b"),
        (Name.SHORT, "gpt2"),
        (True, True),
        (None, None),
        ([1], [1]),
        (b"12", b"12"),
    ],
)
def test_a_value_of_another_library_is_pythons_own(value: object, same: object) -> None:
    found = plain(value)
    assert (type(found), found) == (type(same), same)


def test_numpys_scalars_are_numbers() -> None:
    numpy = pytest.importorskip("numpy", reason="needs numpy")
    keys = {"n_layer": numpy.int64(6), "dropout": numpy.float32(0.5), "compile": numpy.bool_(False)}
    keys |= {"learning_rate": numpy.float64(1e-3), "dataset": numpy.str_("x"), "batch_size": numpy.array(4)}
    found = resolve_mapping(keys).config
    assert (found.n_layer, found.dropout, found.compile) == (6, 0.5, False)
    assert (found.learning_rate, found.dataset, found.batch_size) == (1e-3, "x", 4)
    with pytest.raises(ConfigError, match="is not a whole number"):
        resolve_mapping({"n_layer": numpy.array([1, 2])})


def test_nanogpts_own_dtype_line_means_auto() -> None:
    line = "dtype = 'bfloat16' if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else 'float16'"
    assert resolve(line).config.dtype == "auto"


@pytest.mark.parametrize(("key", "text"), [("wandb_project", "1.5"), ("out_dir", "2024")])
def test_a_name_may_look_like_a_number(key: str, text: str) -> None:
    assert getattr(resolve(None, flags=[(key, text)]).config, key) == text


def test_none_is_not_a_name() -> None:
    assert refused(None, wandb_project="None").what == "wandb_project=None is not text"


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_nothing_at_all_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(text, filename="standard input")
    assert caught.value.name == "empty-config"


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "'just a string'"])
def test_a_config_file_that_sets_nothing_has_nanogpts_defaults_and_says_so(text: str) -> None:
    found = resolve(text, filename="mine.py", flags=[("n_layer", "6")])
    assert found.config == RunConfig(n_layer=6)
    assert found.warnings == ("mine.py sets nothing: nanoGPT's defaults apply",)


MODEL = (
    "import torch\nfrom torch import nn\n\nclass GPT(nn.Module):\n    n_layer = 3\n\nconfig_args = dict(n_layer=12)\n"
)


@pytest.mark.parametrize(
    "text", [MODEL, "print('hello')\n", "x = 1\n", "exec(open('other.py').read())\n", "def f(): ..."]
)
def test_python_that_sets_no_key_is_not_a_config(text: str) -> None:
    problem = refused(text, n_layer="6")
    assert (problem.name, problem.what) == ("no-config-key", "c.py sets no config key")
    assert problem.fix == "a config has lines such as `n_layer = 12`"


def test_where_every_key_is_mistyped_the_fix_has_the_right_ones() -> None:
    assert refused("n_layers = 12\nbatchsize = 8\n").fix == "did you mean `n_layer = 12`, `batch_size = 8` ?"


def test_one_key_makes_a_config_of_a_program() -> None:
    """As nanoGPT's train.py is one: it sets every key, and then runs."""
    assert resolve(f"{MODEL}\nn_layer = 6\nn_head = 6\nn_embd = 384\n").config.n_layer == 6
    assert "n_layer" in refused("n_layer = layers()\n").what  # known not to be known: another error


def test_a_longer_evaluated_context_gets_a_flag_to_paste() -> None:
    assert refused(None, block_size="512", eval_block_size="2048").fix.startswith("--eval_block_size=512,")


def test_what_is_not_python_is_refused_with_the_line() -> None:
    error = refused("n_layer = 3\nn_head = = 4")
    assert "line 2" in error.why


def test_starting_from_openais_weights_takes_their_shape() -> None:
    found = resolve("init_from = 'gpt2-xl'\nn_layer = 6\n", filename="c.py")
    assert (found.config.n_layer, found.config.n_head, found.config.n_embd) == (48, 25, 1600)
    assert (found.config.vocab_size, found.config.bias) == (50257, True)
    assert found.origins["n_layer"] == "init_from=gpt2-xl"
    assert "n_layer has no effect" in found.warnings[0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"muon_learning_rate": "0.01"}, "muon_learning_rate: optimizer=adamw"),
        ({"head_learning_rate": "0.1"}, "head_learning_rate: model=gpt2"),
        ({"decay_share": "0.5"}, "decay_share: schedule=cosine"),
        ({"model": "nanochat", "grad_checkpoint": "selective"}, "grad_checkpoint=selective: model=nanochat"),
        ({"recipe": "fast", "optimizer": "adamw", "muon_momentum": "0.5"}, "muon_momentum: optimizer=adamw"),
    ],
)
def test_a_key_that_does_nothing_beside_another_is_said_once(flags: dict[str, str], words: str) -> None:
    (warning,) = resolve(None, flags=flags.items()).warnings
    subject, _, reason = words.partition(": ")
    assert warning.startswith(f"{subject} has no effect with {reason}: ")


@pytest.mark.parametrize(
    "flags",
    [
        {"optimizer": "muon", "muon_momentum": "0.9"},
        {"model": "nanochat", "head_learning_rate": "0.1"},
        {"schedule": "wsd", "decay_share": "0.5"},
        {"grad_checkpoint": "selective"},
        {"init_from": "a-nanochat-of-transformers", "head_learning_rate": "0.1"},
        {"recipe": "fast", "optimizer": "adamw", "model": "gpt2", "schedule": "cosine"},
    ],
)
def test_a_key_that_counts_or_that_nobody_set_is_not(flags: dict[str, str]) -> None:
    assert resolve(None, flags=flags.items()).warnings == ()


def test_a_changed_copy_is_checked_again() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        RunConfig().replace({"n_head": 7})


def test_every_key_says_what_it_means() -> None:
    assert all(key.meaning for key in KEYS.values())


def test_a_refused_value_is_explained_by_the_keys_meaning() -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(None, flags=[("n_layer", "0")])
    assert refused.value.why.startswith("n_layer is: transformer blocks")


def test_all_that_a_model_does_not_have_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        resolve("dropout = 0.1\nbias = True", flags=[("model", "nanochat")])
    assert "--dropout=0.0 --bias=False" in (refused.value.fix or "")
