"""Sick and healthy runs, made by construction: no line of them comes from a real log.

`SICK` and `HEALTHY` hold, for every rule, a run that must be found and one of the same kind that must not.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from onecard.config.resolve import resolve
from onecard.doctor.case import Case, DataSizes
from onecard.doctor.facts import make_case
from onecard.doctor.rules import EVERY, RULES, rule_name
from onecard.findings import Finding
from onecard.plan.cards import find_card
from onecard.plan.loss import law
from onecard.runs.logged import Line, LogFormat, LoggedRun, Message
from onecard.runs.records import Eval, Record, Step
from onecard.units import GIB, MIB
from tests.made_records import card_reading

SMALL = """\
dataset = 'fineweb'
n_layer = 12
n_head = 12
n_embd = 768
block_size = 1024
batch_size = 8
gradient_accumulation_steps = 64
max_iters = 10000
lr_decay_iters = 10000
warmup_iters = 300
learning_rate = 6e-4
min_lr = 6e-5
eval_interval = 500
eval_iters = 200
"""
TOKENS = 524_288
PARAMS = 124_373_760


def found(name: str, patient: Case, before: Sequence[Case] = ()) -> list[Finding]:
    """What one rule says of a case, and of those before it in the same file or folder."""
    rule = next(rule for rule in EVERY if rule_name(rule) == name)
    return list(rule(patient) if rule in RULES else rule(patient, before))  # type: ignore[call-arg, arg-type]


def step(number: int, loss: float, *, seconds: float | None = 9.3, lr: float | None = None, **more: object) -> Step:
    return Step(
        step=number,
        tokens=None,
        loss=loss,
        lr=lr,
        grad_norm=None,
        seconds=seconds,
        elapsed_seconds=None,
        tokens_per_second=None,
        mfu=None,
        allocated_bytes=None,
        reserved_bytes=None,
        data_wait_seconds=None,
        more={"line": Line(2 * number + 2, f"iter {number}: loss {loss:.4f}"), **more},
    )


def evaluation(number: int, val: float | None, train: float | None = None, *, bits: float | None = None) -> Eval:
    return Eval(
        step=number,
        tokens=None,
        train_loss=train,
        val_loss=val,
        train_loss_error=None,
        val_loss_error=None,
        block_size=None,
        tokens_read=None,
        seconds=None,
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        bits_per_byte=bits,
        more={"line": Line(2 * number + 1, f"step {number}: val {val}")},
    )


def steps(losses: Iterable[float], *, every: int = 100, lrs: Sequence[float] | None = None) -> list[Step]:
    return [step(n * every, loss, lr=lrs[n] if lrs else None) for n, loss in enumerate(losses)]


def evals(rows: Iterable[tuple[float, float]], *, every: int = 500) -> list[Eval]:
    """Evaluations of (train, val)."""
    return [evaluation(n * every, val, train) for n, (train, val) in enumerate(rows)]


def wobble(number: int, size: float = 0.02) -> float:
    """Noise between -size and size that is the same every time."""
    return size * (2 * ((43758.5453 * math.sin(12.9898 * number)) % 1) - 1)


def learning(last: int = 10_000, *, every: int = 500, gap: float = 0.02, bend: float = 0.0) -> list[Eval]:
    """Evaluations of a run of SMALL that follows the scaling law, with FineWeb's offset."""
    rows = [(10.83, 10.83)]
    for number in range(every, last + 1, every):
        loss = law(PARAMS, number * TOKENS) + 0.21 + bend + wobble(number, 0.01)
        rows.append((loss, loss + gap))
    return evals(rows, every=every)


def norms(*values: float, start: int = 20) -> list[Step]:
    """Updates of a loss that falls, with these gradient norms."""
    return [replace(step(start + n, 4.0 - 0.01 * n), grad_norm=value) for n, value in enumerate(values)]


def waiting(share: float) -> list[Step]:
    """Updates of ours that wait for data for a share of their time."""
    return [replace(step(n, 4.0 - 0.01 * n, seconds=1.0), data_wait_seconds=share) for n in range(40)]


def paced(*seconds: float) -> list[Step]:
    """Updates with these times, 20 of each, a little noisy."""
    every = [each for each in seconds for _ in range(20)]
    return [step(100 * n + 1, 4.0 - 0.001 * n, seconds=each * (1 + wobble(n, 0.05))) for n, each in enumerate(every)]


