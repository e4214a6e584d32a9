"""Sampling: repeatable, greedy at 0, and within the context."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.config.schema import RunConfig  # noqa: E402
from onecard.errors import UsageError  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.sample import generate  # noqa: E402

TINY = RunConfig(n_layer=2, n_head=2, n_embd=32, block_size=8, vocab_size=65, dropout=0.3)


@pytest.fixture(scope="module")
def model() -> GPT:
    torch.manual_seed(0)
    made = GPT(TINY)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return made


def test_one_seed_gives_one_text_and_another_seed_another(model: GPT) -> None:
    def text(seed: int) -> list[int]:
        return list(generate(model, [1, 2], max_new_tokens=20, temperature=1.0, seed=seed))

    assert text(1) == text(1)
    assert text(1) != text(2)
    assert all(0 <= token < TINY.vocab_size for token in text(1))


def test_the_runs_own_random_numbers_stay_untouched(model: GPT) -> None:
    before = torch.get_rng_state()
    list(generate(model, [1], max_new_tokens=5))
    assert torch.equal(torch.get_rng_state(), before)


def test_temperature_zero_takes_the_likeliest_token_of_the_last_block_size_tokens(model: GPT) -> None:
    prompt = list(range(5))
    text = prompt + list(generate(model, prompt, max_new_tokens=10, temperature=0))
    model.eval()
    for end in range(len(prompt), len(text)):
        context_1T = torch.tensor([text[max(0, end - TINY.block_size) : end]])
        with torch.no_grad():
            assert text[end] == model.logits(model.hidden(context_1T))[0, -1].argmax().item()
    model.train()


def test_top_k_one_is_greedy(model: GPT) -> None:
    greedy = list(generate(model, [3], max_new_tokens=12, temperature=0))
    assert list(generate(model, [3], max_new_tokens=12, temperature=5.0, top_k=1)) == greedy


def test_top_k_keeps_the_likeliest(model: GPT) -> None:
    model.eval()
    with torch.no_grad():
        likeliest = set(model.logits(model.hidden(torch.tensor([[7]])))[0, -1].topk(3).indices.tolist())
    model.train()
    drawn = {next(generate(model, [7], max_new_tokens=1, temperature=50.0, top_k=3, seed=seed)) for seed in range(40)}
    assert drawn == likeliest


def test_tokens_come_one_at_a_time_and_the_mode_is_as_before(model: GPT) -> None:
    tokens = generate(model, [1], max_new_tokens=3)
    next(tokens)
    assert model.training
    assert len(list(tokens)) == 2


def test_no_logits_but_the_last_are_made(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    logits = model.logits
    monkeypatch.setattr(model, "logits", lambda x: shapes.append(tuple(x.shape)) or logits(x))
    list(generate(model, list(range(8)), max_new_tokens=2))
    assert shapes == [(32,), (32,)]


@pytest.mark.parametrize("temperature", [0.0, 50.0])
@pytest.mark.parametrize("top_k", [None, 3, 200])
def test_ids_without_text_are_never_drawn(model: GPT, temperature: float, top_k: int | None) -> None:
    options: dict[str, Any] = {"max_new_tokens": 60, "temperature": temperature, "top_k": top_k}
    assert max(generate(model, [1], **options)) >= 17, "without a limit they are"
    assert max(generate(model, [1], **options, vocab_size=17)) < 17


@pytest.mark.parametrize("temperature", [1e-45, 1e-300, 1e300, float("inf")])
def test_any_temperature_gives_a_token(model: GPT, temperature: float) -> None:
    (token,) = generate(model, [3], max_new_tokens=1, temperature=temperature)
    (likeliest,) = generate(model, [3], max_new_tokens=1, temperature=0)
    assert token == likeliest or temperature > 1


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 1e38])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_model_that_diverged_says_so(weight: float, temperature: float) -> None:
    broken = GPT(TINY)
    with torch.no_grad():
        broken.lm_head.weight.fill_(weight)
    with pytest.raises(FloatingPointError):
        next(generate(broken, [1], max_new_tokens=1, temperature=temperature))


@pytest.mark.parametrize(
    ("prompt", "options"),
    [([], {}), ([1], {"temperature": -1.0}), ([1], {"temperature": float("nan")}), ([1], {"top_k": 0})],
)
def test_what_means_nothing_is_refused_at_once(model: GPT, prompt: list[int], options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        generate(model, prompt, max_new_tokens=1, **options)
