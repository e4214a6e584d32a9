"""A model card: what a run's records say about the model, as the README.md of a published folder, or in a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote

from onecard import units
from onecard.config.schema import KEYS, RunConfig, keys_that_affect
from onecard.plan.counts import count_params
from onecard.report.markdown import code, fenced, plain
from onecard.report.scores import with_error
from onecard.report.task_scores import published
from onecard.runs.folder import Run
from onecard.runs.records import Checkpoint, Start, Step
from onecard.runs.scores import read_scores, read_task_scores

FRONT_MATTER = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [{model}, onecard]
---
"""
KINDS = {"gpt2": "A GPT-2-shaped", "nanochat": "A nanochat-shaped"}  # by model
NEEDS = {"nanochat": "transformers >= 5.0"}  # the first version with the model, where it is recent
# Everything that the model comes from; its data and first weights are told among the facts, without a machine's paths.
SHOWN_KEYS = [key for key in keys_that_affect("loss", "chance") if not KEYS[key].kind & {"path", "limit"}]


def model_card(run: Run, config: RunConfig, *, name: str, place: str, step: int, tokenizer: str | None) -> str:
    """The model card for the checkpoint at `step`, in Markdown. It states only what the records contain.

    `place` is where transformers finds the model: its name on the hub, or its folder, starting with `./`.
    """
    needs = NEEDS.get(config.model)
    program = [
        *([f"# needs {needs}, the first version with this architecture"] if needs else []),
        "from transformers import AutoModelForCausalLM" + (", AutoTokenizer" if tokenizer else ""),
        "",
        f"model = AutoModelForCausalLM.from_pretrained({json.dumps(place)})",
        *([f"tokenizer = AutoTokenizer.from_pretrained({json.dumps(place)})"] if tokenizer else []),
    ]
    facts = [f"| {fact} | {plain(value)} |" for fact, value in _facts(run, config, step, tokenizer)]
    keys = [f"{key} = {getattr(config, key)!r}" for key in SHOWN_KEYS]
    lines = [
        FRONT_MATTER.format(model=config.model),
        f"# {plain(name)}",
        "",
        _sentence(run, config, step),
        "",
        *fenced("python", program),
        *(_publishing(place) if place.startswith("./") else []),
        "",
        "## Facts of the run",
        "",
        "| | |",
        "|---|---|",
        *facts,
        "",
        *_scores(run, step),
        "## Settings",
        "",
        *fenced("python", keys),
        "",
        "## Before you use it",
        "",
        "The model repeats what is in its data, right or wrong. It was not trained to follow instructions or to",
        "refuse. What was measured of it is above, and nothing else was. A program wrote this card from the records",
        "of the run. If you publish the model, add its licence and what you know about the data.",
        "",
    ]
    return "\n".join(lines)


def _scores(run: Run, step: int) -> list[str]:
    """What `onecard eval` measured of the checkpoint at `step`: tasks beside known models, bits per byte of texts."""
    tasks = [score for score in read_task_scores(run.path) if score.step == step]
    texts = [score for score in read_scores(run.path) if score.step == step]
    if not tasks and not texts:
        return []
    lines = ["## Scores", "", "| | score | guessing | published |", "|---|---|---|---|"]
    for task in tasks:
        others = ", ".join(f"{other.model} {other.value:.4f}" for other in published(task))
        limit = f", first {task.limit:,}" if task.limit else ""
        name = plain(f"{task.task}, {task.metric} ({task.questions:,} questions{limit})")
        chance = "" if task.chance is None else f"{task.chance:.4f}"
        lines.append(f"| {name} | {with_error(task.value, task.error)} | {chance} | {others} |")
    for text in texts:
        name = plain(f"bits per byte of {text.text} ({text.bytes:,} bytes)")
        lines.append(f"| {name} | {with_error(text.bits_per_byte, text.error)} | | |")
    if tasks:
        by = " and ".join(dict.fromkeys(plain(task.harness) for task in tasks))
        lines += ["", f"Tasks are zero-shot, by {by}. After ± stands the standard error over the questions."]
    return [*lines, ""]


