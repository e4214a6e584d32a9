"""Run folders with a checkpoint of a model that has learned nothing, so that a text can be asked for at once."""

import json
from pathlib import Path
from typing import Any

import pytest

from onecard.config.schema import RunConfig
from tests.ui.conftest import make_run


def make_model(folder: Path, *, token: str | None = None, **settings: Any) -> Path:
    """A model of bytes, or with `token` one of that token alone, beside "a"."""
    torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")
    from onecard.train import checkpoint
    from onecard.train.model import GPT
    from onecard.train.optim import make_optimizer

    vocabulary = 2 if token else 256
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 64, "block_size": 64, "vocab_size": vocabulary, "dtype": "float32"}
    config = RunConfig.model_validate({"max_iters": 200} | shape | settings)
    run = make_run(folder)
    (run / "config.json").write_text(json.dumps(config.model_dump()))
    if token:
        words = {"type": "WordLevel", "vocab": {"a": 0, token: 1}, "unk_token": "a"}
        (run / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": words}))
    else:
        (run / "vocabulary.json").write_text('{"tokenizer": "bytes", "vocab_size": 256}')
    torch.manual_seed(1)
    model = GPT(config)
    state = checkpoint.TrainingState(step=100, tokens=100, elapsed_seconds=1.0)
    optimizer = make_optimizer(model, config)
    checkpoint.save(run / "checkpoints", model=model, optimizer=optimizer, state=state, config=config)
    return run
