"""Checkpoints that several ranks have written, each a part: read by one process, and never trusted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")
pytest.importorskip("safetensors", reason="needs safetensors: pip install 'onecard[train]'")

from safetensors.torch import save_file  # noqa: E402

from onecard.runs.checkpoint_state import OPTIMIZER, BadCheckpoint, file_digest, part_name  # noqa: E402
from onecard.train import checkpoint, checkpoint_files  # noqa: E402
from tests.train.test_checkpoint import Run, cut, empty, flip  # noqa: E402

Offsets = Callable[[str, list[int]], list[int]]


def in_parts(
    folder: Path, tensors: Mapping[str, Mapping[str, Any]], *, said: Offsets = lambda _, at: at
) -> dict[str, dict[str, Any]]:
    """Write two ranks' parts as torch.distributed.checkpoint lays them out; `said` may lie about where rows begin."""
    for name, named in tensors.items():
        for part in (0, 1):
            mine, rows = {}, {}
            for key, tensor in named.items():
                pieces = tensor.detach().chunk(2) if tensor.dim() else (tensor,)
                if part < len(pieces):
                    mine[key] = pieces[part].clone()
                    first = [part * len(pieces[0])] if tensor.dim() else []
                    rows[key] = {"saved_offsets": said(key, [*first, *[0] * (tensor.dim() - 1)])}
            header = {"DCP_SHARDING_INFO": json.dumps(rows)}
            save_file(mine, folder / part_name(name, part + 1, 2), metadata=header)
    return {path.name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for path in folder.iterdir()}


def saved(run: Run, folder: Path, *, said: Offsets = lambda _, at: at) -> Path:
    return checkpoint.save(
        folder,
        model=run.model,
        optimizer=run.optimizer,
        state=run.state(),
        config=run.config,
        write_files=lambda new, tensors: in_parts(new, tensors, said=said),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "checkpoints"


def test_one_process_goes_on_from_parts_bit_for_bit(folder: Path) -> None:
    run = Run()
    run.train(3)
    path = saved(run, folder)
    undisturbed = run.train(3)
    resumed = Run(seed=99)
    resumed.load(path)
    assert resumed.train(3) == undisturbed


@pytest.mark.parametrize("damage", [cut, flip, empty, Path.unlink])
@pytest.mark.parametrize("name", [part_name("model.safetensors", 2, 2), part_name(OPTIMIZER, 1, 2)])
def test_damage_to_any_part_is_found_and_the_checkpoint_before_is_used(
    folder: Path, name: str, damage: Callable[[Path], None]
) -> None:
    run = Run()
    run.train(1)
    before = saved(run, folder)
    run.train(1)
    damage(saved(run, folder) / name)
    found = checkpoint.latest_good(folder)
    assert found.path == before
    assert [path.name for path, _ in found.skipped] == ["step-00000002"]


@pytest.mark.parametrize(
    "said",
    [
        lambda _, at: [0, *at[1:]],
        lambda _, at: [each * 10**12 for each in at],
        lambda _, at: [*at[:-1], 1],
        lambda _, at: ["0" for _ in at],
        lambda _, at: None,
        lambda key, at: [at[0] + 1, *at[1:]] if at and "wte" in key else at,
    ],
)
def test_parts_that_lie_about_their_rows_are_refused(folder: Path, said: Offsets) -> None:
    run = Run()
    run.train(1)
    path = saved(run, folder, said=said)
    with pytest.raises(BadCheckpoint):
        Run().load(path)


def test_parts_of_different_numbers_of_ranks_are_refused(folder: Path) -> None:
    run = Run()
    run.train(1)

    def mixed(new: Path, tensors: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        files = in_parts(new, tensors)
        return files | {part_name("model.safetensors", 1, 3): files[part_name("model.safetensors", 1, 2)]}

    path = checkpoint.save(
        folder, model=run.model, optimizer=run.optimizer, state=run.state(), config=run.config, write_files=mixed
    )
    assert "different numbers of ranks" in str(checkpoint.problem_of(path))


def test_the_whole_files_are_not_written_beside_the_parts(folder: Path) -> None:
    run = Run()
    run.train(1)
    path = saved(run, folder)
    assert sorted(each.name for each in path.iterdir()) == [
        "model-1-of-2.safetensors",
        "model-2-of-2.safetensors",
        "optimizer-1-of-2.safetensors",
        "optimizer-2-of-2.safetensors",
        "state.json",
    ]
    weights = checkpoint_files.tensors_in(path, "model.safetensors")
    assert all(torch.equal(weights[name], each) for name, each in run.model.named_parameters())


@pytest.mark.parametrize("header", [None, {"DCP_SHARDING_INFO": "{"}, {"DCP_SHARDING_INFO": "[" * 9999}, {"a": "b"}])
def test_parts_that_do_not_say_which_rows_they_have_are_refused(
    folder: Path, header: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run()
    run.train(1)
    write = save_file
    monkeypatch.setattr(f"{__name__}.save_file", lambda mine, path, metadata: write(mine, path, metadata=header))
    path = saved(run, folder)
    with pytest.raises(BadCheckpoint):
        Run().load(path)