def gguf_facts(run: Run, config: RunConfig, *, step: int, tokenizer: str) -> dict[str, str]:
    """The same facts by the keys of a GGUF file: the format's own where it has one, else ours."""
    facts = {f"onecard.{fact.replace(' ', '_')}": value for fact, value in _facts(run, config, step, tokenizer)}
    return {
        "general.type": "model",
        "general.name": run.path.resolve().name,
        "general.description": _sentence(run, config, step).replace("`", ""),
        "general.size_label": units.count(count_params(config).total),
        **facts,
    }


def _sentence(run: Run, config: RunConfig, step: int) -> str:
    size = units.count(count_params(config).total)
    return f"{KINDS[config.model]} language model of {size} parameters, {_training(run.imported, config, step)}."


def _publishing(place: str) -> list[str]:
    """How to publish the model of a folder on the hub."""
    upload = code(f"hf upload USER/NAME {quote(place)}")
    return [
        "",
        f"Run this next to the folder. To publish it: {upload}, then replace the folder",
        "above with `USER/NAME`. Or use `onecard export RUN --to hf --push USER/NAME`, which does both.",
    ]


def _training(imported: Checkpoint | None, config: RunConfig, step: int) -> str:
    """`trained on X from scratch`, or where the weights came from and how they were trained further."""
    on = f"trained on {code(_public(config.dataset))}"
    if imported is None:
        return f"{on} from scratch"
    if imported.step or config.init_from == "scratch":  # a continued run keeps what it started from
        source = f"{code(_public(str(imported.more.get('imported_from', 'elsewhere'))))} at step {imported.step:,}"
        return f"imported from {source}" + (f", then {on}" if step > imported.step else " and not trained further")
    weights = f"the weights of {code(_public(config.init_from))}"
    return f"{on} from {weights}" if step else f"with {weights}, not trained further"


def _public(name: str) -> str:
    """A name that may be published: without the folders of somebody's machine."""
    return Path(name).name if Path(name).is_absolute() else name


def _facts(run: Run, config: RunConfig, step: int, tokenizer: str | None) -> list[tuple[str, str]]:
    params = count_params(config)
    tokens = step * config.tokens_per_step
    began = run.imported.step if run.imported else 0
    here = f", {step - began:,} of them since the import" if began else ""
    before = "; tokens read before the import: not known" if run.imported and not began else ""
    without = f" ({params.nanogpt:,} without position embeddings)" if params.nanogpt < params.total else ""
    facts = [
        ("parameters", f"{params.total:,}{without}"),
        ("updates", f"{step:,} of {config.tokens_per_step:,} tokens{here}"),
        ("tokens read", f"{tokens:,} ({tokens / params.total:.1f} per parameter){before}"),
    ]
    steps = [record for record in run.steps if record.step <= step]
    evals = [record for record in run.evals if record.step <= step and record.val_loss is not None]
    if evals:
        last = evals[-1]
        error = f" ± {last.val_loss_error:.4f}" if last.val_loss_error is not None else ""
        facts.append(
            (
                "validation loss",
                f"{last.val_loss:.4f}{error} nats per token at {last.block_size} tokens, step {last.step:,}",
            )
        )
        if last.bits_per_byte is not None:
            facts.append(("bits per byte", f"{last.bits_per_byte:.4f}"))
    facts += _machine(run, steps)
    facts.append(("tokenizer", tokenizer or "not known"))
    return facts


def _machine(run: Run, steps: list[Step]) -> list[tuple[str, str]]:
    starts = [record for record in run.records if isinstance(record, Start)]
    facts = []
    if starts:
        facts.append(("trained on", starts[-1].card or starts[-1].device))
        versions = ", ".join(f"{name} {version}" for name, version in starts[-1].versions.items())
        facts.append(("with", versions))
    if steps and steps[-1].elapsed_seconds:
        since = " since the import; before that: not known" if run.imported and run.imported.step else ""
        facts.append(("training time", units.duration(steps[-1].elapsed_seconds) + since))
    return facts
