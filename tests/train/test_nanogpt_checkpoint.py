"""nanoGPT's ckpt.pt both ways: against our own version of nanoGPT's resume, and against nanoGPT itself if given.

NANOGPT_DIR=path/to/nanoGPT runs the last tests with the real sample.py and train.py on the CPU.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from onecard.config.resolve import resolve  # noqa: E402
from onecard.config.schema import RunConfig  # noqa: E402
from onecard.data.dataset import Dataset, open_dataset  # noqa: E402
from onecard.errors import ConfigError  # noqa: E402
from onecard.runs.folder import create_run, load_run, resume_run  # noqa: E402
from onecard.train import nanogpt_checkpoint  # noqa: E402
from onecard.train.interchange import read_run, read_snapshot, save_snapshot  # noqa: E402
from onecard.train.loop import train  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.optim import make_optimizer  # noqa: E402
from onecard.train.snapshot import Snapshot  # noqa: E402

SHAPE = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32, "vocab_size": 256}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_dataset("python-stdlib", environ={"ONECARD_HOME": str(tmp_path_factory.mktemp("home"))})


def tiny(**keys: Any) -> RunConfig:
    run = {"batch_size": 4, "device": "cpu", "max_iters": 8, "warmup_iters": 2, "eval_interval": 4, "eval_iters": 2}
    return resolve(None).config.replace({**SHAPE, **run, **keys})


def trained(path: Path, dataset: Dataset, config: RunConfig) -> Path:
    with create_run(path, config=config.model_dump()) as folder:
        train(config, folder, dataset, resume=False, on_record=lambda _: None)
    return path


def exported(run: Path, path: Path, config: RunConfig) -> dict[str, Any]:
    path.parent.mkdir(exist_ok=True)
    nanogpt_checkpoint.write(path, read_run(run), config, fused=False)
    content = torch.load(path, weights_only=True)  # as nanoGPT's torch.load does since torch 2.6
    assert isinstance(content, dict)
    return content


# Our own version of nanoGPT's resume: what it needs from a checkpoint


class Told(nn.Module):
    """A model with the parameters nanoGPT has, under its names and in its order."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__()
        self.args, C, bias = args, args["n_embd"], args["bias"]

        def block() -> nn.ModuleDict:
            attn = {"c_attn": nn.Linear(C, 3 * C, bias=bias), "c_proj": nn.Linear(C, C, bias=bias)}
            mlp = {"c_fc": nn.Linear(C, 4 * C, bias=bias), "c_proj": nn.Linear(4 * C, C, bias=bias)}
            norms = [nn.LayerNorm(C, bias=bias) for _ in range(2)]
            return nn.ModuleDict(
                {"ln_1": norms[0], "attn": nn.ModuleDict(attn), "ln_2": norms[1], "mlp": nn.ModuleDict(mlp)}
            )

        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(args["vocab_size"], C),
                "wpe": nn.Embedding(args["block_size"], C),
                "h": nn.ModuleList(block() for _ in range(args["n_layer"])),
                "ln_f": nn.LayerNorm(C, bias=bias),
            }
        )
        self.lm_head = nn.Linear(C, args["vocab_size"], bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, tokens_BT: Any) -> Any:
        B, T = tokens_BT.shape
        H = self.args["n_head"]
        x = self.transformer["wte"](tokens_BT) + self.transformer["wpe"].weight[:T]
        for block in self.transformer["h"]:
            qkv = block["attn"]["c_attn"](block["ln_1"](x)).view(B, T, 3, H, -1).permute(2, 0, 3, 1, 4)
            scores = qkv[0] @ qkv[1].transpose(-1, -2) / math.sqrt(qkv.shape[-1])
            future = torch.ones(T, T, dtype=torch.bool).triu(1)
            y = scores.masked_fill(future, -math.inf).softmax(-1) @ qkv[2]
            x = x + block["attn"]["c_proj"](y.transpose(1, 2).reshape(B, T, -1))
            x = x + block["mlp"]["c_proj"](functional.gelu(block["mlp"]["c_fc"](block["ln_2"](x))))
        return self.lm_head(self.transformer["ln_f"](x))

    def optimizer(self, config: dict[str, Any]) -> Any:
        matrices = [parameter for parameter in self.parameters() if parameter.dim() > 1]
        vectors = [parameter for parameter in self.parameters() if parameter.dim() == 1]
        return torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": config["weight_decay"]},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=config["learning_rate"],
            betas=(config["beta1"], config["beta2"]),
        )


