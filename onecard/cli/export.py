"""onecard export: a run for nanoGPT, for transformers and the Hugging Face hub, or for llama.cpp."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from onecard.cli.files import PathType, check_new
from onecard.cli.flags import Flag
from onecard.cli.library import (
    best_option,
    checkpoint_option,
    console,
    json_option,
    needs_torch,
    no_flags,
    which_checkpoint,
)
from onecard.errors import ConfigError, OnecardError, UsageError

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.data.tokenizers import Tokenizer
    from onecard.runs.folder import Run
    from onecard.train.gguf_file import NumberType
    from onecard.train.snapshot import Snapshot

NUMBER_TYPES = ("f32", "f16", "q8_0")
DEFAULT_TYPE: NumberType = "f16"  # as llama.cpp's own converter
PROMPT_TOKENS = 8  # that the shown prompt takes at most
_ELSEWHERE = "choose another place with --out PATH"


THEIR_NAMES = {"nanogpt": "nanoGPT", "gguf": "GGUF"}
THEIR_LAYERS = {
    "nanogpt": "nanoGPT's model.py has GPT-2's layers and no others",
    "gguf": "llama.cpp has no such model: of ours it has GPT-2 only",
}


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written, and what the user should know about it."""

    path: Path
    files: tuple[str, ...]
    next: tuple[str, ...]  # commands that use it
    notes: tuple[str, ...] = field(default=())


@click.command(short_help="A run as a nanoGPT checkpoint, a Hugging Face folder or a GGUF file.")
@click.argument("run", type=PathType())
@click.option("--to", "kind", type=click.Choice(["nanogpt", "hf", "gguf"]), required=True, help="The format to write.")
@click.option(
    "--out", type=PathType(), metavar="PATH", help="The folder or GGUF file to write; default: a new one in RUN/export."
)
@click.option(
    "--type",
    "number_type",
    type=click.Choice(NUMBER_TYPES),
    help=f"With --to gguf: the type of the weights; default: {DEFAULT_TYPE}. q8_0 has a quarter of f32's size.",
)
@best_option
@checkpoint_option
@click.option("--push", metavar="USER/NAME", help="With --to hf: upload the folder to the Hugging Face hub, too.")
@click.option("--private", is_flag=True, help="With --push: a repository that only you can see.")
@json_option
@click.pass_obj
def export(
    flags: list[Flag],
    /,
    run: str,
    kind: str,
    out: str | None,
    number_type: NumberType | None,
    best: bool,
    checkpoint: str | None,
    push: str | None,
    private: bool,
    as_json: bool,
) -> int:
    """\b
    Example:
      onecard export runs/default --to hf

    Writes the weights of a run in a format that other programs read.

    nanogpt: a ckpt.pt for nanoGPT's sample.py, with AdamW's moments, and a config with which its train.py continues.
    hf: config, safetensors, tokenizer and a model card, as transformers loads them. Nothing is uploaded without --push.
    gguf: one file for llama.cpp, Ollama and LM Studio: weights, tokenizer and the facts of the model card.
    A run with model=nanochat goes to hf only: nanoGPT and llama.cpp have no such layers.
    """
    no_flags(flags, "export")
    _check_push(kind, push, private)
    _check_type(kind, number_type)
    _check_name(kind, out)
    which = which_checkpoint(checkpoint, best=best)
    needs_torch("reading a checkpoint needs it")
    from onecard.inputs.before_run import config_of
    from onecard.runs.folder import checkpoint_name, load_run

    found = load_run(Path(run))
    config = config_of(found.path, found.config)
    if kind in THEIR_LAYERS and config.model != "gpt2":
        raise ConfigError(
            f"{run} cannot be exported to {THEIR_NAMES[kind]}",
            why=f"its model is {config.model}, and {THEIR_LAYERS[kind]}",
            fix=f"onecard export {quote(run)} --to hf",
            name="not-nanogpts-model" if kind == "nanogpt" else "not-llama-cpps-model",
        )
    if number_type == "q8_0":
        _check_groups(run, config)
    from onecard.inputs import hf_hub
    from onecard.train.interchange import read_run

    if push:
        hf_hub.check_token(push)
    snapshot = read_run(found.path, which=which)
    if kind == "gguf":
        return _to_gguf(snapshot, config, found, out=out, number_type=number_type or DEFAULT_TYPE, as_json=as_json)
    target = Path(out) if out else found.path / "export" / f"{kind}-{checkpoint_name(snapshot.step)}"
    check_new(target, again="--out ")
    tokenizer, note = _tokenizer(found.path, config)
    if kind == "nanogpt":
        done = _to_nanogpt(target, snapshot, config, found, tokenizer)
    else:
        done = _to_hf(target, snapshot, config, found, tokenizer, push=push, note=note)
    done = replace(done, notes=(*snapshot.notes, *done.notes))
    address = hf_hub.push(target, push, private=private) if push else None
    _show(done, snapshot.step, address, as_json=as_json)
    return 0


