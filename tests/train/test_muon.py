"""Muon: what it computes, against torch.optim.Muon and a decomposition; what it takes; that it never half-happens."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from torch import Tensor, nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from onecard.cli.main import run as command  # noqa: E402
from onecard.config.command import flags_of  # noqa: E402
from onecard.config.recipes import FAST, RECIPES  # noqa: E402
from onecard.config.resolve import resolve  # noqa: E402
from onecard.config.schema import RunConfig  # noqa: E402
from onecard.data.dataset import Dataset, open_dataset  # noqa: E402
from onecard.models import muon, optimizers  # noqa: E402
from onecard.models.muon import Batch, OrthogonalUpdates, batches  # noqa: E402
from onecard.models.optimizers import MUON, optimizer_of  # noqa: E402
from onecard.models.structure import Embedding, Linear, head, kinds_of  # noqa: E402
from onecard.paper.device import Device  # noqa: E402
from onecard.paper.operations import PaperOperations  # noqa: E402
from onecard.paper.tags import OPTIMIZER_TEMPORARIES, WORKSPACE  # noqa: E402
from onecard.plan.memory.onecard.tape import onecard_tape  # noqa: E402
from onecard.plan.schedule import muon_momentum  # noqa: E402
from onecard.runs.folder import create_run, load_run, resume_run  # noqa: E402
from onecard.runs.records import Eval, Oom, Record, Step  # noqa: E402
from onecard.train import optim  # noqa: E402
from onecard.train.loop import train  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.operations import TORCH  # noqa: E402
from onecard.train.optim import Muon, make_optimizer, set_rates  # noqa: E402
from onecard.train.precision import Precision  # noqa: E402
from onecard.train.trainer import Trainer  # noqa: E402
from tests.train.test_traced_memory import Trace, canonical  # noqa: E402
from tests.train.test_training import failing_at  # noqa: E402
from tests.warm import WarmProcess  # noqa: E402

SIZES = ("n_layer", "n_head", "n_embd", "block_size", "batch_size")
TINY = RunConfig(n_layer=2, n_head=2, n_embd=32, block_size=16, vocab_size=65, optimizer="muon")
CLASSIC = ((3.4445, -4.7750, 2.0315),) * 5  # of torch.optim.Muon
MATRICES = ("c_attn.weight", "attn.c_proj.weight", "c_fc.weight", "mlp.c_proj.weight")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_dataset("python-stdlib", environ={"ONECARD_HOME": str(tmp_path_factory.mktemp("home"))})


def tiny(**keys: Any) -> RunConfig:
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32, "batch_size": 4, "device": "cpu"}
    run = {"max_iters": 8, "lr_decay_iters": 8, "warmup_iters": 2, "eval_interval": 4, "eval_iters": 2}
    given = {"gradient_accumulation_steps": 2, "optimizer": "muon", **keys}
    return resolve(None).config.replace({**shape, **run, **given})


def fast(**keys: Any) -> RunConfig:
    """The same sizes under the fast recipe."""
    typed = {key: getattr(tiny(), key) for key in (*SIZES, "gradient_accumulation_steps", "device", "eval_iters")}
    return resolve(None, flags=[(key, str(value)) for key, value in {**typed, "recipe": FAST, **keys}.items()]).config


def run(config: RunConfig, dataset: Dataset, path: Path, *, resume: bool = False) -> list[Record]:
    seen: list[Record] = []
    with resume_run(path) if resume else create_run(path, config=config.model_dump()) as folder:
        train(config, folder, dataset, resume=resume, on_record=seen.append)
    return seen


def losses(path: Path) -> list[float]:
    return [step.loss for step in load_run(path).steps]


def set_gradients(model: nn.Module, seed: int, size: float = 1e-3) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = size * torch.randn(parameter.shape, generator=generator)


def step(optimizer: optim.AdamW) -> None:
    optimizer.make_state()
    optimizer.make_workspace()
    optimizer.step()
    optimizer.free_workspace()


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


# What it computes


def test_updates_are_those_of_torchs_muon_with_its_coefficients(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32: torch's own products are in bfloat16. Queries, keys and values are matrices of their own."""
    monkeypatch.setattr(muon, "STEPS", CLASSIC)
    monkeypatch.setattr(muon, "SAFETY", 1.0)
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    config = TINY.replace({"muon_momentum": 0.9, "weight_decay": 0.3, "muon_learning_rate": 0.05})
    model = GPT(config)
    theirs = {
        name: [nn.Parameter(part.clone()) for part in parameter.detach().chunk(3 if "c_attn" in name else 1)]
        for name, parameter in model.named_parameters()
        if name.endswith(MATRICES)
    }
    parts = [part for each in theirs.values() for part in each]
    reference = torch.optim.Muon(parts, lr=0.05, weight_decay=0.3, momentum=0.9)
    optimizer = make_optimizer(model, config)
    for seed in range(4):
        set_gradients(model, seed)
        for name, parameter in model.named_parameters():
            for part, gradient in zip(
                theirs.get(name, []), (parameter.grad.chunk(3 if "c_attn" in name else 1)), strict=False
            ):
                part.grad = gradient.clone()
        step(optimizer)
        reference.step()
    for name, parameter in model.named_parameters():
        if name in theirs:
            torch.testing.assert_close(parameter.detach(), torch.cat(theirs[name]).detach(), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("rows", "columns"), [(24, 24), (48, 12), (12, 48)])
