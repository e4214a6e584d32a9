"""Runs whose speed was measured, by trainer, and the one nearest to a config."""

from __future__ import annotations

import math
from functools import cache

from onecard.config.schema import RunConfig
from onecard.plan.cards import Card, find_card
from onecard.plan.counts import count_params
from onecard.plan.speed.measured_run import KEYS, MeasuredRun
from onecard.plan.speed.shared_runs import SHARED_RUNS
from onecard.plan.speed.work import TrainerName

_SXM = "H200 SXM 141 GB"
_H200 = "torch 2.11.0+cu130, 2026-11-15"
_OURS = "torch 2.11.0+cu130, 2026-11-16"
_LATER = "torch 2.11.0+cu130, 2026-11-17"
_BOTH_DAYS = "torch 2.11.0+cu130, 2026-11-16 and 17"
_QUIET = "on unshared cores, torch 2.11.0+cu130, 2026-11-16"
_4070 = "public log, github lzwjava/nanoGPT"
_RENTED = "a public script with its results, torch 2.8: on GitHub, search 477M tok/$ | 2.86B tok/h"
_NOTES = "notes in a copy of build-nanogpt: on GitHub, search tok/sec: 193189.05"
_EIGHT_A100 = "one of eight A100, their memory not said, 2023-02, github karpathy/nanoGPT issue 110"
_4090 = "29 % of 312 TFLOP/s, early 2023, github karpathy/nanoGPT issue 182"
_TWO_4090 = "one of two cards, with RMSNorm, 2025-01, github tyler-romero/nanogpt-speedrun b3c32f8"
_3090_TI = "a public README: on GitHub, search Tokens/s is based on NVIDIA RTX 3090Ti"
_V100 = "a V100 of 32 GB, 2023-03, github karpathy/nanoGPT issue 215"
_COLAB = "a round figure of Colab, 2024, github Guney-olu/Quantgpt"
_TITANS = "one of two cards, 2024-03, github karpathy/nanoGPT issue 466"