def _check_push(kind: str, push: str | None, private: bool) -> None:
    if push and kind != "hf":
        raise UsageError(
            "--push goes with --to hf",
            why="the hub's programs read transformers' format, not nanoGPT's",
            fix=f"onecard export RUN --to hf --push {push}",
        )
    if private and not push:
        raise UsageError(
            "--private goes with --push", why="nothing is uploaded without it", fix="--push USER/NAME --private"
        )


def _check_type(kind: str, number_type: NumberType | None) -> None:
    if number_type and kind != "gguf":
        raise UsageError(
            "--type goes with --to gguf",
            why="the other formats have the weights as they are: float32",
            fix=f"onecard export RUN --to gguf --type {number_type}",
        )


def _check_name(kind: str, out: str | None) -> None:
    if kind == "gguf" and out and Path(out).suffix != ".gguf":
        raise UsageError(
            f"--out {out} does not end in .gguf",
            why="with --to gguf it names a file, and LM Studio and Ollama know such files by their ending",
            fix=f"--out {quote(str(Path(out, 'model.gguf') if Path(out).is_dir() else Path(out + '.gguf')))}",
        )


def _check_groups(run: str, config: RunConfig) -> None:
    """Refuse q8_0 for rows that are not groups of 32 numbers, before anything is read."""
    from onecard.train.gguf_file import GROUP

    if config.n_embd % GROUP:
        raise ConfigError(
            f"{run} cannot be written as q8_0",
            why=f"q8_0 takes numbers in groups of {GROUP}, and n_embd={config.n_embd} is not a multiple of that",
            fix=f"onecard export {quote(run)} --to gguf --type f16",
            name="not-in-groups",
        )


def _tokenizer(run: Path, config: RunConfig) -> tuple[Tokenizer | None, str | None]:
    """(the run's tokenizer, None), or (None, why it is missing): weights alone are still worth exporting."""
    from onecard.inputs.tokenizer import tokenizer_of

    try:
        return tokenizer_of(run, config), None
    except OnecardError as error:
        return None, f"without a tokenizer: {error.what}; {error.why}"