def test_an_update_has_the_directions_of_a_decomposition_and_singular_values_of_about_one(
    rows: int, columns: int
) -> None:
    generator = torch.Generator().manual_seed(rows)
    smaller = min(rows, columns)
    U, _ = torch.linalg.qr(torch.randn(rows, smaller, generator=generator, dtype=torch.float64))
    V, _ = torch.linalg.qr(torch.randn(columns, smaller, generator=generator, dtype=torch.float64))
    weight = nn.Parameter(torch.zeros(rows, columns))
    weight.grad = (U @ torch.diag(torch.logspace(0, -2.3, smaller, dtype=torch.float64)) @ V.T).float()
    updates = OrthogonalUpdates(TORCH, [(weight, 1)], torch.float32)
    with torch.no_grad():
        updates.make_workspace()
        updates.step([torch.zeros(rows, columns)], rate=1.0, momentum=0.95, decay=0.0)
    direction = -weight.detach().double() / math.sqrt(max(1, rows / columns))
    along = U.T @ direction @ V
    assert (along - torch.diag(along.diagonal())).abs().max() < 1e-3, "another direction"
    assert along.diagonal().min() > 0.7
    assert along.diagonal().max() < 1.2


def test_the_other_parameters_follow_adamw_without_decay() -> None:
    config = TINY.replace({"weight_decay": 0.5, "learning_rate": 0.01, "bias": True})
    model = GPT(config)
    before = values(model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.25)
    step(make_optimizer(model, config))
    others = [name for name in before if not name.endswith(MATRICES)]
    assert len(others) == len(before) - 8
    for name in others:  # the first update of AdamW is the rate, against the sign of the gradient
        torch.testing.assert_close(dict(model.named_parameters())[name].detach(), before[name] - 0.01)


def test_a_gradient_of_nothing_moves_nothing_and_makes_no_nan() -> None:
    model = GPT(TINY.replace({"weight_decay": 0.0}))
    before = values(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    step(make_optimizer(model, TINY.replace({"weight_decay": 0.0})))
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.detach(), before[name]), name


def test_smaller_batches_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for elements in (2**24, 3000, 1):
        monkeypatch.setattr(muon, "BATCH_ELEMENTS", elements)
        torch.manual_seed(1)
        model = GPT(TINY)
        optimizer = make_optimizer(model, TINY)
        set_gradients(model, 1)
        step(optimizer)
        results.append(values(model))
    for one in results[1:]:
        for name, value in one.items():
            torch.testing.assert_close(value, results[0][name], rtol=1e-4, atol=1e-6)


# Which matrices, and how many at a time


