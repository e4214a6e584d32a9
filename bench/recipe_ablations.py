"""Trains small GPTs by a recipe whose every ingredient is a flag, and prints one JSON line a run.

    python bench/recipe_ablations.py --data FOLDER --start adamw --learning_rate=0.004 --seeds 1,2
    python bench/recipe_ablations.py --data FOLDER --start fast --tokens=2_048_000 --without all

FOLDER holds train.bin (or train.bin.xz) and val.bin: GPT-2's tokens as uint16. With a `vocab_size` below GPT-2's they
are mapped to the most frequent ones, and all others to one unknown token.

`--without all` repeats the run with one ingredient at a time replaced by what GPT-2 and nanoGPT have in its place.

Runs can be compared: sequence number i of a run depends on its seed alone, whatever the size of an update, and all runs
are evaluated on the same windows of val.bin. A line has the final loss (`loss`, at the declared number of tokens), and
the way there (`curve`: tokens, seconds of training, loss).

B sequences, T tokens in one, C channels, H heads of D channels, L blocks, V tokens in the vocabulary.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides a run's loss. The defaults are GPT-2's shape and nanoGPT's optimizer at a small size."""

    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128
    block_size: int = 128
    vocab_size: int = 2048

    rotary: bool = False  # positions by rotating queries and keys, instead of learned ones
    rotary_base: float = 10_000.0
    rms_norm: bool = False  # without weights, instead of LayerNorm with weights
    embedding_norm: bool = False  # a norm after the embedding
    qk_norm: bool = False  # queries and keys normed, after the rotation
    attention_scale: float = 0.0  # 0: 1 / √D
    relu2: bool = False  # ReLU² instead of GELU
    zero_projections: bool = False  # first weights of both projections back to C are 0
    fan_in: bool = False  # first weights of matrices have standard deviation 1 / √C instead of 0.02
    first_weights: float = 1.0  # matrices' first standard deviation relative to that
    tied: bool = True  # the head is the embedding
    tied_until: float = 0.0  # share of the tokens in which an untied head is the embedding too, at the head's rate
    embedding_std: float = 0.02
    head_std: float = 0.02
    softcap: float = 0.0  # logits softcap · tanh(logits / softcap); 0: as they are
    value_embeddings: bool = False  # in every other block each token adds a vector of its own to its values
    x0_skips: bool = False  # each block starts from a learned mix of its x and the first block's x

    muon: bool = False  # for the matrices of the blocks; AdamW for the rest
    learning_rate: float = 1e-3  # AdamW's
    head_learning_rate: float = 0.0  # AdamW's for an untied head; 0: learning_rate
    matrix_learning_rate: float = 0.0  # AdamW's for the matrices of the blocks; 0: learning_rate
    muon_learning_rate: float = 0.02
    muon_momentum: float = 0.95
    momentum_warmup: int = 0  # updates in which the momentum rises from 0.85
    polar_express: bool = True  # its coefficients, instead of the classic Newton–Schulz steps
    split_qkv: bool = True  # queries', keys' and values' matrices are orthogonalised separately
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1  # of matrices; in a Muon run of Muon's only
    cautious: bool = False  # decay only where the update shrinks the weight too
    grad_clip: float = 1.0  # 0: none

    tokens: int = 2_048_000
    tokens_per_update: int = 2048
    warmup: float = 0.05  # share of the tokens
    linear: bool = False  # a constant rate, then a straight line to final_rate, instead of a cosine
    decay_share: float = 1.0  # share of the tokens in which a linear schedule falls
    final_rate: float = 0.1  # relative to the highest
    batch_ramp: str = ""  # "0.1:0.25,0.3:0.5": a quarter of the update's tokens until 0.1 of all, half until 0.3
    ramp_power: float = 0.0  # rates while the batch grows: (share of the update's tokens) to this power
    context_ramp: str = ""  # "0.3:32": sequences of 32 tokens until 0.3 of all tokens
    seed: int = 1


