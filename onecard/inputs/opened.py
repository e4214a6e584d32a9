"""A model that is named, ready to run: of a run folder, a Hugging Face folder or nanoGPT's ckpt.pt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.data.tokenizers import Tokenizer
    from onecard.train.model import GPT


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A model with its tokenizer, and where it came from."""

    source: Path  # as named, or where it was found in Hugging Face's cache
    run: Path | None  # the run folder; None for a model from elsewhere
    step: int
    config: RunConfig
    model: GPT
    tokenizer: Tokenizer
    device: str
    notes: tuple[str, ...]
    weights: str | None = None  # sha256 of a checkpoint's file of weights


def open_model(source: str, *, device: str | None, download: bool = False, which: str = "last") -> Opened:
    """The newest complete checkpoint of a run, or the model of a folder or file; `device` None: the run's own.

    `which` is another checkpoint of a run: its step, or "best".
    """
    from onecard.config.paths import expanded
    from onecard.runs.folder import is_run

    folder = Path(expanded(source))
    if is_run(folder):
        return open_run(folder, device=device, which=which)
    return _from_elsewhere(source, device, download=download)


def open_run(folder: Path, *, device: str | None, which: str = "last", alone: bool = False) -> Opened:
    """The newest complete checkpoint of a run. `alone`: only its folder is read, and nothing made larger than it is."""
    from onecard.inputs.before_run import config_of
    from onecard.inputs.tokenizer import tokenizer_of
    from onecard.runs.folder import load_run

    run = load_run(folder)
    config = config_of(run.path, run.config)
    from onecard.runs.checkpoint_state import step_of, weights_digest

    # torch only now: a run that is not there is reported at once
    from onecard.train import checkpoint
    from onecard.train.interchange import from_checkpoint
    from onecard.train.model import GPT

    def opened(saved: Path, passed_over: tuple[str, ...]) -> Opened:
        tokenizer = tokenizer_of(run.path, config, alone=alone)
        place, note = _device(config, device)
        if alone:
            _check_size(saved, config)
        model = GPT(config)
        checkpoint.load(saved, model=model, optimizer=None, config=config)
        return Opened(
            source=run.path,
            run=run.path,
            step=step_of(saved),
            config=config,
            model=model.to(place).eval(),
            tokenizer=tokenizer,
            device=place,
            notes=(*passed_over, *note),
            weights=weights_digest(saved),
        )

    return from_checkpoint(run.path, opened, which=which)


def _check_size(saved: Path, config: RunConfig) -> None:
    """BadCheckpoint for a config of more weights than the checkpoint has: a few letters must not fill the memory."""
    from onecard.plan.counts import count_params
    from onecard.runs.checkpoint_state import MODEL, bad, files_of, reading

    with reading(saved):
        names = files_of(saved, MODEL, [file.name for file in saved.iterdir()])
        there = sum((saved / name).stat().st_size for name in names)
    if (needed := 4 * count_params(config).total) > there:
        raise bad(saved, f"{MODEL} has {there:,} bytes, and the config's weights are {needed:,}")


def _from_elsewhere(source: str, device: str | None, *, download: bool) -> Opened:
    from onecard.inputs.pretrained import bring, imported_config
    from onecard.inputs.tokenizer import tokenizer_of
    from onecard.train.interchange import model_of

    path, snapshot = bring(source, download=download)
    snapshot, config = imported_config(snapshot, [], path, name=source)
    tokenizer = tokenizer_of(path if path.is_dir() else path.parent, config)
    place, note = _device(config, device)
    return Opened(
        source=path,
        run=None,
        step=snapshot.step,
        config=config,
        model=model_of(snapshot, config).to(place).eval(),
        tokenizer=tokenizer,
        device=place,
        notes=note,
    )


def _device(config: RunConfig, asked: str | None) -> tuple[str, tuple[str, ...]]:
    """The device, and what to say of it where the run's own is not here."""
    from onecard.train.device import choose_device, device_here

    if asked:
        return str(choose_device(config.replace({"device": asked}))), ()
    device, note = device_here(config)
    return str(device), (note,) if note else ()
