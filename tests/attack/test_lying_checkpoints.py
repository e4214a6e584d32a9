"""Checkpoints that lie: half a model, tensors that are not numbers, flipped and cut files.

Never an internal error, never loaded silently wrong, and no more memory than the file has.
"""

from __future__ import annotations

import json
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from safetensors.torch import load_file, save_file  # noqa: E402

from onecard.cli.main import run  # noqa: E402
from onecard.runs import checkpoint_state, folder  # noqa: E402
from onecard.runs.folder import load_run  # noqa: E402
from onecard.runs.records import Start, Step  # noqa: E402
from onecard.train import checkpoint, checkpoint_files, interchange  # noqa: E402
from onecard.train.interchange import read_run  # noqa: E402
from tests.warm import WarmProcess  # noqa: E402

TINY = [
    *("--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=4", "--device=cpu"),
    *("--warmup_iters=2", "--eval_interval=4", "--eval_iters=2", "--max_iters=8", "--lr_decay_iters=8"),
]
NAME = "transformer.h.1.ln_1.weight"
NEWEST = Path("r/checkpoints/step-00000008")
MATRIX = "transformer.h.0.mlp.c_fc.weight"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight updates with checkpoints at steps 4 and 8, and its exports: r, nano/ckpt.pt, hf."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONECARD_HOME", str(folder / "home"))
        patch.chdir(folder)
        assert run(["train", *TINY, "--out_dir=r"]) == 0
        assert run(["export", "r", "--to", "nanogpt", "--out", "nano"]) == 0
        assert run(["export", "r", "--to", "hf", "--out", "hf"]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with copies of all of it, to work in."""
    for name in ("r", "nano", "hf"):
        shutil.copytree(trained / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(trained / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


class Refused:
    """Runs a command that must be refused, in three lines, with exit code 2; the lines."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *command: str) -> str:
        self.capsys.readouterr()
        code, said = run([*command]), self.capsys.readouterr().err
        assert code == 2, said
        lines = said.splitlines()[-3:]
        assert [line.split(":")[0].strip() for line in lines] == ["error", "why", "fix"], said
        assert len(lines[1]) < 400, "a lie is shown in a few words"
        return said


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    return Refused(capsys)


def nano() -> Any:
    return torch.load("nano/ckpt.pt", weights_only=True)


def save_nano(content: Any) -> None:
    torch.save(content, "nano/ckpt.pt")


def change_hf(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file("hf/model.safetensors").items()}
    save_file(change(tensors), "hf/model.safetensors")


def change_config(**values: Any) -> None:
    config = Path("hf/config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | values))


def imports() -> list[list[str]]:
    return [["import", "SOURCE", "--out_dir=new"], ["train", *TINY, "--init_from=SOURCE", "--out_dir=new"]]


def both(refused: Refused, source: str) -> str:
    """What import and init_from say of it; neither leaves a run."""
    said = ""
    for command in imports():
        said = refused(*(word.replace("SOURCE", source) for word in command))
        assert not Path("new").exists()
    return said


# Half a model


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n_layer": 4}, "n_layer=4, and the tensors say 2 (transformer.h.2 is missing)"),
        ({"n_layer": 1}, "n_layer=1, and the tensors say 2 (transformer.h.1 is one too many)"),
        ({"n_embd": 64}, "n_embd=64, and the tensors say 32"),
        ({"n_positions": 64}, "block_size=64, and the tensors say 32"),
        ({"vocab_size": 50257}, "vocab_size=50257, and the tensors say"),
        ({"onecard_bias": True}, "bias=True"),
    ],
)
def test_a_folder_whose_config_and_tensors_disagree_is_refused(
    refused: Refused, change: dict[str, Any], named: str
) -> None:
    change_config(**change)
    if "onecard_bias" in change:
        change_hf(lambda tensors: {name: item for name, item in tensors.items() if not name.endswith(".bias")})
    assert named in both(refused, "hf")


def test_a_folder_without_a_layer_is_refused(refused: Refused) -> None:
    change_hf(lambda tensors: {name: item for name, item in tensors.items() if ".h.1." not in name})
    assert "n_layer=2, and the tensors say 1 (transformer.h.1 is missing)" in both(refused, "hf")


