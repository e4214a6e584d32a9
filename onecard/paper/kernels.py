"""Buffers that PyTorch's CUDA kernels allocate for themselves. No tensor of the program shows them.

Sizes are bytes. Each function names its source in PyTorch (2.11).
"""

from __future__ import annotations

from math import ceil

from onecard.paper.device import AttentionKernel, Device

FLOAT = 4  # bytes of a float32
LONG = 8  # bytes of an int64


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def flash_head_size(head_size: int) -> int:
    """Head size the flash kernels work on: padded to a multiple of 8.

    Source: native/transformers/cuda/attention.cu, _scaled_dot_product_flash_attention pads query, key and value
    (pad_last_dim<8>) before the kernel.
    """
    return round_up(head_size, 8)


def flash_rounded_head_size(head_size: int) -> int:
    """Head size of flash's float32 accumulators. Source: flash_attn/flash_api.cpp, head_size_rounded."""
    return round_up(head_size, 32 if head_size <= 128 else 64)


def multiplied_head_size(kernel: AttentionKernel, head_size: int) -> int:
    """Head size that a kernel's products really have: tiles are whole.

    cuDNN's names on an H200 end in 64, 128 and 192, and its times rise in steps of 64 (bench/attention_kernels.py).
    """
    if kernel == "cudnn":
        return round_up(head_size, 64)
    return flash_rounded_head_size(head_size) if kernel == "flash" else head_size


def flash_splits(device: Device, batch: int, heads: int, tokens: int, head_size: int) -> int:
    """Parts into which flash's forward pass cuts the keys when a batch is too small to fill the card; 1 = not cut.

    Source: flash_attn/flash_api.cpp, set_params_splitkv and num_splits_heuristic (never with dropout).
    """
    block = 256 if head_size <= 64 else 128 if head_size <= 128 else 64
    key_blocks = ceil(tokens / block)
    work = batch * heads * ceil(tokens / 64)
    slots = 2 * device.multiprocessors
    if work >= 0.8 * slots:
        return 1

    def eligible(splits: int) -> bool:
        return splits == 1 or ceil(key_blocks / splits) != ceil(key_blocks / (splits - 1))

    efficiency = {}
    for splits in range(1, min(128, slots, key_blocks) + 1):
        if eligible(splits):
            waves = work * splits / slots
            efficiency[splits] = waves / ceil(waves)
    best = max(efficiency.values())
    return next(splits for splits, value in efficiency.items() if value >= 0.85 * best)


def flash_backward_buffers(batch: int, heads: int, tokens: int, head_size: int) -> tuple[int, int]:
    """(softmax_d, dq_accum): row sums and the float32 gradient of the queries. Source: flash_api.cpp, mha_bwd."""
    rows = batch * heads * round_up(tokens, 128) * FLOAT
    return rows, rows * flash_rounded_head_size(head_size)


def cudnn_backward_workspace(batch: int, heads: int, tokens: int, head_size: int) -> int:
    """cuDNN attention's backward scratch: the float32 gradient of the queries, row sums, 256 bytes of its own.

    Source: native/cudnn/MHA.cpp, run_cudnn_SDP_bprop asks cuDNN (get_workspace_size); its answers were recorded.
    """
    return batch * heads * tokens * (head_size + 1) * FLOAT + CUDNN_FORWARD_WORKSPACE


CUDNN_FORWARD_WORKSPACE = 256  # bytes; run_cudnn_SDP_fprop, recorded


def efficient_logsumexp(batch: int, heads: int, tokens: int) -> int:
    """Log-sum-exp of memory-efficient attention, rows aligned to 32. Source: _efficient_attention_forward."""
    return batch * heads * round_up(tokens, 32) * FLOAT


def efficient_backward_workspace(batch: int, heads: int, tokens: int, head_size: int, *, is_half: bool) -> int:
    """Scratch of memory-efficient attention's backward: a lock and a float32 accumulator for each tile of queries.

    Source: mem_eff_attention/kernel_backward.h, workspace_elements_gq and GradQTempStorage: 16 bytes and 64 x 64,
    128 x 64 for heads larger than 64. Half precision accumulates keys and values of heads larger than 128 as well
    (workspace_elements_gk, _gv: 64 rows for each split of the keys, columns aligned to 128).
    """
    rows = 64 if head_size <= 64 else 128
    tiles = ceil(tokens / rows) * ceil(head_size / 64)
    size = tiles * (16 + rows * 64 * FLOAT)
    if is_half and head_size > 128:
        size += 2 * round_up(tokens, 64) * round_up(head_size, 128) * FLOAT
    return batch * heads * size


