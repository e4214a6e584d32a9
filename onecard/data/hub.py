"""Datasets on the Hugging Face hub: which files they have. Contacted only for a dataset that the user named."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onecard.config.names import nearest
from onecard.data.extras import extra
from onecard.data.sources import Source, SourceFile, has_data_suffix, kind_of
from onecard.errors import ConfigError, MachineError, OnecardError, first_line

NAMED = {"fineweb": "HuggingFaceFW/fineweb", "fineweb-edu": "HuggingFaceFW/fineweb-edu"}
DEFAULT_SUBSET = "sample-10BT"  # of those two: 10 billion tokens
_PREFIX = "hf://"
_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
PURPOSE = "a dataset on the hub"


@dataclass(frozen=True)
class HubDataset:
    """A dataset at one moment of its history."""

    repo: str
    revision: str
    subset: str | None
    files: tuple[SourceFile, ...]

    @property
    def source(self) -> Source:
        name = f"{self.repo} {self.subset}" if self.subset else self.repo
        return Source(name=name, files=self.files, revision=self.revision)


def hub_name(word: str) -> str | None:
    """The hub dataset that a user means by `word`: fineweb, hf://owner/name, owner/name; None if it is not one."""
    if word in NAMED:
        return NAMED[word]
    if word.startswith(_PREFIX):
        return word.removeprefix(_PREFIX).removeprefix("datasets/")
    here = Path(word).parent.is_dir() or has_data_suffix(word)  # never ask the hub for a mistyped path
    return word if _NAME.fullmatch(word) and not here else None


def find_dataset(repo: str, *, subset: str | None) -> HubDataset:
    """The files of a dataset's training split, in the order of their names."""
    hub = extra("huggingface_hub", purpose=PURPOSE)
    chosen = subset or (DEFAULT_SUBSET if repo in NAMED.values() else None)
    with told(repo):
        api = hub.HfApi()
        about = api.dataset_info(repo)
        patterns, folder = _data_files(repo, chosen, _configs(about))
        listed = api.list_repo_tree(repo, folder, recursive=True, revision=about.sha, repo_type="dataset")
        found = {entry.path: entry.size for entry in listed if hasattr(entry, "size")}
    names = _chosen(found, patterns)
    if not names:
        raise ConfigError(
            f"{repo} has no file to read" + (f" in {chosen}" if chosen else ""),
            why=f"looked for parquet, JSON lines or text among {len(found):,} files",
            fix=f"look at https://huggingface.co/datasets/{repo}/tree/main, and name a --subset",
            name="no-data-files",
        )
    return HubDataset(repo, about.sha, chosen, tuple(_file(name, found[name]) for name in names))


def _file(name: str, size_bytes: int | None) -> SourceFile:
    kind, packing = kind_of(name, alone=True)
    return SourceFile(name=name, kind=kind, packing=packing, size_bytes=size_bytes)


def _configs(about: Any) -> dict[str, list[str]]:
    """The subsets that the dataset's card declares, with the patterns of their training files."""
    card = getattr(about, "card_data", None)
    declared = card.to_dict().get("configs", []) if card else []
    found: dict[str, list[str]] = {}
    for config in declared if isinstance(declared, list) else []:
        if not isinstance(config, Mapping) or not isinstance(name := config.get("config_name"), str):
            continue
        files = config.get("data_files")
        parts = files if isinstance(files, list) else [files]
        patterns: list[str] = []
        for part in parts:
            if isinstance(part, Mapping) and str(part.get("split", "train")).startswith("train"):
                part = part.get("path")
            patterns += [part] if isinstance(part, str) else part if isinstance(part, list) else []
        found[name] = [pattern for pattern in patterns if isinstance(pattern, str)]
    return found


def _data_files(repo: str, subset: str | None, configs: Mapping[str, list[str]]) -> tuple[list[str] | None, str | None]:
    """Patterns of the wanted files (None: find them by their names), and the folder they are all in."""
    if subset is None:
        subset = "default" if "default" in configs else next(iter(configs), None)
    if subset is None:
        return None, None
    if subset not in configs:
        raise ConfigError(
            f"{repo} has no subset {subset}",
            why=f"it has {', '.join(list(configs)[:12]) or 'none'}{' …' if len(configs) > 12 else ''}",
            fix=f"--subset {nearest(subset, configs) or next(iter(configs), 'NAME')}"
            if configs
            else "leave --subset out",
            name="no-such-subset",
        )
    patterns = configs[subset]
    folders = {pattern.split("*")[0].rpartition("/")[0] for pattern in patterns}
    return patterns, (folders.pop() or None) if len(folders) == 1 else None


def _chosen(names: Iterable[str], patterns: list[str] | None) -> list[str]:
    """The wanted names, sorted: by pattern, or the training files of the best kind there is."""
    listed = sorted(name for name in names if not name.startswith("."))
    if patterns is not None:
        wanted = [re.compile(fnmatch.translate(pattern.replace("**", "*").removeprefix("./"))) for pattern in patterns]
        return [name for name in listed if any(pattern.match(name) for pattern in wanted)]
    kinds = [
        [name for name in listed if name.endswith(".parquet")],
        [name for name in listed if kind_of(name, alone=True)[0] == "jsonl" and not name.endswith("config.json")],
        [name for name in listed if name.endswith((".txt", ".txt.gz", ".txt.zst"))],
    ]
    best = next((found for found in kinds if found), [])
    training = [name for name in best if "train" in name]
    return training or [name for name in best if not re.search(r"(^|[/_.-])(test|val|valid|validation)([/_.-])", name)]


@contextmanager
def told(repo: str) -> Iterator[None]:
    """Inside, errors of the hub's library become our errors of three lines."""
    try:
        yield
    except OnecardError:
        raise
    except Exception as problem:  # the library's own, the network's, the disk's
        raise _explained(repo, problem) from problem


def _explained(repo: str, problem: Exception) -> OnecardError:
    page = f"https://huggingface.co/datasets/{repo}"
    kinds = {each.__name__ for each in type(problem).__mro__}
    said = first_line(problem, 160)
    if "GatedRepoError" in kinds:
        return ConfigError(
            f"{repo} needs you to accept its terms first",
            why=said,
            fix=f"accept them at {page}, then: hf auth login",
            name="gated-dataset",
        )
    if "OfflineModeIsEnabled" in kinds:
        return MachineError(
            f"{repo} is on the hub, but HF_HUB_OFFLINE is set", why=said, fix="unset HF_HUB_OFFLINE", name="hub-offline"
        )
    absent = kinds & {"RepositoryNotFoundError", "HFValidationError", "RevisionNotFoundError", "EntryNotFoundError"}
    if absent and "LocalEntryNotFoundError" not in kinds:  # that one means: not in the cache, and no network
        return ConfigError(
            f"the hub has no dataset {repo}",
            why=said,
            fix=f"look at {page}; a private one needs: hf auth login",
            name="no-such-dataset",
        )
    return MachineError(
        f"could not read {repo} from the hub",
        why=f"{type(problem).__name__}: {said}",
        fix="check the network, then run the same command again: it continues where it stopped",
        name="hub-unreachable",
    )
