"""A config file that is missing: the fix names config files, never other Python files."""

from pathlib import Path

import pytest

from onecard.errors import ConfigError
from onecard.inputs.nearby import nearby_config
from onecard.inputs.text import read_text

MODEL = "import torch\n\nclass GPT:\n    n_layer = 12\n\ndef main():\n    batch_size = 3\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a nanoGPT checkout: model.py sets no key."""
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("mode.py").write_text("this is not Python")
    Path("config").mkdir()
    Path("config/train_77m.py").write_text("n_layer = 12\nn_embd = 576\n")
    Path("config/broken.py").write_bytes(b"\0\0")


def fix(name: str) -> str:
    with pytest.raises(ConfigError) as refused:
        read_text(Path(name), otherwise="take the default")
    return refused.value.fix


@pytest.mark.parametrize("name", ["nope.py", "mdel.py", "models.py", "config/nope.py", "nowhere/nope.py"])
def test_where_nothing_is_like_it_the_configs_there_are_are_named(name: str) -> None:
    assert fix(name) == "name a config file: config/train_77m.py; or take the default"


@pytest.mark.parametrize("name", ["train_77.py", "config/trian_77m.py", "train_77m", "configs/train_77m.py"])
def test_the_config_that_was_probably_meant_is_named_wherever_it_is(name: str) -> None:
    assert fix(name) == "did you mean config/train_77m.py ?"


def test_without_configs_the_default_is_offered() -> None:
    Path("config/train_77m.py").unlink()
    assert fix("model_.py") == "take the default"


def test_a_few_are_named_and_the_rest_counted() -> None:
    for name in "abcd":
        Path(f"config/{name}.py").write_text("max_iters = load()\n")
    expected = "name a config file: config/a.py, config/b.py, config/c.py and 2 more; or take the default"
    assert nearby_config(Path("zzzzzz.py"), otherwise="take the default") == expected