def _last_power_of_2(value: int) -> int:
    return 1 << (value.bit_length() - 1)


def column_sum_buffers(device: Device, rows: int, columns: int) -> tuple[int, int] | None:
    """(partial sums, semaphores) of a sum over the rows of a matrix (a bias gradient); None if one pass does it.

    Source: native/cuda/Reduce.cuh, setReduceConfig for a reduction that is not over the fastest dimension;
    partial sums are float32 for every input type.
    """
    vector = next(size for size in (4, 2, 1) if columns % size == 0)
    most_threads = 512 // vector
    lanes = columns // vector
    wide = _last_power_of_2(lanes) if lanes < most_threads else most_threads
    high = _last_power_of_2(rows) if rows < most_threads else most_threads
    width = min(wide, 32)
    height = min(high, most_threads // width)
    width = min(wide, most_threads // height)
    if rows < min(height * 16, 256):
        return None
    values = ceil(rows / height)  # per thread, once the rows are split over the warps of a block
    grid = ceil(lanes / width)
    target = device.multiprocessors * (device.threads_per_multiprocessor // (width * height))
    if values < 256 or grid > target:
        return None
    blocks = max(min(ceil(target / grid), ceil(values / 16)), ceil(values / 256))
    if blocks <= 1:
        return None
    return FLOAT * columns * blocks * width * vector, 4 * grid


def norm_partial_rows(device: Device, tokens: int, width: int) -> int:
    """Rows of partial sums that LayerNorm's backward makes for its weight when there are very many tokens; 0 = none.

    Source: native/cuda/layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel.
    """
    if tokens <= 64 * 1024 or width // 32 >= device.multiprocessors // 2:
        return 0
    return min(64 * 1024 // 2 // ceil(width / 32), ceil(tokens / 32))


EMBEDDING_SORT_FROM = 3072  # more indices than this are sorted first (Embedding.cu, embedding_dense_backward_cuda)


def sort_scratch(items: int) -> int:
    """CUB's radix sort of `items` int64 pairs: second buffers, histograms of 8 passes, look-back, counters.

    Source: cub/device/dispatch/dispatch_radix_sort.cuh, InvokeOnesweep (4608 items a tile); pieces of 256 bytes.
    """
    lookback = ceil(items / 4608) * 256 * 4
    return 255 + 2 * round_up(LONG * items, 256) + 8 * 256 * LONG + round_up(lookback, 256) + 256


def scan_scratch(items: int, tile: int) -> int:
    """CUB's one-pass algorithms over int64: a 16-byte state for each tile plus one warp, in pieces of 256 bytes.

    Source: cub/agent/single_pass_scan_operators.cuh, ScanTileState::AllocationSize, inside AliasTemporaries again.
    """
    states = round_up(16 * (ceil(items / tile) + 32), 256) + 255
    return round_up(states, 256) + 255


SCAN_TILE = 896  # items of a tile of cub::DeviceScan on int64: 128 threads x 7
UNIQUE_TILE = 4096  # items of a tile of cub::DeviceSelect::UniqueByKey; only its order of magnitude matters


def embedding_partial_rows(indices: int, rows: int) -> int:
    """Most partial sums that embedding's backward makes: 10 indices each, and at least one segment a row.

    Source: native/cuda/EmbeddingBackwardKernel.cu, embedding_backward_cuda_kernel (NROWS_PER_THREAD = 10).
    """
    return indices // 10 + min(indices, rows)


def embedding_adds_atomically(device: Device, indices: int, rows: int, width: int) -> bool:
    """Whether embedding's backward adds partial sums straight into the gradient: few rows with many indices each.

    Source: EmbeddingBackwardKernel.cu, use_fused_kernel (the default: not deterministic).
    """
    warped = round_up(width, 32)
    blocks = ceil(min(indices, rows) * warped / min(warped, 1024))
    return blocks < 4 * device.multiprocessors and embedding_partial_rows(indices, rows) > 4 * blocks


def foreach_norm_scratch(elements: list[int]) -> int:
    """Partial norms of torch._foreach_norm: for each tensor, a float32 per 65536 elements of the largest tensor.

    Source: native/cuda/ForeachReduceOp.cu, foreach_tensor_norm_cuda (kChunkSize = 65536).
    """
    return len(elements) * ceil(max(elements) / 65536) * FLOAT
