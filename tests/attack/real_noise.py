"""How much real runs vary: figures read from real logs, from which tests/attack/made_runs.py makes healthy ones.

Only figures are here: the logs are other people's. They are named as the issue or program they were published with.
"Off the line" is the distance of a point from the line between its two neighbours, over the logarithm of the step,
divided by that distance's own spread for unit noise. Its standard deviation is the noise of one point, whatever the
curve does. The first quarter of a run, where the curve bends, is left out.

`python -m tests.attack.real_noise LOG…` measures any log in this way.
"""

import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median, pstdev

from onecard.doctor.case import DataSizes
from onecard.doctor.facts import make_case
from onecard.runs.foreign import read_logs

# Noise of one logged training loss, in nats: tokens it is measured on, standard deviation, points, the run.
TRAINING_NOISE = (
    (2_048, 0.113, 283, "onecard's packaged default on a CPU, one update of program text in bytes"),
    (4_096, 0.241, 7, "llm.c on a Blackwell card, one update (karpathy/llm.c#796)"),
    (4_096, 0.225, 3_800, "nanochat d12 on an RTX 4070, one micro-batch; the printed average undone"),
    (8_192, 0.151, 40, "nanoGPT 124M on an RTX 4070, one micro-batch"),
    (16_384, 0.085, 73, "nanoGPT 40M on an RTX 4070, one micro-batch"),
    (524_288, 0.043, 14_668, "llm.c 124M on FineWeb, one update"),
    (524_288, 0.047, 7_150, "AdamW 124M of modded-nanogpt, one update"),
)
# Its shape in the two long runs: lags 1 to 30 correlate by -0.03 to 0.03; kurtosis 6.4 and 7.5, skewness 0.9 and 1.2:
# now and then a text is much harder (7.8 standard deviations at most). At step 0 it is 0.003 to 0.008 (five runs), at
# updates 30 to 60 two thirds of what it is later.
TAIL, TAIL_MEAN = 0.02, 2.0  # share of losses with a harder text, and by how many standard deviations: kurtosis 8
# Means of 400 updates scatter by 0.003 (llm.c) and 0.007 (AdamW) where independent updates would by 0.002: slow waves.

# Evaluations: standard deviation of one off the line; how far one was above the best before it; the run.
EVALUATION_NOISE = (
    (0.0006, 0.000, "llm.c 124M, fixed windows"),
    (0.0005, 0.000, "nanochat d12, fixed windows, bits per byte"),
    (0.0035, 0.016, "AdamW 124M of modded-nanogpt, fixed windows: slow waves (neighbours correlate by 0.85)"),
    (0.0081, 0.019, "nanoGPT 40M, 200 random batches of 16 x 1,024"),
    (0.0137, 0.022, "nanoGPT 124M, 200 random batches of 8 x 1,024"),
    (0.0082, 0.014, "onecard's packaged default, 20,480 tokens of fixed windows; it recorded an error of 0.042"),
)
SAME_WINDOWS_SCATTER = 0.45  # of the recorded error: 0.017 of 0.040 in the first 120 updates of the last row, then 0.2
# val - train at the end of healthy runs on web text, and on Shakespeare in letters where val was still falling
GAPS = (-0.072, -0.038)
LETTER_GAPS = (0.178, 0.346)

# Seconds per update: typical change of the logarithm from one to the next; slowest tenth to the median; the run.
TIME_JITTER = (
    (0.0002, None, "llm.c on a Blackwell card"),
    (0.0006, 1.001, "nanochat d12 on an RTX 4070; 1 of 5,000 took longer than 1.5 times; the first 54 times"),
    (0.0010, 1.004, "nanoGPT 40M on an RTX 4070"),
    (0.0015, 1.004, "nanoGPT 124M on an RTX 4070"),
    (0.0015, None, "nanoGPT on a V100 (karpathy/nanoGPT#215)"),
    (0.0021, None, "nanoGPT, Shakespeare on an A100 (karpathy/nanoGPT#178)"),
    (0.0169, None, "nanoGPT 219M, 25 updates on an RTX 4070"),
    (0.102, None, "onecard's packaged default on two cores with other work on them"),
)

# Gradient norms: median, standard deviation of the logarithm around the local median, the first; the run.
GRADIENT_NORMS = (
    (0.26, 0.071, 15.4, "llm.c 124M, updates of 524,288 tokens; 3 of 14,670 above e times the local median, one 7.5"),
    (1.30, 0.076, None, "llm.c on a Blackwell card, updates of 4,096 tokens"),
    (0.84, 0.3, 6.4, "onecard's packaged default, updates of 2,048 tokens"),
)


def training_noise(tokens: float) -> float:
    """Standard deviation of a training loss measured on so many tokens of web text, in nats: 0.42 for a sequence of
    1,024, falling with the square root of their number, and 0.044 that all sequences of an update share."""
    return math.hypot(0.42 * math.sqrt(1024 / tokens), 0.044)


def off_the_line(points: Sequence[tuple[float, float]]) -> list[float]:
    """How far each point lies off the line between its neighbours, for unit noise."""
    found = []
    for (x0, y0), (x1, y1), (x2, y2) in zip(points, points[1:], points[2:], strict=False):
        if x0 < x1 < x2:
            share = (x1 - x0) / (x2 - x0)
            found.append((y1 - (1 - share) * y0 - share * y2) / math.sqrt(1 + share**2 + (1 - share) ** 2))
    return found


def _figures(points: Sequence[tuple[int, float | None]]) -> str:
    known = [(math.log(step), y) for step, y in points if step > 0 and y is not None and math.isfinite(y)]
    off = off_the_line(known[len(known) // 4 :])
    if len(off) < 3:
        return "too few"
    best, highest = math.inf, 0.0
    for _, y in known[len(known) // 4 :]:
        best, highest = min(best, y), max(highest, y - best)
    spread = pstdev(off)
    kurtosis = sum(each**4 for each in off) / len(off) / spread**4
    return f"{spread:.4f} ({len(off)} points, kurtosis {kurtosis:.1f}, at most {highest:.4f} above the best before)"


def measured(path: Path) -> list[str]:
    """The figures of every run in a log, in words."""
    said = []
    for run in read_logs(path.read_bytes().splitlines(keepends=True), source=path.name):
        case = make_case(run, config=None, card=None, data=DataSizes())
        times = [step.seconds for step in case.steps if step.seconds]
        norms = [step.grad_norm for step in case.steps if step.grad_norm]
        jitter = [abs(math.log(b / a)) for a, b in pairwise(times)]
        said += [
            f"{path.name}: {run.format}, {len(case.steps)} losses, {len(case.evals)} evaluations",
            f"  training loss {_figures([(step.step, step.loss) for step in case.steps])}",
            f"  validation    {_figures([(e.step, e.val_loss or e.bits_per_byte) for e in case.evals])}",
            f"  seconds       {median(times):.4g}, jitter {1.05 * median(jitter):.4f}" if jitter else "  no times",
            f"  gradient norm {median(norms):.3g}, largest {max(norms):.3g}" if norms else "  no norms",
        ]
    return said


if __name__ == "__main__":
    sys.stdout.write("\n".join(line for name in sys.argv[1:] for line in measured(Path(name))) + "\n")