ADAMW = Recipe()
MUON = replace(
    ADAMW, muon=True, learning_rate=4e-3, linear=True, final_rate=0.0, warmup=0.0, weight_decay=0.0, grad_clip=0.0
)
FAST = replace(
    MUON,
    rotary=True,
    rms_norm=True,
    embedding_norm=True,
    qk_norm=True,
    relu2=True,
    zero_projections=True,
    fan_in=True,
    tied=False,
    embedding_std=1.0,
    head_std=0.001,
    softcap=15.0,
    learning_rate=0.3,
    head_learning_rate=0.01,
)
STARTS = {"adamw": ADAMW, "muon": MUON, "fast": FAST}

# What stands in an ingredient's place when it is left out, with a rate that suits it.
WITHOUT: dict[str, dict[str, Any]] = {
    "rotary": {"rotary": False},
    "rms_norm": {"rms_norm": False},
    "embedding_norm": {"embedding_norm": False},
    "qk_norm": {"qk_norm": False},
    "relu2": {"relu2": False},
    "zero_projections": {"zero_projections": False},
    "fan_in": {"fan_in": False},
    "untied": {"tied": True, "embedding_std": 0.02, "learning_rate": 0.01},
    "softcap": {"softcap": 0.0},
    "value_embeddings": {"value_embeddings": False},
    "x0_skips": {"x0_skips": False},
    "muon": {"muon": False, "matrix_learning_rate": 4e-3},
    "polar_express": {"polar_express": False},
    "split_qkv": {"split_qkv": False},
    "linear": {"linear": False, "final_rate": 0.1},
    "batch_ramp": {"batch_ramp": ""},
    "context_ramp": {"context_ramp": ""},
    "momentum_warmup": {"momentum_warmup": 0},
    "cautious": {"cautious": False},
}


# ---------------------------------------------------------------------------------------------------------------- data