# fmt: off
MEASURED_RUNS = (  # of nanoGPT
    MeasuredRun(_SXM, 12, 12, 768, 1024, 8, 8, 50304, "bfloat16", 0.0, True, 469_266, _H200),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 16, 8, 50304, "bfloat16", 0.0, True, 547_896, _H200),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 32, 8, 50304, "bfloat16", 0.0, True, 535_439, _H200),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 8, 8, 50304, "float16", 0.0, True, 467_267, _H200),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 16, 8, 50304, "bfloat16", 0.0, False, 406_889, _H200),
    MeasuredRun(_SXM, 12, 12, 384, 1024, 16, 8, 50304, "bfloat16", 0.0, True, 967_279, _H200),
    MeasuredRun(_SXM, 24, 16, 1024, 1024, 8, 8, 50304, "bfloat16", 0.0, True, 190_331, _H200),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 8, 8, 50304, "bfloat16", 0.0, True, 457_440, _H200),
    MeasuredRun(_SXM, 12, 12, 384, 1024, 16, 8, 50304, "bfloat16", 0.0, True, 937_401, _H200),
    MeasuredRun(_SXM, 24, 16, 1024, 1024, 8, 4, 50304, "bfloat16", 0.0, True, 184_338, _H200),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 8, 4, 50304, "float32", 0.0, True, 162_445, _H200),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 8, 4, 50304, "bfloat16", 0.1, True, 399_266, _H200, bias=True),
    MeasuredRun(_SXM, 8, 8, 512, 1024, 16, 1, 50304, "bfloat16", 0.1, False, 603_898, _H200, bias=True),
    MeasuredRun(_SXM, 12, 12, 768, 512, 8, 1, 50304, "bfloat16", 0.1, False, 231_412, _QUIET, bias=True),
    MeasuredRun(_SXM, 16, 8, 512, 256, 8, 4, 50304, "bfloat16", 0.0, False, 117_600, _QUIET),
    MeasuredRun(_SXM, 4, 8, 512, 64, 64, 4, 50304, "bfloat16", 0.0, True, 829_150, _QUIET),
    MeasuredRun(_SXM, 6, 6, 384, 256, 64, 1, 65, "bfloat16", 0.0, True, 2_059_585, _QUIET),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 4, 8, 50304, "bfloat16", 0.0, True, 398_625, _QUIET),
    MeasuredRun(_SXM, 12, 12, 768, 512, 8, 1, 50304, "bfloat16", 0.0, True, 280_548, _QUIET, bias=True),
    MeasuredRun(_SXM, 16, 12, 768, 256, 4, 2, 50304, "float16", 0.0, True, 79_226, _QUIET),
    MeasuredRun(_SXM, 16, 8, 512, 256, 8, 16, 50304, "bfloat16", 0.0, True, 179_143, _QUIET),
    MeasuredRun(_SXM, 16, 8, 512, 256, 8, 16, 50304, "bfloat16", 0.0, True, 124_835, _QUIET, bias=True),
    MeasuredRun(_SXM, 24, 16, 512, 256, 8, 4, 50304, "bfloat16", 0.0, True, 127_970, _QUIET),
    MeasuredRun(_SXM, 24, 16, 512, 256, 8, 1, 50304, "bfloat16", 0.0, True, 85_262, _QUIET, bias=True),
    MeasuredRun(_SXM, 24, 16, 512, 256, 8, 2, 50304, "float16", 0.0, False, 67_038, _QUIET, bias=True),
    MeasuredRun(_SXM, 4, 4, 256, 256, 32, 4, 50304, "bfloat16", 0.0, True, 1_808_389, _QUIET),
    MeasuredRun(_SXM, 6, 6, 384, 512, 16, 4, 50304, "float16", 0.0, True, 1_336_378, _QUIET),
    MeasuredRun(_SXM, 4, 8, 512, 256, 8, 16, 50304, "bfloat16", 0.0, True, 412_435, _QUIET, bias=True),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 2, 8, 50304, "bfloat16", 0.0, True, 228_102, _QUIET),
    MeasuredRun(_SXM, 6, 8, 512, 512, 8, 2, 32768, "float16", 0.1, True, 535_425, _QUIET, bias=True),
    MeasuredRun(_SXM, 16, 8, 512, 256, 8, 1, 50304, "bfloat16", 0.0, True, 155_860, _QUIET),
    MeasuredRun(_SXM, 16, 8, 512, 256, 8, 1, 50304, "bfloat16", 0.0, True, 122_561, _QUIET, bias=True),
    MeasuredRun(_SXM, 16, 8, 512, 512, 16, 4, 50304, "bfloat16", 0.0, True, 508_978, _QUIET, bias=True),
    MeasuredRun(_SXM, 20, 10, 640, 512, 4, 1, 16384, "float32", 0.0, True, 93_218, _QUIET, bias=True),
    MeasuredRun(_SXM, 24, 8, 512, 256, 8, 4, 50304, "bfloat16", 0.1, True, 75_211, _QUIET),
    MeasuredRun(_SXM, 26, 4, 256, 256, 8, 4, 50304, "bfloat16", 0.0, True, 82_266, _QUIET),
    MeasuredRun(_SXM, 25, 4, 256, 256, 8, 4, 50304, "bfloat16", 0.0, True, 83_926, _QUIET),
    MeasuredRun(_SXM, 25, 4, 256, 256, 8, 4, 50304, "bfloat16", 0.1, True, 90_062, _QUIET),
    MeasuredRun(_SXM, 27, 4, 256, 256, 8, 4, 50304, "bfloat16", 0.0, True, 94_037, _QUIET),
    MeasuredRun("GeForce RTX 4070", 12, 12, 384, 1024, 16, 32, 50304, "bfloat16", 0.1, True, 134_100, _4070),
    MeasuredRun("GeForce RTX 4070", 12, 12, 768, 1024, 8, 64, 50304, "bfloat16", 0.0, True, 56_100, _4070),
    MeasuredRun("GeForce RTX 4070", 18, 16, 896, 1024, 2, 4, 50304, "bfloat16", 0.0, False, 24_750, _4070),
)
_124M = MeasuredRun("", 12, 12, 768, 1024, 16, 32, 50304, "bfloat16", 0.0, True, 0, "", bias=True)
_RENTED_CARDS = (  # sequences of a micro-batch, tokens/s with that many and with twice as many
    ("B200 SXM 180 GB", 64, 785_629, 793_891),
    ("H200 SXM 141 GB", 64, 495_147, 498_141),
    ("RTX PRO 6000 Blackwell", 32, 283_925, 287_774),
    ("H100 NVL 94 GB", 64, 259_018, 262_133),
    ("H100 SXM5 80 GB", 32, 456_914, 466_440),
    ("H100 PCIe 80 GB", 32, 285_373, 289_447),
    ("L40", 16, 96_119, 96_346),
    ("L40S", 16, 141_512, 142_641),
    ("RTX 6000 Ada Generation", 32, 107_156, 104_803),
    ("GeForce RTX 5090", 16, 189_429, 196_551),
    ("L4", 8, 40_338, 40_423),
    ("RTX 4000 Ada Generation", 8, 53_151, 55_103),
    ("RTX 2000 Ada Generation", 8, 30_397, 31_360),
    ("A100 PCIe 80 GB", 32, 185_677, 189_393),
    ("A100 SXM4 80 GB", 32, 203_910, 208_962),
    ("A40 PCIe", 16, 84_471, 87_612),
    ("RTX A6000", 32, 91_140, 92_444),
    ("RTX A5000", 8, 71_234, 73_707),
    ("RTX A4500", 8, 60_910, 62_451),
    ("RTX A4000", 8, 49_211, 51_603),
)
# Of nanoGPT and of scripts with the same model, mostly on one card. The rates of cards without others come from them.
PUBLIC_RUNS = (
    *(
        _124M._replace(
            card=card,
            batch_size=times * sequences,
            gradient_accumulation_steps=512 // (times * sequences),
            tokens_per_second=speed,
            source=_RENTED,
        )
        for card, sequences, *speeds in _RENTED_CARDS
        for times, speed in zip((1, 2), speeds, strict=True)
    ),
    _124M._replace(card="GeForce RTX 5090", tokens_per_second=193_130, source=_NOTES),
    MeasuredRun("A100 SXM4 40 GB", 12, 12, 768, 1024, 12, 5, 50257, "bfloat16", 0.0, True, 109_000, _EIGHT_A100),
    MeasuredRun("GeForce RTX 4090", 12, 12, 768, 1024, 12, 5, 50304, "bfloat16", 0.0, True, 105_900, _4090),
    MeasuredRun("GeForce RTX 4090", 12, 12, 768, 1024, 32, 4, 50304, "bfloat16", 0.0, True, 110_500, _TWO_4090),
    MeasuredRun("GeForce RTX 3090 Ti", 12, 12, 768, 1024, 16, 1, 50257, "bfloat16", 0.0, True, 67_671, _3090_TI, True),
    MeasuredRun("GeForce RTX 3090 Ti", 12, 12, 768, 1024, 16, 32, 50257, "bfloat16", 0.0, True, 69_164, _3090_TI, True),
    MeasuredRun("Tesla V100 SXM2 32 GB", 12, 12, 768, 1024, 12, 5, 50304, "float16", 0.0, True, 56_000, _V100),
    MeasuredRun("Tesla T4", 12, 12, 768, 1024, 8, 64, 50304, "float16", 0.0, True, 20_000, _COLAB, True),
    MeasuredRun("TITAN Xp", 12, 12, 768, 512, 4, 64, 44902, "float16", 0.0, False, 3_881, _TITANS),
)
ONECARD_RUNS = (  # of our own trainer; the mean if there are several
    MeasuredRun(_SXM, 24, 20, 1280, 1024, 24, 2, 50304, "float16", 0.0, True, 122_693, _OURS, False, "full"),
    MeasuredRun(_SXM, 24, 16, 1024, 1024, 4, 12, 50304, "bfloat16", 0.0, True, 205_168, _BOTH_DAYS),
    MeasuredRun(_SXM, 24, 16, 1024, 1024, 6, 8, 50304, "bfloat16", 0.0, True, 209_835, _LATER),
    MeasuredRun(_SXM, 24, 16, 1024, 1024, 8, 8, 50304, "bfloat16", 0.0, True, 210_955, _OURS),
    MeasuredRun(_SXM, 12, 20, 1280, 1024, 8, 4, 50304, "bfloat16", 0.0, True, 224_730, _OURS, False, "full"),
    MeasuredRun(_SXM, 12, 20, 1280, 256, 64, 8, 32768, "float16", 0.0, True, 297_222, _OURS),
    MeasuredRun(_SXM, 16, 16, 1024, 2048, 12, 2, 8192, "float16", 0.0, True, 312_746, _OURS, False, "selective"),
    MeasuredRun(_SXM, 4, 24, 1536, 1024, 8, 2, 50304, "float16", 0.0, True, 423_591, _OURS, False, "selective"),
    MeasuredRun(_SXM, 4, 24, 1536, 2048, 8, 8, 50304, "float16", 0.0, True, 382_804, _OURS, False, "full"),
    MeasuredRun(_SXM, 6, 20, 1280, 1024, 16, 2, 50304, "float16", 0.0, True, 435_454, _OURS, False, "selective"),
    MeasuredRun(_SXM, 8, 20, 1280, 256, 96, 4, 8192, "bfloat16", 0.0, True, 431_705, _OURS, False, "full"),
    MeasuredRun(_SXM, 12, 7, 896, 2048, 4, 4, 50304, "float16", 0.0, True, 396_673, _OURS, False, "selective"),
    MeasuredRun(_SXM, 12, 7, 896, 256, 96, 2, 50304, "bfloat16", 0.0, True, 495_229, _OURS, False, "selective"),
    MeasuredRun(_SXM, 8, 16, 1024, 256, 64, 4, 50304, "bfloat16", 0.0, True, 582_454, _OURS),
    MeasuredRun(_SXM, 24, 5, 640, 1024, 8, 2, 32768, "float16", 0.0, True, 339_797, _OURS, False, "full"),
    MeasuredRun(_SXM, 6, 8, 1024, 1024, 16, 8, 50304, "bfloat16", 0.0, True, 654_361, _OURS),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 8, 8, 50304, "bfloat16", 0.0, True, 558_272, _OURS),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 12, 35, 50304, "bfloat16", 0.0, True, 595_026, _OURS),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 12, 35, 50304, "float16", 0.0, True, 575_880, _BOTH_DAYS),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 14, 30, 50304, "bfloat16", 0.0, True, 581_414, _OURS),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 16, 4, 50304, "bfloat16", 0.0, True, 575_950, _OURS),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 28, 9, 50304, "bfloat16", 0.0, True, 589_089, _OURS),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 30, 14, 50304, "bfloat16", 0.0, True, 613_526, _OURS),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 30, 14, 50304, "float16", 0.0, True, 598_094, _BOTH_DAYS),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 40, 6, 50304, "bfloat16", 0.0, True, 587_458, _OURS, False, "selective"),
    MeasuredRun(_SXM, 12, 12, 768, 1024, 64, 4, 50304, "bfloat16", 0.0, True, 517_081, _OURS, False, "full"),
    MeasuredRun(_SXM, 8, 12, 768, 1024, 8, 8, 50304, "bfloat16", 0.0, True, 746_183, _OURS, False, "selective"),
    MeasuredRun(_SXM, 8, 12, 768, 512, 48, 8, 50304, "bfloat16", 0.0, True, 723_108, _OURS, False, "full"),
    MeasuredRun(_SXM, 12, 12, 576, 1024, 16, 6, 50304, "bfloat16", 0.0, True, 813_623, _LATER),
    MeasuredRun(_SXM, 16, 4, 512, 512, 16, 4, 50304, "float16", 0.0, True, 771_260, _OURS, False, "selective"),
    MeasuredRun(_SXM, 16, 8, 512, 512, 32, 4, 32768, "float16", 0.0, True, 663_579, _OURS, True, "full"),
    MeasuredRun(_SXM, 4, 5, 640, 256, 64, 8, 50304, "bfloat16", 0.0, True, 1_563_551, _OURS),
    MeasuredRun(_SXM, 8, 8, 512, 1024, 8, 2, 50304, "bfloat16", 0.0, True, 972_069, _OURS, True, "selective"),
    MeasuredRun(_SXM, 8, 8, 512, 1024, 16, 4, 50304, "bfloat16", 0.1, True, 1_079_102, _OURS, False, "selective"),
    MeasuredRun(_SXM, 16, 6, 384, 1024, 8, 2, 32768, "bfloat16", 0.0, True, 686_283, _OURS, True, "full"),
    MeasuredRun(_SXM, 12, 12, 384, 1024, 16, 8, 50304, "bfloat16", 0.0, True, 1_167_826, _OURS),
    MeasuredRun(_SXM, 12, 12, 384, 1024, 20, 12, 50304, "bfloat16", 0.0, True, 1_216_561, _OURS),
    MeasuredRun(_SXM, 12, 12, 384, 1024, 60, 4, 50304, "bfloat16", 0.0, True, 1_285_384, _OURS),
    MeasuredRun(_SXM, 6, 8, 512, 512, 32, 4, 32768, "bfloat16", 0.0, True, 1_857_170, _OURS, False, "selective"),
    MeasuredRun(_SXM, 6, 6, 384, 512, 16, 4, 50304, "float16", 0.0, True, 1_812_038, _OURS),
    MeasuredRun(_SXM, 6, 6, 384, 512, 16, 6, 50304, "bfloat16", 0.0, True, 1_906_544, _LATER),
    MeasuredRun(_SXM, 8, 6, 384, 2048, 8, 8, 32768, "bfloat16", 0.0, True, 1_750_475, _OURS, False, "selective"),
    MeasuredRun(_SXM, 12, 6, 384, 512, 32, 4, 8192, "float16", 0.0, True, 1_893_676, _OURS),
    MeasuredRun(_SXM, 24, 4, 256, 1024, 24, 8, 8192, "float16", 0.0, True, 1_576_867, _OURS),
    MeasuredRun(_SXM, 8, 6, 384, 1024, 8, 8, 8192, "bfloat16", 0.0, True, 2_181_980, _OURS, False, "selective"),
    MeasuredRun(_SXM, 8, 6, 384, 1024, 16, 8, 8192, "float16", 0.0, True, 2_518_341, _OURS, False, "selective"),
    MeasuredRun(_SXM, 16, 4, 256, 1024, 24, 8, 8192, "bfloat16", 0.0, True, 1_949_235, _OURS, False, "full"),
)
# fmt: on


