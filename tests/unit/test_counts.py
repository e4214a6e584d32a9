"""Parameters and FLOPs against nanoGPT's own printout for the shapes people run."""

import pytest

from onecard.config.schema import RunConfig
from onecard.plan.counts import count_params, flops_per_token, mfu, multiplied_params, shape_for_count


def shape(n_layer: int, n_head: int, n_embd: int, block_size: int = 1024, **more: object) -> RunConfig:
    return RunConfig().replace(
        {"n_layer": n_layer, "n_head": n_head, "n_embd": n_embd, "block_size": block_size, **more}
    )


@pytest.mark.parametrize(
    ("config", "printed"),
    [
        (shape(6, 6, 384, 512), "29.94M"),
        (shape(12, 12, 384), "40.56M"),
        (shape(12, 12, 576), "76.77M"),
        (shape(12, 12, 768), "123.59M"),
        (shape(12, 8, 512), "63.52M"),
        (shape(12, 7, 448), "51.45M"),
        (shape(6, 6, 384, 256, vocab_size=65), "10.65M"),
        (shape(48, 25, 1600, vocab_size=50257, bias=True), "1555.97M"),
    ],
)
def test_parameters_are_what_nanogpt_prints(config: RunConfig, printed: str) -> None:
    assert f"{count_params(config).nanogpt / 1e6:.2f}M" == printed


def test_decayed_tensors_are_what_nanogpt_prints() -> None:
    params = count_params(shape(6, 6, 384, 512))
    assert (params.decayed_tensors, params.decayed) == (26, 30_130_176)
    assert params.total == 30_135_168


def test_gpt2_has_the_parameters_openai_published() -> None:
    assert count_params(shape(12, 12, 768, vocab_size=50257, bias=True)).total == 124_439_808


def test_flops_per_token_by_hand() -> None:
    assert flops_per_token(shape(12, 12, 768)) == 6 * 123_587_328 + 12 * 12 * 768 * 1024


def test_all_that_gpt2_multiplies_is_what_nanogpt_counts() -> None:
    for config in (shape(12, 12, 768), shape(6, 6, 384, 256, vocab_size=65, bias=True)):
        assert multiplied_params(config) == count_params(config).nanogpt


def test_nanochats_embedding_is_looked_up_and_its_head_multiplied() -> None:
    config = shape(12, 12, 768, model="nanochat")
    table, blocks = 50304 * 768, 12 * 12 * 768**2
    params = count_params(config)
    assert params.total == params.nanogpt == 2 * table + blocks, "rotary positions and its norms have no weights"
    assert multiplied_params(config) == table + blocks
    assert flops_per_token(config) == 6 * (table + blocks) + 12 * 12 * 768 * 1024


def test_mfu_is_of_this_card() -> None:
    # 134.1k tokens/s with 40.56M parameters on an RTX 4070 (58.3 TFLOP/s): 69 %, which nanoGPT prints as 12.9 %
    config = shape(12, 12, 384)
    assert mfu(config, tokens_per_second=134_100, peak_flops=58.3e12) == pytest.approx(0.69, abs=0.005)
    assert mfu(config, tokens_per_second=134_100, peak_flops=312e12) == pytest.approx(0.129, abs=0.001)


def test_the_width_that_was_meant_is_found() -> None:
    assert shape_for_count(shape(12, 12, 384), 125_000_000) == {"n_embd": 768}
    assert shape_for_count(shape(12, 12, 768), 63_000_000) == {"n_embd": 512, "n_head": 8}
