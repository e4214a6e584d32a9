"""What a user names as a config -> Resolved, with the shape of the weights and the vocabulary of the data it names."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from onecard.config.names import EPOCHS
from onecard.errors import ConfigError, OnecardError, unless_machine_failed
from onecard.inputs.nearby import configs_near
from onecard.inputs.text import THERE, read_text
from onecard.opening import cannot_read
from onecard.untrusted_json import field, mapping_of, parsed, read_object, scalar

if TYPE_CHECKING:
    from onecard.config.resolve import Resolved
    from onecard.config.schema import RunConfig
    from onecard.data.dataset import Dataset

STDIN = "-"
RUN_CONFIG = "config.json"

Named = str | Mapping[str, object] | None  # a path or -, keys and values, or the packaged default
Flags = Sequence[tuple[str, str]]  # keys and values as typed


def config_named(config: Named, flags: Flags, *, otherwise: str = THERE) -> Resolved:
    """The config of a file, a run folder, standard input (-), a mapping or the packaged default, under flags.

    The shape is init_from's. `otherwise` is what to do where there is no such file.
    """
    from onecard.config.resolve import resolve, resolve_mapping

    if length := next((flag for flag in flags if flag[0] in EPOCHS), None):
        others = [flag for flag in flags if flag[0] not in EPOCHS]
        raise _told_in_epochs(*length, config_as_typed(config, others, otherwise=otherwise).config, data_places(config))
    if config is None:
        return with_pretrained_shape(resolve(None, flags=flags))
    if not isinstance(config, str):
        return with_pretrained_shape(resolve_mapping(config, flags=flags))
    from onecard.runs.folder import CONFIG

    path = Path(config)
    if path.is_dir() and (path / CONFIG).is_file():
        path /= CONFIG
    text = read_text(sys.stdin.buffer if config == STDIN else path, otherwise=otherwise)
    name = "standard input" if config == STDIN else path.name
    if path.suffix == ".json":
        text = _said_in_json(text, name)
    return with_pretrained_shape(
        resolve(text, filename=name, flags=flags, others=lambda: [quote(str(file)) for file in configs_near(path)])
    )


def _told_in_epochs(key: str, value: str, config: RunConfig, search: Sequence[Path]) -> ConfigError:
    """The error for a length in epochs, with the updates that they are where the data's size is known."""
    from onecard.inputs.data_sizes import sizes_of_data

    size, source = (data := sizes_of_data(config, search)).train_tokens, data.source
    try:
        updates = max(1, round(float(value) * (size or 0) / config.tokens_per_step))
    except (ValueError, OverflowError):
        updates, size = 0, None
    return ConfigError(
        f"--{key} is not a config key",
        why="the length of a run is in updates: max_iters"
        + (f"; {source} has {size:,} tokens, and an update reads {config.tokens_per_step:,}" if size else ""),
        fix=f"--max_iters={updates} --lr_decay_iters={updates}   ({value} epochs)"
        if size
        else f"--max_iters=N, which is epochs x the tokens of {config.dataset}, whose size is not known here, / "
        f"{config.tokens_per_step:,}",
        name="unknown-key",
    )


def _said_in_json(text: str, name: str) -> str:
    """A run's config.json as a config file says it, but for our own keys that say nothing new."""
    from onecard.config.recipes import RECIPES
    from onecard.config.resolve import assignments
    from onecard.config.schema import GPT2_SHAPE_KEYS, KEYS, NANOGPT_KEYS
    from onecard.runs.folder import without_former_keys

    try:
        said = without_former_keys(mapping_of(scalar)(parsed(text.encode())))
        new = {*NANOGPT_KEYS, *GPT2_SHAPE_KEYS, *RECIPES.get(str(said.get("recipe")), {})}
        unsaid = {name: key.default for name, key in KEYS.items() if name not in new}
        found = {key: value for key, value in said.items() if key.isidentifier()}
        return assignments({key: value for key, value in found.items() if key not in unsaid or value != unsaid[key]})
    except ValueError as problem:
        raise ConfigError(
            f"{name} is not the config of a run",
            why=f"a run's config.json is one JSON object of keys and values, but {str(problem)[:120]}",
            fix="name a nanoGPT config file, or a run folder",
            name="unreadable-file",
        ) from problem


def config_as_typed(config: Named, flags: Flags, *, otherwise: str = THERE) -> Resolved:
    """The same; its source is as typed, so that commands to paste find the file."""
    resolved = config_named(config, flags, otherwise=otherwise)
    return replace(resolved, source=config) if isinstance(config, str) and config != STDIN else resolved


