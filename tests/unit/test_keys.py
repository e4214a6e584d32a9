"""What the line of a key says is what the plan and the rules of a resume make of it."""

import pytest

from onecard.config.schema import KEYS, RESUMABLE_KEYS, SHAPE_KEYS, RunConfig, key
from onecard.models.ranks import ONE_RANK, Ranks
from onecard.plan.cards import find_card
from onecard.plan.memory.predict import predict_memory, predict_onecard
from onecard.plan.speed import TrainerName, predict_speed

CARD = find_card("RTX 4070")
SMALL = {"n_layer": 2, "n_head": 2, "n_embd": 128, "block_size": 256, "batch_size": 8, "dtype": "bfloat16"}
RUNS = [
    RunConfig.model_validate({**SMALL, "gradient_accumulation_steps": 1}),
    RunConfig.model_validate({**SMALL, "gradient_accumulation_steps": 4, "compile": False, "eval_batch_size": 64}),
]
OTHER = {
    "dtype": "float32",
    "recipe": "fast",
    "model": "nanochat",
    "muon_momentum_warmup": 100,
    "grad_checkpoint": "full",
    "optimizer": "muon",
    "head_learning_rate": 0.1,
    "schedule": "wsd",
    "log_style": "plain",
    "eval_batch_size": 128,
    "eval_block_size": 128,
    "loss_chunk": 512,
    "memory_limit": 2**33,
    "checkpoint_interval": 7,
    "max_hours": 1.0,
    "sample_interval": 7,
    "stop_after_worse": 3,
    "shard": "full",
}


def other_value(name: str, value: object) -> object:
    if isinstance(value, bool):
        return not value
    if name in OTHER:
        return OTHER[name]
    if isinstance(value, int | float):
        return value * 2 if value >= 1 else (value or 1.0) / 2
    return f"{value}2"


def figures(config: RunConfig, trainer: TrainerName, ranks: Ranks = ONE_RANK) -> tuple[object, object]:
    """What the plan says of memory and speed; of several cards, which only onecard has, for one of them."""
    memory, speed = predict_memory(config, CARD, trainer), predict_speed(config, CARD, trainer, ranks=ranks)
    if trainer == "onecard" and ranks.world_size > 1:
        memory = predict_onecard(config, CARD, ranks=ranks)
    assert speed
    allocated = [phase.allocated_bytes for phase in memory.phases.values()]
    return (allocated, memory.process_bytes), speed.tokens_per_second.likely


@pytest.mark.parametrize("name", [name for name, facts in KEYS.items() if facts.planned])
def test_a_plan_changes_with_a_key_where_its_line_says_so(name: str) -> None:
    changed = set()
    for config in RUNS:
        other = config.replace({name: other_value(name, getattr(config, name))})
        for trainer in ("nanogpt", "onecard"):
            ranks = Ranks(world_size=2) if name == "shard" and trainer == "onecard" else ONE_RANK
            before, after = figures(config, trainer, ranks), figures(other, trainer, ranks)
            changed |= {
                effect for effect, was, now in zip(("memory", "speed"), before, after, strict=True) if was != now
            }
    said = set() if "limit" in KEYS[name].kind else KEYS[name].affects & {"memory", "speed"}
    assert changed == said


def test_a_resume_changes_nothing_that_is_learned_but_the_length_of_the_run() -> None:
    freely = [name for name, facts in KEYS.items() if facts.resume in ("yes", "rounding")]
    assert [name for name in freely if not KEYS[name].affects <= {"memory", "speed"}] == [
        "max_hours",
        "stop_after_worse",
    ]
    assert {name for name in RESUMABLE_KEYS if name not in freely} == {
        *("max_iters", "lr_decay_iters"),
        *("batch_size", "gradient_accumulation_steps"),
    }
    assert not RESUMABLE_KEYS & set(SHAPE_KEYS)


def test_a_key_that_affects_nothing_may_change_on_resume() -> None:
    """Except where the run is, and how exact its evaluations are: their losses are compared with each other."""
    fixed = [name for name, facts in KEYS.items() if not facts.affects and name not in RESUMABLE_KEYS]
    assert fixed == ["out_dir", "eval_iters"]


@pytest.mark.parametrize("wrong", [{"affects": "memroy"}, {"kind": "folder"}, {"resume": "maybe"}])
def test_a_wrong_word_on_a_keys_line_is_found_at_once(wrong: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match=next(iter(wrong.values()))):
        key(1, "a made key", **{"affects": "memory", **wrong})
