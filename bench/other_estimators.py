"""What other people's formulas predict for the measured rows: each restated from its source, none copied.

python bench/other_estimators.py        # median and largest error of each, eager and compiled

Every formula gets what helps it: the run's own parameter count, unless its tool counts for itself, and its float32
setting, if it has one. All are compared with PyTorch's allocated peak of training. That is smaller than the reserved
bytes and the whole process, but none of these formulas claims to know the caching allocator or the CUDA context. None
has an input for torch.compile, gradient accumulation or evaluation either, and none knows what the loss keeps besides
the logits. Estimators that run the model instead are in memtracker.py.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, like the other files of this folder

from bench.measured import GOLDEN, Errors, Measured, measured_rows
from onecard.config.schema import RunConfig
from onecard.plan.counts import count_params

FLOAT32 = 4  # bytes of a number
HALF = 2
MEMTRACKER = Path(__file__).parents[1] / "docs" / "measurements" / "memtracker.csv"


def accelerate_bytes(config: RunConfig) -> int:
    """Bytes of "Training using Adam" that `accelerate estimate-memory` shows for the run's dtype.

    Source: huggingface/accelerate 1.15.0.dev0 (16cb6eb), commands/estimate.py, `estimate_training_usage`; the command
    shows the largest of its four parts. In half precision that is Adam's two float32 states, in float32 its "step" of
    four times the model. bfloat16, which the command does not offer, is the same function's float16.

    Leaves out: every activation and the logits (it says batch size 1, but has no batch in it); and, since it takes a
    maximum and not a sum, in half precision also weights and gradients.
    """
    model = FLOAT32 * count_params(config).total
    if config.dtype == "float32":
        return max(model, 2 * model, 4 * model)  # weights or gradients, Adam's states, step
    gradients = model + model // 2
    return max(model, gradients, 2 * model)


def deepspeed_zero2_bytes(config: RunConfig) -> int:
    """Bytes of weights, gradients and optimizer states under ZeRO-2 on one GPU without offload.

    Source: deepspeedai/DeepSpeed (02aa38c), runtime/zero/stage_1_and_2.py, `estimate_zero2_model_states_mem_needs` with
    num_gpus_per_node=1, num_nodes=1, cpu_offload=False. It does not depend on the dtype.

    Leaves out: activations and logits, on purpose: it estimates model states only. Counts half precision
    gradients, which nanoGPT's autocast does not keep.
    """
    params = count_params(config).total
    half_weights = HALF * params
    half_gradients, gradients, master_weights, adam_states = 2 * params, 4 * params, 4 * params, 8 * params
    return half_weights + half_gradients + gradients + master_weights + adam_states


def megatron_paper_bytes(config: RunConfig) -> int:
    """Bytes of model states and activations by the Megatron paper's inventory, on one GPU.

    Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198):
    equation 1, sbh(34 + 5as/h) a layer, without 5as/h since flash attention stores no score matrix; then, from its
    total (section 4.3), the embedding's dropout mask, the last norm, the output layer's input and float32 logits:
    sbh + 4sbh(1 + v/h). Megatron-LM's `compute_activation_memory` has the same terms and cites the paper for them.
    18 bytes a parameter are Megatron-LM's (`compute_weight_and_optimizer_memory`): the paper counts activations only.
    The paper is about 16-bit activations; for float32 rows each of its 2-byte tensors is taken as 4 bytes, and model
    states as 16 bytes a parameter. That reading is ours.

    Leaves out: what the backward pass of the loss needs beside one copy of the logits, autocast's float32 residuals and
    half precision weight copies, workspaces. Counts dropout masks even where dropout is 0: 2 sbh of a layer's 34.
    """
    tokens, C, V = config.batch_size * config.block_size, config.n_embd, config.vocab_size
    number = FLOAT32 if config.dtype == "float32" else HALF
    attention = tokens * C * (5 * number + 1)  # inputs of qkv, of the scores (2), of values and of the projection; mask
    mlp = tokens * C * (9 * number + 1)  # inputs of both linear layers and of GELU; mask
    norms = tokens * C * 2 * number
    embedding_mask = tokens * C
    last_norm_and_head = tokens * C * 2 * number
    logits = tokens * V * FLOAT32
    model_states = (16 if config.dtype == "float32" else 18) * count_params(config).total
    return model_states + config.n_layer * (attention + mlp + norms) + embedding_mask + last_norm_and_head + logits


def megatron_lm_bytes(config: RunConfig) -> int:
    """Bytes that Megatron-LM's own report would print for the run: no parallelism of any kind, dense GPT.

    Source: NVIDIA/Megatron-LM (00caa53), training/theoretical_memory_usage.py: `compute_weight_and_optimizer_memory`
    (18 bytes a parameter, position embeddings and linear biases not counted) and, without sequence parallelism,
    `compute_activation_memory_without_sp` (34 sbh a layer, the embedding's ids and dropout mask, 2-byte logits, 5 % on
    top). It does not depend on the dtype.

    Leaves out: float32 anything among the activations, the loss beside one 2-byte copy of the logits, workspaces.
    """
    tokens, C, V = config.batch_size * config.block_size, config.n_embd, config.vocab_size
    params = V * C + config.n_layer * (12 * C * C + 4 * C) + 2 * C
    layers = config.n_layer * 34 * tokens * C
    embedding = 8 * tokens + tokens * C
    head = HALF * tokens * (V + C)
    return 18 * params + (layers + embedding + head) * 105 // 100


def cookbook_bytes(config: RunConfig) -> int:
    """Bytes per GPU by EleutherAI's calculator, as one would call it: no checkpointing, all else by default.

    Source: EleutherAI/cookbook (827ee3b), calc/calc_transformer_mem.py, `calc_mem`, the script that goes with
    "Transformer Math 101": 2 bytes of weights, 4 of gradients and 12 of optimizer a parameter, and Korthikanti's
    equation 1 for the activations, score matrices included. float32 rows are called with --disable-mixed-precision
    --low-prec-bytes-per-val 4, which makes the weights 4 bytes and leaves the optimizer at 12.

    Leaves out: logits and loss, the embeddings' activations. Counts score matrices that flash attention never stores,
    and the embedding twice, which nanoGPT ties to the head. Where the total is close, these errors cancel.
    """
    score_elements = config.batch_size * config.n_head * config.block_size**2  # of one layer
    return cookbook_without_scores_bytes(config) + config.n_layer * score_elements * (2 * _cookbook_number(config) + 1)


def cookbook_without_scores_bytes(config: RunConfig) -> int:
    """Bytes per GPU by EleutherAI's calculator without the score matrices, as flash attention would have it.

    Source: as `cookbook_bytes`. The script drops that term when called with --checkpoint-activations. The measured runs
    do not checkpoint, but this is the closest the script comes to flash attention, so both readings are shown.

    Leaves out: logits and loss, the embeddings' activations. Counts the embedding twice.
    """
    tokens, C, L = config.batch_size * config.block_size, config.n_embd, config.n_layer
    number = _cookbook_number(config)
    embeddings = 2 * config.vocab_size * C + config.block_size * C
    params = embeddings + L * (8 * C + 4 * C * C + 8 * C * C) + 2 * C
    weights, gradients, optimizer = number * params, 4 * params, 12 * params
    activations = tokens * C * L * (16 * number + 2)
    return weights + gradients + optimizer + activations


def _cookbook_number(config: RunConfig) -> int:
    return FLOAT32 if config.dtype == "float32" else HALF


def chatbot_note_bytes(config: RunConfig) -> int:
    """Bytes by the formula a chatbot gave a nanoGPT user: B·T·C·L·160·2 of activations, 10 a parameter.

    Source: a public note on a 6/6/384 run at batch 16 × 512. Its 160 was chosen to make this run's total right. Its 10
    bytes are 2 of weights and 8 of Adam's states. It does not depend on the dtype. It adds 1 to 1.5 GB for context,
    allocator and compiling; they are left out here, because the measured allocated peak contains none of those.

    Leaves out: the vocabulary, which decides the size of the loss; gradients; float32 weights.
    """
    activations = config.batch_size * config.block_size * config.n_embd * config.n_layer * 160 * 2
    return activations + 10 * count_params(config).nanogpt


ESTIMATORS: dict[str, Callable[[RunConfig], int]] = {
    "accelerate estimate-memory": accelerate_bytes,
    "DeepSpeed ZeRO-2 estimator": deepspeed_zero2_bytes,
    "Megatron paper (Korthikanti et al. 2022)": megatron_paper_bytes,
    "Megatron-LM report": megatron_lm_bytes,
    "EleutherAI cookbook": cookbook_bytes,
    "EleutherAI cookbook, no score matrices": cookbook_without_scores_bytes,
    "chatbot note": chatbot_note_bytes,
}


def errors_of(estimator: Callable[[RunConfig], int], rows: list[Measured]) -> Errors:
    """Relative errors of predicted training bytes against the measured allocated peak of training."""
    return Errors.of(estimator(row.config) / row.allocated_bytes("train") - 1 for row in rows)


def memtracker_errors(column: str, *, dropout: bool | None = None) -> Errors:
    """Errors of the recorded MemTracker predictions, for all rows or for those with or without dropout."""
    with MEMTRACKER.open() as file:
        found = [row for row in csv.DictReader(file) if row[column]]
    chosen = [row for row in found if dropout is None or (float(row["dropout"]) > 0) == dropout]
    return Errors.of(int(row[column]) / int(row["measured_train_alloc"]) - 1 for row in chosen)


def main() -> None:
    rows = [row for row in measured_rows(GOLDEN / "nanogpt_h200.csv") if row.ok]
    eager = [row for row in rows if not row.config.compile]
    compiled = [row for row in rows if row.config.compile]
    for name, estimator in ESTIMATORS.items():
        shown = [_shown(errors_of(estimator, chosen)) for chosen in (eager, compiled)]
        print(f"{name:42} eager {shown[0]}   compiled {shown[1]}")
    for column in ("predicted_bytes", "predicted_accumulating_bytes"):
        for label, dropout in (("", None), (", dropout 0", False), (", dropout > 0", True)):
            name = f"MemTracker {column.removesuffix('_bytes')}{label}"
            print(f"{name:42} eager {_shown(memtracker_errors(column, dropout=dropout))}")


def _shown(errors: Errors) -> str:
    return f"{len(errors.values)} rows: median {errors.median:.1%}, largest {errors.largest:.1%}"


if __name__ == "__main__":
    main()