@pytest.mark.parametrize("layer", [0, 1])
def test_a_checkpoint_without_a_layer_is_refused(refused: Refused, layer: int) -> None:
    content = nano()
    content["model"] = {name: item for name, item in content["model"].items() if f".h.{layer}." not in name}
    save_nano(content)
    assert f"model_args says n_layer=2, and the tensors say 1 (transformer.h.{layer} is missing)" in both(
        refused, "nano/ckpt.pt"
    )


@pytest.mark.parametrize("key", ["n_layer", "n_embd", "block_size", "vocab_size", "bias"])
def test_a_checkpoint_whose_model_args_and_tensors_disagree_is_refused(refused: Refused, key: str) -> None:
    content = nano()
    content["model_args"][key] = (not content["model_args"][key]) if key == "bias" else 2 * content["model_args"][key]
    save_nano(content)
    assert f"model_args says {key}=" in both(refused, "nano/ckpt.pt")


def test_settings_that_a_resume_by_nanogpt_ignored_are_not_held_against_it() -> None:
    content = nano()
    content["config"]["n_layer"] = 12
    save_nano(content)
    assert run(["import", "nano/ckpt.pt", "--out_dir=new"]) == 0
    assert load_run("new").config["n_layer"] == 2


# Tensors that are not plain numbers


def quantized(tensor: Any) -> Any:
    return torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.qint8)


