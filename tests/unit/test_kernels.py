"""Buffers of single kernels, against sizes recorded on an H200 or worked out by hand."""

from __future__ import annotations

import pytest

from onecard.paper import kernels
from onecard.paper.device import H200, Device

RTX_4070 = Device(capability=(8, 9), multiprocessors=46)


def test_a_bias_gradient_over_many_tokens_is_summed_in_two_passes() -> None:
    # 192 lanes of 4 columns in 6 blocks of 32 lanes; 16 parts of 64 rows: 4 bytes x 768 x 16 x 32 x 4
    assert kernels.column_sum_buffers(H200, rows=1024, columns=768) == (6_291_456, 24)
    assert kernels.column_sum_buffers(H200, rows=1024, columns=3072) == (25_165_824, 96)


def test_a_bias_gradient_over_few_tokens_needs_no_scratch() -> None:
    assert kernels.column_sum_buffers(H200, rows=256, columns=4096) is None


def test_flash_cuts_the_keys_only_when_the_batch_does_not_fill_the_card() -> None:
    assert kernels.flash_splits(H200, batch=16, heads=12, tokens=1024, head_size=64) == 1
    # 8 heads x 16 blocks of queries are 128 of 264 slots: two parts fill them best
    assert kernels.flash_splits(H200, batch=1, heads=8, tokens=1024, head_size=64) == 2


def test_flash_backward_rounds_tokens_to_128_and_heads_to_32() -> None:
    assert kernels.flash_backward_buffers(batch=4, heads=12, tokens=1024, head_size=48) == (196_608, 12_582_912)
    assert kernels.flash_backward_buffers(batch=1, heads=1, tokens=1, head_size=8) == (512, 16_384)


def test_the_workspaces_of_attention_are_those_recorded() -> None:
    assert kernels.cudnn_backward_workspace(batch=4, heads=12, tokens=256, head_size=64) == 3_195_136
    assert kernels.cudnn_backward_workspace(batch=4, heads=8, tokens=1024, head_size=128) == 16_908_544
    small = kernels.efficient_backward_workspace(batch=4, heads=6, tokens=256, head_size=64, is_half=False)
    wide = kernels.efficient_backward_workspace(batch=3, heads=2, tokens=256, head_size=160, is_half=False)
    half = kernels.efficient_backward_workspace(batch=2, heads=1, tokens=256, head_size=288, is_half=True)
    assert (small, wide, half) == (1_574_400, 1_180_224, 2_228_544)


@pytest.mark.parametrize(("items", "size"), [(4096, 83_455), (8192, 150_015), (16_384, 283_135), (81_920, 1_346_047)])
def test_the_scratch_of_a_sort_is_that_recorded(items: int, size: int) -> None:
    assert kernels.sort_scratch(items) == size


def test_an_embedding_adds_atomically_only_where_rows_are_few_and_indices_many() -> None:
    assert kernels.embedding_adds_atomically(H200, indices=4096, rows=65, width=384)
    assert not kernels.embedding_adds_atomically(H200, indices=4096, rows=50_304, width=384)


def test_layer_norm_makes_partial_sums_only_beyond_65536_tokens() -> None:
    assert kernels.norm_partial_rows(H200, tokens=65_536, width=128) == 0
    assert kernels.norm_partial_rows(H200, tokens=81_920, width=128) == 2560
    assert kernels.norm_partial_rows(H200, tokens=81_920, width=2112) == 0


def test_a_norm_of_all_gradients_takes_a_float_per_65536_elements_of_the_largest() -> None:
    assert kernels.foreach_norm_scratch([50_304 * 768, *[768] * 14]) == 15 * 590 * 4


@pytest.mark.parametrize(
    ("device", "dtype", "head_size", "kernel"),
    [
        (H200, "bfloat16", 64, "cudnn"),
        (H200, "float16", 256, "cudnn"),
        (H200, "bfloat16", 42, "flash"),
        (H200, "bfloat16", 288, "efficient"),
        (H200, "float32", 64, "efficient"),
        (H200, "float32", 21, "math"),
        (RTX_4070, "float16", 64, "flash"),
        (Device(capability=(7, 5), multiprocessors=40), "float16", 64, "efficient"),
        (Device(capability=(12, 0), multiprocessors=48), "bfloat16", 64, "flash"),
    ],
)
def test_the_attention_kernel_follows_card_type_and_head_size(
    device: Device, dtype: str, head_size: int, kernel: str
) -> None:
    assert device.attention_kernel(dtype, head_size) == kernel


def test_the_l2_cache_is_that_recorded_or_the_makers_figure() -> None:
    assert H200.l2_cache_bytes == 60 * 2**20
    assert RTX_4070.l2_cache_bytes == 36 * 2**20


def test_cublas_workspaces_are_32_mib_on_hopper_and_blackwell_and_8_mib_elsewhere() -> None:
    assert H200.cublas_workspace_bytes == 32 * 2**20
    assert RTX_4070.cublas_workspace_bytes == 8_519_680
