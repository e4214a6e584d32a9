"""What a plan says about memory: the notes' cases, the verdict, and parts that add up."""

import pytest

from onecard.config.schema import RunConfig
from onecard.plan.cards import find_card
from onecard.plan.memory.predict import PROCESS, Memory, predict_nanogpt, predict_onecard
from onecard.plan.sensitivity import single_changes
from onecard.units import GIB, MIB

RTX_4070 = find_card("RTX 4070")


def config(**keys: object) -> RunConfig:
    return RunConfig().replace({"dtype": "float16", "batch_size": 16, "gradient_accumulation_steps": 32, **keys})


NOTE_001 = config(n_layer=6, n_head=6, n_embd=384, block_size=512, gradient_accumulation_steps=4)


def with_desktop(**keys: object) -> Memory:
    available = RTX_4070.allocatable_bytes - round(2.1 * GIB)
    return predict_nanogpt(config(**keys), RTX_4070, available_bytes=available)


def test_the_30m_process_that_showed_4464_mib_is_predicted_within_5_percent() -> None:
    predicted = predict_nanogpt(NOTE_001, RTX_4070).process_bytes / MIB
    assert predicted == pytest.approx(4464, rel=0.05)


def test_compile_saves_memory_on_the_30m_config() -> None:
    eager = predict_nanogpt(NOTE_001.replace({"compile": False}), RTX_4070)
    compiled = predict_nanogpt(NOTE_001, RTX_4070)
    assert compiled.process_bytes < 0.6 * eager.process_bytes


def test_576_wide_at_batch_16_does_not_fit_beside_a_desktop_and_384_does() -> None:
    too_wide = with_desktop(n_embd=576)
    assert too_wide.fits is False
    assert too_wide.ran_out is not None
    assert too_wide.ran_out.startswith("training")
    assert with_desktop(n_embd=384).fits is True


def test_evaluation_peaks_below_training() -> None:
    memory = with_desktop(n_embd=384)
    assert memory.peak_phase.name == "train"
    assert memory.phases["eval0"].allocated_bytes < memory.phases["eval"].allocated_bytes


def test_a_run_may_fit_only_because_the_cache_is_given_back() -> None:
    free = predict_nanogpt(NOTE_001, RTX_4070)
    squeezed = predict_nanogpt(NOTE_001, RTX_4070, available_bytes=free.process_bytes - MIB)
    assert squeezed.fits is True
    assert squeezed.tight
    assert squeezed.process_bytes <= free.process_bytes - MIB


def test_without_a_card_there_is_no_verdict() -> None:
    memory = predict_nanogpt(NOTE_001, None)
    assert memory.fits is None
    assert memory.context_bytes == 0
    assert any("no card was named" in assumption for assumption in memory.assumptions)


@pytest.mark.parametrize("compiled", [True, False])
def test_parts_sum_to_what_is_allocated_and_complete_to_the_process(compiled: bool) -> None:
    memory = predict_nanogpt(config(compile=compiled), RTX_4070)
    for name, phase in memory.phases.items():
        assert sum(part.size_bytes for part in memory.parts_of(name)) == phase.allocated_bytes
    rest = sum(part.size_bytes for part in memory.parts_of(PROCESS))
    assert memory.peak_phase.allocated_bytes + rest == memory.process_bytes
    assert all(part.size_bytes >= 0 for part in memory.parts)
    assert all(part.why for part in memory.parts)


def test_every_phase_says_when_it_peaks() -> None:
    for compiled in (True, False):
        memory = predict_nanogpt(config(compile=compiled), RTX_4070)
        for phase in memory.phases.values():
            assert phase.moment, phase.name


def test_block_size_is_linear_with_flash_attention() -> None:
    short = predict_nanogpt(config(block_size=1024, batch_size=2), RTX_4070).phases["train"].allocated_bytes
    longer = predict_nanogpt(config(block_size=2048, batch_size=2), RTX_4070).phases["train"].allocated_bytes
    longest = predict_nanogpt(config(block_size=4096, batch_size=2), RTX_4070).phases["train"].allocated_bytes
    assert (longest - longer) / (longer - short) == pytest.approx(2, rel=0.02)


def test_sensitivity_replans_each_setting() -> None:
    changes = {(change.key, change.value): change for change in single_changes(NOTE_001, RTX_4070)}
    assert set(changes) == {
        *(("batch_size", 8), ("batch_size", 32), ("block_size", 256), ("block_size", 1024)),
        *(("n_embd", 192), ("n_embd", 768), ("n_layer", 3), ("n_layer", 12)),
        *(
            ("vocab_size", 25152),
            ("vocab_size", 100608),
            ("dtype", "bfloat16"),
            ("dtype", "float32"),
            ("compile", False),
        ),
    }
    direct = predict_nanogpt(NOTE_001.replace({"batch_size": 8}), RTX_4070)
    assert changes["batch_size", 8].process_bytes == direct.process_bytes
    assert changes["batch_size", 8].difference_bytes < 0 < changes["batch_size", 32].difference_bytes


EAGER = RunConfig(n_head=4, n_embd=256, batch_size=33, dtype="float32", compile=False, dropout=0.1)
WRITTEN_OUT = RunConfig(n_layer=6, n_head=6, n_embd=384, block_size=512, batch_size=66, dtype="bfloat16")


@pytest.mark.parametrize(("config", "around_mib"), [(EAGER, 8_700), (WRITTEN_OUT, 4_100)], ids=["eager", "written out"])
def test_more_memory_never_gives_a_worse_verdict(config: RunConfig, around_mib: int) -> None:
    """Under torch's own limit: no, only because the cache is given back, yes but barely, yes."""
    verdicts = []
    for mib in range(around_mib - 400, around_mib + 900, 50):
        limit = mib * MIB
        memory = predict_onecard(config.replace({"memory_limit": limit}), find_card("H200"), available_bytes=limit)
        verdicts.append(bool(memory.fits) + bool(memory.fits and not memory.tight) + memory.is_safe(limit))
    assert verdicts == sorted(verdicts)
    assert {0, 3} <= set(verdicts)
