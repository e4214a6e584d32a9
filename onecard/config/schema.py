"""RunConfig: every key a run has, flat, frozen and typed, with nanoGPT's names and defaults.

One line per key feeds the check, the docs, the JSON schema and the flag. Values come from config files and
`--key=value` flags, so types are strict: a float may be `1`, a whole number `6e5`, a bool `true`, `0` or `1`; the text
`"12"` is not a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from onecard import units


class KeysDoNotFit(ValueError):
    """Values that are valid alone but not together: `keys` in the order to name them, and what to type."""

    def __init__(self, what: str, *, keys: tuple[str, ...], fix: str) -> None:
        super().__init__(what)
        self.keys, self.fix = keys, fix


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _yes_or_no(value: object) -> object:
    """True and False also as `true`, and as 1 and 0: Python treats them alike, so `wandb_log = 0` works in nanoGPT."""
    if type(value) is int and value in (0, 1):
        return bool(value)
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


def _size(value: object) -> object:
    size = _whole(value)
    if isinstance(value, str):
        try:
            size = units.parse_bytes(value)
        except ValueError:
            raise ValueError("is not a size") from None
    if isinstance(size, int | float) and 0 < size < units.MIB:
        raise ValueError(f"is only {size:,} bytes")  # most likely a unit was forgotten
    return size


def _checkpointing(value: object) -> object:
    value = _yes_or_no(value)
    return {True: "full", False: "none"}[value] if isinstance(value, bool) else value


# The upper bounds are far beyond any card; they keep a typo from becoming a plan that never ends.
# A plan walks through every layer: 128 layers take 1 to 3 s, 1,024 took 18 to 100 s. Llama 3.1 405B has 126 layers.
Count = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=2**24)]
Layers = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=128)]
Steps = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=2**40)]
Interval = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=2**40)]
Seed = Annotated[int, BeforeValidator(_whole), Field(ge=0, lt=2**63)]
Size = Annotated[int, BeforeValidator(_size), Field(ge=1, le=2**63)]
YesNo = Annotated[bool, BeforeValidator(_yes_or_no)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=4096)]


MOST_TOKENS = 2**32  # per update: a thousand times what the largest models use


class RunConfig(BaseModel):
    """Everything that defines a run. `replace` makes a changed copy, which is checked again."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    # nanoGPT's keys, in its order
    out_dir: Text = Field("out", description="folder of the run")
    eval_interval: Interval = Field(2000, description="updates between evaluations")
    log_interval: Interval = Field(1, description="updates between printed lines")
    eval_iters: Count = Field(200, description="batches per evaluation and split; costs time, not memory")
    eval_only: YesNo = Field(False, description="evaluate once and stop")
    always_save_checkpoint: YesNo = Field(True, description="nanoGPT: save also when not the best; onecard keeps both")
    init_from: Text = Field("scratch", description="scratch, resume, a GPT-2 name, folder or checkpoint")
    wandb_log: YesNo = Field(False, description="log to Weights & Biases")
    wandb_project: Text = Field("owt", description="Weights & Biases project")
    wandb_run_name: Text = Field("gpt2", description="Weights & Biases run name")
    dataset: Text = Field("openwebtext", description="data folder, under data/ or a path")
    gradient_accumulation_steps: Count = Field(40, description="micro-batches per update")
    batch_size: Count = Field(12, description="sequences per micro-batch")
    block_size: Count = Field(1024, description="tokens per sequence (context length)")
    n_layer: Layers = Field(12, description="transformer blocks, at most 128 (Llama 3.1 405B has 126)")
    n_head: Count = Field(12, description="attention heads; must divide n_embd")
    n_embd: Count = Field(768, description="width of the model")
    dropout: Fraction = Field(0.0, description="share of activations dropped; 0 for pretraining")
    bias: YesNo = Field(False, description="biases in linear layers and norms")
    learning_rate: Rate = Field(6e-4, description="highest learning rate")
    max_iters: Steps = Field(600_000, description="total updates (nanoGPT makes one more)")
    weight_decay: Rate = Field(0.1, description="weight decay of matrices and embeddings")
    beta1: Fraction = Field(0.9, description="AdamW's first moment decay")
    beta2: Fraction = Field(0.95, description="AdamW's second moment decay")
    grad_clip: Rate = Field(1.0, description="largest gradient norm; 0 turns clipping off")
    decay_lr: YesNo = Field(True, description="follow the schedule; otherwise a constant rate")
    warmup_iters: Steps = Field(2000, description="updates of linear warm-up")
    lr_decay_iters: Steps = Field(600_000, description="updates until min_lr")
    min_lr: Rate = Field(6e-5, description="learning rate at the end")
    backend: Text = Field("nccl", description="nanoGPT's multi-GPU backend; no effect on one card")
    device: Text = Field("auto", description="auto, cuda, cpu or mps")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="compute type; auto is bfloat16 where the card has it, else float16"
    )
    compile: YesNo = Field(True, description="torch.compile the model")

    # onecard's own keys
    vocab_size: Count = Field(50304, description="tokens the model knows; from the data unless given")
    eval_batch_size: Count | None = Field(None, description="sequences per evaluation batch; default: chosen")
    eval_block_size: Count | None = Field(None, description="tokens per evaluated sequence; default: block_size")
    grad_checkpoint: Annotated[Literal["none", "selective", "full"], BeforeValidator(_checkpointing)] = Field(
        "none", description="recompute activations in the backward pass (true = full)"
    )
    loss_chunk: Count | None = Field(None, description="tokens whose logits are in memory at once; default: chosen")
    checkpoint_interval: Interval | None = Field(
        None, description="updates between checkpoints, besides those at evaluations; default: 15 minutes"
    )
    keep_checkpoints: Count = Field(2, description="checkpoints kept besides the best")
    seed: Seed = Field(1337, description="seed of weights, data order and dropout")
    deterministic: YesNo = Field(False, description="the same bits every time, but slower")
    memory_limit: Size | None = Field(None, description="most memory the driver may show for the process, e.g. 10GiB")
    expandable_segments: YesNo = Field(True, description="PyTorch allocator setting of onecard's own trainer")
    max_hours: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="stop after this long"
    )
    optimizer: Literal["adamw", "adamw8bit", "muon"] = Field("adamw", description="update rule")
    schedule: Literal["cosine", "wsd"] = Field("cosine", description="cosine, or warm-up, stable, decay")
    recipe: Text | None = Field(None, description="a named set of better settings; default: none, as in nanoGPT")
    param_dtype: Literal["float32", "bfloat16"] = Field("float32", description="type the weights are kept in")
    offload: Literal["none", "optimizer"] = Field("none", description="state kept in the computer's memory")
    tokenizer: Text | None = Field(None, description="tokenizer file or name; default: the data's own")
    loggers: Text = Field("", description="also log to: tensorboard, wandb, trackio")
    log_style: Literal["auto", "plain", "nanogpt"] = Field("auto", description="how progress is printed")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.n_embd % self.n_head:
            width = self.n_head * max(1, round(self.head_size / 8)) * 8
            fix = f"--n_embd={width}, a multiple of n_head={self.n_head}"
            raise KeysDoNotFit(
                f"n_embd={self.n_embd} does not divide into n_head={self.n_head} heads",
                keys=("n_head", "n_embd"),
                fix=f"--n_head={self.n_embd // 64}, heads of 64, or {fix}" if self.n_embd % 64 == 0 else fix,
            )
        if self.eval_block_size is not None and self.eval_block_size > self.block_size:
            raise KeysDoNotFit(
                f"eval_block_size={self.eval_block_size} is longer than block_size={self.block_size}",
                keys=("block_size", "eval_block_size"),
                fix=f"--eval_block_size={self.block_size}, or leave it out: evaluations then read block_size tokens",
            )
        if self.tokens_per_step > MOST_TOKENS:
            keys = ("batch_size", "gradient_accumulation_steps", "block_size")
            product = " x ".join(f"{key}={getattr(self, key)}" for key in keys)
            raise KeysDoNotFit(
                f"{product} is an update of {self.tokens_per_step:,} tokens; the limit is {MOST_TOKENS:,}",
                keys=keys,
                fix="about half a million tokens are usual: "
                "--batch_size=8 --gradient_accumulation_steps=64 --block_size=1024",
            )
        return self

    @property
    def sequences_per_step(self) -> int:
        return self.batch_size * self.gradient_accumulation_steps

    @property
    def tokens_per_step(self) -> int:
        return self.sequences_per_step * self.block_size

    @property
    def total_tokens(self) -> int:
        """Tokens read by max_iters updates."""
        return self.tokens_per_step * self.max_iters

    @property
    def starts_pretrained(self) -> bool:
        """Whether the run starts from trained weights, and so has their shape."""
        return self.init_from not in ("scratch", "resume")

    @property
    def eval_length(self) -> int:
        """Tokens of an evaluated sequence."""
        return self.eval_block_size or self.block_size

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head

    def replace(self, changes: Mapping[str, Any]) -> RunConfig:
        """A copy with some keys changed, checked like any other config."""
        return RunConfig.model_validate(self.model_dump() | dict(changes))

    def in_micro_batches(self, size: int) -> RunConfig:
        """The same run with micro-batches of `size` sequences, which must divide the sequences of an update."""
        return self.replace({"batch_size": size, "gradient_accumulation_steps": self.sequences_per_step // size})


KEYS: dict[str, str] = {key: field.description or "" for key, field in RunConfig.model_fields.items()}
NANOGPT_KEYS: frozenset[str] = frozenset(list(KEYS)[: list(KEYS).index("vocab_size")])
SHAPE_KEYS = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "bias")  # fixed once a model exists
GPT2_VOCABULARIES = (50257, 50304)  # GPT-2's as it is, and as nanoGPT rounds it up

# Keys that later versions will honour, with the value that means "as now".
NOT_BUILT_YET = {"optimizer": "adamw", "param_dtype": "float32", "offload": "none", "recipe": None, "tokenizer": None}


def not_built(config: RunConfig) -> dict[str, object]:
    """The keys of a config that ask for what this version cannot do, with their values."""
    return {key: getattr(config, key) for key, now in NOT_BUILT_YET.items() if getattr(config, key) != now}