def tokens_of(folder: Path, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Training and validation tokens, with the rare ones as one unknown token; kept beside the files once made."""
    found = []
    for split in ("train", "val"):
        mapped = folder / f"{split}_{vocab_size}.npy"
        if not mapped.exists():
            number = small_numbers(gpt2_tokens(folder, "train"), vocab_size)
            tokens = gpt2_tokens(folder, split)
            np.save(mapped, tokens if vocab_size >= 50_257 else number[tokens])
        found.append(torch.from_numpy(np.load(mapped).astype(np.int32)))
    return found[0], found[1]


def small_numbers(train: np.ndarray[Any, Any], vocab_size: int) -> np.ndarray[Any, Any]:
    """A number below vocab_size for each of GPT-2's tokens: by frequency, the last for all rare ones."""
    frequent = np.argsort(-np.bincount(train, minlength=50_304), kind="stable")[: vocab_size - 1]
    number = np.full(50_304, vocab_size - 1, np.uint16)
    number[frequent] = np.arange(len(frequent))
    return number


@cache
def gpt2_tokens(folder: Path, split: str) -> np.ndarray[Any, Any]:
    packed = folder / f"{split}.bin.xz"
    data = lzma.decompress(packed.read_bytes()) if packed.exists() else (folder / f"{split}.bin").read_bytes()
    return np.frombuffer(data, np.uint16)


def batches(tokens: Tensor, recipe: Recipe) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Inputs and targets of each update, and the tokens trained after it."""
    T = recipe.block_size
    windows = (len(tokens) - 1) // T
    order = torch.randperm(windows, generator=torch.Generator().manual_seed(recipe.seed)).to(tokens.device)
    offsets = torch.arange(T + 1, device=tokens.device)
    sequence = 0
    while sequence * T < recipe.tokens:
        share = sequence * T / recipe.tokens
        B = round(recipe.tokens_per_update * at(recipe.batch_ramp, share, 1.0)) // T
        chosen = order[torch.arange(sequence, sequence + B, device=tokens.device) % windows]
        window = tokens[chosen[:, None] * T + offsets].long()
        context = int(at(recipe.context_ramp, share, T))
        sequence += B
        yield window[:, :-1].reshape(-1, context), window[:, 1:].reshape(-1, context), sequence * T


def at(ramp: str, share: float, otherwise: float) -> float:
    """The value of a ramp such as "0.1:0.25,0.3:0.5" when this share of the tokens is trained."""
    for stage in filter(None, ramp.split(",")):
        until, value = stage.split(":")
        if share < float(until):
            return float(value)
    return otherwise


# --------------------------------------------------------------------------------------------------------------- model


class GPT(torch.nn.Module):
    """A GPT of a recipe's shape. The same matrix of all blocks is one tensor, which Muon takes in one product."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        L, C, V = recipe.n_layer, recipe.n_embd, recipe.vocab_size
        dice = torch.Generator().manual_seed(recipe.seed)

        def normal(*shape: int, std: float) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(shape, generator=dice) * std)

        std = recipe.first_weights * (C**-0.5 if recipe.fan_in else 0.02)
        projection_std = 0.0 if recipe.zero_projections else std / math.sqrt(2 * L)
        self.embedding_VC = normal(V, C, std=recipe.embedding_std)
        self.qkv_L3CC = normal(L, 3, C, C, std=std)
        self.attention_projection_LCC = normal(L, C, C, std=projection_std)
        self.expand_L4CC = normal(L, 4 * C, C, std=std)
        self.mlp_projection_LC4C = normal(L, C, 4 * C, std=projection_std)
        if not recipe.tied:
            self.head_VC = normal(V, C, std=recipe.head_std)
        if recipe.tied_until:
            self.head_VC = torch.nn.Parameter(self.embedding_VC.detach().clone())
        if not recipe.rotary:
            self.position_TC = normal(recipe.block_size, C, std=0.02)
        if not recipe.rms_norm:
            self.gain_NC = torch.nn.Parameter(torch.ones(2 * L + 2, C))
        if recipe.value_embeddings:
            self.value_LVC = normal((L + 1) // 2, V, C, std=C**-0.5)
        if recipe.x0_skips:
            self.mix_L2 = torch.nn.Parameter(torch.tensor([[1.0, 0.0]]).repeat(L, 1))

    def forward(self, idx_BT: Tensor, target_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """The mean cross-entropy of the targets, in nats."""
        recipe, (B, T), C = self.recipe, idx_BT.shape, self.recipe.n_embd
        H, D = recipe.n_head, C // recipe.n_head
        x_BTC = functional.embedding(idx_BT, self.embedding_VC).to(dtype)
        if not recipe.rotary:
            x_BTC = x_BTC + self.position_TC[:T].to(dtype)
        if recipe.embedding_norm:
            x_BTC = self.norm(x_BTC, 2 * recipe.n_layer)
        first_BTC = x_BTC
        rotation = self.rotation(T, D, idx_BT.device)
        weights = (self.qkv_L3CC, self.attention_projection_LCC, self.expand_L4CC, self.mlp_projection_LC4C)
        for i, (qkv, attention_projection, expand, mlp_projection) in enumerate(
            zip(*(weight.to(dtype).unbind(0) for weight in weights), strict=True)
        ):
            if recipe.x0_skips:
                x_BTC = (self.mix_L2[i, 0] * x_BTC + self.mix_L2[i, 1] * first_BTC).to(dtype)
            qkv_BT3C = functional.linear(self.norm(x_BTC, 2 * i), qkv.flatten(0, 1))
            q, k, v = (part.unflatten(-1, (H, D)) for part in qkv_BT3C.chunk(3, dim=-1))
            if recipe.value_embeddings and i % 2 == (recipe.n_layer - 1) % 2:
                v = v + functional.embedding(idx_BT, self.value_LVC[i // 2]).to(dtype).unflatten(-1, (H, D))
            if recipe.rotary:
                q, k = rotated(q, rotation), rotated(k, rotation)
            if recipe.qk_norm:
                q, k = functional.rms_norm(q, (D,), eps=1e-6), functional.rms_norm(k, (D,), eps=1e-6)
            y_BHTD = functional.scaled_dot_product_attention(
                *(part.transpose(1, 2) for part in (q, k, v)), is_causal=True, scale=recipe.attention_scale or None
            )
            x_BTC = x_BTC + functional.linear(y_BHTD.transpose(1, 2).reshape(B, T, C), attention_projection)
            h_BT4C = functional.linear(self.norm(x_BTC, 2 * i + 1), expand)
            h_BT4C = functional.relu(h_BT4C).square() if recipe.relu2 else functional.gelu(h_BT4C)
            x_BTC = x_BTC + functional.linear(h_BT4C, mlp_projection)
        head_VC = self.embedding_VC if recipe.tied else self.head_VC
        logits = functional.linear(self.norm(x_BTC, 2 * recipe.n_layer + 1), head_VC.to(dtype)).float().flatten(0, 1)
        if recipe.softcap:
            logits = recipe.softcap * torch.tanh(logits / recipe.softcap)
        return functional.cross_entropy(logits, target_BT.flatten())

    def norm(self, x_BTC: Tensor, number: int) -> Tensor:
        C = self.recipe.n_embd
        if self.recipe.rms_norm:
            return functional.rms_norm(x_BTC, (C,), eps=1e-6)
        return functional.layer_norm(x_BTC, (C,), self.gain_NC[number].to(x_BTC.dtype))

    def rotation(self, T: int, D: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each position's angles."""
        speeds = self.recipe.rotary_base ** (-torch.arange(0, D, 2, device=device) / D)
        angles = torch.outer(torch.arange(T, device=device), speeds)[:, None]
        return angles.cos(), angles.sin()


def rotated(x_BTHD: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Each pair (i, i + D/2) of channels turned by its position's angle."""
    cos, sin = (part.to(x_BTHD.dtype) for part in rotation)
    left, right = x_BTHD.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)


# ----------------------------------------------------------------------------------------------------------- optimizer

POLAR_EXPRESS = (
    (8.15655, -22.48329, 15.87877),
    (4.04293, -2.80892, 0.50002),
    (3.89167, -2.77248, 0.50606),
    (3.28575, -2.36813, 0.46449),
    (2.34654, -1.70978, 0.42324),
)
NEWTON_SCHULZ = ((3.4445, -4.7750, 2.0315),) * 5
MATRICES = ("qkv_L3CC", "attention_projection_LCC", "expand_L4CC", "mlp_projection_LC4C")


def orthogonalised(update: Tensor, steps: tuple[tuple[float, float, float], ...]) -> Tensor:
    """Matrices with (nearly) all singular values 1 and the singular vectors of these."""
    X = update.bfloat16() if update.is_cuda else update
    tall = X.size(-2) > X.size(-1)
    X = X.mT if tall else X
    X = X / (1.01 * X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for a, b, c in steps:
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return (X.mT if tall else X).to(update.dtype)


class Optimizer:
    """AdamW for all tensors, or Muon for the matrices of the blocks."""

    def __init__(self, model: GPT, recipe: Recipe) -> None:
        self.recipe, self.named = recipe, dict(model.named_parameters())
        self.average = {name: torch.zeros_like(p) for name, p in self.named.items()}
        by_muon = MATRICES if recipe.muon else ()
        self.square = {name: torch.zeros_like(p) for name, p in self.named.items() if name not in by_muon}

    @torch.no_grad()
    def step(self, grads: tuple[Tensor, ...], now: Tensor) -> None:
        """Updates all parameters. `now` is what `changing` said."""
        rates, (momentum, beta1, beta2, seen1, seen2, tied) = now[:3], now[3:]
        recipe = self.recipe
        if recipe.tied_until:
            embedding, head = (list(self.named).index(name) for name in ("embedding_VC", "head_VC"))
            both = grads[embedding] + grads[head]
            grads = tuple(
                torch.lerp(grad, both, tied) if i in (embedding, head) else grad for i, grad in enumerate(grads)
            )
        if recipe.grad_clip:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in grads]))
            factor = (recipe.grad_clip / (norm + 1e-6)).clamp(max=1)
            grads = tuple(grad * factor for grad in grads)
        for (name, p), grad in zip(self.named.items(), grads, strict=True):
            average = self.average[name]
            if recipe.muon and name in MATRICES:
                update = self.muon(name, grad, average, momentum)
            else:
                square = self.square[name]
                average.lerp_(grad, 1 - beta1)
                square.lerp_(grad.square(), 1 - beta2)
                update = (average / seen1) / ((square / seen2).sqrt() + recipe.epsilon)
            decay = recipe.weight_decay if name in MATRICES or (not recipe.muon and p.dim() == 2) else 0.0
            if decay:
                where = (update * p > 0) if recipe.cautious else 1.0
                update = update + decay * p * where
            p.sub_(rates[1 if name in MATRICES else 2 if name == "head_VC" else 0] * update)

    def muon(self, name: str, grad: Tensor, average: Tensor, momentum: Tensor) -> Tensor:
        """The orthogonalised direction, with Nesterov's look-ahead."""
        average.lerp_(grad, 1 - momentum)
        ahead = grad.lerp(average, momentum)
        if name == "qkv_L3CC":
            ahead = ahead.flatten(0, 1) if self.recipe.split_qkv else ahead.flatten(1, 2)
        rows, columns = ahead.shape[-2:]
        update = orthogonalised(ahead, POLAR_EXPRESS if self.recipe.polar_express else NEWTON_SCHULZ)
        return (update * math.sqrt(max(1, rows / columns))).view_as(grad)


def changing(recipe: Recipe, update_number: int, share: float) -> list[float]:
    """The learning rate, the matrices' and the head's, Muon's momentum, Adam's betas, how much its averages have seen,
    and whether the head is the embedding now."""
    relative = schedule(recipe, share) * at(recipe.batch_ramp, share, 1.0) ** recipe.ramp_power
    tied = share < recipe.tied_until
    momentum = 0.85 + (recipe.muon_momentum - 0.85) * min(1.0, update_number / max(1, recipe.momentum_warmup))
    matrix_rate = recipe.muon_learning_rate if recipe.muon else recipe.matrix_learning_rate
    rates = (recipe.head_learning_rate if tied else recipe.learning_rate, matrix_rate, recipe.head_learning_rate)
    betas = recipe.beta1, recipe.beta2
    seen = (1 - beta**update_number for beta in betas)
    return [*(relative * (rate or recipe.learning_rate) for rate in rates), momentum, *betas, *seen, float(tied)]


def schedule(recipe: Recipe, share: float) -> float:
    """The learning rate relative to the highest, when this share of the tokens is trained."""
    if share < recipe.warmup:
        return share / recipe.warmup
    if recipe.linear:
        falling = min(1.0, (1 - share) / recipe.decay_share)
    else:
        falling = 0.5 + 0.5 * math.cos(math.pi * (share - recipe.warmup) / (1 - recipe.warmup))
    return recipe.final_rate + (1 - recipe.final_rate) * falling


# ----------------------------------------------------------------------------------------------------------------- run


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a run computes, and how. It changes seconds, and the loss by rounding only."""

    device: str = "cpu"
    dtype: str = "float32"
    compile: bool = False  # torch.compile
    graph: bool = False  # records an update as a CUDA graph: small models wait for launches otherwise
    micro_tokens: int = 16_384  # tokens whose activations are in memory at a time
    eval_tokens: int = 32_768
    evaluations: int = 20
    stop_seconds: float = 1e9  # ends a run that takes longer, with the loss it has then


class Recorded:
    """Calls a function of tensors; as a CUDA graph from the third call with a shape on."""

    def __init__(self, function: Callable[..., Tensor], record: bool) -> None:
        self.function, self.record = function, record
        self.calls: dict[torch.Size, int] = {}
        self.graphs: dict[torch.Size, tuple[Any, tuple[Tensor, ...], Tensor]] = {}

    def __call__(self, *inputs: Tensor) -> Tensor:
        shape = inputs[0].shape
        self.calls[shape] = self.calls.get(shape, 0) + 1
        if not self.record or self.calls[shape] < 3:
            return self.function(*inputs)
        if shape not in self.graphs:
            kept, graph = tuple(tensor.clone() for tensor in inputs), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = self.function(*kept)
            self.graphs[shape] = graph, kept, result
        graph, kept, result = self.graphs[shape]
        for own, given in zip(kept, inputs, strict=True):
            own.copy_(given)
        graph.replay()
        return result


def train(recipe: Recipe, machine: Machine, tokens: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """One run, as its JSON line. The tokens are on the machine's device."""
    train_tokens, val_tokens = tokens
    dtype = getattr(torch, machine.dtype)
    model = GPT(recipe).to(machine.device)
    optimizer = Optimizer(model, recipe)
    parameters = tuple(model.parameters())
    forward = torch.compile(model, dynamic=False) if machine.compile else model
    step = torch.compile(optimizer.step, dynamic=False) if machine.compile else optimizer.step

    def update(idx_BT: Tensor, target_BT: Tensor, now: Tensor) -> Tensor:
        pieces = max(1, idx_BT.numel() // machine.micro_tokens)
        total, loss = None, torch.zeros((), device=idx_BT.device)
        for idx, target in zip(idx_BT.chunk(pieces), target_BT.chunk(pieces), strict=True):
            piece = forward(idx, target, dtype) / pieces
            grads = torch.autograd.grad(piece, parameters)
            total = grads if total is None else tuple(a + b for a, b in zip(total, grads, strict=True))
            loss = loss + piece.detach()
        step(total, now)
        return loss

    windows = machine.eval_tokens // recipe.block_size
    starts = torch.linspace(0, len(val_tokens) - recipe.block_size - 2, windows, dtype=torch.float64).long()
    eval_windows = val_tokens[(starts[:, None] + torch.arange(recipe.block_size + 1)).to(val_tokens.device)].long()

    @torch.no_grad()
    def evaluated() -> float:
        parts = eval_windows.split(max(1, machine.micro_tokens // recipe.block_size))
        return sum(float(forward(part[:, :-1], part[:, 1:], dtype)) * len(part) for part in parts) / windows

    recorded, seconds, curve, share = Recorded(update, machine.graph), 0.0, [], 0.0
    began = time.perf_counter()
    for count, (idx_BT, target_BT, tokens_after) in enumerate(batches(train_tokens, recipe), 1):
        middle = min(1.0, share + idx_BT.numel() / recipe.tokens / 2)  # at its ends, the rate of an update can be 0
        now = changing(recipe, count, middle)
        recorded(idx_BT, target_BT, torch.tensor(now, device=machine.device))
        share = tokens_after / recipe.tokens
        points_due = int(share * machine.evaluations)
        last = share >= 1 or seconds + time.perf_counter() - began > machine.stop_seconds
        if points_due > len(curve) or last:
            if machine.device == "cuda":
                torch.cuda.synchronize()
            seconds += time.perf_counter() - began
            curve.append((tokens_after, round(seconds, 2), round(evaluated(), 4)))
            if last or not math.isfinite(curve[-1][2]):
                break
            began = time.perf_counter()
    return {
        "loss": curve[-1][2],
        "tokens": curve[-1][0],
        "seconds": curve[-1][1],
        "updates": count,
        "parameters": sum(p.numel() for p in parameters),
        "recipe": asdict(recipe),
        "machine": asdict(machine),
        "curve": curve,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--start", choices=STARTS, default="adamw", help="the recipe that the flags change")
    parser.add_argument("--seeds", default="1", help="such as 1,2")
    parser.add_argument("--without", default="", help="ingredients to leave out, one at a time: a,b or all")
    known = [*fields(Recipe), *fields(Machine)]
    for field in known:
        kind = type(field.default)
        parser.add_argument(f"--{field.name}", type=(lambda text: text == "True") if kind is bool else kind)
    given = vars(parser.parse_args())
    values = {field.name: given[field.name] for field in known if given[field.name] is not None}
    recipe = replace(STARTS[given["start"]], **{k: v for k, v in values.items() if k in Recipe.__dataclass_fields__})
    machine = Machine(**{k: v for k, v in values.items() if k in Machine.__dataclass_fields__})

    left_out = given["without"].split(",") if given["without"] not in ("", "all") else []
    if given["without"] == "all":
        left_out = [name for name, instead in WITHOUT.items() if replace(recipe, **instead) != recipe]
    train_tokens, val_tokens = tokens_of(given["data"], recipe.vocab_size)
    tokens = train_tokens.to(machine.device), val_tokens.to(machine.device)
    for name in ["", *left_out]:
        for seed in map(int, given["seeds"].split(",")):
            chosen = replace(recipe, seed=seed, **WITHOUT.get(name, {}))
            print(json.dumps({"start": given["start"], "without": name, **train(chosen, machine, tokens)}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    main()
