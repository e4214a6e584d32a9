"""Comments and names against values: what the plan says when they differ."""

from dataclasses import replace

import pytest

from onecard.config.resolve import resolve
from onecard.findings import Finding
from onecard.plan.intent import intent_findings

CONFIG = """\
wandb_run_name = '{name}'
gradient_accumulation_steps = {accumulation}     # Effective batch size: 16 * 32 = 512 sequences
batch_size = {batch}
# Model (~125M parameters) for a small card
n_layer = 12
n_head = 12
n_embd = {width}
max_iters = {steps}  # ~3B tokens seen
"""


def findings(
    name: str = "run", accumulation: int = 32, batch: int = 16, width: int = 768, steps: int = 5722
) -> list[Finding]:
    text = CONFIG.format(name=name, accumulation=accumulation, batch=batch, width=width, steps=steps)
    return intent_findings(resolve(text, filename="c.py"))


def test_a_config_that_is_what_it_says_gets_no_finding() -> None:
    assert findings() == []
    assert findings(name="gpt-124M-x") == []


def test_the_comment_and_run_name_that_say_125m_are_contradicted_with_the_width_that_was_meant() -> None:
    (finding,) = findings(name="125M-single-parquet-4070", width=384)
    assert finding.what == "the comment and run name say ~125M; this config is 40.56M (n_embd=384; 768 gives 123.59M)"
    assert finding.rule == "params-mismatch"
    assert finding.patch == {"n_embd": 768}
    assert "line 4: # Model (~125M parameters) for a small card" in finding.seen


def test_the_comment_alone_speaks_for_itself() -> None:
    (finding,) = findings(width=384)
    assert finding.what.startswith("the comment says ~125M;")


def test_a_stale_product_with_the_same_result_is_information() -> None:
    (finding,) = findings(accumulation=64, batch=8)
    assert finding.what == "the comment says 16 * 32 = 512 sequences; this is 8 * 64"
    assert finding.severity == "info"


def test_a_stale_product_with_another_result_says_both() -> None:
    (finding,) = findings(accumulation=64, steps=2861)
    assert finding.what == "the comment says 16 * 32 = 512 sequences; this is 16 * 64 = 1,024"
    assert (finding.severity, finding.sure) == ("info", "high")


def test_heads_of_42_are_warned_about() -> None:
    odd = intent_findings(resolve("n_embd = 504\nn_head = 12\n", filename="c.py"))
    assert [(finding.rule, finding.severity) for finding in odd] == [("odd-head-size", "warn")]
    assert odd[0].patch == {"n_embd": 512, "n_head": 8}
    assert intent_findings(resolve("n_embd = 384\nn_head = 12\n", filename="c.py")) == []


def test_tokens_that_differ_from_the_comment_are_told() -> None:
    (finding,) = findings(steps=20_000)
    assert finding.what == "the comment says ~3B tokens; this run reads 10.49B"


@pytest.mark.parametrize(
    "comment",
    [
        "12 batch size * 1024 block size * 5 gradaccum * 8 GPUs = 491,520",
        "fits in 12 GB",
        "this makes total number of tokens be 300B",
        "model files live in /mnt/125MB",
        "baby GPT model :)",
    ],
)
def test_ordinary_comments_are_left_alone(comment: str) -> None:
    assert (
        intent_findings(resolve(f"# {comment}\nbatch_size = 12  # {comment}\nmax_iters = 600000", filename="c.py"))
        == []
    )


@pytest.mark.parametrize(("batch", "accumulation", "keeps"), [(8, 64, "exactly"), (12, 43, "nearly: 528,384")])
def test_a_changed_micro_batch_asks_for_the_accumulation_that_keeps_the_tokens(
    batch: int, accumulation: int, keeps: str
) -> None:
    text = "batch_size = 16\ngradient_accumulation_steps = 32\nblock_size = 1024\n"
    (finding,) = intent_findings(resolve(text, filename="c.py", flags=[("batch_size", str(batch))]))
    assert finding.rule == "accumulation-for-target"
    assert finding.fix == f"--gradient_accumulation_steps={accumulation} keeps it {keeps}"
    both = [("batch_size", str(batch)), ("gradient_accumulation_steps", str(accumulation))]
    assert intent_findings(resolve(text, filename="c.py", flags=both)) == []


