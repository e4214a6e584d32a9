"""The commands of docs/how-to/fineweb-on-one-machine.md, in their order, with a hub on this machine."""

import json
import shlex
from pathlib import Path

import pytest

from tests.contract.conftest import ROOT, Command
from tests.contract.test_docs import commands_in
from tests.loopback_hub import Hub, serving

PAGE = ROOT / "docs" / "how-to" / "fineweb-on-one-machine.md"


def test_every_command_of_the_page_runs(onecard: Command, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    pytest.importorskip("tokenizers", reason="needs tokenizers")
    parquet.write_table(arrow.table({"text": [f"page {row} " * 50 for row in range(300)]}), tmp_path / "t")
    files = {"sample/10BT/000_00000.parquet": (tmp_path / "t").read_bytes()}
    configs = [{"config_name": "sample-10BT", "data_files": [{"split": "train", "path": "sample/10BT/*"}]}]
    (tmp_path / "corpus").mkdir()
    for name in ("a", "b"):
        lines = (json.dumps({"text": f"{name} and {number} " * 20}) + "\n" for number in range(100))
        (tmp_path / "corpus" / f"{name}.jsonl").write_text("".join(lines))
    piped = b"".join(path.read_bytes() for path in sorted((tmp_path / "corpus").iterdir()))
    text = PAGE.read_text().replace("cat corpus/*.jsonl | ", "")
    commands = [command for command in commands_in(text) if not command.startswith("onecard train")]
    assert len(commands) >= 6
    with serving(Hub("HuggingFaceFW/fineweb-edu", files, configs)) as hub:
        for command in commands:
            words = shlex.split(command)[1:]
            if "prepare" in words and "--tokenizer=" not in command:
                words.append("--tokenizer=bytes")  # GPT-2's ranks are not here
            environment = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf")}
            shown = onecard(*words, stdin=piped, cwd=tmp_path, **environment)
            assert shown.code == 0, f"{command}\n{shown.stderr}"
        assert hub.downloads() == list(files)
    sizes = {path.parent.name: json.loads(path.read_bytes())["documents"] for path in tmp_path.glob("data/*/meta.json")}
    assert set(sizes) == {"fineweb-edu", "mine", "once", "piped", "stdlib"}
    assert sum(sizes["piped"][split] for split in ("train", "val")) == 200
