"""Laws of counting: more of anything is never fewer parameters or FLOPs."""

from hypothesis import given
from hypothesis import strategies as st

from onecard.config.schema import RunConfig
from onecard.plan.counts import count_params, flops_per_token

shapes = st.builds(
    lambda heads, **keys: RunConfig().replace({"n_head": heads, "n_embd": heads * 64, **keys}),
    heads=st.integers(1, 32),
    n_layer=st.integers(1, 64),
    block_size=st.integers(1, 8192),
    vocab_size=st.integers(1, 200_000),
    bias=st.booleans(),
)


@given(shapes, st.sampled_from(["n_layer", "block_size", "vocab_size"]))
def test_more_of_anything_means_more_parameters_and_flops(config: RunConfig, key: str) -> None:
    more = config.replace({key: getattr(config, key) + 1})
    assert count_params(more).total > count_params(config).total
    assert flops_per_token(more) > flops_per_token(config)


@given(shapes)
def test_the_counts_contain_each_other(config: RunConfig) -> None:
    params = count_params(config)
    assert params.total - params.nanogpt == config.block_size * config.n_embd
    assert 0 < params.decayed < params.total
