"""nanoGPT on paper: its model.py and train.py, line by line, without torch.compile. No free is written by hand.

What differs from a run under onecard's own trainer is what nanoGPT's code does: variables that outlive their use
(embeddings until forward returns, logits until the next ones exist), a loss over all logits at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from onecard.config.schema import RunConfig
from onecard.models.gpt2 import structure
from onecard.models.on_paper import Named, optimizer_on_paper, weights_on_paper
from onecard.models.optimizers import nanogpt_optimizer
from onecard.models.structure import kinds_of
from onecard.models.training import EVAL_BATCHES, EVAL_SPLITS, MICRO_BATCHES, UPDATES
from onecard.paper.attention import attention, heads, joined
from onecard.paper.device import Device
from onecard.paper.kernels import LONG
from onecard.paper.library import GradScaler, clip_grad_norm
from onecard.paper.paper import Paper
from onecard.paper.remembered import Remembered, Variables
from onecard.paper.tags import BLOCKS, EMBEDDINGS, HEAD_AND_LOSS, TOKEN_IDS
from onecard.paper.tape import Tape
from onecard.paper.tensor import Parameter, Tensor, tape_of
from onecard.paper.work import Parts

P = ParamSpec("P")
R = TypeVar("R")
Model = Callable[[Tensor, Tensor], tuple[Tensor | None, Tensor]]  # logits (None unless returned) and loss


def module(forward: Callable[P, R]) -> Callable[P, R]:
    """nn.Module.__call__: it holds the arguments until forward returns."""

    @wraps(forward)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        return forward(*args, **kwargs)

    return called


class GPT:
    """model.py."""

    def __init__(self, paper: Paper, config: RunConfig, p: Named, *, returns_logits: bool) -> None:
        self.paper, self.config, self.p = paper, config, p
        self.returns_logits = returns_logits

    def __call__(self, idx: Tensor, targets: Tensor) -> tuple[Tensor | None, Tensor]:
        ops, transformer = self.paper, self.p.transformer
        ops.section(EMBEDDINGS)
        pos = ops.positions(idx)
        tok_emb = ops.embedding(idx, transformer.wte)
        pos_emb = ops.embedding(pos, transformer.wpe)
        x = self.drop(tok_emb + pos_emb)
        ops.section(BLOCKS)
        for block in transformer.h:
            x = self.block(block, x)
        ops.section(HEAD_AND_LOSS)
        x = ops.layer_norm(x, transformer.ln_f)
        logits = ops.linear(x, self.p.lm_head)
        loss = ops.cross_entropy(logits, targets)
        return (logits if self.returns_logits or not ops.grad_enabled else None), loss

    @module
    def block(self, p: Named, x: Tensor) -> Tensor:
        x = x + self.attn(p.attn, self.paper.layer_norm(x, p.ln_1))
        return x + self.mlp(p.mlp, self.paper.layer_norm(x, p.ln_2))

    @module
    def attn(self, p: Named, x: Tensor) -> Tensor:
        ops = self.paper
        q, k, v = ops.thirds(ops.linear(x, p.c_attn))
        k = heads(ops, k, self.config.n_head)
        q = heads(ops, q, self.config.n_head)
        v = heads(ops, v, self.config.n_head)
        y = attention(ops, q, k, v, self.config.dropout if ops.grad_enabled else 0.0)
        y = joined(ops, y)
        return self.drop(ops.linear(y, p.c_proj))

    @module
    def mlp(self, p: Named, x: Tensor) -> Tensor:
        ops = self.paper
        x = ops.linear(x, p.c_fc)
        x = ops.gelu(x)
        x = ops.linear(x, p.c_proj)
        return self.drop(x)

    def drop(self, x: Tensor) -> Tensor:
        return self.paper.dropout(x, self.config.dropout, training=self.paper.grad_enabled)


class Train:
    """train.py."""

    def __init__(self, paper: Paper, config: RunConfig, model: Model, parameters: list[Parameter]) -> None:
        self.paper, self.config, self.model, self.parameters = paper, config, model, parameters
        self.scaler = GradScaler(paper, enabled=config.dtype == "float16")
        self.micro_step, self.eval_step = (
            Remembered(paper, self._micro_step, parameters),
            Remembered(paper, self._eval_step),
        )

    def get_batch(self) -> tuple[Tensor, Tensor]:
        shape = self.config.batch_size, self.config.block_size
        return self.paper.new(shape, LONG, TOKEN_IDS), self.paper.new(shape, LONG, TOKEN_IDS)

    def estimate_loss(self) -> None:
        variables: Variables = [None] * 4  # X, Y, logits and loss live until the next ones exist
        with self.paper.no_grad():
            for _ in range(EVAL_SPLITS * min(self.config.eval_iters, EVAL_BATCHES)):
                variables = self.eval_step.take(variables)

    def _eval_step(self, variables: Variables) -> Variables:
        X, Y, logits, loss = variables
        variables.clear()
        X, Y = self.get_batch()
        with self.paper.autocast():
            logits, loss = self.model(X, Y)
        return [X, Y, logits, loss]

    def _micro_step(self, variables: Variables) -> Variables:
        X, Y, logits, loss = variables
        assert X is not None
        assert Y is not None
        variables.clear()
        with self.paper.autocast():
            logits, loss = self.model(X, Y)
            loss = loss / self.config.gradient_accumulation_steps
        X, Y = self.get_batch()
        scaled = self.scaler.scale(loss)
        self.paper.moment("backward pass of the loss")
        self.paper.backward(scaled)
        return [X, Y, logits, loss]

    def tape(self) -> Tape:
        """Evaluate, and unless that is all: update three times, evaluate.

        The tape ends while the loop's variables are still alive.
        """
        paper, config = self.paper, self.config
        optimizer = optimizer_on_paper(paper, self.parameters, nanogpt_optimizer(config), kinds_of(structure(config)))
        variables: Variables = [*self.get_batch(), None, None]
        paper.loads("copy")
        paper.tape.phase("eval0")
        self.estimate_loss()
        if config.eval_only:
            return tape_of(paper)
        paper.tape.phase("train")
        for _ in range(UPDATES):
            for _ in range(min(config.gradient_accumulation_steps, MICRO_BATCHES)):
                variables = self.micro_step.take(variables)
            paper.moment("optimizer step")
            if config.grad_clip:
                self.scaler.unscale_(optimizer)
                clip_grad_norm(paper, self.parameters, config.grad_clip)
            self.scaler.step(optimizer)
            optimizer.zero_grad()
        paper.tape.phase("eval")
        self.estimate_loss()
        return tape_of(paper)

    def work_of_update(self) -> Parts:
        """The work of an update of one micro-batch, whose gradients are added to others."""
        of_config = nanogpt_optimizer(self.config)
        optimizer = optimizer_on_paper(self.paper, self.parameters, of_config, kinds_of(structure(self.config)))
        for parameter in self.parameters:
            parameter.grad = self.paper.gradient(parameter.shape, parameter.dtype)
        self._micro_step([*self.get_batch(), None, None])
        if self.config.grad_clip:
            clip_grad_norm(self.paper, self.parameters, self.config.grad_clip)
        optimizer.step()
        return self.paper.work.taken()

    def work_of_evaluation_batch(self) -> Parts:
        """The work of an evaluation batch."""
        with self.paper.no_grad():
            self._eval_step([None] * 4)
        return self.paper.work.taken()


def eager_run(config: RunConfig, device: Device, *, returns_logits: bool = True) -> Train:
    """nanoGPT without torch.compile on a card, before its first batch."""
    paper = Paper(device, half=config.dtype != "float32")
    paper.starts()
    p = weights_on_paper(structure(config), paper)
    return Train(paper, config, GPT(paper, config, p, returns_logits=returns_logits), p.parameters)


def eager_tape(config: RunConfig, device: Device, *, returns_logits: bool = True) -> Tape:
    """All of a run's allocations and frees: phases "init", "eval0", "train", "eval", in nanoGPT's order."""
    return eager_run(config, device, returns_logits=returns_logits).tape()
