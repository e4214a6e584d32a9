"""The Hugging Face hub: its cache on this machine always, the hub itself only when asked."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

from onecard.config.hf_config import CONFIG, OPENAI, OPENAI_WEIGHTS, PICKLED, SHARDS, WEIGHTS, openai_weights
from onecard.config.names import nearest
from onecard.config.paths import expanded
from onecard.data.extras import extra
from onecard.errors import ConfigError, MachineError, first_line
from onecard.inputs.text import neighbour

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json")


def place_of(name: str, *, download: bool = False) -> Path:
    """Where the model is that a user names: a file or folder, or its folder in Hugging Face's cache.

    From the hub only with `download`; ConfigError where there is nothing of that name.
    """
    path = Path(expanded(name))
    if os.path.exists(path):  # noqa: PTH110  # any name may be typed
        return path
    if path.suffix in (".pt", ".pth", ".bin"):  # those can only mean a file
        raise ConfigError(
            f"there is no file {path}",
            why=f"looked for a checkpoint from the folder {Path.cwd().name}/",
            fix=neighbour(path, otherwise="give the path of a ckpt.pt, of a Hugging Face folder or of a run"),
            name="no-such-file",
        )
    found = _download(name) if download else cached_folder(name)
    if found is None:
        raise _not_here(name)
    return found


def cached_folder(name: str) -> Path | None:
    """The folder of a model in the cache of huggingface_hub; None if it, or its weights, are not there."""
    if find_spec("huggingface_hub") is None:
        return None
    hub = _hub("models by name")
    for repository in _repositories(name):
        for weights in (WEIGHTS, SHARDS, PICKLED):
            try:
                found = [hub.try_to_load_from_cache(repository, file) for file in (CONFIG, weights)]
            except ValueError:  # no name a model can have: a path, probably
                return None
            if all(isinstance(path, str) for path in found):
                return Path(found[0]).parent
    return None


def _download(name: str) -> Path:
    """The folder of a model, its config, weights and tokenizer fetched from the hub into its cache."""
    hub = _hub("downloading")
    try:
        patterns = [CONFIG, "model*.safetensors", SHARDS, *TOKENIZER_FILES]
        folder = Path(hub.snapshot_download(_repositories(name)[0], allow_patterns=patterns))
        if not any((folder / weights).is_file() for weights in (WEIGHTS, SHARDS)):  # a model of before safetensors
            hub.snapshot_download(_repositories(name)[0], allow_patterns=[PICKLED])
        return folder
    except Exception as problem:  # networks fail in many ways, and the library's errors are of many kinds
        raise MachineError(
            f"{name} could not be downloaded",
            why=f"huggingface_hub says: {first_line(problem, 160)}",
            fix=f"look at https://huggingface.co/{_repositories(name)[0]}, or copy its folder here and name that",
            name="download-failed",
        ) from problem


def _not_here(name: str) -> ConfigError:
    """The error for a name under which there is nothing on this machine."""
    meant = nearest(name, ("scratch", "resume", *OPENAI_WEIGHTS))
    if openai_weights(name) or name.count("/") == 1:
        fix = (
            f"onecard import {name} --download   (GPT-2s and nanochats can be imported; or give the path of a ckpt.pt "
            "or of such a folder)"
        )
    else:
        fix = f"did you mean {meant} ?" if meant else "give the path of a ckpt.pt, of a Hugging Face folder or of a run"
    return ConfigError(
        f"the weights of {name} are not on this machine",
        why=f"known by name: {', '.join(OPENAI_WEIGHTS)}; there is no such file or folder, and no model of that name "
        "in Hugging Face's cache; nothing is downloaded unasked",
        fix=fix,
        name="weights-not-here",
    )


def check_token(repository: str) -> None:
    """Refuse a push that cannot work, before anything is written."""
    hub = _hub("--push")
    if not hub.get_token():
        raise ConfigError(
            f"--push {repository} needs a token of yours",
            why="huggingface_hub finds none: neither HF_TOKEN nor a login on this machine",
            fix="hf auth login   (a token with write permission: https://huggingface.co/settings/tokens)",
            name="no-hub-token",
        )


def push(folder: Path, repository: str, *, private: bool) -> str:
    """The address of the model after uploading `folder` to the hub as one commit."""
    check_token(repository)
    hub = _hub("--push")
    try:
        hub.create_repo(repository, private=private or None, exist_ok=True)  # None: as the account is set
        hub.upload_folder(repo_id=repository, folder_path=str(folder), commit_message="Export from onecard")
    except Exception as problem:
        raise MachineError(
            f"{folder} is written, and could not be pushed to {repository}",
            why=f"huggingface_hub says: {first_line(problem, 160)}",
            fix=f"hf upload {repository} {quote(str(folder))}",
            name="push-failed",
        ) from problem
    return f"https://huggingface.co/{repository}"


def _hub(purpose: str) -> Any:
    return extra("huggingface_hub", purpose=purpose)


def _repositories(name: str) -> tuple[str, ...]:
    return (f"{OPENAI}/{short}", short) if (short := openai_weights(name)) else (name,)
