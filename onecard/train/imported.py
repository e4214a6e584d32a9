"""A run folder made of weights from elsewhere: from then on it is a run like any other."""

from __future__ import annotations

from pathlib import Path

import torch

from onecard.config.schema import RunConfig
from onecard.runs.folder import CHECKPOINTS, RunFolder
from onecard.runs.records import Checkpoint, Eval
from onecard.train import checkpoint, hf_folder, nanogpt_checkpoint
from onecard.train.foreign import Foreign, not_gpt2
from onecard.train.model import GPT
from onecard.train.optim import make_optimizer


def read_foreign(path: Path) -> Foreign:
    """The model at `path`: a nanoGPT checkpoint, the folder it is in, or a Hugging Face folder."""
    if not path.is_dir():
        return nanogpt_checkpoint.read(path)
    if hf_folder.is_hf_folder(path):
        return hf_folder.read(path)
    if (path / nanogpt_checkpoint.NAME).is_file():
        return nanogpt_checkpoint.read(path / nanogpt_checkpoint.NAME)
    raise not_gpt2(path, f"it holds neither {nanogpt_checkpoint.NAME} nor config.json with weights")


def save_foreign(
    folder: RunFolder, foreign: Foreign, config: RunConfig, *, source: str, data_fingerprint: str | None
) -> Path:
    """The checkpoint written into `folder`, from which `--resume` goes on; its records say where it came from."""
    torch.manual_seed(config.seed)  # what the run draws from here on depends on its seed alone
    model = GPT(config)
    optimizer = make_optimizer(model, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(foreign.weights[name])
            if name in foreign.moments:
                optimizer.state[parameter].update(foreign.moments[name])
    state = checkpoint.TrainingState(
        step=foreign.step,
        tokens=foreign.step * config.tokens_per_step,
        elapsed_seconds=0.0,
        data_position={"sequences": foreign.step * config.sequences_per_step},
        data_fingerprint=data_fingerprint,
        best_val_loss=foreign.val_loss,
    )
    path = checkpoint.save(
        folder.path / CHECKPOINTS, model=model, optimizer=optimizer, state=state, config=config
    )
    if foreign.val_loss is not None:
        checkpoint.mark_best(folder.path / CHECKPOINTS, step=foreign.step, val_loss=foreign.val_loss)
        folder.append(_evaluation(foreign, config, state.tokens, source))
    folder.append(
        Checkpoint(
            step=foreign.step,
            tokens=state.tokens,
            path=str(path.relative_to(folder.path)),
            seconds=None,
            reason="imported",
            best=foreign.val_loss is not None,
            more={"imported_from": source},
        )
    )
    return path


def _evaluation(foreign: Foreign, config: RunConfig, tokens: int, source: str) -> Eval:
    """What the other program measured when it saved."""
    return Eval(
        step=foreign.step,
        tokens=tokens,
        train_loss=None,
        val_loss=foreign.val_loss,
        train_loss_error=None,
        val_loss_error=None,
        block_size=config.block_size,
        tokens_read=config.eval_iters * config.batch_size * config.block_size,
        seconds=None,
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        bits_per_byte=None,
        more={"imported_from": source},
    )