def runs_of_card(card: Card) -> tuple[MeasuredRun, ...]:
    """The runs that this machine timed on the card, else those of `SHARED_RUNS`; none for most cards."""
    here = card.calibration
    if here is None:
        return tuple(run for run in SHARED_RUNS if run.card == card.name)
    source = f"onecard tune on this machine, torch {here.torch}, {here.date}"
    return tuple(
        MeasuredRun(
            card=card.name,
            tokens_per_second=run.tokens_per_second,
            source=source,
            **{key: getattr(run.config, key) for key in KEYS},
        )
        for run in here.runs
    )


def nearest_measured(config: RunConfig, card: Card | None, trainer: TrainerName = "nanogpt") -> tuple[str, float]:
    """The trainer's measured run most like a config, with what differs, and its distance: 0 is equal, 1 a factor of e.

    Distances in parameters and in tokens per micro-batch are logarithms of their ratios. Another card, type or mode of
    running counts as a factor, by its effect on speed.
    """
    if trainer == "onecard":
        runs = (*(runs_of_card(card) if card else ()), *ONECARD_RUNS)
    else:
        runs = (*MEASURED_RUNS, *(run for run in PUBLIC_RUNS if card and run.card == card.name))
        config = config.model_copy(update={"grad_checkpoint": "none"})  # nanoGPT has no such key
    run = min(runs, key=lambda each: distance(each, config, card))
    return f"{run.description}; {_differences(run, config, card)}", distance(run, config, card)


