"""The name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import PurePath

SHORTEST_BEGINNING = 4  # letters; fewer begin a name by chance
ALIKE = 0.75  # of the letters, in order: grad_accum and grad_clip share 0.63, n_embed and n_embd 0.92
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "half": "float16"}  # switches of other trainers
EPOCHS = ("epochs", "epoch", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs")
# what the Trainer, Lightning, LitGPT, Megatron, torchtitan, llm.c and nanochat call a key of nanoGPT's or ours
_ELSEWHERE = {
    "learning_rate": "lr max_lr peak_lr base_lr",
    "min_lr": "min_learning_rate lr_min end_lr final_lr",
    "block_size": "seq_len seq_length sequence_length max_seq_len max_seq_length max_length context_length "
    "context_size context_len context ctx_len n_ctx n_positions max_position_embeddings",
    "gradient_accumulation_steps": "grad_accum grad_accum_steps grad_acc gradient_accumulation accumulate_grad_batches "
    "accumulation_steps accum_steps gradient_accumulation_iters",
    "batch_size": "per_device_train_batch_size train_batch_size micro_batch_size device_batch_size micro_batch bs",
    "eval_batch_size": "per_device_eval_batch_size val_batch_size",
    "n_embd": "hidden_size d_model dim hidden_dim embed_dim embedding_dim n_embed model_dim",
    "n_layer": "num_layers num_hidden_layers n_layers depth layers",
    "n_head": "num_heads num_attention_heads n_heads heads",
    "max_iters": "steps max_steps num_steps train_steps total_steps train_iters num_iterations iters "
    f"{' '.join(EPOCHS)}",
    "warmup_iters": "warmup warmup_steps num_warmup_steps lr_warmup_iters lr_warmup_steps",
    "lr_decay_iters": "decay_steps lr_decay_steps",
    "weight_decay": "wd",
    "beta1": "adam_beta1",
    "beta2": "adam_beta2",
    "grad_clip": "max_grad_norm clip_grad clip_grad_norm gradient_clip_val gradient_clipping clip",
    "eval_interval": "eval_steps eval_every eval_freq val_interval val_every",
    "log_interval": "logging_steps log_every log_freq",
    "checkpoint_interval": "save_steps save_every save_interval",
    "out_dir": "output_dir save_dir run_dir",
    "dataset": "data data_dir data_path dataset_name",
    "grad_checkpoint": "gradient_checkpointing activation_checkpointing recompute",
    "compile": "torch_compile use_compile",
    "dtype": f"precision mixed_precision amp {' '.join(DTYPES)}",
    "optimizer": "optim",
    "schedule": "lr_scheduler lr_scheduler_type lr_schedule",
    "vocab_size": "vocab n_vocab padded_vocab_size",
    "init_from": "resume_from_checkpoint pretrained",
    "seed": "random_seed",
    "loggers": "report_to",
}
ELSEWHERE = {word: key for key, words in _ELSEWHERE.items() for word in words.split()}


def nearest(word: str, known: Iterable[str]) -> str | None:
    """What other trainers' word means, else the only known word that starts with `word`, else the nearest (hyphens and
    case do not count); None where all are far."""
    meant, names = _plain(word), {_plain(name): name for name in known}
    if meant not in names and ELSEWHERE.get(meant) in names:
        return names[ELSEWHERE[meant]]
    begun = [name for name in names if name.startswith(meant)] if len(meant) >= SHORTEST_BEGINNING else []
    near = begun if len(begun) == 1 else difflib.get_close_matches(meant, names, n=1, cutoff=ALIKE)
    return names[near[0]] if near else None


def nearest_file(name: str, known: Iterable[str]) -> str | None:
    """The same for files: their endings do not make two names alike."""
    given = list(known)
    return next((each for each in given if _plain(each) == _plain(name)), None) or _stem_of(name, given)


def _stem_of(name: str, known: list[str]) -> str | None:
    stems = {PurePath(each).stem: each for each in known}
    found = nearest(PurePath(name).stem, stems)
    return stems[found] if found else None


def meant_by(key: str, value: str, known: Iterable[str]) -> str | None:
    """`learning_rate=3e-4` for a key of another trainer, or a typo, with its value; None where nothing is near."""
    near = nearest(key, known)
    if near == "dtype" and _plain(key) != near:
        return f"dtype={_dtype_meant(_plain(key), value.lower())}"
    if near == "max_iters" and _plain(key) in EPOCHS:
        return f"max_iters=N, the updates of {value} epochs,"
    return f"{near}={value}" if near else None


def _dtype_meant(key: str, value: str) -> str:
    """The dtype of other trainers' switch (`fp16=True`) or word (`precision=bf16-mixed`)."""
    if value in ("false", "0", "no"):
        return "auto"
    words = {**DTYPES, **{dtype: dtype for dtype in DTYPES.values()}, "16": "float16", "32": "float32"}
    return words.get(key) or words.get(value.partition("-")[0], "auto")


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()