def config_to_plan(config: Named, flags: Flags, *, otherwise: str = THERE) -> Resolved:
    """The config of a plan: with the vocabulary of the data, where that is here or known by its name."""
    resolved = config_as_typed(config, [*_beside(config, flags), *flags], otherwise=otherwise)
    _check_shape_is_known(resolved)
    resolved = _as_resumed(_with_data_vocabulary(resolved, data_places(config)))
    return _with_allocator_settings(resolved, os.environ)


def _with_allocator_settings(resolved: Resolved, environ: Mapping[str, str]) -> Resolved:
    """With expandable_segments as the environment of PyTorch sets it, unless the user set the key."""
    from onecard.config.command import ALLOCATOR_SETTINGS

    if resolved.origins["expandable_segments"] != "default":
        return resolved
    for name in ALLOCATOR_SETTINGS:
        settings = dict(word.strip().partition(":")[::2] for word in environ.get(name, "").split(","))
        asked = settings.get("expandable_segments", "").lower()
        if asked in ("true", "false"):
            config = resolved.config.replace({"expandable_segments": asked == "true"})
            return replace(resolved, config=config, origins={**resolved.origins, "expandable_segments": name})
    return resolved


def _beside(config: Named, flags: Flags) -> Flags:
    """A folder for a new run like the one in the folder that was named: commands to paste do not start that again."""
    if not isinstance(config, str):
        return []
    from onecard.files import free_path
    from onecard.runs.folder import is_run

    if not is_run(Path(config)) or "out_dir" in dict(flags) or dict(flags).get("init_from") == "resume":
        return []
    return [("out_dir", str(free_path(Path(config))))]


def with_pretrained_shape(resolved: Resolved) -> Resolved:
    """The config with the model and the shape of the folder that init_from names, if it names one that is here."""
    if not resolved.config.starts_pretrained:
        return resolved
    from onecard.config.hf_config import CONFIG, openai_weights, shape_of
    from onecard.config.paths import expanded
    from onecard.config.resolve import with_shape
    from onecard.config.schema import SHAPE_KEYS
    from onecard.inputs.hf_hub import cached_folder
    from onecard.runs.folder import is_run

    name = resolved.config.init_from
    folder: Path | None = Path(expanded(name))
    if folder and not os.path.isfile(folder / CONFIG):  # noqa: PTH113  # any name may be typed
        folder = None if openai_weights(name) else cached_folder(name)
    if folder is None:
        return resolved
    try:
        said = read_object(folder / CONFIG)
        stated = {"model": "gpt2", **said} if is_run(folder) else shape_of(said)  # old runs are of GPT-2
        shape = {key: field(stated, key, scalar) for key in SHAPE_KEYS}
    except (OSError, ValueError) as problem:
        raise cannot_read(folder / "config.json", problem) or ConfigError(
            f"init_from={name} is not a model that onecard can train",
            why=str(problem)[:160],
            fix="give a Hugging Face folder of model_type gpt2 or nanochat, a run folder, or a ckpt.pt",
            name="not-a-model",
        ) from problem
    return with_shape(resolved, shape, origin=f"init_from={name}")


def _check_shape_is_known(resolved: Resolved) -> None:
    """ConfigError where a run starts from weights whose shape a plan cannot know: it would be of another model."""
    from onecard.inputs.hf_hub import place_of

    name, origins = resolved.config.init_from, resolved.origins
    if not resolved.config.starts_pretrained or origins["n_embd"] == f"init_from={name}":
        return
    if origins["init_from"].startswith(RUN_CONFIG) and origins["n_embd"].startswith(RUN_CONFIG):
        return  # of a run, whose config.json has the shape that its weights had
    path = place_of(name)
    raise ConfigError(
        f"the shape of the weights in {path} is not known",
        why="a plan reads it from the config.json of a run or of a Hugging Face folder, and there is none",
        fix=f"onecard import {quote(str(path))} --out_dir=DIR, then --init_from=DIR; or plan a run of that shape from "
        "scratch: --init_from=scratch --n_layer=N --n_head=N --n_embd=N",
        name="shape-not-known",
    )