def test_queries_keys_values_and_projections_go_through_the_products_together() -> None:
    kinds = [kind for kind in kinds_of(optimizers.structure_of(TINY)).values() if kind.role == "block matrix"]
    found = batches([(kind.shape, kind.parts) for kind in kinds])
    assert [(each.matrices, each.rows, each.columns) for each in found] == [(8, 32, 32), (2, 128, 32), (2, 32, 128)]
    assert [each.scale for each in found] == [1.0, 2.0, 1.0]


def test_a_batch_is_no_larger_than_its_limit_unless_one_weight_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "BATCH_ELEMENTS", 100)
    assert batches([((6, 6), 1)] * 5) == [Batch(6, 6, {0: 1, 1: 1}), Batch(6, 6, {2: 1, 3: 1}), Batch(6, 6, {4: 1})]
    assert batches([((60, 60), 3)]) == [Batch(20, 60, {0: 3})]


@pytest.mark.parametrize("layers", [1, 8])
def test_products_do_not_grow_in_number_with_the_layers(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TINY.replace({"n_layer": layers})
    model = GPT(config)
    optimizer = make_optimizer(model, config)
    set_gradients(model, 0)
    calls = []
    real = type(TORCH).multiply_batch
    monkeypatch.setattr(type(TORCH), "multiply_batch", lambda *a, **k: calls.append(1) or real(*a, **k))
    step(optimizer)
    assert len(calls) == 1 + 3 * 15
    assert optimizer_of(config).orthogonalisation.products == 3 * 15


def test_the_structure_says_which_parameters_are_matrices_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a head of its own, and other names than GPT-2's."""
    block = {"attn": {"c_q": Linear(8, 8), "c_k": Linear(8, 8)}, "mlp": {"c_fc": Linear(8, 32, bias=True)}}
    layers = {"wte": Embedding(20, 8), "h": [block] * 2, "lm_head": head(8, 20)}
    monkeypatch.setattr(optimizers, "structure_of", lambda _: layers)
    monkeypatch.setattr(optim, "structure_of", lambda _: layers)
    model = nn.Module()
    for name, kind in kinds_of(layers).items():
        *path, last = name.split(".")
        place = model
        for each in path:
            if not hasattr(place, each):
                place.add_module(each, nn.Module())
            place = getattr(place, each)
        place.register_parameter(last, nn.Parameter(torch.zeros(kind.shape)))
    config = TINY.replace({"learning_rate": 0.3, "head_learning_rate": 0.004, "muon_learning_rate": 0.02})
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = [
        ([names[each] for each in group["params"]], group["lr"], group["weight_decay"], group["rule"].title)
        for group in make_optimizer(model, config).param_groups
    ]
    matrices = [f"h.{block}.{name}.weight" for block in (0, 1) for name in ("attn.c_q", "attn.c_k", "mlp.c_fc")]
    vectors = ["h.0.mlp.c_fc.bias", "h.1.mlp.c_fc.bias"]
    assert found == [
        (matrices, 0.02, 0.1, "Muon"),
        (["wte.weight", *vectors], 0.3, 0.0, "AdamW"),
        (["lm_head.weight"], 0.004, 0.0, "AdamW"),
    ]
    adamw = make_optimizer(model, config.replace({"optimizer": "adamw"})).param_groups
    assert [(len(group["params"]), group["lr"], group["weight_decay"]) for group in adamw] == [
        (7, 0.3, 0.1),
        (1, 0.004, 0.1),
        (2, 0.3, 0.0),
    ]


def test_all_rates_follow_the_schedule_in_proportion() -> None:
    config = TINY.replace({"max_iters": 100, "lr_decay_iters": 100, "warmup_iters": 10, "min_lr": 6e-5})
    optimizer = make_optimizer(GPT(config), config)
    for at in (0, 5, 10, 50, 99, 100, 200):
        optim.set_rates(optimizer, config, at)
        matrices, others = (group["lr"] for group in optimizer.param_groups)
        assert matrices / others == pytest.approx(0.02 / 6e-4, rel=1e-12)
    assert (matrices, others) == (pytest.approx(0.002), 6e-5)


# What it takes


class CudaLike(type(TORCH)):  # type: ignore[misc]
    """The fake CPU's diagonal sums of bfloat16 go through a float32 copy, those of a card do not."""

    def normalise(self, x_nRC: Tensor, gram_nSS: Tensor, norms_n: Tensor, *, safety: float) -> None:
        norms_n.rsqrt_()
        x_nRC.mul_(norms_n[:, None, None])


@pytest.mark.parametrize("keys", [{}, {"n_layer": 5, "n_embd": 48, "n_head": 3}], ids=["two layers", "five"])
def test_a_step_takes_and_gives_back_what_paper_says(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Event by event, from the state on: the workspace, and nothing within the step."""
    monkeypatch.setattr(muon, "BATCH_ELEMENTS", 40_000)  # so that there are several batches of a shape
    config = TINY.replace({"dtype": "bfloat16", "batch_size": 2, "gradient_accumulation_steps": 1, **keys})
    trace = Trace()
    with FakeTensorMode():
        model = nn.ParameterDict(
            {name.replace(".", "/"): torch.empty(kind.shape) for name, kind in _matrices(config).items()}
        )
        for parameter in model.values():
            parameter.grad = torch.empty_like(parameter)
        moments = [torch.empty_like(parameter) for parameter in model.values()]
        parts = [kind.parts for kind in _matrices(config).values()]
        updates = OrthogonalUpdates(CudaLike(), list(zip(model.values(), parts, strict=True)), torch.bfloat16)
        with torch.no_grad(), trace:
            for known in (*model.values(), *(parameter.grad for parameter in model.values()), *moments):
                trace.track(known)
            start = len(trace.events)
            for _ in range(2):
                updates.make_workspace()
                updates.step(moments, rate=0.1, momentum=0.9, decay=0.1)
                updates.free_workspace()
            real = trace.events[start:]
    ops = PaperOperations(Device(capability=(8, 9), multiprocessors=46), half=True, deterministic=False)
    weights = [(ops.parameter(name, *kind.shape), kind.parts) for name, kind in _matrices(config).items()]
    ops.zero_gradients([weight for weight, _ in weights])
    on_paper = OrthogonalUpdates(ops, weights, 2)
    start = len(ops.tape.events)
    for _ in range(2):
        on_paper.make_workspace()
        on_paper.step([weight for weight, _ in weights], rate=0.1, momentum=0.9, decay=0.1)
        on_paper.free_workspace()
    tape = ops.tape
    ours = [
        ("alloc", event, tape.sizes[event]) if event >= 0 else ("free", ~event, tape.sizes[~event])
        for event in tape.events[start:]
        if tape.tags[event if event >= 0 else ~event] != WORKSPACE
    ]
    assert canonical(ours) == canonical(real)
    assert len(ours) == 2 * 2 * 5


def _matrices(config: RunConfig) -> dict[str, Any]:
    return {
        name: kind for name, kind in kinds_of(optimizers.structure_of(config)).items() if kind.role == "block matrix"
    }


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize("compile", [False, True])
def test_a_run_on_paper_has_one_moment_for_matrices_and_a_workspace_in_each_step(mode: str, compile: bool) -> None:
    config = TINY.replace({"grad_checkpoint": mode, "compile": compile, "dtype": "bfloat16", "batch_size": 2})
    tape = onecard_tape(config, Device(capability=(9, 0), multiprocessors=132))
    matrices = sum(kind.numel for kind in _matrices(config).values())
    all_parameters = sum(kind.numel for kind in kinds_of(optimizers.structure_of(config)).values())
    others = len(kinds_of(optimizers.structure_of(config))) - 8
    state = sum(size for size, tag in zip(tape.sizes, tape.tags, strict=True) if tag == "optimizer state")
    assert state == 4 * (matrices + 2 * (all_parameters - matrices) + others)
    largest = 2 * 8 * 32 * 32
    found = [size for size, tag in zip(tape.sizes, tape.tags, strict=True) if tag == OPTIMIZER_TEMPORARIES]
    assert found.count(largest) >= 3 * 4, "x twice, and the Gram matrix and its polynomial, in three updates"


def test_flops_and_bytes_by_hand() -> None:
    """Two layers of width 32: eight matrices of 32 x 32, two of 128 x 32, two of 32 x 128."""
    found = optimizer_of(TINY)
    square = 3 * 2 * 32**3
    long = 2 * 32 * 32 * 128 + 2 * 32**3 + 2 * 32 * 32 * 128
    assert found.orthogonalisation.flops == 5 * (8 * square + 4 * long)
    matrices = 2 * 12 * 32 * 32
    others = (65 + 16) * 32 + 5 * 32
    assert found.held_bytes == 12 * matrices + 16 * others
    assert found.saved_bytes == 8 * matrices + 12 * others
    assert found.moved_bytes == 20 * matrices + 28 * others
    assert optimizer_of(TINY.replace({"optimizer": "adamw"})).orthogonalisation.flops == 0


def test_a_checkpoint_has_the_size_that_is_planned(dataset: Dataset, tmp_path: Path) -> None:
    config = tiny(max_iters=1)
    run(config, dataset, tmp_path / "run")
    (folder,) = (tmp_path / "run" / "checkpoints").glob("step-*1")
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert optimizer_of(config.replace({"vocab_size": dataset.vocab_size})).saved_bytes < size
    assert size < optimizer_of(config.replace({"vocab_size": dataset.vocab_size})).saved_bytes + 20_000


# It happens whole or not at all


@pytest.mark.parametrize(("where", "what"), [(Muon, "make_state"), (OrthogonalUpdates, "make_workspace")])
@pytest.mark.parametrize("call", [1, 5])
def test_out_of_memory_before_the_step_changes_nothing(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, what: str, call: int
) -> None:
    run(tiny(), dataset, tmp_path / "whole")
    error = torch.OutOfMemoryError("CUDA out of memory.")
    monkeypatch.setattr(where, what, failing_at(getattr(where, what), call, error))
    seen = run(tiny(), dataset, tmp_path / "short")
    assert [record.step for record in seen if isinstance(record, Oom)] == [call - 1]
    assert losses(tmp_path / "short") == pytest.approx(losses(tmp_path / "whole"), rel=1e-3)


def test_no_tensor_is_made_within_the_step(dataset: Dataset) -> None:
    trainer = Trainer(tiny(), dataset, torch.device("cpu"), Precision(device_type="cpu", dtype=torch.float32))
    trainer.update(lambda _: None)
    trainer.steps.gradients(trainer._next_batch, lambda *_: None)
    trainer.steps.ready_to_step()
    trace = Trace()
    optimizer = trainer.optimizer
    known = [*trainer.model.parameters(), *(each.grad for each in trainer.model.parameters())]
    known += [value for state in optimizer.state.values() for value in state.values()]
    space = optimizer._updates.workspace  # type: ignore[attr-defined]
    known += [space.x, space.next_x, space.gram, space.polynomial, space.norms]
    for tensor in known:
        trace.track(tensor)
    before = len(trace.events)
    with trace:
        optimizer.step()
    assert trace.events[before:] == []
    optimizer.free_workspace()
    trainer.close()


def test_a_step_with_infinities_is_skipped_whole(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW's kernel could skip by itself, but Muon's products would have gone on."""
    monkeypatch.setattr(Precision, "grad_scaler", lambda _: torch.amp.GradScaler("cpu", init_scale=256.0))
    trainer = Trainer(tiny(), dataset, torch.device("cpu"), Precision(device_type="cpu", dtype=torch.float32))
    trainer.update(lambda _: None)
    before = values(trainer.model)
    state = {p: {key: value.clone() for key, value in s.items()} for p, s in trainer.optimizer.state.items()}
    trainer.steps.gradients(trainer._next_batch, lambda *_: None)
    trainer.model.transformer.ln_f.weight.grad[0] = math.inf  # type: ignore[index]
    trainer.steps.step(trainer.steps.ready_to_step())
    assert trainer.scaler.get_scale() == 128.0
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter.detach(), before[name]), name
    for parameter, found in trainer.optimizer.state.items():
        assert all(torch.equal(value, state[parameter][key]) for key, value in found.items())
    assert trainer.optimizer._updates.workspace is None  # type: ignore[attr-defined]
    trainer.update(lambda _: None)
    assert not torch.equal(next(trainer.model.parameters()).detach(), next(iter(before.values())))
    trainer.close()


def test_with_a_scaler_it_learns_as_without(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tiny(), dataset, tmp_path / "plain")
    monkeypatch.setattr(Precision, "grad_scaler", lambda _: torch.amp.GradScaler("cpu", init_scale=1024.0))
    run(tiny(), dataset, tmp_path / "scaled")
    assert losses(tmp_path / "scaled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-4)


# Runs


def test_written_out_passes_train_as_autograd_does(dataset: Dataset) -> None:
    found = []
    for written_out in (False, True):
        trainer = Trainer(tiny(), dataset, torch.device("cpu"), Precision(device_type="cpu", dtype=torch.float32))
        if written_out:
            trainer.steps.passes = trainer.model.passes(torch.float32)
        found.append([trainer.update(lambda _: None).loss for _ in range(8)])
        trainer.close()
    assert found[1] == pytest.approx(found[0], rel=1e-3)


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_recomputation_changes_no_loss(dataset: Dataset, tmp_path: Path, mode: str) -> None:
    run(tiny(), dataset, tmp_path / "none")
    run(tiny(grad_checkpoint=mode), dataset, tmp_path / mode)
    assert losses(tmp_path / mode) == pytest.approx(losses(tmp_path / "none"), rel=1e-4)


@pytest.mark.parametrize("keys", [{}, {"dropout": 0.2}], ids=["plain", "dropout"])
def test_a_resumed_run_is_bit_for_bit_the_undisturbed_one(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    config = tiny(**keys)
    run(config, dataset, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(GPT, "loss", failing_at(GPT.loss, 11, RuntimeError("the power went")))
        with pytest.raises(RuntimeError, match="power"):
            run(config, dataset, tmp_path / "cut")
    run(config, dataset, tmp_path / "cut", resume=True)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_that_is_killed_and_resumed_is_bit_for_bit_the_undisturbed_one(
    tmp_path: Path, recipe: str, warm_with_torch: WarmProcess
) -> None:
    length = {"max_iters": 80, "checkpoint_interval": 5, "eval_interval": 80}
    keys = (fast(**length) if recipe == FAST else tiny(lr_decay_iters=80, **length)).model_dump()
    default = RunConfig().model_dump()
    flags = flags_of({key: value for key, value in keys.items() if value != default[key]}).split()
    flags = [flag for flag in flags if not flag.startswith(("--out_dir", "--dataset", "--vocab_size"))]
    home = {"ONECARD_HOME": str(tmp_path / "home")}
    start = ["train", *flags, "--dataset=python-stdlib"]
    done = warm_with_torch.run(*start, "--out_dir=whole", cwd=tmp_path, environment=home)
    assert done.code == 0, done.stderr
    cut = tmp_path / "cut"
    command = [sys.executable, "-m", "onecard", *start, f"--out_dir={cut}"]
    environ = os.environ | home | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and len(list(cut.glob("checkpoints/step-*"))) < 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    done = warm_with_torch.run("train", "--resume", "cut", cwd=tmp_path, environment=home)
    assert done.code == 0, done.stderr
    assert losses(cut) == losses(tmp_path / "whole")
    assert len(losses(cut)) == 80


def test_a_run_cannot_go_on_with_another_optimizer(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tiny(), dataset, tmp_path / "run")
    assert command(["train", "--resume", str(tmp_path / "run"), "--optimizer=adamw", "--max_iters=9"]) == 2
    assert "optimizer" in capsys.readouterr().err


def test_sixty_updates_reach_a_lower_loss_than_adamws(dataset: Dataset, tmp_path: Path) -> None:
    length = {"max_iters": 60, "lr_decay_iters": 60, "warmup_iters": 5, "eval_interval": 60, "learning_rate": 4e-3}
    found = {}
    for optimizer in ("adamw", "muon"):
        seen = run(tiny(optimizer=optimizer, min_lr=4e-4, **length), dataset, tmp_path / optimizer)
        found[optimizer] = [record.val_loss for record in seen if isinstance(record, Eval)][-1]
    assert found["muon"] < found["adamw"] - 0.05, found


UPDATES = [pytest.param(200, id="200"), pytest.param(2000, id="2000", marks=pytest.mark.long)]


@pytest.mark.parametrize("updates", UPDATES)
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_half_and_twice_the_usual_rates_make_no_nan(
    dataset: Dataset, tmp_path: Path, factor: float, updates: int
) -> None:
    rates = {"learning_rate": 6e-4 * factor, "muon_learning_rate": 0.02 * factor}
    config = tiny(max_iters=updates, lr_decay_iters=updates, warmup_iters=0, eval_interval=updates, **rates)
    check_that_it_learns(run(config, dataset, tmp_path / "run"), updates)


@pytest.mark.parametrize("updates", UPDATES)
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_half_and_twice_the_fast_recipes_rates_make_no_nan(
    dataset: Dataset, tmp_path: Path, factor: float, updates: int
) -> None:
    usual = fast(max_iters=updates, eval_interval=updates)
    rates = {key: factor * getattr(usual, key) for key in ("learning_rate", "head_learning_rate", "muon_learning_rate")}
    check_that_it_learns(run(usual.replace(rates), dataset, tmp_path / "run"), updates)


def check_that_it_learns(seen: list[Record], updates: int) -> None:
    found = [record for record in seen if isinstance(record, Step)]
    assert len(found) == updates
    assert all(math.isfinite(record.loss) and math.isfinite(record.grad_norm) for record in found)
    assert sum(record.loss for record in found[-10:]) / 10 < found[0].loss - 1


@pytest.mark.parametrize("form", ["nanogpt", "hf"])
def test_a_run_is_exported_without_its_moments(
    dataset: Dataset, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tiny(), dataset, tmp_path / "run")
    assert command(["export", str(tmp_path / "run"), "--to", form, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    if form == "nanogpt":
        assert "Muon" in said.out + said.err
        found = torch.load(tmp_path / "out" / "ckpt.pt", weights_only=True)
        assert found["optimizer"]["state"] == {}


def test_the_rule_of_matrices_is_one_moment() -> None:
    assert (MUON.moments, MUON.numbers) == (("momentum_buffer",), ())


def test_nanochat_has_a_rate_for_its_head_and_learns(dataset: Dataset, tmp_path: Path) -> None:
    length = {"max_iters": 40, "lr_decay_iters": 40, "warmup_iters": 2, "eval_interval": 40}
    rates = {"learning_rate": 0.01, "head_learning_rate": 0.004, "min_lr": 0.001}
    config = tiny(model="nanochat", **length, **rates)
    found = [(len(group["params"]), group["lr"]) for group in make_optimizer(GPT(config), config).param_groups]
    assert found == [(8, 0.02), (1, 0.01), (1, 0.004)]
    run(config, dataset, tmp_path / "run")
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0] - 1.5


def test_momentum_rises_over_its_warm_up_and_reaches_the_optimizer() -> None:
    config = RunConfig(optimizer="muon", muon_momentum=0.95, muon_momentum_warmup=10)
    assert [muon_momentum(config, step) for step in (0, 5, 10, 11)] == pytest.approx([0.85, 0.9, 0.95, 0.95])
    low = config.replace({"muon_momentum": 0.8})
    assert muon_momentum(low, 0) == 0.8, "a lower one has nowhere to rise from"
    optimizer = make_optimizer(GPT(TINY), TINY)
    assert isinstance(optimizer, Muon)
    set_rates(optimizer, config, 5)
    assert optimizer.momentum == pytest.approx(0.9)
