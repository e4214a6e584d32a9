"""Before the first step: what fits goes on, what does not is refused with the command that does, or is fitted."""

import re
import shlex

import pytest

from onecard.config.resolve import resolve
from onecard.config.schema import RunConfig
from onecard.errors import DoesNotFit, MachineError, UsageError
from onecard.inputs import preflight
from onecard.models.ranks import Ranks
from onecard.plan.cards import find_card
from onecard.plan.memory.predict import predict_onecard
from onecard.plan.place import Place
from onecard.plan.speed import predict_speed
from onecard.units import GIB

GPT2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "vocab_size": 50304, "dtype": "float16"}
STDLIB = {"train_tokens": 9_614_604, "val_tokens": 498_612}  # of one Python
DESKTOP = Place(card=find_card("RTX 4070"), other_bytes=round(2.1 * GIB))


def config(**keys: object) -> RunConfig:
    return resolve("batch_size = 8\ngradient_accumulation_steps = 64", filename="t.py").config.replace({**GPT2, **keys})


@pytest.fixture(autouse=True)
def on_a_desktop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "place_here", lambda _device: DESKTOP)


def test_what_fits_runs_as_it_is() -> None:
    asked = config()
    settled, memory = preflight.checked(asked, fit=False, source="t.py")
    assert settled == asked
    assert memory is not None
    assert memory.process_bytes <= DESKTOP.available_bytes


def test_what_does_not_fit_is_refused_and_the_fix_fits() -> None:
    asked = config(batch_size=64, gradient_accumulation_steps=8)
    with pytest.raises(DoesNotFit) as refusal:
        preflight.checked(asked, fit=False, source="t.py")
    assert refusal.value.exit_code == 1
    assert "other programs hold 2.10 GiB" in refusal.value.why
    flags = [word.removeprefix("--").split("=") for word in refusal.value.fix.split() if word.startswith("--")]
    patch = {key: int(value) if value.isdigit() else value for key, value in flags}
    fixed = asked.replace(patch)
    assert fixed.tokens_per_step == asked.tokens_per_step
    assert predict_onecard(fixed, DESKTOP.card, available_bytes=DESKTOP.available_bytes).fits


def test_what_only_evaluates_is_judged_by_its_evaluation() -> None:
    asked = config(batch_size=64, gradient_accumulation_steps=8)
    settled, memory = preflight.checked(asked.replace({"eval_only": True}), fit=False, source="t.py")
    assert settled.eval_only
    assert memory is not None
    assert set(memory.phases) == {"eval0"}
    with pytest.raises(DoesNotFit):
        preflight.checked(asked, fit=False, source="t.py")


def test_the_fix_keeps_what_was_typed_but_for_what_it_changes() -> None:
    asked = config(batch_size=64, gradient_accumulation_steps=8, out_dir="my runs")
    typed = [("batch_size", "64"), ("gradient_accumulation_steps", "8"), ("out_dir", "my runs")]
    with pytest.raises(DoesNotFit) as refusal:
        preflight.checked(asked, fit=False, source="t.py", typed=typed)
    words = shlex.split(refusal.value.fix)
    assert words[:3] == ["onecard", "train", "t.py"]
    assert "--out_dir=my runs" in words
    keys = [word.partition("=")[0] for word in words[3:]]
    assert len(set(keys)) == len(keys)
    assert "--batch_size=64" not in words


def test_fit_applies_it() -> None:
    asked = config(batch_size=64, gradient_accumulation_steps=8)
    settled, memory = preflight.checked(asked, fit=True, source="t.py")
    assert settled.tokens_per_step == asked.tokens_per_step
    assert memory is not None
    assert memory.fits


def test_a_limit_counts_like_a_smaller_card() -> None:
    with pytest.raises(DoesNotFit, match=r"3\.00 GiB"):
        preflight.checked(config(memory_limit=3 * GIB), fit=False, source="t.py")


def test_a_model_too_large_for_any_micro_batch_says_so() -> None:
    huge = config(n_layer=48, n_head=25, n_embd=1600)
    with pytest.raises(DoesNotFit) as refusal:
        preflight.checked(huge, fit=True, source="t.py")
    assert "smaller model" in refusal.value.fix


