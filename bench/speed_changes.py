"""How much predicted speeds differ between two checkouts: both trainers, measured configs and random ones, all cards.

python bench/speed_changes.py --write before.json     # in one checkout
python bench/speed_changes.py before.json             # in the other
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from onecard.config.schema import RunConfig
from onecard.plan.cards import known_cards
from onecard.plan.speed import MEASURED_RUNS, ONECARD_RUNS, predict_speed
from onecard.plan.speed.work import TrainerName

RANDOM_CONFIGS = 50
TRAINERS: tuple[TrainerName, ...] = ("nanogpt", "onecard")


def configs() -> dict[str, RunConfig]:
    """Measured configs, and random ones, always the same."""
    found = {}
    for kind, runs in (("nanogpt", MEASURED_RUNS), ("onecard", ONECARD_RUNS)):
        for index, run in enumerate(runs):
            keys = {key: value for key, value in run._asdict().items() if key in RunConfig.model_fields}
            found[f"{kind} {index}"] = RunConfig.model_validate(keys)
    draw = random.Random(23)
    for index in range(RANDOM_CONFIGS):
        heads = draw.choice([4, 6, 8, 12, 16, 20])
        length = draw.choice([256, 512, 1024, 2048])
        found[f"random {index}"] = RunConfig(
            n_layer=draw.randint(2, 32),
            n_head=heads,
            n_embd=heads * draw.choice([32, 48, 64, 80, 128]),
            block_size=length,
            batch_size=max(1, draw.choice([2048, 4096, 8192, 16384, 32768]) // length),
            gradient_accumulation_steps=draw.choice([1, 2, 8, 32]),
            vocab_size=draw.choice([65, 8192, 32768, 50257, 50304]),
            dtype=draw.choice(["bfloat16", "float16", "float32"]),
            dropout=draw.choice([0.0, 0.0, 0.1]),
            bias=draw.choice([False, False, True]),
            compile=draw.choice([True, True, False]),
            grad_checkpoint=draw.choice(["none", "selective", "full"]),
            max_iters=2000,
            eval_interval=500,
            eval_batch_size=draw.choice([None, 4]),
        )
    return found


def predicted() -> dict[str, list[float]]:
    """Tokens per second, and seconds of the whole run with its evaluations."""
    found = {}
    for name, config in configs().items():
        for card in known_cards():
            for trainer in TRAINERS:
                speed = predict_speed(config, card, trainer)
                if speed:
                    figures = [speed.tokens_per_second.likely, speed.total_seconds.likely]
                    found[f"{trainer} · {name} · {card.name}"] = figures
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("before", nargs="?", type=Path)
    asked.add_argument("--write", type=Path)
    asked.add_argument("--most", type=int, default=10, help="differences to show of each kind")
    typed = asked.parse_args()
    now = predicted()
    if typed.write:
        typed.write.write_text(json.dumps(now))
    if typed.before:
        before, shape = json.loads(typed.before.read_text()), configs()
        for kind in ("nanogpt", "onecard", "random"):
            for index, figure in enumerate(("tokens/s", "whole run")):
                names = [name for name in now if name.split(" · ")[1].startswith(kind)]
                change = {name: now[name][index] / before[name][index] - 1 for name in names}
                inside = sum(abs(each) <= 0.005 for each in change.values())
                print(f"{kind} configs, {figure}: {inside} of {len(change)} within 0.5 %")
                worst: dict[str, str] = {}
                for name in sorted(change, key=lambda name: -abs(change[name])):
                    worst.setdefault(name.rsplit(" · ", 1)[0], name)
                for name in list(worst.values())[: typed.most]:
                    config = shape[name.split(" · ")[1]]
                    said = {
                        key: value for key, value in config.model_dump().items() if value != getattr(RunConfig(), key)
                    }
                    print(f"  {change[name]:+7.2%} {name} {said}")


if __name__ == "__main__":
    main()
