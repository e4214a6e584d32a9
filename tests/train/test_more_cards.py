"""The files of docs/how-to/more-cards: shells, torchrun and the schedulers' schemas accept them. None was run there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from onecard.cli.commands import cli
from onecard.config.schema import KEYS

FOLDER = Path(__file__).parents[2] / "docs/how-to/more-cards"
SHELLS = ["two-cards.sh", "two-machines.sh", "slurm.sbatch"]

TEXT, NUMBER = str, int
# Fields and types of the schemas, those that the files use. Kubeflow training-operator, commit db3ba9c4c^,
# manifests/base/crds/kubeflow.org_pytorchjobs.yaml; the whole files were validated against the whole schemas by hand,
# with jsonschema 4.26 on 2026-11-19.
PYTORCHJOB = {
    "apiVersion": TEXT,
    "kind": TEXT,
    "metadata": {"name": TEXT},
    "spec": {
        "nprocPerNode": TEXT,
        "elasticPolicy": {"rdzvBackend": TEXT, "minReplicas": NUMBER, "maxReplicas": NUMBER, "maxRestarts": NUMBER},
        "pytorchReplicaSpecs": {
            "Worker": {
                "replicas": NUMBER,
                "restartPolicy": TEXT,
                "template": {
                    "spec": {
                        "containers": [
                            {
                                "name": TEXT,
                                "image": TEXT,
                                "workingDir": TEXT,
                                "command": [TEXT],
                                "resources": {"limits": {"nvidia.com/gpu": NUMBER}},
                                "volumeMounts": [{"name": TEXT, "mountPath": TEXT}],
                            }
                        ],
                        "volumes": [
                            {
                                "name": TEXT,
                                "persistentVolumeClaim": {"claimName": TEXT},
                                "emptyDir": {"medium": TEXT},
                            }
                        ],
                    }
                },
            }
        },
    },
}
# SkyPilot 0.14.1, sky/utils/schemas.py, validated by hand with the whole of it on the same day.
SKYPILOT = {
    "name": TEXT,
    "num_nodes": NUMBER,
    "workdir": TEXT,
    "resources": {"accelerators": TEXT, "disk_size": NUMBER, "use_spot": bool},
    "setup": TEXT,
    "run": TEXT,
}


def misfits(content: Any, schema: Any, where: str = "") -> list[str]:
    """Fields that the schema does not have, or whose type is another."""
    if isinstance(schema, type):
        return [] if type(content) is schema else [f"{where}: {content!r} is no {schema.__name__}"]
    if type(content) is not type(schema):
        return [f"{where}: {content!r}"]
    if isinstance(schema, list):
        return [problem for item in content for problem in misfits(item, schema[0], f"{where}[]")]
    unknown = [f"{where}.{key} is unknown" for key in content if key not in schema]
    known = [key for key in content if key in schema]
    return unknown + [problem for key in known for problem in misfits(content[key], schema[key], f"{where}.{key}")]


def read_yaml(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return content


def scripts() -> dict[str, str]:
    """Every shell script, also those within other files."""
    cloud = read_yaml("skypilot.yaml")
    return {name: (FOLDER / name).read_text() for name in SHELLS} | {
        f"skypilot.yaml: {part}": f"#!/bin/bash\n{cloud[part]}" for part in ("setup", "run")
    }


def torchrun_lines() -> dict[str, list[str]]:
    """The words of every torchrun command, variables replaced by a number."""
    found = {}
    for name, text in scripts().items():
        for command in re.findall(r"^(?:srun )?torchrun(.*)", text.replace("\\\n", " "), re.M):
            found[name] = shlex.split(re.sub(r"\$\{?\w+\}?", "2", command))
    worker = read_yaml("pytorchjob.yaml")["spec"]["pytorchReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    return found | {"pytorchjob.yaml": container["command"][1:]}


def test_every_file_of_the_folder_is_checked_here() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*SHELLS, "skypilot.yaml", "pytorchjob.yaml"}
    page = (FOLDER.parent / "more-cards.md").read_text()
    assert all(f"(more-cards/{path.name})" in page for path in FOLDER.iterdir())


def test_onecard_is_installed_from_a_clone() -> None:
    """PyPI has no onecard: by its name alone it is found only where it is installed."""
    installs = [line for path in FOLDER.iterdir() for line in path.read_text().splitlines() if "pip install" in line]
    assert len(installs) == 2
    assert all('pip install ".[train,data]"' in line for line in installs)


@pytest.mark.parametrize("name", scripts())
def test_shells_accept_the_scripts(name: str) -> None:
    done = subprocess.run(["bash", "-n"], input=scripts()[name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    broken = subprocess.run(["bash", "-n"], input=scripts()[name] + "\nif", capture_output=True, text=True, check=False)
    assert broken.returncode, "a check that accepts everything is none"


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="needs shellcheck")
@pytest.mark.parametrize("name", scripts())
def test_shellcheck_finds_nothing(name: str) -> None:
    done = subprocess.run(["shellcheck", "-"], input=scripts()[name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", torchrun_lines())
def test_torchrun_and_onecard_know_every_word(name: str) -> None:
    asked = get_args_parser().parse_args(torchrun_lines()[name])
    assert (asked.module, asked.training_script) == (True, "onecard")
    command, config, *rest = asked.training_script_args
    assert (command, config) == ("train", "train_fineweb.py")
    assert "--continue" in rest, "a restart must go on"
    options = {option for parameter in cli.commands["train"].params for option in parameter.opts}
    for word in rest:
        assert word in options or word[2:].partition("=")[0] in KEYS, word


def test_the_lines_of_all_files_were_found() -> None:
    assert set(torchrun_lines()) == {*SHELLS, "skypilot.yaml: run", "pytorchjob.yaml"}


@pytest.mark.parametrize(("name", "schema"), [("pytorchjob.yaml", PYTORCHJOB), ("skypilot.yaml", SKYPILOT)])
def test_schedulers_know_every_field(name: str, schema: dict[str, Any]) -> None:
    content = read_yaml(name)
    assert not misfits(content, schema)
    assert misfits(content | {"replicas": 2}, schema) == [".replicas is unknown"]


def test_the_job_asks_for_the_cards_that_it_starts_processes_for() -> None:
    spec = read_yaml("pytorchjob.yaml")["spec"]
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    assert spec["nprocPerNode"] == str(container["resources"]["limits"]["nvidia.com/gpu"])
    assert worker["replicas"] == spec["elasticPolicy"]["minReplicas"] == spec["elasticPolicy"]["maxReplicas"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in worker["template"]["spec"]["volumes"]}
