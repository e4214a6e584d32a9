"""A model whose weights, gradients and optimizer states are divided among the ranks: torch's FSDP2, block by block.

Each rank holds some rows of every weight. A block's weights are gathered before its forward pass and again before its
backward pass, and freed after each; its gradients are summed and divided as soon as it has made them. What lies
outside the blocks (embeddings, the last norm, the head) is gathered once for a whole micro-batch. Why: docs/adr/0023.

Every pass waits for the other ranks many times, so none may run out of memory in the middle of one. Each size of batch
is therefore rehearsed: the same passes with the same memory, in which nothing is sent. Only a rehearsal may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from onecard.config.schema import RunConfig
from onecard.models.architectures import structure_of
from onecard.models.structure import tied_layers
from onecard.train.model import GPT
from onecard.train.precision import Precision
from onecard.train.ranks import Processes

# torch 2.13 has new names for them and warns of the old ones, which 2.11 has.
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
CALLED = ("loss", "token_losses")  # what trainers call of a model, in place of its forward


class Sharding:
    """How a run's model is divided among its ranks."""

    def __init__(self, config: RunConfig, processes: Processes, device: torch.device, precision: Precision) -> None:
        self._config, self._processes = config, processes
        self._mesh = init_device_mesh(device.type, (processes.ranks.world_size,))
        with processes.speaking():  # NCCL obtains its own memory at the first exchange: before anything is rehearsed
            dist.all_reduce(torch.zeros(1, device=device), group=self._mesh.get_group())
        half = precision.dtype if precision.dtype != torch.float32 else None
        # Blocks arrive in half precision where they multiply in it: autocast would make and keep copies of all of them.
        # The rest stays float32: gradients of an embedding's rows are too many and too small to be summed in half.
        self._of_blocks = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32, cast_forward_inputs=False)
        self._of_rest = MixedPrecisionPolicy(cast_forward_inputs=False)
        self.silent = False
        self.shares: dict[str, nn.Parameter] = {}  # by name; each is the whole weight to whom asks for its shape

    def divided(self, model: GPT) -> GPT:
        """The model with this rank's shares, on its device; the whole needs memory of the host only."""
        self._wrap(model)
        self.shares = dict(model.named_parameters())
        return model

    def divided_anew(self) -> GPT:
        """The same shares in a new model: where a pass has ended half-way, FSDP's books stay open."""
        with torch.device("meta"):
            model = GPT(self._config)
        self._wrap(model)
        tied = {f"{name}.weight": f"{to}.weight" for name, to in tied_layers(structure_of(self._config)).items()}
        model.load_state_dict(self.shares | {name: self.shares[to] for name, to in tied.items()}, assign=True)
        return model

    def _wrap(self, model: GPT) -> None:
        for block in model.blocks:
            fully_shard(block, mesh=self._mesh, mp_policy=self._of_blocks)
        fully_shard(model, mesh=self._mesh, mp_policy=self._of_rest)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(_AllGather(self))  # type: ignore[arg-type]  # torch does not export the classes
                module.set_custom_reduce_scatter(_ReduceScatter(self))  # type: ignore[arg-type]
                module.set_gradient_divide_factor(1.0)  # sums: the loss is already divided
                module.set_force_sum_reduction_for_comms(True)
        for name in CALLED:
            register_fsdp_forward_method(model, name)

    def free_gathered(self, model: nn.Module) -> None:
        """Free what a forward pass has left for its backward pass, where there is none."""
        assert isinstance(model, FSDPModule)
        model.reshard()

    @contextmanager
    def rehearsing(self, model: nn.Module) -> Iterator[None]:
        """While entered, nothing is sent: what is gathered or summed is whatever the memory held before."""
        self.silent = True
        try:
            yield
            self.free_gathered(model)  # it is not what the others hold
        finally:
            self.silent = False

    def send(self, collective: Callable[..., Any], *tensors: Tensor, **how: Any) -> Any:
        """Let the ranks exchange tensors, unless this is a rehearsal."""
        if self.silent:
            return None
        with self._processes.speaking():
            return collective(*tensors, **how)


class _Collective:
    """What FSDP2 asks of a way to exchange tensors: a buffer, and the exchange."""

    def __init__(self, sharding: Sharding) -> None:
        self._send = sharding.send

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Collective):
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        return self._send(ALL_GATHER, output_tensor, input_tensor, group=group, async_op=async_op)


class _ReduceScatter(_Collective):
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        return self._send(REDUCE_SCATTER, output_tensor, input_tensor, op=op, group=group, async_op=async_op)