@pytest.mark.parametrize("shard", ["none", "full"])
def test_fit_is_refused_among_several_processes_with_the_plan_of_one(shard: str) -> None:
    ranks = Ranks(rank=0, world_size=8, local_size=4)
    with pytest.raises(UsageError) as refusal:
        preflight.checked(config(shard=shard), fit=True, source="t.py", typed=[("shard", shard)], ranks=ranks)
    assert refusal.value.name == "fits-one-card"
    assert "8 processes share it" in refusal.value.what
    assert f"onecard plan t.py --gpu auto --gpus 4 --nodes 2 --shard={shard}" in refusal.value.fix
    settled, _ = preflight.checked(config(shard=shard), fit=True, source="t.py", ranks=Ranks())
    assert settled.tokens_per_step == config().tokens_per_step, "one process has its card for itself"


def test_what_does_not_fit_a_rank_is_refused_and_the_fix_fits_its_share() -> None:
    """A model of which one card cannot hold the whole, and four a share each."""
    asked, ranks = config(shard="full", n_layer=36, n_head=20, n_embd=1280), Ranks(world_size=4)
    with pytest.raises(DoesNotFit) as refusal:
        preflight.checked(asked, fit=False, source="t.py", ranks=ranks)
    flags = [word.removeprefix("--").split("=") for word in refusal.value.fix.split() if word.startswith("--")]
    fixed = asked.replace({key: int(value) if value.isdigit() else value for key, value in flags})
    ranks.check(fixed)
    assert fixed.tokens_per_step == asked.tokens_per_step
    assert preflight.checked(fixed, fit=False, source="t.py", ranks=ranks)[0] == fixed
    with pytest.raises(DoesNotFit):
        preflight.checked(fixed, fit=False, source="t.py")


def test_without_a_card_nothing_is_planned_and_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "place_here", lambda _device: None)
    assert preflight.checked(config(), fit=False, source=None) == (config(), None)
    with pytest.raises(MachineError):
        preflight.checked(config(), fit=True, source=None)


def test_on_the_cpu_the_card_does_not_matter() -> None:
    assert preflight.predicted(config(device="cpu")) is None


def test_the_packaged_default_grows_with_a_card_unless_a_shape_is_asked_for() -> None:
    default = resolve(None).config
    assert preflight.larger_default(default, [("seed", "3")], **STDLIB)[0].n_embd > default.n_embd
    assert preflight.larger_default(default, [("n_layer", "2")], **STDLIB) == (default, None)
    assert preflight.larger_default(default, [("dropout", "0.1")], **STDLIB) == (default, None)


@pytest.mark.parametrize(
    ("key", "value"), [("wandb_log", True), ("log_interval", 3), ("keep_checkpoints", 1), ("max_hours", 2.0)]
)
def test_the_larger_default_keeps_flags_that_say_nothing_about_the_model(key: str, value: object) -> None:
    default = resolve(None, flags=[(key, str(value))]).config
    larger, _ = preflight.larger_default(default, [(key, str(value))], **STDLIB)
    assert larger.n_embd > default.n_embd
    assert getattr(larger, key) == value


@pytest.mark.parametrize("name", ["H200", "RTX 4070", "GTX 1660"])
def test_the_time_of_the_larger_default_is_the_one_predicted_for_the_card(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = find_card(name)
    monkeypatch.setattr(preflight, "place_here", lambda _device: Place(card=card, other_bytes=0))
    larger, words = preflight.larger_default(resolve(None).config, [], **STDLIB)
    speed = predict_speed(larger, card, "onecard")
    said = re.search(r"updates: about (\d+) (s|min), after some seconds of compiling$", words or "")
    assert said
    assert speed
    seconds = int(said[1]) * (60 if said[2] == "min" else 1)
    assert seconds == pytest.approx(speed.total_seconds.likely, rel=0.25)
    assert (seconds < 30) == (name == "H200"), "it has read the little data there is by then"