def distance(run: MeasuredRun, config: RunConfig, card: Card | None) -> float:
    """How far a config is from a run that was measured: 0 is equal, 1 a factor of e."""
    return math.hypot(
        math.log(count_params(config).nanogpt / run.params),
        math.log(config.batch_size * config.block_size / run.tokens),
        0.5 * math.log(config.block_size / run.block_size),  # attention's share grows with it
        _dtype_distance(run.dtype, _dtype(config, card)),
        0.0 if config.compile == run.compile else 0.7,  # eager takes 1.3 to 2 times as long
        0.0 if (config.dropout > 0) == (run.dropout > 0) else 0.1,
        0.0 if config.bias == run.bias else 0.1,
        0.0 if config.grad_checkpoint == run.grad_checkpoint else 0.5,  # full costs 0.2, but the same mode says more
        _card_distance(run.card, card),
    )


def _dtype(config: RunConfig, card: Card | None) -> str:
    if config.dtype != "auto":
        return config.dtype
    return card.best_dtype() if card else "bfloat16"


def _dtype_distance(one: str, other: str) -> float:
    if one == other:
        return 0.0
    return 1.0 if "float32" in (one, other) else 0.05  # the two 16-bit types run at about the same rate


def _card_distance(name: str, card: Card | None) -> float:
    if card is None:
        return 0.0
    if card.name == name:
        return 0.0
    peak = _peak(name)
    return 1.0 + (abs(math.log(card.peak_flops / peak)) if card.peak_flops and peak else 1.0)


