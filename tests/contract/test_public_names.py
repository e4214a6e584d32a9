"""What a program may import, and nothing else."""

import subprocess
import sys

import onecard
import onecard.plan


def test_the_package_offers_what_the_contract_names() -> None:
    assert onecard.__all__ == ["__version__", "load_run", "make_plan"]
    for name in onecard.__all__:
        assert getattr(onecard, name) is not None


def test_importing_onecard_is_light() -> None:
    code = "import sys, onecard; print('pydantic' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"
