"""Sampling: repeatable, greedy at 0, within the context, and each token read once."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.config.schema import RunConfig  # noqa: E402
from onecard.errors import UsageError  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.past import Past  # noqa: E402
from onecard.train.sample import generate  # noqa: E402

TINY = RunConfig(n_layer=2, n_head=2, n_embd=32, block_size=8, vocab_size=65, dropout=0.3)
MODELS = {"gpt2": TINY, "nanochat": TINY.replace({"model": "nanochat", "dropout": 0.0})}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> GPT:
    torch.manual_seed(0)
    made = GPT(MODELS[request.param])
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


@pytest.fixture
def read(model: GPT, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens the model is given, each time."""
    found: list[int] = []
    hidden_after = model.hidden_after

    def counted(tokens_BT: Any, past: Past) -> Any:
        found.append(tokens_BT.shape[1])
        return hidden_after(tokens_BT, past)

    monkeypatch.setattr(model, "hidden_after", counted)
    return found


def test_a_token_is_read_once_until_the_window_slides(model: GPT, read: list[int]) -> None:
    list(generate(model, [1, 2, 3], max_new_tokens=8))
    assert read == [3, 1, 1, 1, 1, 1, 8, 8]


def test_a_prompt_longer_than_the_context_is_read_from_its_end(model: GPT, read: list[int]) -> None:
    list(generate(model, list(range(20)), max_new_tokens=2))
    assert read == [8, 8]


def hidden(model: GPT, tokens: list[int]) -> Any:
    """x_TC, reading all at once."""
    with torch.no_grad():
        return model.hidden(torch.tensor([tokens]))[0]


def after(model: GPT, tokens: list[list[int]], past: Past) -> Any:
    """x_BTC of what follows `past`."""
    with torch.no_grad():
        return model.hidden_after(torch.tensor(tokens), past)


@pytest.mark.parametrize("pieces", [[7], [1] * 7, [3, 4], [2, 1, 3, 1], [1, 5, 1]])
def test_a_text_in_pieces_is_as_the_text_at_once(model: GPT, pieces: list[int]) -> None:
    model.eval()
    text, past, at = [3, 1, 4, 1, 5, 9, 2], Past(model.config), 0
    for length in pieces:
        found = after(model, [text[at : at + length]], past)[0]
        at += length
        torch.testing.assert_close(found, hidden(model, text[:at])[-length:], atol=1e-5, rtol=1e-5)
    past.forget()
    torch.testing.assert_close(after(model, [text[::-1]], past)[0], hidden(model, text[::-1]), atol=1e-5, rtol=1e-5)
    model.train()


def test_a_context_read_once_continues_in_many_ways(model: GPT) -> None:
    model.eval()
    context, ends = [5, 6, 7], [[1, 2, 3], [4, 5, 6], [1, 9, 9]]
    past = Past(model.config)
    after(model, [context], past)
    for _ in range(2):  # the context's own past is not changed by those who continue it
        found = after(model, ends, past.repeated(len(ends), room=6))
        for end, x_TC in zip(ends, found, strict=True):
            torch.testing.assert_close(x_TC, hidden(model, context + end)[-3:], atol=1e-5, rtol=1e-5)
    assert past.length == 3
    model.train()


def test_more_than_the_context_holds_is_refused(model: GPT) -> None:
    past = Past(model.config)
    after(model, [[1] * 8], past)
    with pytest.raises(AssertionError, match="9 tokens do not fit block_size=8"):
        after(model, [[1]], past)


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