@cache
def _peak(name: str) -> float | None:
    return find_card(name).peak_flops


def _differences(run: MeasuredRun, config: RunConfig, card: Card | None) -> str:
    """`this config: 0.33× the parameters, 2× the tokens per micro-batch, no compile`, or `the same config`."""
    found = []
    for ratio, what in (
        (count_params(config).nanogpt / run.params, "parameters"),
        (config.batch_size * config.block_size / run.tokens, "tokens per micro-batch"),
    ):
        if not 0.99 < ratio < 1.01:
            found.append(f"{ratio:.2g}× the {what}")
    shape = () if found[:1] and "parameters" in found[0] else ("n_layer", "n_head", "n_embd")  # known already
    keys = (*shape, "vocab_size", "block_size", "dropout", "gradient_accumulation_steps")
    if config.model != "gpt2":  # every measured run's
        found.append(f"model {config.model}")
    found += [f"{key} {getattr(config, key)}" for key in keys if getattr(config, key) != getattr(run, key)]
    if (dtype := _dtype(config, card)) != run.dtype:
        found.append(dtype)
    if config.compile != run.compile:
        found.append("compile" if config.compile else "no compile")
    if config.bias != run.bias:
        found.append("biases" if config.bias else "no biases")
    if config.grad_checkpoint != run.grad_checkpoint:
        found.append(f"grad_checkpoint={config.grad_checkpoint}")
    if card and card.name != run.card:
        found.append(f"another card ({card.name})")
    return "this config: " + ", ".join(found) if found else "the same config"