KINDS: dict[str, Callable[[Any], Any]] = {
    "bool": lambda tensor: tensor.bool(),
    "int64": lambda tensor: tensor.long(),
    "int8": lambda tensor: tensor.to(torch.int8),
    "complex64": lambda tensor: tensor.to(torch.complex64),
    "float8_e4m3fn": lambda tensor: tensor.to(torch.float8_e4m3fn),
    "sparse_coo": lambda tensor: tensor.to_sparse(),
    "sparse_csr": lambda tensor: tensor.to_sparse_csr() if tensor.dim() == 2 else tensor.to_sparse(),
    "quantized": quantized,
    "meta": lambda tensor: tensor.to("meta"),
    "nested": lambda tensor: torch.nested.nested_tensor([tensor.flatten()[:1], tensor.flatten()[:2]]),
    "claims": lambda tensor: torch.zeros(1).expand(tensor.shape),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [NAME, MATRIX, "transformer.wte.weight", "lm_head.weight"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_with_a_tensor_of_another_kind_is_refused(refused: Refused, kind: str, name: str) -> None:
    content = nano()
    content["model"][name] = KINDS[kind](content["model"][name])
    save_nano(content)
    said = refused("import", "nano/ckpt.pt", "--out_dir=new")
    assert name in said
    assert {"meta": "no numbers", "sparse_csr": "sparse", "nested": "special"}.get(kind, kind) in said


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_moment_of_another_kind_is_refused(refused: Refused, kind: str) -> None:
    content = nano()
    moments = content["optimizer"]["state"][0]
    moments["exp_avg"] = KINDS[kind](moments["exp_avg"])
    save_nano(content)
    assert "optimizer's moment of transformer.wte.weight" in refused("import", "nano/ckpt.pt", "--out_dir=new")


@pytest.mark.parametrize("kind", ["bool", "int64", "int8", "complex64", "float8_e4m3fn"])
def test_a_folder_with_a_tensor_of_another_kind_is_refused(refused: Refused, kind: str) -> None:
    change_hf(lambda tensors: tensors | {NAME: KINDS[kind](tensors[NAME])})
    assert kind in both(refused, "hf")


def hostile_header(dtype: str, shape: list[int], data: bytes) -> bytes:
    """A safetensors file with one tensor, as anybody can write one."""
    header = json.dumps({"wte.weight": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    return struct.pack("<Q", len(header)) + header + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 64,
        struct.pack("<Q", 2**62) + b"{}",
        struct.pack("<Q", 200_000) + b"[" * 200_000,
        hostile_header("F32", [2**40, 2**20], b"1234"),
        hostile_header("F32", [1], b"1"),
        hostile_header("F4", [2], b"1"),
        hostile_header("F8_E8M0", [4], b"1234"),
        hostile_header("X9", [1], b"1234"),
        hostile_header("F32", [0, 2**40], b""),
    ],
    ids=lambda content: content[8:80].decode("ascii", "replace") or "empty",
)
def test_a_folder_with_made_up_safetensors_is_refused(refused: Refused, content: bytes) -> None:
    Path("hf/model.safetensors").write_bytes(content)
    refused("import", "hf", "--out_dir=new")


@pytest.mark.parametrize(
    "index",
    [
        "[" * 200_000,
        '{"weight_map": {"a": 1}}',
        '{"weight_map": ["model.safetensors"]}',
        "{}",
        "[]",
        '{"weight_map": {"a": "../r/config.json"}}',
        '{"weight_map": {"a": "gone.safetensors"}}',
        '{"weight_map": {}}',
    ],
    ids=lambda text: text[:40],
)
def test_an_index_that_lies_is_refused(refused: Refused, index: str) -> None:
    Path("hf/model.safetensors").rename("hf/a.safetensors")
    Path("hf/model.safetensors.index.json").write_text(index)
    refused("import", "hf", "--out_dir=new")


# Memory: what the file holds bounds what is taken


@pytest.mark.parametrize("lie", ["expanded", "expanded in a folder", "shared", "zip bomb"])
def test_no_more_memory_is_taken_than_the_file_has(here: Path, warm_with_torch: WarmProcess, lie: str) -> None:
    """An embedding that claims 8 GB takes the memory of the file, some 100 KB, and of the program."""
    content = nano()
    source = "nano/ckpt.pt"
    if lie == "expanded":
        content["model"]["transformer.wte.weight"] = torch.zeros(1, 32).expand(2**26, 32)
        save_nano(content)
    elif lie == "expanded in a folder":
        Path("hf/model.safetensors").unlink()
        torch.save({"wte.weight": torch.zeros(1).expand(2**31), "wpe.weight": torch.zeros(1)}, "hf/pytorch_model.bin")
        source = "hf"
    elif lie == "shared":
        block = torch.zeros(128, 32)
        content["model"] |= {f"transformer.h.{layer}.mlp.c_fc.weight": block for layer in range(100_000)}
        save_nano(content)
    else:
        content["model"]["transformer.wte.weight"] = torch.zeros(2**27)
        save_nano(content)
        with (
            zipfile.ZipFile("nano/ckpt.pt") as file,
            zipfile.ZipFile("bomb.pt", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as small,
        ):
            for part in file.infolist():
                small.writestr(part.filename, file.read(part))
        source = "bomb.pt"
    nothing = warm_with_torch.run("import", "nothing", "--out_dir=new", cwd=here)
    done = warm_with_torch.run("import", source, "--out_dir=new", cwd=here)
    assert (nothing.code, done.code) == (2, 2), done.stderr
    assert done.peak_mib - nothing.peak_mib < 300, done.stderr


def test_a_device_is_not_read_for_ever(refused: Refused) -> None:
    assert "not a regular file" in refused("import", "/dev/zero", "--out_dir=new")


# Progress and settings in a ckpt.pt

HUGE = 10**400
LIES: dict[str, tuple[str, Any]] = {
    **{f"iter_num is {value!r:.20}": ("iter_num", value) for value in ("8", [8], -1, HUGE, 10**18, True, 1.5)},
    **{
        f"best_val_loss is {value!r:.20}": ("best_val_loss", value) for value in ("5", [5.0], HUGE, -HUGE, True, -1e308)
    },
    "best_val_loss is two numbers": ("best_val_loss", torch.zeros(2)),
    "best_val_loss is nowhere": ("best_val_loss", torch.zeros(1, device="meta")),
    "best_val_loss is sparse": ("best_val_loss", torch.zeros(1).to_sparse()),
}
STEPS: list[Any] = [
    *("8", [8.0], {}, None, HUGE, -HUGE, -1, float("nan"), 1e30, True),
    *(
        torch.zeros(2),
        torch.tensor(float("inf")),
        torch.zeros((), device="meta"),
        torch.zeros((), dtype=torch.complex64),
    ),
]


@pytest.mark.parametrize("lie", LIES)
def test_progress_that_lies_is_refused(refused: Refused, lie: str) -> None:
    key, value = LIES[lie]
    save_nano(nano() | {key: value})
    assert f"its {key} " in refused("import", "nano/ckpt.pt", "--out_dir=new")


@pytest.mark.parametrize("number", range(len(STEPS)))
def test_updates_of_the_optimizer_that_lie_are_refused(refused: Refused, number: int) -> None:
    content = nano()
    content["optimizer"]["state"][3]["step"] = STEPS[number]
    save_nano(content)
    assert "step" in refused("import", "nano/ckpt.pt", "--out_dir=new").splitlines()[-2]


def doubled(times: int) -> Any:
    """A list of lists that is small in the file and endless when written out."""
    value: Any = ["x"]
    for _ in range(times):
        value = [value, value]
    return value


@pytest.mark.parametrize("value", [doubled(60), [2], {"a": 1}, HUGE, torch.zeros(3), "x" * 10_000, float("nan"), "yes"])
@pytest.mark.parametrize("place", ["model_args", "config"])
@pytest.mark.parametrize("key", ["n_head", "batch_size", "learning_rate", "dropout"])
def test_settings_that_lie_are_refused(refused: Refused, place: str, key: str, value: Any) -> None:
    content = nano()
    if place == "config" and key in ("n_head", "dropout"):
        content["model_args"].pop(key)
    elif place == "model_args" and key in ("batch_size", "learning_rate"):
        key = "n_embd"
    content[place][key] = value
    save_nano(content)
    refused("import", "nano/ckpt.pt", "--out_dir=new")


@pytest.mark.parametrize("params", [[torch.zeros(3)], doubled(60), "all", [[0]], None])
def test_an_optimizer_that_is_not_nanogpts_starts_anew(params: Any, capsys: pytest.CaptureFixture[str]) -> None:
    content = nano()
    content["optimizer"]["param_groups"][0]["params"] = params
    save_nano(content)
    assert run(["import", "nano/ckpt.pt", "--out_dir=new"]) == 0
    assert "moments start from zero" in capsys.readouterr().err


# Pickles that would take for ever, or all memory


def pairs_as_key(depth: int = 60) -> bytes:
    """A dictionary whose key is a pair of the same pair, `depth` deep: to hash it takes 2 ** depth steps."""
    inner = b"".join(b"q%bh%b\x86" % (bytes([level]), bytes([level])) for level in range(depth))
    return b"\x80\x02}X\x01\x00\x00\x00x\x85" + inner + b"K\x01s."


ENDLESS = {
    "pairs as a key": (pairs_as_key(), "a tuple of more than 1,000 values"),
    "colliding keys": (pickle.dumps({n * (2**61 - 1): 0 for n in range(2_000)}, 2), "a key that is neither"),
    "pairs as an id": (pairs_as_key()[:-5].replace(b"}", b"", 1) + b"Q.", "a tuple of more than 1,000 values"),
    "many numbers": (b"\x80\x02](" + b"K\x01" * 30_000 + b"e.", "more than 20,000 instructions"),
    "a text of 5 MB": (pickle.dumps({"model": "x" * 5_000_000}, 2), "a text of 5,000,000 characters"),
    "a dictionary from a list": (
        b"\x80\x02ccollections\nOrderedDict\n]]K\x01aK\x02aa\x85R.",
        "fills a dictionary from a list",
    ),
    "a dictionary called by another": (
        b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(ccollections\nOrderedDict\nNNtR.",
        "fills a dictionary from a list",
    ),
    "two gigabytes of zeros": (b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.", "builtins.bytearray"),
}


def as_archive(content: bytes, path: Path) -> None:
    with zipfile.ZipFile("nano/ckpt.pt") as good, zipfile.ZipFile(path, "w") as bad:
        for part in good.namelist():
            bad.writestr(part, content if part.endswith("/data.pkl") else good.read(part))


def as_old_file(content: bytes, path: Path) -> None:
    before = (0x1950A86A20F9469CFC6C, 1001, {})
    path.write_bytes(b"".join(pickle.dumps(each, 2) for each in before) + content + pickle.dumps([], 2))


@pytest.mark.parametrize("save", [as_archive, as_old_file, lambda content, path: path.write_bytes(content)])
@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.timeout(60)
def test_a_checkpoint_that_would_take_for_ever_is_refused(
    refused: Refused, name: str, save: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onecard.untrusted_pickle.MOST_INSTRUCTIONS", 20_000)
    content, why = ENDLESS[name]
    save(content, Path("x.pt"))
    assert why in refused("import", "x.pt", "--out_dir=new")


def test_a_file_in_torchs_old_format_is_read() -> None:
    torch.save(nano(), "old.pt", _use_new_zipfile_serialization=False)
    assert run(["import", "old.pt", "--out_dir=new"]) == 0


@pytest.mark.parametrize(
    "command",
    [
        *(
            "train --resume LOOP",
            "import LOOP --out_dir=new",
            "export LOOP --to hf --out x",
            "sample LOOP",
            "plan LOOP",
        ),
        *(
            "eval LOOP --text nano/ckpt.pt",
            "eval r --text LOOP",
            "data info LOOP",
            "train --dataset=LOOP",
            "doctor LOOP",
        ),
        *("data prepare LOOP --tokenizer=bytes --out x", "train --init_from=LOOP --out_dir=new", "compare LOOP r"),
    ],
)
@pytest.mark.parametrize("links", ["itself", "a folder in itself"])
def test_a_link_to_itself_is_refused(refused: Refused, command: str, links: str) -> None:
    Path("loop").symlink_to("loop")
    refused(*command.replace("LOOP", "./loop" if links == "itself" else "./loop/x").split())


# The tensors of a run's own checkpoint, with checksums that fit


def rewrite(change: Callable[[dict[str, Any]], dict[str, Any]], file: str) -> None:
    """Change the tensors of the newest checkpoint, and its checksums."""
    path = NEWEST / file
    save_file(change({name: tensor.clone() for name, tensor in load_file(path).items()}), path)
    sign(file)


def sign(file: str) -> None:
    """Give the newest checkpoint the checksums that fit its file, as anybody can."""
    content = json.loads((NEWEST / "state.json").read_text())
    content.pop("sha256")
    digest = checkpoint_state.file_digest(NEWEST / file)
    content["files"][file] = {"bytes": (NEWEST / file).stat().st_size, "sha256": digest}
    (NEWEST / "state.json").write_text(json.dumps(content | {"sha256": checkpoint_state.digest(content)}))


def without_last_layer(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors.items() if ".h.1." not in name}


WEIGHTS = {
    "half a model": without_last_layer,
    "a float8": lambda tensors: tensors | {NAME: tensors[NAME].to(torch.float8_e4m3fn)},
    "a bool": lambda tensors: tensors | {NAME: tensors[NAME].bool()},
    "a complex": lambda tensors: tensors | {NAME: tensors[NAME].to(torch.complex64)},
    "another size": lambda tensors: tensors | {NAME: tensors[NAME][:4].contiguous()},
}
MOMENTS = {
    "no step": lambda tensors: {name: item for name, item in tensors.items() if name != f"step/{NAME}"},
    "a moment of another size": lambda tensors: tensors | {f"exp_avg/{NAME}": torch.zeros(4)},
    "a moment of whole numbers": lambda tensors: tensors | {f"exp_avg/{NAME}": torch.zeros(32, dtype=torch.int64)},
    "a step of NaN": lambda tensors: tensors | {f"step/{NAME}": torch.tensor(float("nan"))},
    "a step of two numbers": lambda tensors: tensors | {f"step/{NAME}": torch.zeros(2)},
    "a moment too many": lambda tensors: tensors | {f"third/{NAME}": torch.zeros(32)},
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_of_a_run_that_lie_are_refused(refused: Refused, name: str) -> None:
    rewrite(WEIGHTS[name], "model.safetensors")
    refused("export", "r", "--to", "nanogpt", "--out", "x")
    refused("train", "--resume", "r", "--max_iters=16")
    refused("sample", "r")


@pytest.mark.parametrize("name", MOMENTS)
def test_moments_of_a_run_that_lie_are_refused(refused: Refused, name: str) -> None:
    rewrite(MOMENTS[name], "optimizer.safetensors")
    refused("export", "r", "--to", "nanogpt", "--out", "x")
    refused("train", "--resume", "r", "--max_iters=16")


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
def test_a_run_with_made_up_safetensors_is_refused(refused: Refused, file: str) -> None:
    (NEWEST / file).write_bytes(hostile_header("F4", [2], b"1"))
    sign(file)
    refused("export", "r", "--to", "nanogpt", "--out", "x")


# A run that trains deletes checkpoints while they are read


def gone_when(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, *, call: int) -> None:
    """Delete the newest checkpoint, and put another in its place, just before the given call of `name`."""
    calls = iter(range(100))
    original = getattr(place, name)

    def instead(*args: Any, **options: Any) -> Any:
        if next(calls) == call:
            folder = Path("r/checkpoints")
            newest = checkpoint.checkpoints(folder)[0]
            checkpoint_files.delete(newest)
        return original(*args, **options)

    monkeypatch.setattr(place, name, instead)


@pytest.mark.parametrize("call", range(3))
@pytest.mark.parametrize(
    ("place", "name"),
    [(interchange, "verified_state"), (checkpoint_state, "file_digest"), (interchange, "load_run")],
)
def test_a_checkpoint_deleted_while_it_is_exported_gives_way_to_the_next(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, call: int
) -> None:
    gone_when(monkeypatch, place, name, call=call)
    snapshot = read_run(Path("r"))
    assert snapshot.step in (4, 8)
    assert snapshot.notes == (), "it was deleted, not damaged"


@pytest.mark.parametrize(
    ("place", "name", "call"),
    [
        *((checkpoint, "verified_state", call) for call in (0, 1)),
        *((checkpoint_state, "file_digest", call) for call in (1, 2)),
        (checkpoint_files, "tensors_in", 0),
    ],
)
def test_a_checkpoint_deleted_while_it_is_sampled_gives_way_to_the_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Any, name: str, call: int
) -> None:
    gone_when(monkeypatch, place, name, call=call)
    assert run(["sample", "r", "--length=3", "--device=cpu", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step"] == 4
    assert told["notes"] == [], "it was deleted, not damaged"


def test_a_checkpoint_deleted_between_its_two_files_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    gone_when(monkeypatch, checkpoint_files, "tensors_in", call=1)
    assert read_run(Path("r")).step == 4


def test_a_checkpoint_deleted_after_its_header_was_read_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors opens a file twice, and torch says RuntimeError if it is gone the second time."""
    original = checkpoint_files.load_file

    def deleted(path: Path) -> Any:
        if path.parent.name == "step-00000008":
            checkpoint_files.delete(path.parent)
            raise RuntimeError(f"unable to open file <{path}> in read-only mode: No such file or directory (2)")
        return original(path)

    monkeypatch.setattr(checkpoint_files, "load_file", deleted)
    assert read_run(Path("r")).step == 4


def test_the_only_one_deleted_gives_way_to_one_saved_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one checkpoint kept, a list that was made a moment ago may know none that is still there."""
    folder = Path("r/checkpoints")
    (folder / "step-00000004").rename("saved-later")
    original = checkpoint.problem_of

    def replaced(path: Path) -> str | None:
        if path.name == "step-00000008":
            Path("saved-later").rename(folder / "step-00000004")
            checkpoint_files.delete(path)
        return original(path)

    monkeypatch.setattr(checkpoint, "problem_of", replaced)
    assert read_run(Path("r")).step == 4


def test_a_best_that_gives_way_to_a_better_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("r/checkpoints")
    checkpoint.mark_best(folder, step=4, val_loss=6.0)
    original = checkpoint.problem_of

    def better(path: Path) -> str | None:
        if path.name == "step-00000004" and path.is_dir():
            checkpoint.mark_best(folder, step=8, val_loss=5.0)
            checkpoint_files.delete(path)
        return original(path)

    monkeypatch.setattr(checkpoint, "problem_of", better)
    assert read_run(Path("r"), which="best").step == 8


# What a kill left


def test_a_deletion_that_was_interrupted_is_finished_on_resume() -> None:
    """Killed in its last prune, a run has nothing more to save: resuming it must clear up all the same."""
    folder = Path("r/checkpoints")
    shutil.copytree(folder / "step-00000004", folder / ".gone-step-00000002")
    records = Path("r/records.jsonl")
    lines = records.read_text().splitlines(keepends=True)
    records.write_text("".join(line for line in lines if '"kind":"end"' not in line))
    assert run(["train", "--resume", "r", "--keep_checkpoints=1"]) == 0
    left = sorted(path.name for path in folder.iterdir() if path.is_dir())
    marked = checkpoint.best(folder)
    assert marked
    assert left == sorted({f"step-{marked.step:08d}", "step-00000008"})


# Flipped and cut files


FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
PLACES = 100  # in every file: a tenth of them by default, all in the long run


def damages() -> list[Any]:
    files = ("r", "best", "nano", "hf/config.json", "hf/model.safetensors")
    tenths = [pytest.param(tenth, marks=[pytest.mark.long] if tenth else []) for tenth in range(10)]
    return [
        pytest.param(file, kind, *tenth.values, marks=tenth.marks)
        for file in files
        for kind in ("flip", "cut")
        for tenth in tenths
    ]


def damage(source: Path, path: Path, kind: str, place: int) -> None:
    """Write a copy of `source` to `path`, with a bit flipped or the end cut off."""
    content = bytearray(source.read_bytes())
    at = place * (len(content) - 1) // (PLACES - 1)
    if kind == "cut":
        del content[at:]
    else:
        content[at] ^= 1 << (place % 8)
    path.write_bytes(content)


def same(mine: Any, theirs: Any) -> bool:
    """Whether the models are: biases that are all zero, as in the exported folder, make no other model."""
    zeros = all(name.endswith(".bias") and not mine[name].any() for name in mine.keys() - theirs.keys())
    return zeros and all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(("file", "kind", "tenth"), damages())
def test_a_flipped_or_cut_file_is_found_or_harmless(
    trained: Path, here: Path, capsys: pytest.CaptureFixture[str], file: str, kind: str, tenth: int
) -> None:
    """Refused with exit code 2, or what is loaded is right: the checkpoint before, or a byte that does not matter."""
    weights = read_run(trained / "r").weights
    for place in range(tenth, PLACES, 10):
        if file == "r":
            for name in FILES:
                path = Path("r/checkpoints/step-00000008") / name
                damage(trained / path, path, kind, place)
                found = read_run(Path("r"))
                assert found.step == 4
                assert "step-00000008 is damaged" in found.notes[0]
                shutil.copy(trained / path, path)
            continue
        path = Path({"best": "r/checkpoints/best.json", "nano": "nano/ckpt.pt"}.get(file, file))
        damage(trained / path, path, kind, place)
        if file == "best":
            code = run(["export", "r", "--to", "nanogpt", "--best", f"--out=x{place}"])
        else:
            code = run(["import", str(path.parent if file.startswith("hf") else path), f"--out_dir=new{place}"])
        assert code in (0, 2), (place, capsys.readouterr().err)
        if code == 0 and file in ("nano", "hf/config.json"):  # a folder's safetensors have no checksum
            assert same(read_run(Path(f"new{place}")).weights, weights), place


# Records deleted under a run


def test_records_deleted_under_a_run_are_noticed_and_written_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = folder.to_line

    def deleting(record: Any) -> bytes:
        if isinstance(record, Step) and record.step == 3:
            Path("new/records.jsonl").unlink()
        return original(record)

    monkeypatch.setattr(folder, "to_line", deleting)
    assert run(["train", *TINY, "--out_dir=new"]) == 0
    assert "new/records.jsonl was deleted while the run trained" in " ".join(capsys.readouterr().err.split())
    found = load_run("new")
    assert [step.step for step in found.steps] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert isinstance(found.records[0], Start)
    assert found.finished
