"""Log-likelihoods of answers: those of a softmax over all logits, whatever is shared, batched or short of memory."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.config.schema import RunConfig  # noqa: E402
from onecard.train import answer_score  # noqa: E402
from onecard.train.answer_score import Asked, Likelihood, likelihoods  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.oom import OutOfMemory  # noqa: E402

SHAPE = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32, "vocab_size": 65}


def made(**keys: Any) -> GPT:
    torch.manual_seed(0)
    model = GPT(RunConfig(**SHAPE, **keys))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def questions() -> list[Asked]:
    """Contexts of one token to more than fit, with one to four answers of one to five tokens."""
    draw = random.Random(1)
    asked = []
    for _ in range(60):
        context = [draw.randrange(65) for _ in range(draw.choice([1, 3, 10, 15, 20, 31, 40]))]
        answers = [[draw.randrange(65) for _ in range(draw.choice([1, 2, 5]))] for _ in range(draw.choice([1, 2, 4]))]
        asked += [Asked(context, answer) for answer in answers]
    return asked


def direct(model: GPT, asked: Asked) -> Likelihood:
    """One answer in one pass, with all logits in float64."""
    tokens = [*asked.context, *asked.answer][-(model.config.block_size + 1) :]
    model.eval()
    with torch.no_grad():
        log_TV = model.logits(model.hidden(torch.tensor([tokens[:-1]])))[0].double().log_softmax(-1)
    places = range(len(tokens) - 1 - len(asked.answer), len(tokens) - 1)
    pairs = list(zip(places, asked.answer, strict=True))
    return Likelihood(
        sum(float(log_TV[place, token]) for place, token in pairs),
        all(int(log_TV[place].argmax()) == token for place, token in pairs),
    )


def likeliest(model: GPT, asked: Asked) -> Asked:
    """The same context, with the token that the model finds likeliest."""
    model.eval()
    with torch.no_grad():
        logits_V = model.logits(model.hidden(torch.tensor([asked.context[-model.config.block_size :]])))[0, -1]
    return Asked(asked.context, [int(logits_V.argmax())])


@pytest.mark.parametrize("keys", [{"dropout": 0.3}, {"model": "nanochat"}], ids=["gpt2", "nanochat"])
def test_each_likelihood_is_that_of_one_pass_over_its_text(keys: dict[str, Any]) -> None:
    model = made(**keys)
    asked = [likeliest(model, each) if number % 3 == 0 else each for number, each in enumerate(questions())]
    model.train()
    found = likelihoods(model, asked)
    assert model.training, "the model is left as it was"
    wanted = [direct(model, each) for each in asked]
    assert [each.log for each in found] == pytest.approx([each.log for each in wanted], abs=2e-5)
    assert [each.greedy for each in found] == [each.greedy for each in wanted]
    assert {each.greedy for each in found} == {True, False}, "all are alike: the questions show nothing"


def test_a_shared_context_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made()
    context = list(range(20))
    read: list[int] = []
    for name in ("hidden", "hidden_after"):
        was = getattr(model, name)

        def counted(tokens_BT: Any, *rest: Any, was: Any = was) -> Any:
            read.append(tokens_BT.numel())
            return was(tokens_BT, *rest)

        monkeypatch.setattr(model, name, counted)
    likelihoods(model, [Asked(context, [7, 8]) for _ in range(4)])
    assert sum(read) == 19 + 4 * 2


def test_answers_are_counted_as_they_are_scored_and_memory_may_be_short(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked, sizes = made(), questions(), []
    whole = likelihoods(model, asked)
    hidden, hidden_after = model.hidden, model.hidden_after
    monkeypatch.setattr(answer_score, "release_memory", lambda device: None)  # the CPU's is never short here

    def short(read: Any) -> Any:
        def limited(tokens_BT: Any, *rest: Any) -> Any:
            sizes.append(len(tokens_BT))
            if len(tokens_BT) > most:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return read(tokens_BT, *rest)

        return limited

    monkeypatch.setattr(model, "hidden", short(hidden))
    monkeypatch.setattr(model, "hidden_after", short(hidden_after))
    most, heard = 3, []  # fewer than the answers to some questions
    found = likelihoods(model, asked, on_progress=heard.append)
    assert [each.log for each in found] == pytest.approx([each.log for each in whole], abs=2e-5)
    assert max(sizes) > most, "memory was never short"
    assert sum(heard) == len(asked)
    most = 0
    with pytest.raises(OutOfMemory):
        likelihoods(model, asked)


def test_a_model_that_diverged_says_so() -> None:
    broken = made()
    with torch.no_grad():
        broken.transformer.wte.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError):
        likelihoods(broken, [Asked([1], [2])])


def test_many_answers_are_more_than_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made()
    asked = [Asked(list(range(12)), [number % 65, 3]) for number in range(5)]
    whole = likelihoods(model, asked)
    monkeypatch.setattr(answer_score, "_MOST_ANSWERS", 2)
    assert [each.log for each in likelihoods(model, asked)] == pytest.approx([each.log for each in whole], abs=2e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA, found none")
@pytest.mark.parametrize("keys", [{}, {"model": "nanochat"}], ids=["gpt2", "nanochat"])
def test_a_card_gives_the_likelihoods_of_the_cpu(keys: dict[str, Any]) -> None:
    model, asked = made(**keys), questions()
    there = likelihoods(model, asked)
    here = likelihoods(model.to("cuda"), asked)
    assert [each.log for each in here] == pytest.approx([each.log for each in there], abs=1e-3)