def told_again(content: dict[str, Any]) -> tuple[Told, Any]:
    model = Told(content["model_args"])
    model.load_state_dict(content["model"])  # strict: nothing missing, nothing left over
    optimizer = model.optimizer(content["config"])
    optimizer.load_state_dict(content["optimizer"])
    return model, optimizer


def as_saved(model: Told, optimizer: Any, content: dict[str, Any], **changes: Any) -> dict[str, Any]:
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return {**content, **saved, "best_val_loss": torch.tensor(3.25), **changes}


@pytest.mark.parametrize("bias", [False, True])
def test_nanogpts_resume_takes_an_export_and_makes_the_very_next_update(
    dataset: Dataset, tmp_path: Path, bias: bool
) -> None:
    config = tiny(bias=bias, max_iters=4)
    run = trained(tmp_path / "run", dataset, config)
    content = exported(run, tmp_path / "out" / "ckpt.pt", config)
    assert content["iter_num"] == 4
    assert content["best_val_loss"] == load_run(run).evals[-1].val_loss
    theirs, their_optimizer = told_again(content)
    ours, snapshot = GPT(config), read_run(run)
    our_optimizer = make_optimizer(ours, config)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(snapshot.weights[name])
            our_optimizer.state[parameter].update(snapshot.moments[name])
    tokens_BT, targets_BT = torch.randint(256, (2, 4, 32), generator=torch.Generator().manual_seed(1))
    their_loss = functional.cross_entropy(theirs(tokens_BT).flatten(0, 1), targets_BT.flatten())
    our_loss = ours.loss(tokens_BT, targets_BT)
    torch.testing.assert_close(our_loss, their_loss, rtol=1e-5, atol=1e-6)
    for loss, optimizer in ((their_loss, their_optimizer), (our_loss, our_optimizer)):
        loss.backward()
        optimizer.step()
    named = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter, named[name], rtol=1e-4, atol=1e-6)
    some = next(iter(ours.parameters()))
    assert our_optimizer.state[some]["step"] == their_optimizer.state[named["transformer.wte.weight"]]["step"] == 5


def test_a_run_sent_through_nanogpts_format_goes_on_bit_for_bit(dataset: Dataset, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", dataset, tiny())
    half = trained(tmp_path / "half", dataset, tiny(max_iters=4))
    exported(half, tmp_path / "ckpt.pt", tiny())
    back = read_snapshot(tmp_path / "ckpt.pt")
    config = tiny()
    with create_run(tmp_path / "back", config=config.model_dump()) as folder:
        save_snapshot(folder, back, config, source="ckpt.pt", data_fingerprint=dataset.fingerprint)
    with resume_run(tmp_path / "back") as folder:
        train(config, folder, dataset, resume=True, on_record=lambda _: None)
    undisturbed = {step.step: step.loss for step in load_run(whole).steps}
    went_on = {step.step: step.loss for step in load_run(tmp_path / "back").steps}
    assert went_on == {number: undisturbed[number] for number in range(5, 9)}


def test_an_imported_run_says_where_it_came_from(dataset: Dataset, tmp_path: Path) -> None:
    config = tiny(max_iters=4)
    exported(trained(tmp_path / "run", dataset, config), tmp_path / "ckpt.pt", config)
    with create_run(tmp_path / "new", config=config.model_dump()) as folder:
        save_snapshot(folder, read_snapshot(tmp_path / "ckpt.pt"), config, source="ckpt.pt", data_fingerprint=None)
    run = load_run(tmp_path / "new")
    assert [saved.step for saved in run.checkpoints] == [4]
    assert run.evals[0].val_loss == load_run(tmp_path / "run").evals[-1].val_loss
    assert {record.more["imported_from"] for record in run.records} == {"ckpt.pt"}
    assert json.loads((tmp_path / "new" / "checkpoints" / "best.json").read_text())["step"] == 4


# What real files look like


@pytest.fixture
def content(dataset: Dataset, tmp_path: Path) -> dict[str, Any]:
    """A checkpoint as nanoGPT saves it after some updates."""
    config = tiny(max_iters=4, bias=True)
    written = exported(trained(tmp_path / "made", dataset, config), tmp_path / "made.pt", config)
    model, optimizer = told_again(written)
    return as_saved(model, optimizer, written)


def read(content: Any, tmp_path: Path) -> Snapshot:
    torch.save(content, tmp_path / "ckpt.pt")
    return nanogpt_checkpoint.read(tmp_path / "ckpt.pt")


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "_orig_mod.module.", "module._orig_mod."])
def test_the_prefixes_of_compile_and_ddp_are_taken_off(content: Any, tmp_path: Path, prefix: str) -> None:
    plain = read(content, tmp_path)
    content["model"] = {prefix + name: tensor for name, tensor in content["model"].items()}
    found = read(content, tmp_path)
    assert found.weights.keys() == plain.weights.keys()
    assert all(torch.equal(found.weights[name], plain.weights[name]) for name in plain.weights)
    assert found.moments.keys() == plain.moments.keys() == plain.weights.keys()


