"""What torch.compile's partitioner keeps for the backward pass of the embeddings, asked of torch itself on a CPU."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from torch import nn  # noqa: E402

from onecard.config.schema import RunConfig  # noqa: E402
from onecard.paper.device import H200  # noqa: E402
from onecard.plan.memory.nanogpt.compiled.shape import Shape  # noqa: E402

pytestmark = pytest.mark.slow
TOKENS, VOCABULARY = 16, 64


class Embeddings(nn.Module):
    """The start of a GPT: both embeddings, dropout, a block of one norm and one product, and a head."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(TOKENS, width)
        self.drop = nn.Dropout(dropout)
        self.norm, self.last_norm = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.product, self.head = nn.Linear(width, width, bias=False), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids_BT: Any) -> Any:
        x_BTC = self.drop(self.tokens(ids_BT) + self.places(torch.arange(TOKENS)))
        x_BTC = x_BTC + self.product(self.norm(x_BTC))
        logits_BTV = self.head(self.last_norm(x_BTC))
        return nn.functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT.flatten())


class Partitioned(Exception):
    """Raised once the forward graph is known: nothing needs to be generated from it."""


def kept_names(monkeypatch: pytest.MonkeyPatch, model: nn.Module, ids_BT: Any) -> list[str]:
    """Names of what the forward graph returns, which is what it keeps and the loss."""
    from torch._inductor import compile_fx

    partition = compile_fx.min_cut_rematerialization_partition
    found: list[str] = []

    def spy(*args: Any, **kwargs: Any) -> Any:
        forward, _ = partition(*args, **kwargs)
        (output,) = [node for node in forward.graph.nodes if node.op == "output"]
        found.extend(node.name for node in output.args[0] if node is not None)
        raise Partitioned

    monkeypatch.setattr(compile_fx, "min_cut_rematerialization_partition", spy)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="Partitioned"):
        torch.compile(model)(ids_BT)
    return found


@pytest.mark.parametrize(
    ("batch_size", "n_embd", "dropout"),
    [(2, 688, 0.0), (2, 696, 0.0), (3, 64, 0.0), (4, 512, 0.1), (5, 32, 0.1), (5, 36, 0.1), (8, 512, 0.1)],
)
def test_the_embeddings_are_kept_where_the_partitioner_keeps_them(
    monkeypatch: pytest.MonkeyPatch, batch_size: int, n_embd: int, dropout: float
) -> None:
    config = RunConfig().replace(
        {"batch_size": batch_size, "n_embd": n_embd, "n_head": 1, "dropout": dropout, "dtype": "float32"}
    )
    model = Embeddings(n_embd, dropout)
    names = kept_names(monkeypatch, model, torch.randint(VOCABULARY, (batch_size, TOKENS)))
    assert any(name.startswith("embedding") for name in names) == Shape(config, H200).keeps_embeddings