def _with_data_vocabulary(resolved: Resolved, search: Sequence[Path]) -> Resolved:
    """With the vocab_size that `train` would take from the data; GPT-2's where it is neither here nor known by name."""
    from onecard.config.resolve import PACKAGED_DEFAULT

    if resolved.origins["dataset"] == PACKAGED_DEFAULT or not _takes_vocabulary(resolved):
        return resolved
    origin, size = _vocabulary(resolved.config.dataset, search)
    config = with_vocabulary(resolved, size)
    if config == resolved.config and resolved.origins["vocab_size"] == "default":
        return resolved
    return replace(resolved, config=config, origins={**resolved.origins, "vocab_size": origin})


def _vocabulary(dataset: str, search: Sequence[Path]) -> tuple[str, int | None]:
    """(where it is from, the vocabulary of a data set): its folder's, else that of the known name, else None."""
    from onecard.config.known_data import EMBEDDED, known_data
    from onecard.data.folders import find_data

    if dataset == EMBEDDED.name:  # it need not be built for a plan
        return EMBEDDED.name, EMBEDDED.vocab_size
    try:
        if folder := find_data(dataset, search=search):
            from onecard.data.dataset import model_vocabulary, open_path
            from onecard.data.indexed_splits import indexed_files

            size = model_vocabulary(folder)
            if size is None and indexed_files(folder):  # whose own files may name a tokenizer
                size = open_path(folder, name=dataset, environ=os.environ).model_vocab_size
            return str(folder), size
    except OnecardError as problem:  # data that cannot be used says nothing about the vocabulary
        unless_machine_failed(problem, None)
    if known := known_data(dataset):
        return f"nanoGPT's {known.name}", known.vocab_size
    return "default", None


def folder_of(resolved: Resolved) -> Path:
    """The folder of a run: nanoGPT's out_dir where it is set; otherwise runs/ and the config's name."""
    from onecard.config.paths import expanded, refuse_empty

    if resolved.origins["out_dir"] != "default":
        refuse_empty("out_dir", resolved.config.out_dir)  # of a config file; a flag was checked before
        return Path(expanded(resolved.config.out_dir))
    return Path("runs") / Path(resolved.source or "default").stem.replace(" ", "-")


def _as_resumed(resolved: Resolved) -> Resolved:
    """What `train` would continue where init_from=resume; ConfigError, the same as there, for what it would refuse."""
    from onecard.runs.folder import is_run, load_run

    if resolved.config.init_from != "resume":
        return resolved
    path = folder_of(resolved)
    if is_run(path):
        from onecard.inputs.resume import resumed_config

        config, notes = resumed_config(load_run(path), resolved.set_by_user, resolved.origins)
        return replace(resolved, config=config.replace({"init_from": "resume"}), warnings=(*resolved.warnings, *notes))
    theirs = os.path.isfile(path / "ckpt.pt")  # noqa: PTH113  # any name may be typed
    why = (
        f"{path}/ckpt.pt is nanoGPT's, which keeps the shape in it whatever the config says; onecard import {path} "
        "makes it a run"
        if theirs
        else f"there is no run in {path}, and train will refuse to resume it"
    )
    return replace(resolved, warnings=(*resolved.warnings, f"init_from=resume is planned as a new run: {why}"))


def data_places(config: Named) -> tuple[Path, ...]:
    """Where the data of a config may be: below the working folder, then in the nanoGPT checkout that has the config.

    nanoGPT keeps configs in config/ and data in data/ beside it, and people plan from other folders, too.
    """
    from onecard.data.folders import SEARCH

    if not isinstance(config, str) or config == STDIN:
        return SEARCH
    beside = Path(config).parent
    return (*SEARCH, *(Path(os.path.normpath(place / "data")) for place in (beside / "..", beside)))


def open_data(config: RunConfig) -> Dataset:
    """The dataset a config names."""
    from onecard.data.dataset import open_dataset

    return open_dataset(config.dataset, environ=os.environ)


def with_vocabulary(resolved: Resolved, size: int | None) -> RunConfig:
    """vocab_size: the user's, else the data's, which is `size`, else GPT-2's, rounded up as nanoGPT does."""
    from onecard.config.schema import KEYS

    if not _takes_vocabulary(resolved):
        return resolved.config
    return resolved.config.replace({"vocab_size": size or KEYS["vocab_size"].default})


def _takes_vocabulary(resolved: Resolved) -> bool:
    """Whether the vocabulary is that of the data: nobody set another, and no weights have one."""
    from onecard.config.resolve import PACKAGED_DEFAULT

    return resolved.origins["vocab_size"] in ("default", PACKAGED_DEFAULT)