def test_shape_step_loss_and_settings_are_read(content: Any, tmp_path: Path) -> None:
    found = read(content, tmp_path)
    assert found.shape == {"model": "gpt2", **SHAPE, "bias": True}
    assert (found.step, found.val_loss, found.notes) == (4, 3.25, ())
    assert found.config["beta2"] == 0.99


def test_masks_are_left_out_and_half_precision_becomes_float32(content: Any, tmp_path: Path) -> None:
    content["model"] |= {f"transformer.h.{layer}.attn.bias": torch.ones(1, 1, 32, 32) for layer in range(2)}
    content["model"] = {name: tensor.half() for name, tensor in content["model"].items()}
    found = read(content, tmp_path)
    assert all(tensor.dtype == torch.float32 for tensor in found.weights.values())
    assert not any(name.endswith(".attn.bias") for name in found.weights)


def test_before_model_args_knew_bias_the_weights_tell(content: Any, tmp_path: Path) -> None:
    del content["model_args"]["bias"]
    assert read(content, tmp_path).shape["bias"] is True


@pytest.mark.parametrize(
    "optimizer",
    [None, {}, {"state": {}, "param_groups": [{"params": [0]}]}, "SGD", "early 2023"],
)
def test_moments_that_are_not_nanogpts_are_left_out_and_it_says_so(
    content: Any, tmp_path: Path, optimizer: Any
) -> None:
    if optimizer == "SGD":
        for moments in content["optimizer"]["state"].values():
            moments["momentum_buffer"] = moments.pop("exp_avg")
    elif optimizer == "early 2023":  # embeddings did not decay then: other groups, another order
        first, second = content["optimizer"]["param_groups"]
        first["params"], second["params"] = first["params"][2:], second["params"] + first["params"][:2]
    else:
        content["optimizer"] = optimizer
    found = read(content, tmp_path)
    assert found.moments == {}
    assert "moments start from zero" in found.notes[0]
    assert found.step == 4


def test_a_loss_of_none_yet_is_unknown(content: Any, tmp_path: Path) -> None:
    content["best_val_loss"] = 1e9
    assert read(content, tmp_path).val_loss is None


# What is refused


class Hostile:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_a_pickle_that_runs_code_is_refused_and_runs_none(tmp_path: Path, save: Any) -> None:
    victim = tmp_path / "victim"
    save({"model": Hostile(victim)}, tmp_path / "ckpt.pt")
    with pytest.raises(ConfigError, match="holds more than data") as refused:
        nanogpt_checkpoint.read(tmp_path / "ckpt.pt")
    assert refused.value.name == "unsafe-checkpoint"
    assert not victim.exists()


