"""Recipes: whose value counts, where it shows, and what a plan, a proposal and the doctor say of a run under one."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecard.config.hf_config import hf_config_of
from onecard.config.recipes import FAST, NANOGPT, RECIPES, From, recipe_values
from onecard.config.resolve import Resolved, resolve, resolve_mapping
from onecard.config.schema import KEYS, RunConfig
from onecard.doctor.single_changes import single_effects
from onecard.errors import ConfigError, UsageError
from onecard.inputs.config import config_named
from onecard.inputs.make_plan import make_plan
from onecard.inputs.place import place_named
from onecard.plan.budget import Budget
from onecard.plan.cards import find_card
from onecard.plan.conditions import condition_findings
from onecard.plan.intent import intent_findings
from onecard.plan.loss import forecast_loss, law, why_no_forecast
from onecard.plan.plan import Plan
from onecard.plan.proposal import config_text
from onecard.plan.token_worth import LAW_TOKENS
from onecard.report.plan_json import plan_json
from onecard.report.summary import summary_lines
from onecard.runs.records import Eval, Step
from tests.unit.doctor.cases import case, evaluation, found, step

NANOGPT_FILE = """\
dataset = 'fineweb'
batch_size = 8
gradient_accumulation_steps = 64
n_embd = 768
learning_rate = 6e-4
min_lr = 6e-5
max_iters = 4750
lr_decay_iters = 4750
warmup_iters = 250
weight_decay = 0.1
"""
FAST_KEYS = sorted(RECIPES[FAST])
OTHERS: dict[str, Any] = {  # values that are not the recipe's; its model has neither dropout nor biases
    "n_head": 8,
    "model": "gpt2",
    "optimizer": "adamw",
    "learning_rate": 0.2,
    "head_learning_rate": 0.02,
    "muon_learning_rate": 0.03,
    "muon_momentum": 0.9,
    "muon_momentum_warmup": 7,
    "beta1": 0.7,
    "beta2": 0.98,
    "weight_decay": 0.05,
    "grad_clip": 1.0,
    "schedule": "cosine",
    "decay_share": 0.5,
    "decay_lr": False,
    "lr_decay_iters": 3000,
    "min_lr": 0.01,
    "warmup_iters": 40,
    "dropout": 0.0,
    "bias": False,
}


def fast(text: str = NANOGPT_FILE, **flags: object) -> Resolved:
    """A file under --recipe=fast and other flags."""
    typed = [("recipe", FAST), *((key, str(value)) for key, value in flags.items())]
    return resolve(text, filename="train_gpt2.py", flags=typed)


def planned(resolved: Resolved, card: str = "RTX 4070", **asked: Any) -> Plan:
    return make_plan(resolved, place_named(card, None, None), **asked)


class TestWhoseValueCounts:
    @pytest.mark.parametrize("typed", ["1000", "1e3"])
    def test_what_follows_a_whole_number_follows_it_however_it_is_written(self, typed: str) -> None:
        config = fast("dataset = 'fineweb'\n", max_iters=typed).config
        assert (config.max_iters, config.lr_decay_iters, config.muon_momentum_warmup) == (1000, 1000, 250)

    def test_rates_follow_the_width_of_weights_that_a_run_starts_from(self, tmp_path: Path) -> None:
        shape = RunConfig(model="nanochat", n_layer=2, n_head=2, n_embd=96, block_size=64)
        (tmp_path / "config.json").write_text(json.dumps(hf_config_of(shape, end_of_text=None)))
        started = config_named({"recipe": FAST, "init_from": str(tmp_path), "batch_size": 8}, ()).config
        assert started.n_embd == 96
        rates = ("head_learning_rate", "muon_learning_rate")
        assert all(getattr(started, key) == recipe_values(FAST, started.model_dump())[key] for key in rates)

    def test_the_schema_names_every_recipe_and_every_key_of_one_exists(self) -> None:
        assert set(get_args(RunConfig.model_fields["recipe"].annotation)) == set(RECIPES)
        assert not set(FAST_KEYS) - set(KEYS)
        assert RECIPES[NANOGPT] == {}, "nanoGPT's are the defaults of the keys"

    @given(
        in_file=st.sets(st.sampled_from([*FAST_KEYS, "recipe"])),
        as_flags=st.sets(st.sampled_from([*FAST_KEYS, "recipe"])),
    )
    def test_defaults_recipe_file_flags(self, in_file: set[str], as_flags: set[str]) -> None:
        values = {**OTHERS, "recipe": FAST}
        said = {key: values[key] for key in sorted(in_file)}
        typed = {key: FAST if key == "recipe" else recipe_values(FAST, {"max_iters": 4000})[key] for key in as_flags}
        flags = [(key, str(value)) for key, value in typed.items()]
        resolved = resolve_mapping({"max_iters": 4000, **said}, flags=flags)
        recipe = FAST if "recipe" in in_file | as_flags else NANOGPT
        made = recipe_values(recipe, {"max_iters": 4000})
        file_counts = recipe == NANOGPT or "recipe" in in_file
        for key in FAST_KEYS:
            expected = KEYS[key].default
            expected = made.get(key, expected)
            expected = said[key] if key in said and file_counts else expected
            expected = typed.get(key, expected)
            assert getattr(resolved.config, key) == expected, key

    @pytest.mark.parametrize("key", [key for key in FAST_KEYS if key not in ("dropout", "bias")])
    def test_every_value_is_visible_and_can_be_changed_by_file_and_flag(self, key: str) -> None:
        plain = fast("dataset = 'fineweb'\nmax_iters = 4750\n")
        value = recipe_values(FAST, {"max_iters": 4750})[key]
        assert getattr(plain.config, key) == value
        assert plain.origins[key] == "recipe fast"
        other = OTHERS[key]
        by_flag = fast(**{key: other})
        assert (getattr(by_flag.config, key), by_flag.origins[key]) == (other, f"--{key}")
        by_file = resolve(f"{key} = {other!r}\nrecipe = 'fast'\n", filename="mine.py")
        assert (getattr(by_file.config, key), by_file.origins[key]) == (other, "mine.py:1")

    def test_a_flag_replaces_what_a_file_says_for_another_recipe_and_says_so(self) -> None:
        resolved = fast()
        assert resolved.config.learning_rate == RECIPES[FAST]["learning_rate"]
        assert resolved.origins["learning_rate"] == "recipe fast, over train_gpt2.py:5"
        assert resolved.config.batch_size == 8, "what the recipe says nothing about stays the file's"
        (warning,) = resolved.warnings
        assert warning == (
            "--recipe=fast replaces learning_rate=0.0006, min_lr=6e-05, warmup_iters=250, weight_decay=0.1 of "
            "train_gpt2.py; to keep one, type it: --learning_rate=0.0006"
        )

    def test_the_same_recipe_as_a_flag_changes_nothing(self) -> None:
        text = "recipe = 'fast'\nmuon_learning_rate = 0.03\n"
        assert fast(text).config == resolve(text).config
        ours = resolve(NANOGPT_FILE, flags=[("recipe", NANOGPT)])
        assert ours.config == resolve(NANOGPT_FILE).config
        assert ours.warnings == ()

    def test_nanogpts_recipe_takes_the_fast_values_out_of_a_file(self) -> None:
        text = "recipe = 'fast'\nlearning_rate = 0.2\nn_layer = 6\n"
        resolved = resolve(text, filename="mine.py", flags=[("recipe", NANOGPT)])
        assert (resolved.config.model, resolved.config.learning_rate, resolved.config.n_layer) == ("gpt2", 6e-4, 6)
        assert "--recipe=nanogpt replaces learning_rate=0.2" in resolved.warnings[-1]

    def test_the_schedule_ends_with_the_run(self) -> None:
        assert fast("max_iters = 2000\n").config.lr_decay_iters == 2000
        assert fast(max_iters=3000).config.lr_decay_iters == 3000
        assert isinstance(RECIPES[FAST]["lr_decay_iters"], From)
        assert fast("").config.lr_decay_iters == KEYS["max_iters"].default

    def test_a_recipes_values_are_not_what_somebody_asked_for(self) -> None:
        assert set(fast(muon_momentum=0.9).set_by_user) >= {"recipe", "muon_momentum", "max_iters"}
        assert not set(fast().set_by_user) & set(FAST_KEYS)

    def test_a_file_named_like_a_recipe_is_a_file(self) -> None:
        assert "n_layer" in resolve("n_layer = 6\n", filename="recipe fast.py").set_by_user

    def test_the_default_without_a_config_takes_the_recipe(self) -> None:
        resolved = resolve(None, flags=[("recipe", FAST)])
        assert (resolved.config.model, resolved.config.n_layer, resolved.config.lr_decay_iters) == ("nanochat", 4, 800)
        assert resolved.warnings == ()

    def test_weights_of_another_model_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="recipe=fast trains model=nanochat, and init_from=gpt2 is a gpt2"):
            fast(init_from="gpt2")

    def test_an_unknown_recipe_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="recipe='slow' is not one of 'nanogpt' or 'fast'"):
            resolve(None, flags=[("recipe", "slow")])

    @pytest.mark.parametrize(
        ("key", "typed", "fix"),
        [
            ("recipe", "fastt", "fast"),
            ("shard", "ful", "full"),
            ("schedule", "x", "cosine"),
        ],
    )
    def test_the_nearest_word_is_offered(self, key: str, typed: str, fix: str) -> None:
        with pytest.raises(ConfigError) as error:
            resolve(None, flags=[(key, typed)])
        assert error.value.fix == f"--{key}={fix}"

    def test_a_run_folders_config_comes_back_whole(self, tmp_path: Path) -> None:
        """Values that are a key's default and not the recipe's are among those it states."""
        config = resolve("recipe = 'fast'\noptimizer = 'adamw'\nschedule = 'cosine'\n").config
        (tmp_path / "config.json").write_text(json.dumps(config.model_dump()))
        assert config_named(str(tmp_path), []).config == config


@pytest.mark.parametrize(
    ("width", "heads"),
    [(768, 6), (128, 2), (256, 2), (384, 3), (576, 4), (1024, 8), (100, 2), (6, 3), (7, 1), (2**24, 512)],
)
def test_heads_have_about_128_numbers_an_even_number_of_them(width: int, heads: int) -> None:
    assert recipe_values(FAST, {"n_embd": width})["n_head"] == heads


class TestZeroRate:
    """A schedule that ends at a rate of zero before the run does."""

    FILE = "recipe = 'fast'\ndataset = 'fineweb'\nbatch_size = 8\ngradient_accumulation_steps = 64\n"

    def test_updates_at_a_rate_of_zero_are_found_and_predict_no_gain(self) -> None:
        whole, over = (
            planned(resolve(f"{self.FILE}max_iters = {steps}\nlr_decay_iters = 5000\n")) for steps in (5000, 8000)
        )
        assert [finding.rule for finding in whole.findings] == []
        (finding,) = over.findings
        assert (finding.rule, finding.severity, finding.patch) == ("decay-horizon", "warn", {"lr_decay_iters": 8000})
        assert finding.what.endswith("the last 3,000 of 8,000 updates learn nothing")
        assert over.loss
        assert whole.loss
        assert over.loss.final == whole.loss.final
        said = dict(summary_lines(over))
        assert said["look at"] == finding.what
        assert said["or type"].endswith("--lr_decay_iters=8000")
        mended = planned(resolve(f"{self.FILE}max_iters = 8000\n"))
        assert mended.findings == ()
        assert mended.loss
        assert mended.loss.final.likely < over.loss.final.likely

    def test_the_doctor_says_the_same(self) -> None:
        text = f"{self.FILE}max_iters = 8000\nlr_decay_iters = 5000\n"
        (finding,) = found("decay-horizon", case(text))
        assert finding.what == planned(resolve(text)).findings[0].what

    def test_a_rate_above_zero_learns_on(self) -> None:
        text = "dataset = 'fineweb'\nmax_iters = 8000\nlr_decay_iters = 5000\n"
        assert resolve(text).config.learning_steps == 8000
        assert resolve(f"{text}min_lr = 0.0\n").config.learning_steps == 5000
        assert resolve(f"{text}min_lr = 0.0\ndecay_lr = False\n").config.learning_steps == 8000
        assert "is zero in every update" in why_no_forecast(
            resolve(f"{text}min_lr = 0.0\n", flags=[("lr_decay_iters", "0"), ("warmup_iters", "0")]).config
        )


class TestPlan:
    @pytest.mark.parametrize("card", ["RTX 4070", "RTX 3060 12GB", "H100 SXM5 80GB", "RTX 2080 Ti"])
    def test_it_is_of_onecard_alone_beside_the_same_run_without(self, card: str) -> None:
        plan = planned(fast(), card)
        assert set(plan.trainers) == {"onecard"}
        assert plan.without_recipe
        nanogpt = planned(resolve(NANOGPT_FILE), card, trainer="onecard")
        assert plan.without_recipe.loss == nanogpt.loss
        assert plan.without_recipe.speed == nanogpt.first.speed
        assert plan.without_recipe.memory.process_bytes == nanogpt.first.memory.process_bytes
        assert plan.loss
        assert nanogpt.loss
        assert plan.loss.final.likely < nanogpt.loss.final.likely

    def test_json_has_the_origins_and_the_run_without(self) -> None:
        said = plan_json(planned(fast()))
        assert said["origins"]["optimizer"] == "recipe fast"
        assert said["without_recipe"]["config"]["learning_rate"] == 6e-4
        assert plan_json(planned(resolve(NANOGPT_FILE))).get("without_recipe") is None

    def test_nanogpt_alone_cannot_run_it(self) -> None:
        with pytest.raises(UsageError, match="nanoGPT cannot train model=nanochat"):
            planned(fast(), trainer="nanogpt")

    def test_nothing_about_its_settings_is_a_warning(self) -> None:
        assert list(condition_findings(fast())) == []

    def test_a_size_in_a_comment_is_of_gpt2s_shape_too(self) -> None:
        assert not intent_findings(fast("# a GPT of ~124M parameters\n" + NANOGPT_FILE))

    def test_another_size_has_its_own_rates_unless_they_were_set(self) -> None:
        sized = planned(fast(muon_learning_rate=0.03), fit=True, params=60_000_000).config
        made = recipe_values(FAST, sized.model_dump())
        assert sized.n_embd != 768
        assert (sized.head_learning_rate, sized.muon_learning_rate) == (made["head_learning_rate"], 0.03)


class TestLoss:
    def test_the_laws_tokens_to_the_public_mark(self) -> None:
        assert law(124.4e6, LAW_TOKENS) + 0.21 == pytest.approx(3.28, abs=1e-3)

    def test_it_reaches_the_public_mark_with_the_public_tokens(self) -> None:
        config = fast(max_iters=4578).config
        forecast = forecast_loss(config)
        assert forecast
        assert forecast.final.likely == pytest.approx(3.28, abs=0.01)
        assert forecast.final.low < forecast.final.likely - 0.1, "a public recipe is not ours: the range is wider"
        assert list(forecast.milestones) == [4578], "how such runs fall is not known"
        assert any("modded-nanogpt" in source for source in forecast.sources)

    def test_muon_alone_is_worth_less(self) -> None:
        runs = [fast(), resolve(NANOGPT_FILE + "optimizer = 'muon'\n"), resolve(NANOGPT_FILE)]
        losses = [found.final.likely for run in runs if (found := forecast_loss(run.config))]
        assert len(losses) == 3
        assert losses == sorted(losses)

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"n_layer": 24, "n_embd": 1024, "n_head": 16}, "the public runs of recipe=fast have 124M parameters"),
            ({"n_layer": 4, "n_embd": 256, "n_head": 4}, "the public runs of recipe=fast have 124M parameters"),
            ({"block_size": 256, "batch_size": 32}, "1,024 tokens of context, this one 256"),
            ({"max_iters": 200}, "have about 2.4B tokens, this one 0.1B"),
            ({"dataset": "my_text"}, "no public run of this recipe is on data like dataset=my_text"),
            ({"vocab_size": 256}, "fitted on BPE tokens"),
            ({"vocab_size": 16384}, "have GPT-2's vocabulary"),
            ({"optimizer": "adamw"}, "no public run tells what model=nanochat reaches with optimizer=adamw"),
            ({"learning_rate": 6e-4}, "learning_rate=0.0006 is far from recipe=fast"),
            ({"muon_learning_rate": 1.0}, "muon_learning_rate=1 is far from the usual"),
        ],
    )
    def test_where_no_public_run_is_near_it_is_silent(self, changes: dict[str, object], why: str) -> None:
        config = fast(**changes).config
        assert forecast_loss(config) is None
        assert why in why_no_forecast(config)


class TestDoctorAndCompare:
    FAST_RUN = (
        "dataset = 'fineweb'\nbatch_size = 8\ngradient_accumulation_steps = 64\nmax_iters = 4578\nrecipe = 'fast'\n"
    )

    @pytest.mark.parametrize(
        "rule",
        [
            *("lr-out-of-range", "decay-horizon", "warmup-length", "weight-decay-out-of-range", "small-batch-betas"),
            *("few-large-updates", "capacity-or-data", "tokens-per-parameter"),
        ],
    )
    def test_rules_about_adamw_and_its_law_say_nothing_of_it(self, rule: str) -> None:
        assert not found(rule, case(self.FAST_RUN, records=ending(self.FAST_RUN, 3.28)))

    @pytest.mark.parametrize(("val", "off"), [(3.28, False), (3.10, False), (3.55, True), (2.9, True)])
    def test_its_loss_is_weighed_by_its_own_law(self, val: float, off: bool) -> None:
        """3.28 after 2.4B tokens is 0.25 below what the law says of AdamW."""
        assert bool(found("loss-off-expectation", case(self.FAST_RUN, records=ending(self.FAST_RUN, val)))) == off

    def test_the_recipe_is_one_change(self) -> None:
        before, after = resolve(NANOGPT_FILE).config, fast().config
        (effect,) = single_effects(before, after, find_card("RTX 4070"), "onecard")
        assert effect.named == {"recipe": (NANOGPT, FAST)}
        assert effect.changes.keys() >= {"model", "optimizer", "learning_rate"}
        assert effect.final_loss_difference is not None
        assert effect.final_loss_difference < -0.1
        assert effect.tokens_per_second_ratio


def ending(text: str, val: float) -> list[Step | Eval]:
    """Records of a run that ends at a validation loss."""
    last = resolve(text).config.max_iters
    return [step(last, val), evaluation(last, val, val)]


class TestHours:
    def test_the_recipe_is_the_third_line(self) -> None:
        plan = planned(resolve(None), budget=Budget(seconds=48 * 3600))
        assert plan.proposals
        best, _, recipe = plan.proposals
        assert recipe.loss
        assert best.loss
        assert recipe.loss.final.likely < best.loss.final.likely - 0.1
        assert "not to nanoGPT" in recipe.note
        assert recipe.process_bytes <= (plan.room_bytes or 0)
        assert (best.name, recipe.name) == ("lowest loss of a GPT-2", "the fast recipe")

    def test_asked_for_it_is_the_first_and_its_file_makes_that_run(self) -> None:
        plan = planned(resolve(None, flags=[("recipe", FAST)]), budget=Budget(seconds=24 * 3600))
        assert plan.proposals
        first = plan.proposals[0]
        assert first.config.recipe == FAST
        made = recipe_values(FAST, first.config.model_dump())
        assert {key: getattr(first.config, key) for key in made} == made, "the rates are those of its own size"
        text = config_text(first)
        again = resolve(text, filename="weekend.py")
        assert again.config.replace({"out_dir": first.config.out_dir}) == first.config
        assert again.config.lr_decay_iters == again.config.max_iters
        wider = resolve(text, flags=[("n_embd", "1280"), ("max_iters", "999")]).config
        assert {key: getattr(wider, key) for key in made} == recipe_values(FAST, wider.model_dump())

    def test_its_file_goes_back_to_nanogpts_recipe(self) -> None:
        plan = planned(resolve(None, flags=[("recipe", FAST)]), budget=Budget(seconds=48 * 3600))
        assert plan.proposals
        written = config_text(plan.proposals[0])
        stated = written + "".join(f"{key} = {plan.proposals[0].config.model_dump()[key]!r}\n" for key in FAST_KEYS)
        for text in (written, stated):
            back = resolve(text, filename="weekend.py", flags=[("recipe", NANOGPT)]).config
            assert (back.model, back.n_embd, back.n_head, back.optimizer) == ("gpt2", 1024, 16, "adamw")
            assert back.lr_decay_iters == back.max_iters == plan.proposals[0].config.max_iters
            without = planned(resolve(text, filename="weekend.py")).without_recipe
            assert without
            assert without.config == back.replace({"dtype": without.config.dtype})

    def test_a_config_that_is_longer_than_its_schedule_proposes_the_same(self) -> None:
        """What a budget decides is not read from the config: min_lr=0 at its lr_decay_iters least of all."""
        flags = [("recipe", FAST), ("dataset", "fineweb")]
        short = resolve("max_iters = 50\nlr_decay_iters = 40\n", flags=flags)
        made = [
            planned(each, budget=Budget(seconds=24 * 3600)).proposals
            for each in (short, resolve("n_layer = 12\n", flags=flags))
        ]
        assert made[0]
        assert made[1]
        assert made[0][0].config == made[1][0].config

    @pytest.mark.parametrize(("flags", "why"), [({"dataset": "my_text"}, "data"), ({"bias": True}, "no biases")])
    def test_it_is_left_out_where_its_loss_is_not_known(self, flags: dict[str, object], why: str) -> None:
        typed = [(key, str(value)) for key, value in flags.items()]
        plan = planned(resolve(None, flags=typed), budget=Budget(seconds=48 * 3600))
        assert plan.proposals
        assert [each.config.recipe for each in plan.proposals] == [NANOGPT] * len(plan.proposals), why

    def test_more_hours_than_its_loss_is_known_for_still_give_a_run(self) -> None:
        plan = planned(resolve(None, flags=[("recipe", FAST)]), "H100 SXM5 80GB", budget=Budget(seconds=500 * 3600))
        assert plan.proposals
        assert plan.proposals[0].loss

    def test_too_few_hours_are_answered_with_enough(self) -> None:
        recipe = resolve(None, flags=[("recipe", FAST)])
        plan = planned(recipe, budget=Budget(seconds=360))
        assert plan.proposals == ()
        assert plan.proposed
        assert plan.proposed.enough
        assert planned(recipe, budget=plan.proposed.enough).proposals