def card_run(*parts: tuple[int, float, dict[str, object]], **more: object) -> Case:
    """A run of ours with a reading of its card in every update: (updates, seconds of each, what the card shows)."""
    every = [(seconds, shown) for updates, seconds, shown in parts for _ in range(updates)]
    records: list[Record] = []
    for number, (seconds, shown) in enumerate(every, 1):
        records.append(step(number, 4.0 - 0.001 * number, seconds=seconds * (1 + wobble(number, 0.02))))
        records.append(card_reading(number, **shown, **more))
    return case(records=records, log_format="onecard")


def case(
    config: str | None = SMALL,
    *,
    records: Sequence[Record] = (),
    card: str | None = None,
    log_format: LogFormat = "nanogpt",
    train_tokens: int | None = None,
    val_tokens: int | None = None,
    val_in_train: str | None = None,
    messages: Sequence[Message] = (),
    stated: dict[str, object] | None = None,
    source: str = "train.log",
    **printed: int | None,
) -> Case:
    """A case of a log with these records; `printed` are fields of LoggedRun such as printed_params."""
    lines = {name: Line(1, f"{name} {value}") for name, value in printed.items()}
    run = LoggedRun(
        source=source,
        format=log_format,
        records=tuple(records),
        messages=tuple(messages),
        config=stated or {},
        printed=lines,
        **printed,  # type: ignore[arg-type]
    )
    return make_case(
        run,
        config=resolve(config, filename="c.py") if config is not None else None,
        card=find_card(card) if card else None,
        data=DataSizes(train_tokens=train_tokens, val_tokens=val_tokens, val_in_train=val_in_train),
    )


def changed(**keys: object) -> str:
    """SMALL with some keys set otherwise."""
    return SMALL + "".join(f"{key} = {value!r}\n" for key, value in keys.items())


def oom(*, in_eval: bool = False, **sizes: float) -> Message:
    """An out-of-memory message with sizes in GiB."""
    values: dict[str, object] = {f"{name}_bytes": round(size * GIB) for name, size in sizes.items()}
    return Message(kind="oom", lines=(Line(7, "CUDA out of memory."),), values={**values, "in_eval": in_eval})


def said(kind: str, line: int = 5, **values: object) -> Message:
    return Message(kind=kind, lines=(Line(line, kind),), values=values)


NARROW = SMALL.replace("n_embd = 768", "n_embd = 384") + "# Model (~125M parameters)\ndropout = 0.1\n"
HEALTHY_RUN = [*steps([10.8, 6.0, *(4.0 - 0.01 * n + wobble(n, 0.1) for n in range(98))]), *learning()]
SPIKE = [4.0 + wobble(n, 0.05) for n in range(30)]
CONTINUED = changed(init_from="resume")
FULL = {"capacity": 11.7, "free": 0.1, "allocated": 11.0, "reserved_unallocated": 0.2, "process": 11.5}
NO_COMPILE = changed(compile=False)
HOT = {"temperature_c": 87, "sm_clock_mhz": 2200, "throttle": ("heat",)}


def falling_then_raised(rate: float) -> list[Step]:
    """A learning rate that falls from 6e-4 to 2e-4 and is then `rate`."""
    return steps([4.0] * 6, lrs=[3e-4, 6e-4, 4e-4, 3e-4, 2e-4, rate])


def timed(seconds: float, *, tokens_per_second: float | None = None, mfu: float | None = None) -> list[Step]:
    more: dict[str, object] = {"printed_seconds": seconds}
    more |= {"printed_tokens_per_second": tokens_per_second} if tokens_per_second else {}
    more |= {"printed_mfu": mfu} if mfu else {}
    return [step(100 * n + 1, 4.0 + wobble(n), seconds=seconds, **more) for n in range(30)]


