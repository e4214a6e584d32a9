"""onecard import: make a run folder from a nanoGPT checkpoint or a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from onecard import units
from onecard.cli.files import PathType, check_new
from onecard.cli.flags import Flag
from onecard.cli.library import KeyCommand, console, json_option, needs_torch
from onecard.errors import ConfigError, OnecardError
from onecard.files import free_path, whole
from onecard.inputs.config import open_data
from onecard.inputs.pretrained import bring, imported_config, put
from onecard.inputs.tokenizer import keep_tokenizer_in
from onecard.runs.folder import check_new_run, create_run

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.data.dataset import Dataset
    from onecard.train.snapshot import Snapshot


@click.command("import", cls=KeyCommand, short_help="A run from a nanoGPT checkpoint or a Hugging Face folder.")
@click.argument("source", metavar="CKPT_OR_FOLDER", type=PathType())
@click.option("--download", is_flag=True, help="Fetch a model by its name from the Hugging Face hub.")
@json_option
@click.pass_obj
def import_run(flags: list[Flag], /, source: str, download: bool, as_json: bool) -> int:
    """\b
    Example:
      onecard import out/ckpt.pt --dataset=data/fineweb --out_dir=runs/mine

    Makes a run folder from nanoGPT's ckpt.pt, or from a folder of a GPT-2 or nanochat as transformers writes it.

    `train --resume` continues it, with AdamW's moments, and `sample` makes text from it. No code in the file is run.
    Keys set what the file does not say, such as --dataset; the shape comes from the file.
    """
    needs_torch("reading a checkpoint needs it")
    path, snapshot = bring(source, download=download)
    snapshot, config = imported_config(snapshot, flags, path, name=source)
    dataset, notes = _data(config)
    typed = [quote(f"--{key}={text}") for key, text in flags if key != "out_dir"]
    again = ["onecard import", quote(source), *(["--download"] if download else []), *typed]
    run = Path(config.out_dir)
    _check_folder(run, again=" ".join([*again, "--out_dir="]))
    with whole(run) as new, create_run(new, config=config.model_dump()) as folder:
        put(folder, snapshot, config, source=path, data_fingerprint=dataset.fingerprint if dataset else None)
        if dataset:
            keep_tokenizer_in(folder.path, dataset)
    mute = _without_tokenizer(run, config)
    notes = [*snapshot.notes, *notes, *([mute] if mute else [])]
    stated = "max_iters" in snapshot.config or "max_iters" in dict(flags)
    commands = [
        *([_go_on(run, snapshot, config, stated=stated)] if dataset else []),
        *([] if mute else [f"onecard sample {quote(str(run))}"]),
    ]
    _show(run, snapshot, config, path, notes, commands=commands, as_json=as_json)
    return 0


def _check_folder(path: Path, *, again: str) -> None:
    """Refuse a folder that is not new; the error has the command to import `again` into another one."""
    try:
        check_new_run(path)
    except ConfigError as problem:
        if problem.name != "run-exists":
            raise
        go_on = f"or continue the one there: onecard train --resume {quote(str(path))}"
        fix = f"{again}{quote(str(free_path(path)))}   ({go_on})"
        raise ConfigError(problem.what, why=problem.why, fix=fix, name=problem.name) from problem
    check_new(path, again=again)


def _data(config: RunConfig) -> tuple[Dataset | None, list[str]]:
    """The data to continue the run with, and what to know about it; (None, …) if it is not here."""
    from onecard.data.checks import check_dataset

    try:
        found = open_data(config)
    except OnecardError as error:
        if error.name != "no-such-dataset":
            raise
        resume = f"onecard train --resume {quote(config.out_dir)} --dataset=PATH"
        return None, [f"the dataset {config.dataset} is not here; to continue training: {resume}"]
    findings = check_dataset(
        found, block_size=config.block_size, vocab_size=config.vocab_size, eval_block_size=config.eval_block_size
    )
    return found, [finding.what for finding in findings]


def _without_tokenizer(run: Path, config: RunConfig) -> str | None:
    """Why no text can be sampled from the run; None if it can."""
    from onecard.inputs.tokenizer import tokenizer_of

    try:
        tokenizer_of(run, config)
    except OnecardError as error:
        return f"no text can be sampled from it yet: {error.what} ({error.why}); {error.fix}"
    return None


def _go_on(run: Path, snapshot: Snapshot, config: RunConfig, *, stated: bool) -> str:
    """The command that continues training, and how far it goes if no max_iters was `stated`."""
    command = f"onecard train --resume {quote(str(run))}"
    if snapshot.step >= config.max_iters:
        return f"{command} --max_iters={2 * snapshot.step}"
    usual = f"   (to step {config.max_iters:,}, nanoGPT's default; to end at N: --max_iters=N --lr_decay_iters=N)"
    return command if stated else command + usual


def _show(
    run: Path,
    snapshot: Snapshot,
    config: RunConfig,
    source: Path,
    notes: list[str],
    *,
    commands: list[str],
    as_json: bool,
) -> None:
    from onecard.plan.counts import count_params
    from onecard.report.messages import print_warnings

    params = count_params(config)
    if as_json:
        said = {
            "schema": 1,
            "run": str(run),
            "source": str(source),
            "step": snapshot.step,
            "tokens": snapshot.step * config.tokens_per_step,
            "params": {"total": params.total, "nanogpt": params.nanogpt},
            "val_loss": snapshot.val_loss,
            "moments": bool(snapshot.moments),
            "notes": notes,
        }
        click.echo(json.dumps(said))
        return
    loss = f", val loss {snapshot.val_loss:.4f}" if snapshot.val_loss is not None else ""
    moments = "with AdamW's moments" if snapshot.moments else "without optimizer state"
    talk = console(stderr=True)
    figures = f"{units.count(params.nanogpt)} parameters at step {snapshot.step:,}{loss}, {moments}"
    talk.print(f"{run}: {figures}", soft_wrap=True, markup=False)
    print_warnings(notes, talk)
    for command in commands:
        talk.print(f"next: {command}", soft_wrap=True, markup=False)