@pytest.mark.parametrize(
    ("sequences", "batch", "patch", "keeps"),
    [
        ((16, 4), 1000, (64, 1), "exactly"),
        ((16, 4), 45, (32, 2), "exactly"),
        ((61, 1), 45, (30, 2), "nearly: 61,440"),
        ((3, 1), 2, (1, 3), "exactly"),  # 2 x 2 would be a third too much, and 2 x 1 too little
        ((1, 1), 7, (1, 1), "exactly"),
    ],
)
def test_where_no_accumulation_keeps_the_tokens_the_largest_batch_that_does_is_named(
    sequences: tuple[int, int], batch: int, patch: tuple[int, int], keeps: str
) -> None:
    text = f"batch_size = {sequences[0]}\ngradient_accumulation_steps = {sequences[1]}\nblock_size = 1024\n"
    (finding,) = intent_findings(resolve(text, filename="c.py", flags=[("batch_size", str(batch))]))
    typed = f"--batch_size={patch[0]} --gradient_accumulation_steps={patch[1]}"
    assert finding.fix == f"no accumulation keeps it at {batch}; {typed} keeps it {keeps}"
    assert tuple(finding.patch.values()) == patch


def test_ten_percent_off_is_nearly_and_more_is_not() -> None:
    text = "batch_size = 10\ngradient_accumulation_steps = 1\nblock_size = 1000\n"
    near, far = (
        intent_findings(resolve(text, filename="c.py", flags=[("batch_size", size)]))[0].fix for size in ("11", "12")
    )
    assert near == "--gradient_accumulation_steps=1 keeps it nearly: 11,000"
    assert far == "no accumulation keeps it at 12; --batch_size=10 --gradient_accumulation_steps=1 keeps it exactly"


@pytest.mark.parametrize("before", ["0", "-8", "10**12", "True"])
def test_an_impossible_micro_batch_is_never_proposed(before: str) -> None:
    text = f"batch_size = {before}\ngradient_accumulation_steps = 1\n"
    found = intent_findings(resolve(text, filename="c.py", flags=[("batch_size", "8")]))
    assert [finding.rule for finding in found if finding.patch.get("batch_size", 1) < 1] == []


def test_character_data_brings_its_own_vocabulary() -> None:
    (finding,) = intent_findings(resolve("dataset = 'shakespeare_char'", filename="c.py"))
    assert finding.rule == "vocabulary-from-data"
    assert intent_findings(resolve("dataset = 'shakespeare_char'\nvocab_size = 65", filename="c.py")) == []


@pytest.mark.parametrize("key", ["learning_rate = 6e-4", "batch_size = 8", "max_iters = 100", "warmup_iters = 10"])
def test_a_size_beside_another_key_explains_that_key(key: str) -> None:
    text = f"n_embd = 384\n{key}  # GPT-3's for a 125M model\n"
    assert intent_findings(resolve(text, filename="c.py")) == []


@pytest.mark.parametrize("line", ["# a 125M model", "n_embd = 384  # a 125M model", "out_dir = 'o'  # the 125M model"])
def test_a_size_beside_the_shape_or_on_its_own_line_is_the_models(line: str) -> None:
    (finding,) = intent_findings(resolve(f"n_embd = 384\n{line}\n", filename="c.py"))
    assert finding.rule == "params-mismatch"


@pytest.mark.parametrize(
    "line",
    [
        "batch_size = 16  # 0x10 sequences",
        "batch_size = 16  # 4 x 0",
        f"batch_size = 16  # {'9' * 5000} x 3",
        f"n_layer = 12  # a {'9' * 400}M model",
        "n_layer = 12  # a 0M model",
        "max_iters = 10  # 0B tokens",
    ],
)
def test_numbers_nobody_can_mean_are_left_alone(line: str) -> None:
    assert intent_findings(resolve(line, filename="c.py")) == []


def test_a_size_beyond_all_shapes_gets_the_largest() -> None:
    (finding,) = intent_findings(resolve("n_layer = 12  # a 999999B model", filename="c.py"))
    assert finding.rule == "params-mismatch"


def test_a_size_that_no_width_reaches_is_told_without_a_shape() -> None:
    text = "# a model of ~1M parameters\nn_layer = 2\nn_head = 1\nn_embd = 64\n"
    (finding,) = intent_findings(resolve(text, filename="c.py"))
    assert finding.what == "the comment says ~1M; this config is 3.32M (n_embd=64)"
    assert (finding.patch, finding.fix) == ({}, "fix the comment or the name")


def test_where_params_decides_the_shape_the_words_about_its_size_are_moot() -> None:
    resolved = resolve("n_embd = 384\n# a 125M model\n", filename="c.py")
    assert [finding.rule for finding in intent_findings(resolved)] == ["params-mismatch"]
    by_size = replace(resolved, origins={**resolved.origins, "n_embd": "--params"})
    assert intent_findings(by_size) == []


def test_the_heads_of_trained_weights_are_no_finding() -> None:
    text = "n_embd = 380\nn_head = 10\n"
    assert [finding.rule for finding in intent_findings(resolve(text, filename="c.py"))] == ["odd-head-size"]
    assert intent_findings(resolve(f"{text}init_from = 'runs/mine'\n", filename="c.py")) == []