def _to_nanogpt(target: Path, snapshot: Snapshot, config: RunConfig, run: Run, tokenizer: Tokenizer | None) -> Exported:
    from onecard.data.nanogpt_meta import characters_meta
    from onecard.files import whole, write_durably
    from onecard.runs.records import Start
    from onecard.train import nanogpt_checkpoint

    devices = [record.device for record in run.records if isinstance(record, Start)]
    on_card = bool(devices) and devices[-1].startswith("cuda")
    data = _nanogpt_data(config, target)
    text = nanogpt_checkpoint.config_text(config, folder=target, dataset=data.name, on_card=on_card)
    meta = characters_meta(tokenizer) if tokenizer else None
    with whole(target, needed_bytes=nanogpt_checkpoint.needed_bytes(snapshot), instead=_ELSEWHERE) as new:
        new.mkdir()
        nanogpt_checkpoint.write(new / nanogpt_checkpoint.NAME, snapshot, config, fused=on_card)
        write_durably(new / nanogpt_checkpoint.CONFIG, text.encode())
        if meta:
            write_durably(new / "meta.pkl", pickle.dumps(meta))
    files, notes = [nanogpt_checkpoint.NAME, nanogpt_checkpoint.CONFIG], [*data.notes]
    longer = f" --max_iters={2 * snapshot.step}" if snapshot.step >= config.max_iters else ""
    train = f"python train.py {quote(str(target.resolve() / nanogpt_checkpoint.CONFIG))}{longer}"
    commands = [] if data.notes else [*data.made_by, train]
    sample = f"python sample.py {quote(f'--out_dir={target.resolve()}')}{'' if on_card else ' --device=cpu'}"
    if meta:
        files.append("meta.pkl")
        place = f"data/{nanogpt_checkpoint.nanogpt_config(config)['dataset']}"
        notes.append(f"nanoGPT's sample.py looks for the vocabulary in its {place}/: put meta.pkl there")
        commands.insert(0, sample)
    elif _is_gpt2(tokenizer, config):
        commands.insert(0, sample)
    else:
        notes.append(
            "nanoGPT's sample.py expects GPT-2's tokens, but this run has others: its train.py can continue "
            "it; to make text use onecard sample, or --to hf"
        )
    if config.optimizer == "muon":
        notes.append("this run's optimizer is Muon, which nanoGPT has not: it goes on with AdamW, from fresh moments")
    elif not snapshot.moments:
        notes.append("this run has no AdamW moments: nanoGPT starts with fresh ones")
    return Exported(path=target, files=tuple(files), next=tuple(commands), notes=tuple(notes))


@dataclass(frozen=True, kw_only=True)
class NanogptData:
    """The data of a run for nanoGPT: its name in the config, and what must be done first."""

    name: str
    made_by: tuple[str, ...] = ()  # a command
    notes: tuple[str, ...] = ()  # why nanoGPT cannot read it


def _nanogpt_data(config: RunConfig, target: Path) -> NanogptData:
    """Where nanoGPT, on this machine, finds train.bin and val.bin with plain uint16 tokens."""
    from onecard.inputs.config import open_data
    from onecard.train.nanogpt_checkpoint import nanogpt_config

    named = str(nanogpt_config(config)["dataset"])
    splits = ("train.bin", "val.bin")
    try:
        found = open_data(config)
    except OnecardError as error:
        note = f"{error.what}: nanoGPT's train.py needs {' and '.join(splits)} in its data/{named}/"
        return NanogptData(name=named, notes=(note,))
    files = [[file.path for file in tokens.files] for tokens in (found.train, found.val)]
    if any(file.dtype != "uint16" or file.first_byte for tokens in (found.train, found.val) for file in tokens.files):
        made = "onecard data prepare SOURCE --out DIR --format nanogpt writes such files"
        note = f"nanoGPT's train.py reads uint16 tokens without a header, but {found.path} has others: {made}"
        return NanogptData(name=named, notes=(note,))
    if [[path.name for path in paths] for paths in files] == [["train.bin"], ["val.bin"]]:
        return NanogptData(name=str(found.path.resolve()))  # os.path.join("data", an absolute path) is that path
    joins = [
        f"cat {' '.join(quote(str(path.resolve())) for path in paths)} > {quote(str(target.resolve() / split))}"
        for paths, split in zip(files, splits, strict=True)
    ]
    return NanogptData(name=str(target.resolve()), made_by=(" && ".join(joins),))


def _is_gpt2(tokenizer: Tokenizer | None, config: RunConfig) -> bool:
    """Whether the tokens are GPT-2's, as nanoGPT assumes; judged by vocab_size if no tokenizer is known."""
    from onecard.config.schema import GPT2_VOCABULARIES

    return (tokenizer.vocab_size if tokenizer else config.vocab_size) in GPT2_VOCABULARIES


