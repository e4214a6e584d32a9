"""defaults < file < flags, with the origin of every value and clear refusals."""

import pytest

from onecard.config.resolve import resolve
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
        ("compile", "1"),
        ("compile", "maybe"),
        ("dtype", "fp8"),
        ("memory_limit", "lots"),
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


def test_nanogpts_own_dtype_line_means_auto() -> None:
    line = "dtype = 'bfloat16' if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else 'float16'"
    assert resolve(line).config.dtype == "auto"


@pytest.mark.parametrize(("key", "text"), [("tokenizer", "2024"), ("recipe", "1.5"), ("out_dir", "2024")])
def test_a_name_may_look_like_a_number(key: str, text: str) -> None:
    assert getattr(resolve(None, flags=[(key, text)]).config, key) == text


def test_none_is_no_name() -> None:
    assert resolve("tokenizer = 'gpt2'", flags=[("tokenizer", "None")]).config.tokenizer is None
    assert refused(None, wandb_project="None").what == "wandb_project=None is not text"


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "'just a string'"])
def test_a_file_that_sets_nothing_is_refused(text: str) -> None:
    assert refused(text).name == "empty-config"


def test_what_is_not_python_is_refused_with_the_line() -> None:
    error = refused("n_layer = 3\nn_head = = 4")
    assert "line 2" in error.why


def test_starting_from_openais_weights_takes_their_shape() -> None:
    found = resolve("init_from = 'gpt2-xl'\nn_layer = 6\n", filename="c.py")
    assert (found.config.n_layer, found.config.n_head, found.config.n_embd) == (48, 25, 1600)
    assert (found.config.vocab_size, found.config.bias) == (50257, True)
    assert found.origins["n_layer"] == "init_from=gpt2-xl"
    assert "n_layer has no effect" in found.warnings[0]


def test_a_changed_copy_is_checked_again() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        RunConfig().replace({"n_head": 7})


def test_every_key_says_what_it_means() -> None:
    assert all(KEYS.values())
