"""How fast a card does its work: shares of its published figures, times of the host, and how sure we are.

The H200's numbers are fitted to kernels and steps of measured runs. `bench/speed_errors.py` fits them again and shows
the error of every row when it is left out. Other cards use these numbers with the changes noted at each; what was not
measured is called an estimate. The host's times are for one core that nobody else used, of a rented Xeon of medium
speed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from onecard.paper.work import Work
from onecard.plan.cards import Card
from onecard.plan.speed.measured import PUBLIC_RUNS
from onecard.plan.speed.work import Costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Seconds of the program that feeds a card: Python, torch and the driver, on one core."""

    launch_seconds: float  # per kernel of a micro-batch or update, eager or compiled
    addition_seconds: float  # per gradient added to the one before it: autograd does it without Python
    micro_batch_seconds: float  # per micro-batch in addition: get_batch, the compiler's guards, autograd's thread
    sequence_seconds: float  # per sequence of a micro-batch: nanoGPT's get_batch copies one by one
    update_seconds: float  # per update in addition
    tensor_seconds: float  # per parameter tensor of an update: clipping and AdamW walk through all of them
    step_seconds: float  # per step: reading the loss waits for the card, then the card waits for the next launch
    stumble_seconds: float  # per launch that has to map memory first


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """How a card's power limit slows a step: the more products per second, the lower the clock.

    The shares and costs in `Rates` are fitted to nanoGPT's kernels, so they include what the limit costs those.
    """

    free_share: float  # of the tensor peak, in products: up to here the limit costs nothing more
    exponent: float  # of share / free_share, in the time of a step
    float16_exponent: float  # the same in float16, whose products draw more power

    def pace(self, share: float, dtype: str) -> float:
        """How many times as long a step takes with the limit, if it would use `share` of the tensor peak without."""
        exponent = self.float16_exponent if dtype == "float16" else self.exponent
        return float(max(1.0, share / self.free_share) ** exponent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rates that a card, and the program that feeds it, reach."""

    matmul_share: float  # of the tensor peak, in matrix products
    float32_matmul_share: float  # of the TF32 peak, in float32 products
    attention_share: float  # of the tensor peak, in attention's products
    float32_attention_share: float  # of the fp32 peak, in float32 attention
    bandwidth_share: float  # of the published bandwidth
    kernel_seconds: float  # start and end of a kernel
    product_seconds: float  # the same for a product or attention, whose last wave leaves most of the card idle
    roofline_power: float  # how well computing and moving bytes overlap: 1 not at all, infinity perfectly
    attention_roofline_power: float  # the same in attention
    host: Host
    costs: Costs
    power: Power | None = None  # None: the shares include the limit's cost, or nobody measured it
    our_step_seconds: float = 1e-3  # our trainer's wait, per step: its figures are read once, then a graph starts
    # Our compiled evaluations: Python starts their kernels one by one. 36 rows (bench/onecard_speed.py --evaluations).
    our_evaluation_launch_seconds: float = 48e-6  # three times what torch's own code needs
    our_evaluation_batch_seconds: float = 1.5e-3  # per batch in addition
    our_rerun_seconds: float = 1.5e-3  # per block that Python runs again, beyond launches; 1.2 to 1.7 ms in five rows


H200_RATES = Rates(
    matmul_share=0.814,  # products of 24 profiled rows; the ceiling of a large one is 790 of 989 TFLOP/s
    float32_matmul_share=0.519,  # two rows: 124M batch 8, 271 TFLOP/s; 2,048 tokens at n_embd 640, 179
    attention_share=0.74,  # this, the power and the cost of a pair: bench/attention_kernels.py and profiled rows
    float32_attention_share=0.474,  # the same two rows: the memory-efficient kernel, 28 and 17 TFLOP/s
    bandwidth_share=0.70,  # not fitted, set with nanogpt.py's bytes: AdamW gets 3.5, sums of gradients 3.1 of 4.89 TB/s
    kernel_seconds=1.35e-6,  # the remainder in the rows of 1,024 to 8,192 tokens
    product_seconds=3.75e-6,  # the same, for products and attention
    attention_roofline_power=1.12,
    roofline_power=2.42,  # products of n_embd 256 to 1024: 558 to 767 TFLOP/s
    host=Host(  # 26 configs timed on unshared cores; all but two wait for the host
        launch_seconds=16.7e-6,
        addition_seconds=21.5e-6,
        micro_batch_seconds=0.320e-3,
        sequence_seconds=14.6e-6,  # the rows of 32 and 64 sequences
        update_seconds=0.319e-3,  # this and the next: updates timed alone, with 27 to 292 tensors
        tensor_seconds=8.67e-6,
        step_seconds=2.03e-3,
        stumble_seconds=14.3e-6,  # four rows of 24 to 26 layers
    ),
    costs=Costs(
        pointwise_flops=1268,
        loss_flops=126,
        attention_flops=90,
        attention_dropout_flops=104,
        dropout_flops=597,
        written_out_byte=0.461,  # fitted with `power`
    ),
    # With these and `written_out_byte`, the steps of our twenty rows, and of both trainers in `onecard bench` at 124M,
    # are predicted within 4 % (bench/onecard_speed.py). At 690 of 700 W the clock falls from 1,980 MHz to 1,470.
    power=Power(free_share=0.328, exponent=0.209, float16_exponent=0.280),
)

# The RTX 4070's two public runs (134.1k and 56.1k tokens/s) fit one number: products at 1.15 of the published rate.
# A value above 1 may come from clocks above the published 2,475 MHz, or from bytes that this model counts although the
# L2 cache keeps them. Two runs cannot tell. Either run predicts the other within 6 %. The shares of attention and
# bandwidth are estimates, chosen from a few that were tried on these runs (0.60 to 0.75, 0.85 to 0.95).
# There is no power limit here: these runs lasted hours, so they include its cost. So do those of the cards below.
# What flash costs per pair of tokens was fitted to an H200's kernels as if products, exponentials and bytes overlapped.
UNTIMED = replace(
    H200_RATES,
    attention_roofline_power=H200_RATES.roofline_power,
    costs=replace(H200_RATES.costs, attention_flops=191, attention_dropout_flops=134, written_out_byte=None),
    power=None,
)
ADA_GEFORCE_RATES = replace(UNTIMED, matmul_share=1.15, attention_share=0.70, bandwidth_share=0.92)
# Other cards with tensor cores. A product computes, and its tiles read again what the caches did not keep: the more
# FLOP a card has for each byte it moves, the smaller the share of its peak. Two numbers, fitted to public runs of
# 124M on 20 cards (bench/speed_errors.py --public); the ratio of the shares is the H200's and the RTX 4070's.
SLOWDOWN, TILE_BYTES_PER_FLOP = 0.795, 0.0029
ATTENTION_OF_MATMUL = 0.6
UNTIMED_BANDWIDTH_SHARE = 0.85  # an estimate; 0.70 to 0.92 fit the same runs equally well
# Before compute capability 8.0 there is no flash kernel, and a V100 and a T4 made half of that. A card without tensor
# cores (a TITAN Xp, eager) made 0.3 of it.
OLDER, WITHOUT_TENSOR_CORES = 0.5, 0.3
OTHER_MAKERS_RATES = replace(UNTIMED, matmul_share=0.55, attention_share=0.30, bandwidth_share=0.75)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRates:
    """The rates of a card, and how far a prediction with them may be off."""

    rates: Rates
    spread: float  # share of tokens per second
    basis: str


# Ranges are at least this wide where launches matter (a plan does not know the processor) and in float32 (there are
# only two rows).
UNSURE_SPREAD = 0.20
# Of NVIDIA cards by their figures. 49 of the 52 public runs lie in the range that their card would have without them.
KNOWN_SPREAD = 0.30  # of a card that has public runs
FIGURES_SPREAD = 0.35
WITHOUT_TENSOR_CORES_SPREAD = 0.40


@cache
def estimated_rates(card: Card) -> CardRates:
    """What is known of a card's speed from its figures, and from the runs that the numbers above are fitted to."""
    if card.name == "H200 SXM 141 GB":
        return CardRates(rates=H200_RATES, spread=0.15, basis="measured on this card")
    if card.name == "GeForce RTX 4070":
        return CardRates(rates=ADA_GEFORCE_RATES, spread=0.15, basis="from two public runs on this card")
    if card.compute_capability is None:
        return CardRates(
            rates=OTHER_MAKERS_RATES,
            spread=0.60,
            basis="no measured run on any card of this maker: an estimate with a very wide range",
        )
    public = sum(run.card == card.name for run in PUBLIC_RUNS)
    runs = f"{public} public runs" if public > 1 else "a public run"
    known = f"from {runs} on this card and from" if public else "no measured run on this card: estimated from"
    spread = KNOWN_SPREAD if public else FIGURES_SPREAD
    if card.architecture == "Hopper":
        told = "its public runs are not in the rates" if public else "no measured run on this card"
        return CardRates(rates=H200_RATES, spread=FIGURES_SPREAD, basis=f"{told}: estimated from an H200")
    basis = f"{known} other cards, by the bandwidth for each FLOP"
    if _without_tensor_cores(card):
        spread, basis = WITHOUT_TENSOR_CORES_SPREAD, f"{known} a TITAN Xp: no tensor cores"
    elif card.laptop:
        basis += "; laptop power limits differ"
    return CardRates(rates=rates_by_figures(card), spread=spread, basis=basis)


def rates_by_figures(
    card: Card,
    slowdown: float = SLOWDOWN,
    tile_bytes: float = TILE_BYTES_PER_FLOP,
    older: float = OLDER,
    without_tensor_cores: float = WITHOUT_TENSOR_CORES,
) -> Rates:
    """The rates of an NVIDIA card that was not timed, from its peak and its bandwidth."""
    assert card.peak_flops
    assert card.bandwidth_bytes_per_second
    share = 1 / (slowdown + tile_bytes * card.peak_flops / card.bandwidth_bytes_per_second)
    if card.compute_capability and card.compute_capability < (8, 0):
        share *= without_tensor_cores if _without_tensor_cores(card) else older
    return replace(
        UNTIMED,
        matmul_share=share,
        attention_share=share * ATTENTION_OF_MATMUL,
        bandwidth_share=UNTIMED_BANDWIDTH_SHARE,
    )


def _without_tensor_cores(card: Card) -> bool:
    """Whether 16-bit products run at the rate of fp32 or, packed, at twice that."""
    assert card.peak_flops
    return (card.compute_capability or (8, 0)) < (8, 0) and card.peak_flops <= 2.1 * (card.fp32_flops or 0)


def overlapped(power: float, *seconds: float) -> float:
    """Seconds of things that happen at once: at least the longest, at most their sum."""
    longest = max(seconds)
    if longest == 0.0:
        return 0.0
    return float(longest * sum((each / longest) ** power for each in seconds) ** (1 / power))


def work_seconds(
    work: Work, card: Card, rates: Rates, tensor_flops_per_second: float, *, power: float | None = None
) -> float:
    """Seconds the card needs for some work, with its matrix products at the given rate."""
    assert card.bandwidth_bytes_per_second
    roof = overlapped(
        power or rates.roofline_power,
        work.tensor_flops / tensor_flops_per_second,
        work.vector_flops / (card.fp32_flops or tensor_flops_per_second),
        work.moved_bytes / (card.bandwidth_bytes_per_second * rates.bandwidth_share),
    )
    short = work.kernels + work.splits
    return roof + short * rates.kernel_seconds + work.products * rates.product_seconds


def matmul_flops_per_second(card: Card, rates: Rates, dtype: str) -> float:
    """The rate of large matrix products."""
    share = rates.float32_matmul_share if dtype == "float32" else rates.matmul_share
    return tensor_peak(card, dtype) * share


def attention_flops_per_second(card: Card, rates: Rates, dtype: str) -> float:
    """The rate of attention's products."""
    if dtype == "float32":
        return (card.fp32_flops or tensor_peak(card, dtype)) * rates.float32_attention_share
    return tensor_peak(card, dtype) * rates.attention_share


def tensor_peak(card: Card, dtype: str) -> float:
    """FLOP/s of matrix products with operands of `dtype`, as published."""
    assert card.peak_flops
    if dtype == "float32" and card.compute_capability and card.compute_capability >= (8, 0):
        return card.peak_flops / 2  # nanoGPT allows TF32: half the 16-bit rate on every card that has it
    if dtype == "float32" or (dtype == "bfloat16" and card.native_bf16 is False):
        return card.fp32_flops or card.peak_flops / 4
    return card.peak_flops