def _to_gguf(
    snapshot: Snapshot, config: RunConfig, run: Run, *, out: str | None, number_type: NumberType, as_json: bool
) -> int:
    from onecard.data.gguf_vocabulary import NotInLlamaCpp, vocabulary_of
    from onecard.inputs.tokenizer import tokenizer_of
    from onecard.report.model_card import gguf_facts
    from onecard.runs.folder import checkpoint_name
    from onecard.train import gguf_file

    name = f"{run.path.resolve().name}-{checkpoint_name(snapshot.step)}-{number_type}.gguf"
    target = Path(out) if out else run.path / "export" / name
    check_new(target, again="--out ")
    tokenizer = tokenizer_of(run.path, config)
    try:
        vocabulary = vocabulary_of(tokenizer)
        if len(vocabulary.tokens) > config.vocab_size:
            raise NotInLlamaCpp(f"it has {len(vocabulary.tokens):,} tokens, and the model {config.vocab_size:,}")
    except NotInLlamaCpp as problem:
        raise ConfigError(
            f"the tokenizer of {run.path} cannot be written for llama.cpp",
            why=str(problem),
            fix=f"onecard export {quote(str(run.path))} --to hf",
            name="not-in-llama-cpp",
        ) from None
    told = gguf_facts(run, config, step=snapshot.step, tokenizer=tokenizer.name)
    gguf_file.write(target, snapshot, config, vocabulary, number_type=number_type, told=told, instead=_ELSEWHERE)
    length = min(200, max(1, config.block_size - PROMPT_TOKENS))  # llama.cpp's text ends where the context does
    command = f"llama-completion -m {quote(str(target))} -no-cnv -p {quote(_prompt(tokenizer))} -n {length}"
    done = Exported(path=target, files=(target.name,), next=(command,), notes=snapshot.notes)
    _show(done, snapshot.step, None, as_json=as_json)
    return 0


def _to_hf(
    target: Path,
    snapshot: Snapshot,
    config: RunConfig,
    run: Run,
    tokenizer: Tokenizer | None,
    *,
    push: str | None,
    note: str | None,
) -> Exported:
    from onecard.data.hf_tokenizer import tokenizer_files
    from onecard.files import whole, write_durably
    from onecard.report.model_card import model_card
    from onecard.train import hf_folder

    texts = tokenizer_files(tokenizer, block_size=config.block_size) if tokenizer else {}
    named = tokenizer.name if tokenizer else None
    name, place = push or run.path.resolve().name, push or f"./{target.resolve().name}"
    texts["README.md"] = model_card(run, config, name=name, place=place, step=snapshot.step, tokenizer=named)
    with whole(target, needed_bytes=hf_folder.needed_bytes(config), instead=_ELSEWHERE) as new:
        new.mkdir()
        hf_folder.write(new, snapshot, config, end_of_text=tokenizer.end_of_text if tokenizer else None)
        for file, text in texts.items():
            write_durably(new / file, text.encode())
    files = tuple(sorted(path.name for path in target.iterdir()))
    return Exported(path=target, files=files, next=_first_text(target, tokenizer), notes=(note,) if note else ())


def _first_text(folder: Path, tokenizer: Tokenizer | None) -> tuple[str, ...]:
    """The command that makes text from the model with transformers; empty without a tokenizer."""
    if tokenizer is None:
        return ()
    where, prompt = (json.dumps(text, ensure_ascii=False) for text in (str(folder), _prompt(tokenizer)))
    code = f'from transformers import pipeline; print(pipeline("text-generation", {where})({prompt}))'
    return (f"python -c {quote(code)}",)


def _prompt(tokenizer: Tokenizer) -> str:
    """A word to begin a text with; if the vocabulary lacks its letters, the first visible token."""
    try:
        tokenizer.encode("The")
        return "The"
    except OnecardError:
        texts = (tokenizer.token_bytes(token).decode(errors="ignore") for token in range(tokenizer.vocab_size))
        return next((text for text in texts if text.strip()), " ")


def _show(done: Exported, step: int, address: str | None, *, as_json: bool) -> None:
    from onecard.report.messages import print_warnings

    if as_json:
        said = {
            "schema": 1,
            "path": str(done.path),
            "files": list(done.files),
            "step": step,
            "pushed_to": address,
            "notes": list(done.notes),
        }
        click.echo(json.dumps(said))
        return
    talk = console(stderr=True)
    files = "" if done.path.name in done.files else f"; {', '.join(done.files)}"
    talk.print(f"{done.path}: step {step:,}{files}", soft_wrap=True, markup=False)
    print_warnings(done.notes, talk)
    for line in [f"pushed to {address}"] if address else [f"next: {command}" for command in done.next]:
        talk.print(line, soft_wrap=True, markup=False)