SICK: dict[str, Callable[[], Case]] = {
    "not-learning": lambda: case(None, records=steps([10.98 + wobble(n, 0.05) for n in range(80)])),
    "loss-too-low": lambda: case(None, records=steps([10.9, 6.0, 3.0, *[0.002] * 40])),
    "unsteady-loss": lambda: case(None, records=steps([10.9, *(7.5 + 1.2 * math.sin(n) for n in range(80))])),
    "gradient-norm": lambda: case(None, records=norms(*[1e7] * 30)),
    "slowing-down": lambda: case(None, records=paced(0.2, 0.2, 0.46, 0.46)),
    "slower-than-planned": lambda: case(records=timed(60.0), card="RTX 4070"),
    "waiting-for-data": lambda: case(records=waiting(0.95), log_format="onecard"),
    "card-too-hot": lambda: card_run((30, 1.0, {}), (70, 1.15, HOT)),
    "power-limit": lambda: card_run((30, 1.0, {}), (70, 1.5, {"power_limit_watts": 90.0, "sm_clock_mhz": 1500})),
    "card-shared": lambda: card_run((30, 1.0, {}), (70, 1.4, {"other_busy": 0.31})),
    "slow-pcie-link": lambda: card_run((40, 1.0, {"pcie_generation": 1})),
    "clocks-drop": lambda: card_run((60, 1.0, {"throttle": ()}), (40, 1.3, {"sm_clock_mhz": 1900, "throttle": ()})),
    "val-same-as-train": lambda: case(val_in_train="is the same as the training data"),
    "weight-decay-out-of-range": lambda: case(changed(weight_decay=100.0)),
    "params-mismatch": lambda: case(NARROW),
    "stale-comment": lambda: case(SMALL.replace("max_iters = 10000\n", "max_iters = 10000  # ~3B tokens\n", 1)),
    "heads-do-not-divide": lambda: case(None, stated={"n_embd": 512, "n_head": 12}),
    "odd-head-size": lambda: case(changed(n_embd=768, n_head=64)),  # heads of 12
    "unpadded-vocab": lambda: case(changed(vocab_size=50257)),
    "logits-returned": lambda: case(),
    "unknown-key": lambda: case(changed(eval_batch_size=2)),
    "batch-arithmetic": lambda: case(printed_tokens_per_step=491_520),
    "accumulation-for-target": lambda: case(changed(gradient_accumulation_steps=40)),
    "small-batch-betas": lambda: case(changed(gradient_accumulation_steps=4)),
    "few-large-updates": lambda: case(changed(max_iters=1000, lr_decay_iters=1000, warmup_iters=100)),
    "batch-too-large": lambda: case(changed(gradient_accumulation_steps=512)),
    "lr-out-of-range": lambda: case(changed(learning_rate=3e-3, min_lr=3e-4)),
    "decay-horizon": lambda: case(changed(lr_decay_iters=20_000)),
    "warmup-length": lambda: case(changed(warmup_iters=2000)),
    "stopped-early": lambda: case(records=learning(5000)),
    "loss-nan": lambda: case(records=steps([4.0, 4.1, math.nan, math.nan])),
    "instability-not-precision": lambda: case(changed(dtype="float16"), records=steps([*SPIKE, 4.6, 5.8, math.nan])),
    "loss-spike": lambda: case(records=steps([*SPIKE, *([6.0] * 12)])),
    "scaler-skips": lambda: case(
        records=steps([4.0] * 40), messages=[said("scaler-skip", step=2500 + n, scale=1024.0) for n in range(30)]
    ),
    "diverging": lambda: case(records=evals([(4.0, 4.0), (3.5, 3.5), (3.8, 3.8), (4.0, 4.0), (4.2, 4.2)])),
    "bad-initial-loss": lambda: case(records=[evaluation(0, 13.0, 13.0), *learning()[1:]]),
    "overfitting": lambda: case(
        records=evals([(4.2, 4.2), (1.6, 1.7), (1.3, 1.5), (1.1, 1.48), (1.0, 1.5), (0.9, 1.55), (0.8, 1.6)])
    ),
    "val-below-train": lambda: case(records=learning(gap=-0.07)),
    "needless-dropout": lambda: case(changed(dropout=0.1), train_tokens=10**11),
    "too-many-epochs": lambda: case(records=learning(), train_tokens=10**9),
    "tokens-per-parameter": lambda: case(changed(max_iters=100_000, lr_decay_iters=100_000), records=learning()),
    "capacity-or-data": lambda: case(records=learning()),
    "plateau": lambda: case(
        records=[*learning(2000), *(evaluation(n, 3.6 + wobble(n, 1e-3), 3.6) for n in range(2500, 10_001, 500))]
    ),
    "loss-off-expectation": lambda: case(records=learning(bend=0.5)),
    "mfu-mislabelled": lambda: case(records=timed(9.35, mfu=0.154), card="RTX 4070"),
    "contradicting-inputs": lambda: case(records=timed(7.6), card="RTX 4070"),
    "low-mfu": lambda: case(NO_COMPILE, records=timed(40.0), card="RTX 4070"),
    "autotune-sm-warning": lambda: case(messages=[said("few-sms")]),
    "throughput-arithmetic": lambda: case(records=timed(9.35, tokens_per_second=100_000)),
    "eval-too-expensive": lambda: case(
        records=[
            *(step(n, 4.0, seconds=600.0 if n % 500 == 0 else 0.5) for n in range(0, 5001, 50)),
            *learning(5000),
        ]
    ),
    "compile-failed": lambda: case(messages=[said("compile-failed", cause="python-headers")]),
    "crashed": lambda: case(records=steps([4.0] * 4), messages=[said("crash", 10_000, cause="address")]),
    "oom-capacity": lambda: case(messages=[oom(tried=1.5, **FULL)], card="RTX 4070"),
    "oom-fragmentation": lambda: case(
        messages=[oom(tried=1.0, capacity=11.7, free=0.5, allocated=7.0, reserved_unallocated=3.9, process=11.1)]
    ),
    "oom-other-process": lambda: case(
        messages=[oom(tried=1.0, capacity=11.7, free=0.5, allocated=5.0, reserved_unallocated=0.2, process=5.4)]
    ),
    "oom-despite-free": lambda: case(messages=[oom(tried=0.4, capacity=15.75, free=8.6, allocated=5.1)]),
    "oom-system-spill": lambda: case(messages=[oom(tried=1.0, capacity=8.0, free=0.0, allocated=13.0)]),
    "oom-tensor": lambda: case(messages=[oom(tried=8 * 1024 * 50304 * 2 / GIB, **FULL)]),
    "oom-in-eval": lambda: case(changed(batch_size=64), messages=[oom(in_eval=True, tried=6.14, **FULL)], card="4070"),
    "val-set-tiny": lambda: case(val_tokens=5000),
    "states-do-not-fit": lambda: case(changed(n_layer=48, n_embd=1600, n_head=25), card="RTX 4070"),
    "resume-shape-ignored": lambda: case(CONTINUED, printed_params=40_560_000),
    "resume-lr-jump": lambda: case(records=falling_then_raised(6e-4)),
    "out-dir-reused": lambda: case(changed(out_dir="out-a")),
    "best-overwritten": lambda: case(records=learning()),
}
HEALTHY: dict[str, Callable[[], Case]] = {
    "not-learning": lambda: case(None, records=HEALTHY_RUN),
    "loss-too-low": lambda: case(None, records=HEALTHY_RUN),
    "unsteady-loss": lambda: case(None, records=HEALTHY_RUN),
    "gradient-norm": lambda: case(None, records=norms(*[0.4] * 30, 60.0)),
    "slowing-down": lambda: case(None, records=paced(0.2, 0.2, 0.26, 0.26)),
    "slower-than-planned": lambda: case(records=timed(9.35), card="RTX 4070"),
    "waiting-for-data": lambda: case(records=waiting(0.05), log_format="onecard"),
    "card-too-hot": lambda: card_run((100, 1.0, {"temperature_c": 82})),
    "power-limit": lambda: card_run((100, 1.0, {"power_watts": 200.0})),  # at its limit all the time, as it should be
    "card-shared": lambda: card_run((50, 1.0, {}), (50, 1.0, {"other_busy": 0.06, "other_bytes": 2 * GIB + 900 * MIB})),
    "slow-pcie-link": lambda: card_run((40, 1.0, {"pcie_generation": 1, "busy": 0.0, "power_watts": 20.0})),  # at rest
    "clocks-drop": lambda: card_run((60, 1.0, {}), (40, 1.03, {"sm_clock_mhz": 2480})),  # it became warm
    "val-same-as-train": lambda: case(val_in_train=""),
    "weight-decay-out-of-range": lambda: case(),
    "params-mismatch": lambda: case(SMALL + "# Model (~125M parameters)\n", printed_params=123_590_000),
    "stale-comment": lambda: case(SMALL.replace("max_iters = 10000\n", "max_iters = 10000  # ~5.24B tokens\n", 1)),
    "heads-do-not-divide": lambda: case(None, stated={"n_embd": 768, "n_head": 12}),
    "odd-head-size": lambda: case(),
    "unpadded-vocab": lambda: case(changed(vocab_size=50304)),
    "logits-returned": lambda: case(NO_COMPILE),
    "unknown-key": lambda: case(changed(eval_iters=20)),
    "batch-arithmetic": lambda: case(printed_tokens_per_step=TOKENS),
    "accumulation-for-target": lambda: case(None, printed_tokens_per_step=TOKENS),  # nothing to multiply
    "small-batch-betas": lambda: case(changed(gradient_accumulation_steps=4, beta2=0.99)),
    "few-large-updates": lambda: case(changed(max_iters=3000, lr_decay_iters=3000, warmup_iters=100)),
    "batch-too-large": lambda: case(),
    "lr-out-of-range": lambda: case(changed(learning_rate=1.2e-3, min_lr=1.2e-4)),
    "decay-horizon": lambda: case(),
    "warmup-length": lambda: case(),
    "stopped-early": lambda: case(records=learning(9500)),
    "loss-nan": lambda: case(records=HEALTHY_RUN),
    "instability-not-precision": lambda: case(changed(dtype="float16"), records=steps([*SPIKE, 4.0, math.nan])),
    "loss-spike": lambda: case(records=HEALTHY_RUN),
    "scaler-skips": lambda: case(
        records=steps([4.0] * 40), messages=[said("scaler-skip", step=n, scale=1024.0) for n in range(30)]
    ),
    "diverging": lambda: case(records=learning()),
    "bad-initial-loss": lambda: case(records=learning()),
    "overfitting": lambda: case(records=learning()),
    "val-below-train": lambda: case(records=learning(gap=0.0)),
    "needless-dropout": lambda: case(changed(dropout=0.1), train_tokens=10**9),
    "too-many-epochs": lambda: case(records=learning(), train_tokens=2 * 10**9),
    "tokens-per-parameter": lambda: case(records=learning()),  # 42
    "capacity-or-data": lambda: case(changed(vocab_size=65), records=learning()),  # no law of letters
    "plateau": lambda: case(records=learning()),
    "loss-off-expectation": lambda: case(records=learning()),
    "mfu-mislabelled": lambda: case(records=timed(1.5, mfu=0.3), card="A100 PCIe 40GB"),
    "contradicting-inputs": lambda: case(records=timed(7.9), card="RTX 4070"),
    "low-mfu": lambda: case(records=timed(9.35), card="RTX 4070"),
    "autotune-sm-warning": lambda: case(),
    "throughput-arithmetic": lambda: case(records=timed(9.35, tokens_per_second=TOKENS / 9.35)),
    "eval-too-expensive": lambda: case(
        records=[*(step(n, 4.0, seconds=20.0 if n % 500 == 0 else 9.0) for n in range(0, 5001, 50)), *learning(5000)]
    ),
    "compile-failed": lambda: case(messages=[said("few-sms")]),
    "crashed": lambda: case(messages=[said("compile-failed"), said("interrupted")]),
    "oom-capacity": lambda: SICK["oom-fragmentation"](),
    "oom-fragmentation": lambda: SICK["oom-capacity"](),
    "oom-other-process": lambda: SICK["oom-capacity"](),
    "oom-system-spill": lambda: SICK["oom-capacity"](),
    "oom-despite-free": lambda: SICK["oom-other-process"](),
    "oom-tensor": lambda: case(messages=[oom(tried=0.5, **FULL)]),
    "oom-in-eval": lambda: case(messages=[oom(in_eval=False, tried=1.5, **FULL)]),
    "val-set-tiny": lambda: case(val_tokens=4_000_000),
    "states-do-not-fit": lambda: case(card="RTX 4070"),
    "resume-shape-ignored": lambda: case(CONTINUED, printed_params=123_590_000),
    "resume-lr-jump": lambda: case(records=falling_then_raised(1.9e-4)),
    "out-dir-reused": lambda: case(changed(out_dir="out-b")),
    "best-overwritten": lambda: case(changed(always_save_checkpoint=False), records=learning()),
}
BEFORE: dict[str, Callable[[], list[Case]]] = {
    "out-dir-reused": lambda: [case(changed(out_dir="out-a", n_embd=384))],
}
TENSOR_MIB = 8 * 1024 * 50304 * 2 / MIB
