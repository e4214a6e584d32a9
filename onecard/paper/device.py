"""What a CUDA device and PyTorch's kernels on it add to a program's own tensors: workspaces, paddings, choices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MIB = 2**20

AttentionKernel = Literal["cudnn", "flash", "efficient", "math"]

# What the driver takes for itself, and when: the code of the first copy, of the embedding, of cuBLAS and its handles,
# of cuDNN's attention. Read off the gaps between segments in recorded traces (H200, CUDA 13, torch 2.11). It is part of
# the context; here it only decides the addresses of PyTorch's segments.
DRIVER_BYTES: dict[str, tuple[int, ...]] = {
    "copy": (2 * MIB,),
    "embedding": (10 * MIB,),
    "cublas forward": (2 * MIB, 64 * MIB),
    "cublas backward": (2 * MIB, 64 * MIB),
    "cudnn": (2 * MIB, 6 * MIB),
    "cudnn backward": (2 * MIB, 6 * MIB),
}


@dataclass(frozen=True, kw_only=True)
class Device:
    """Facts about a card that decide sizes."""

    capability: tuple[int, int]  # compute capability, (9, 0) for sm_90
    multiprocessors: int  # streaming multiprocessors: some kernels split their work by their number

    @property
    def has_bfloat16(self) -> bool:
        """Whether it multiplies bfloat16 in hardware: Ampere and later."""
        return self.capability >= (8, 0)

    @property
    def threads_per_multiprocessor(self) -> int:
        """Resident threads of a multiprocessor. Source: CUDA programming guide, technical specifications."""
        if self.capability < (8, 0):
            return 1024 if self.capability == (7, 5) else 2048
        return 2048 if self.capability in ((8, 0), (9, 0), (10, 0), (10, 3), (11, 0)) else 1536

    @property
    def cublas_workspace_bytes(self) -> int:
        """Bytes of scratch for each cuBLAS handle; the forward thread and the backward thread each have a handle.

        Source: aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize: 32 MiB on Hopper and Blackwell
        (major 9, 10, 12), else ":4096:2:16:8" = 2 x 4096 KiB + 8 x 16 KiB.
        """
        return 32 * MIB if self.capability[0] in (9, 10, 12) else 2 * 4096 * 1024 + 8 * 16 * 1024

    @property
    def cublaslt_workspace_bytes(self) -> int:
        """Bytes of scratch cuBLASLt gets for products with a bias. Source: parseCUDABlasLtWorkspaceSize, 1024 KiB."""
        return 1024 * 1024

    @property
    def l2_cache_bytes(self) -> int:
        """Bytes of the L2 cache. Triton's tuning flushes it with a buffer of this size.

        Recorded on an H200. For other architectures it is NVIDIA's figure for one card (A100, RTX 3090, RTX 4070, RTX
        5070), not checked on that card. Where no figure is known, it is the RTX 4070's.
        """
        known = {(8, 0): 40, (8, 6): 6, (8, 9): 36, (9, 0): 60, (12, 0): 48}
        return known.get(self.capability, 36) * MIB

    def attention_kernel(self, dtype: str, head_size: int, tokens: int = 2) -> AttentionKernel:
        """The kernel F.scaled_dot_product_attention chooses for causal self-attention without a mask.

        Source: native/transformers/cuda/sdp_utils.cpp. cuDNN comes first on sm_90 and sm_100
        (check_prefer_cudnn_attention). It needs heads of a multiple of 8, up to 256 and 128, and more than one token
        (check_cudnn_tensor_shapes). Flash is next, from sm_80 on and up to 256. Both work in half precision only.
        The memory-efficient kernel needs heads of a multiple of 16 bytes (check_mem_efficient_hardware_support and
        minimum_gemm_alignment). Otherwise plain matrix products are left, with their tokens x tokens scores.
        """
        if dtype != "float32" and self.capability >= (8, 0) and head_size <= 256:
            cudnn_limit = {(9, 0): 256, (10, 0): 128}.get(self.capability, 0)
            return "cudnn" if head_size % 8 == 0 and head_size <= cudnn_limit and tokens > 1 else "flash"
        return "math" if dtype == "float32" and head_size % 4 else "efficient"


H200 = Device(capability=(9, 0), multiprocessors=132)