def test_the_hostile_file_is_as_hostile_as_it_should_be(tmp_path: Path) -> None:
    torch.save({"model": Hostile(tmp_path / "victim")}, tmp_path / "ckpt.pt")
    torch.load(tmp_path / "ckpt.pt", weights_only=False)
    assert (tmp_path / "victim").exists()


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "json", "folder"])
def test_what_is_no_checkpoint_is_refused_in_three_lines(content: Any, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "ckpt.pt"
    torch.save(content, path)
    raw = path.read_bytes()
    path.unlink()
    match damage:
        case "folder":
            path.mkdir()
        case "cut":
            path.write_bytes(raw[: len(raw) // 2])
        case _:
            path.write_bytes({"empty": b"", "text": b"hello\n", "json": b'{"model": 1}'}[damage])
    with pytest.raises(ConfigError) as refused:
        nanogpt_checkpoint.read(path)
    assert refused.value.name == "unreadable-checkpoint"


def other(**changes: Any) -> Any:
    return lambda content: {**content, **changes}


def untied(content: Any) -> Any:
    head = content["model"]["lm_head.weight"] + 1
    return {**content, "model": {**content["model"], "lm_head.weight": head}}


def without(name: str) -> Any:
    return lambda content: {**content, "model": {key: v for key, v in content["model"].items() if key != name}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda content: content["model"], 'no "model"'),
        (lambda content: [1, 2], 'no "model"'),
        (other(model={"a": 1}), "more than tensors"),
        (other(model={"a": torch.zeros(1)}), "no transformer.wte.weight and transformer.wpe.weight"),
        (other(model_args={"n_head": 5}), "n_head=5"),
        (other(model_args={}, config={}), "n_head=None"),
        (untied, "a head|its head"),
        (without("transformer.h.1.mlp.c_fc.weight"), "h.1.mlp.c_fc.weight is absent"),
        (
            lambda content: {**content, "model": {**content["model"], "transformer.h.0.rope": torch.zeros(2)}},
            "h.0.rope .* should be absent",
        ),
    ],
)
def test_another_model_is_refused_with_what_differs(content: Any, tmp_path: Path, change: Any, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(change(content), tmp_path)
    assert refused.value.name == "not-a-model"
    assert re.search(why, refused.value.why), refused.value.why


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_numbers_are_refused(content: Any, tmp_path: Path, value: float) -> None:
    content["model"]["transformer.h.1.mlp.c_fc.weight"][0, 0] = value
    with pytest.raises(ConfigError) as refused:
        read(content, tmp_path)
    assert refused.value.name == "weights-not-numbers"
    assert "transformer.h.1.mlp.c_fc.weight" in refused.value.why


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        nanogpt_checkpoint.read(tmp_path / "ckpt.pt")


# nanoGPT itself


@pytest.fixture
def nanogpt(tmp_path: Path, dataset: Dataset) -> Path:
    """A copy of the checkout NANOGPT_DIR names, with our data where it looks for them."""
    named = os.environ.get("NANOGPT_DIR")
    if not named:
        pytest.skip("needs a checkout of nanoGPT: set NANOGPT_DIR")
    copy = tmp_path / "nanogpt"
    copy.mkdir()
    for name in ("model.py", "train.py", "sample.py", "configurator.py"):
        shutil.copy(Path(named) / name, copy)
    shutil.copytree(dataset.path, copy / "data" / "python-stdlib")
    return copy


def ask(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=200, env=os.environ
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


CPU = ("--device=cpu", "--dtype=float32", "--compile=False")


@pytest.mark.slow
def test_nanogpt_itself_samples_and_goes_on_and_we_go_on_from_there(
    nanogpt: Path, dataset: Dataset, tmp_path: Path
) -> None:
    config = tiny(max_iters=200, eval_interval=100, eval_iters=20)
    run = trained(tmp_path / "run", dataset, config)
    exported(run, nanogpt / "out" / "ckpt.pt", config)
    itos = {byte: chr(byte) for byte in range(256)}
    meta = {"vocab_size": 256, "itos": itos, "stoi": {letter: byte for byte, letter in itos.items()}}
    (nanogpt / "data" / "python-stdlib" / "meta.pkl").write_bytes(pickle.dumps(meta))
    text = ask(nanogpt, "sample.py", *CPU[:2], "--start=def ", "--num_samples=1", "--max_new_tokens=20")
    assert "\ndef " in text
    keys = {key: getattr(config, key) for key in ("learning_rate", "min_lr", "warmup_iters", "lr_decay_iters", "beta2")}
    flags = [f"--{key}={value}" for key, value in keys.items()]
    shape = ["--dataset=python-stdlib", "--batch_size=4", "--gradient_accumulation_steps=1", "--block_size=32"]
    told = ask(
        nanogpt,
        *("train.py", "--init_from=resume", *CPU, *flags, *shape),
        *("--max_iters=220", "--eval_interval=20", "--eval_iters=200"),
    )
    losses = {int(step): float(val) for step, val in re.findall(r"step (\d+): .*val loss ([\d.]+)", told)}
    assert losses.keys() == {200, 220}
    ours = load_run(run).evals[-1]
    assert ours.val_loss is not None
    assert ours.val_loss_error is not None
    assert losses[200] == pytest.approx(ours.val_loss, abs=0.05 + 4 * ours.val_loss_error)
    assert losses[220] < losses[200] + 0.05, "the moments were lost: the loss has jumped"
    back = read_snapshot(nanogpt / "out")
    assert back.step == 220
    assert back.val_loss == pytest.approx(losses[220], abs=1e-4)
    assert set(back.moments) == set(back.weights)
    assert all(float(moments["step"]) == 220 for moments in back.moments.values())
