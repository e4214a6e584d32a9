"""RunConfig: every key a run has, flat, frozen and typed, with nanoGPT's names and defaults.

A key is one line: its type, default and meaning, what it affects, and whether a resume may change it. The check, the
flag, the docs, the JSON schema, plans, comparisons and resumes read it there; no other file lists keys by what they do.

Values come from config files and `--key=value` flags, so types are strict: a float may be `1`, a whole number `6e5`, a
bool `true`, `0` or `1`; the text `"12"` is not a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from onecard import units


class KeysDoNotFit(ValueError):
    """Values that are valid alone but not together: `keys` in the order to name them, and what to type."""

    def __init__(self, what: str, *, keys: tuple[str, ...], fix: str) -> None:
        super().__init__(what)
        self.keys, self.fix = keys, fix


def whole(value: object) -> object:
    """A number without a fraction as an int, as in 6e5; other values as they are."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _yes_or_no(value: object) -> object:
    """True and False also as `true`, and as 1 and 0: Python treats them alike, so `wandb_log = 0` works in nanoGPT."""
    if type(value) is int and value in (0, 1):
        return bool(value)
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


def _size(value: object) -> object:
    size = whole(value)
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
Count = Annotated[int, BeforeValidator(whole), Field(ge=1, le=2**24)]
Layers = Annotated[int, BeforeValidator(whole), Field(ge=1, le=128)]
Steps = Annotated[int, BeforeValidator(whole), Field(ge=0, le=2**40)]
Interval = Annotated[int, BeforeValidator(whole), Field(ge=1, le=2**40)]
Seed = Annotated[int, BeforeValidator(whole), Field(ge=0, lt=2**63)]
Size = Annotated[int, BeforeValidator(_size), Field(ge=1, le=2**63)]
YesNo = Annotated[bool, BeforeValidator(_yes_or_no)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Hours = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=4096)]
Checkpointing = Annotated[Literal["none", "selective", "full"], BeforeValidator(_checkpointing)]


MOST_TOKENS = 2**32  # per update: a thousand times what the largest models use

Effect = Literal[
    "memory",  # of the card
    "speed",  # of an update
    "loss",  # what the model learns
    "shape",  # of the weights: fixed once a model exists; so memory, speed and loss, too
    "tokens",  # how many a run reads; so the loss, too
    "schedule",  # the learning rate of each update; so the loss, too
    "measure",  # what the loss is measured on: with another value it is another quantity
    "chance",  # what differs between two runs of the same config
]
Kind = Literal[
    "path",  # a file or folder: ~ is home, and it is never empty
    "name",  # what people call the run
    "place",  # the machine and the folder of a run; a run on another machine has its own
    "limit",  # where a run ends or must stay below; it says nothing of how the run learns
    "text",  # by its type
    "size",  # by its type: bytes, typed as 12GiB
]
# Whether a resume may change a key, as the docs say it.
RESUME = {
    "no": "no",
    "yes": "yes",
    "rounding": "yes: the same mathematics; rounding may differ",
    "schedule": "yes: it says what that does to the learning rate",
    "equal tokens": "yes, at equal tokens per update",
    "same data": "only to another place of the same token files",
    "which run": "no: it says which run is meant",
}
_IMPLIED: dict[str, set[str]] = {"shape": {"memory", "speed", "loss"}, "tokens": {"loss"}, "schedule": {"loss"}}


def key(
    default: object,
    meaning: str,
    affects: str,
    *,
    kind: str = "",
    resume: str = "no",
    planned: bool = True,
    only_with: str = "",
) -> Any:
    """A key of a config. `affects` has words of Effect, or is "nothing"; `kind` has words of Kind; `resume` is a word
    of RESUME. With planned=False the plan does not know what the key does to memory and speed. `only_with` is
    what this one does nothing without: a value of another key, as optimizer=muon, or any value of it but 0."""
    said = set(affects.split()) - {"nothing"}
    effects = said.union(*(_IMPLIED.get(word, ()) for word in said))
    unknown = effects - {*get_args(Effect)} | set(kind.split()) - {*get_args(Kind)} | {resume} - RESUME.keys()
    assert not unknown, f"{meaning}: {unknown} are no words of Effect, Kind or RESUME"
    facts: dict[str, Any] = {"affects": sorted(effects), "kind": kind.split(), "resume": resume, "planned": planned}
    facts["only_with"] = only_with
    return Field(default, description=meaning, json_schema_extra=facts)


class NanoGPTConfig(BaseModel):
    """nanoGPT's keys, in its order."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    out_dir: Text = key("out", "folder of the run", "nothing", kind="path name place", resume="which run")
    eval_interval: Interval = key(2000, "updates between evaluations", "nothing", resume="yes")
    log_interval: Interval = key(1, "updates between printed lines", "nothing", resume="yes")
    eval_iters: Count = key(200, "batches per evaluation and split; costs time, not memory", "nothing")
    eval_only: YesNo = key(False, "evaluate once and stop", "loss", kind="limit", planned=False)
    always_save_checkpoint: YesNo = key(
        True, "nanoGPT: save also when not the best; onecard keeps both", "nothing", resume="yes"
    )
    init_from: Text = key(
        "scratch", "scratch, resume, a GPT-2 name, folder or checkpoint", "loss", kind="path", resume="which run"
    )
    wandb_log: YesNo = key(False, "log to Weights & Biases", "nothing", resume="yes")
    wandb_project: Text = key("owt", "Weights & Biases project", "nothing", kind="name", resume="yes")
    wandb_run_name: Text = key("gpt2", "Weights & Biases run name", "nothing", kind="name", resume="yes")
    dataset: Text = key(
        "openwebtext", "data folder, under data/ or a path", "loss measure", kind="path", resume="same data"
    )
    gradient_accumulation_steps: Count = key(
        40, "micro-batches per update", "memory speed tokens", resume="equal tokens"
    )
    batch_size: Count = key(12, "sequences per micro-batch", "memory speed tokens", resume="equal tokens")
    block_size: Count = key(1024, "tokens per sequence (context length)", "shape tokens")
    n_layer: Layers = key(12, "transformer blocks, at most 128 (Llama 3.1 405B has 126)", "shape")
    n_head: Count = key(12, "attention heads; must divide n_embd", "shape")
    n_embd: Count = key(768, "width of the model", "shape")
    dropout: Fraction = key(0.0, "share of activations dropped; 0 for pretraining", "memory speed loss")
    bias: YesNo = key(False, "biases in linear layers and norms", "shape")
    learning_rate: Rate = key(6e-4, "highest learning rate", "schedule")
    max_iters: Steps = key(600_000, "total updates (nanoGPT makes one more)", "tokens", resume="schedule")
    weight_decay: Rate = key(0.1, "weight decay of matrices and embeddings; with muon of its matrices alone", "loss")
    beta1: Fraction = key(0.9, "AdamW's first moment decay", "loss")
    beta2: Fraction = key(0.95, "AdamW's second moment decay", "loss")
    grad_clip: Rate = key(1.0, "largest gradient norm; 0 turns clipping off", "loss")
    decay_lr: YesNo = key(True, "follow the schedule; otherwise a constant rate", "schedule")
    warmup_iters: Steps = key(2000, "updates of linear warm-up", "schedule")
    lr_decay_iters: Steps = key(600_000, "updates until min_lr", "schedule", resume="schedule")
    min_lr: Rate = key(6e-5, "learning rate at the end", "schedule")
    backend: Text = key(
        "nccl", "nanoGPT's multi-GPU backend; no effect on one card", "nothing", kind="place", resume="yes"
    )
    device: Text = key("auto", "auto, cuda, cpu or mps", "nothing", kind="place", resume="rounding")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = key(
        "auto", "compute type; auto is bfloat16 where the card has it, else float16", "memory speed loss"
    )
    compile: YesNo = key(True, "torch.compile the model", "memory speed", resume="rounding")


class RunConfig(NanoGPTConfig):
    """Everything that defines a run: nanoGPT's keys and our own. `replace` makes a changed copy, checked again."""

    recipe: Literal["nanogpt", "fast"] = key(
        "nanogpt", "a named set of values: nanogpt, or fast, which needs far fewer tokens", "loss"
    )
    model: Literal["gpt2", "nanochat"] = key("gpt2", "gpt2, or a modern one: nanochat, as transformers has it", "shape")
    vocab_size: Count = key(50304, "tokens the model knows; from the data unless given", "shape measure")
    eval_batch_size: Count | None = key(
        None, "sequences per evaluation batch; default: chosen", "memory", resume="rounding"
    )
    eval_block_size: Count | None = key(None, "tokens per evaluated sequence; default: block_size", "memory measure")
    grad_checkpoint: Checkpointing = key(
        "none", "recompute activations in the backward pass (true = full)", "memory speed", resume="rounding"
    )
    loss_chunk: Count | None = key(
        None, "tokens whose logits are in memory at once; default: chosen", "memory speed", resume="rounding"
    )
    checkpoint_interval: Interval | None = key(
        None, "updates between checkpoints, besides those at evaluations; default: 15 minutes", "nothing", resume="yes"
    )
    keep_checkpoints: Count = key(2, "checkpoints kept besides the best", "nothing", resume="yes")
    seed: Seed = key(1337, "seed of weights, data order and dropout", "chance")
    deterministic: YesNo = key(False, "the same bits every time, but slower", "speed chance", planned=False)
    memory_limit: Size | None = key(
        None, "most memory the driver may show for the process, e.g. 10GiB", "memory", kind="limit", resume="rounding"
    )
    shard: Literal["none", "full"] = key(
        "none",
        "full: several cards hold a share each of weights, gradients and optimizer states (FSDP2)",
        "memory speed",
        resume="rounding",
    )
    expandable_segments: YesNo = key(True, "PyTorch allocator setting of onecard's own trainer", "memory", resume="yes")
    max_hours: Hours | None = key(None, "stop after this long", "loss", kind="limit", resume="yes")
    stop_after_worse: Steps = key(
        0,
        "stop after this many evaluations in a row whose val loss is worse than the best; 0: never",
        "loss",
        kind="limit",
        resume="yes",
    )
    optimizer: Literal["adamw", "muon"] = key(
        "adamw", "update rule; muon: for the blocks' matrices, with AdamW for the rest", "memory speed loss"
    )
    muon_learning_rate: Rate = key(
        0.02, "highest learning rate of Muon's matrices", "schedule", only_with="optimizer=muon"
    )
    muon_momentum: Fraction = key(0.95, "decay of Muon's momentum", "loss", only_with="optimizer=muon")
    muon_momentum_warmup: Steps = key(
        0, "updates over which Muon's momentum rises from 0.85", "loss", only_with="optimizer=muon"
    )
    head_learning_rate: Rate | None = key(
        None,
        "highest learning rate of a head with weights of its own; default: learning_rate",
        "schedule",
        only_with="model=nanochat",
    )
    schedule: Literal["cosine", "wsd"] = key("cosine", "cosine, or warm-up, stable, decay", "schedule")
    decay_share: Share = key(
        0.2,
        "share of lr_decay_iters in which wsd falls to min_lr; 1 is a straight line",
        "schedule",
        only_with="schedule=wsd",
    )
    sample_interval: Steps = key(
        0,
        "updates between texts that the model writes into the records; each comes with the evaluation that is next, "
        "also the first and the last; 0: none",
        "memory",
        resume="yes",
    )
    sample_prompt: Text = key(
        "",
        "what these texts begin with; default: the model begins them",
        "nothing",
        resume="yes",
        only_with="sample_interval",
    )
    loggers: Text = key("", "also log to: tensorboard, wandb, trackio", "nothing", resume="yes")
    log_style: Literal["auto", "plain", "nanogpt"] = key("auto", "how progress is printed", "nothing", resume="yes")

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
        if self.model == "nanochat":
            self._fits_nanochat()
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

    def _fits_nanochat(self) -> None:
        absent = {key: without for key, without in (("dropout", 0.0), ("bias", False)) if getattr(self, key)}
        if absent:
            without_them = " ".join(f"--{key}={without}" for key, without in absent.items())
            raise KeysDoNotFit(
                f"model=nanochat has no {' and no '.join(absent)}",
                keys=("model", *absent),
                fix=f"{without_them}, or --model=gpt2",
            )
        if self.head_size % 2:
            raise KeysDoNotFit(
                f"model=nanochat rotates pairs of numbers, and heads of {self.head_size} have an odd one",
                keys=("n_head", "n_embd"),
                fix=f"--n_embd={self.n_head * (self.head_size + 1)}, heads of {self.head_size + 1}",
            )

    @property
    def sequences_per_step(self) -> int:
        return self.batch_size * self.gradient_accumulation_steps

    @property
    def tokens_per_step(self) -> int:
        return self.sequences_per_step * self.block_size

    @property
    def total_tokens(self) -> int:
        """Tokens read by max_iters updates; none where a run only evaluates."""
        return 0 if self.eval_only else self.tokens_per_step * self.max_iters

    @property
    def learning_steps(self) -> int:
        """Updates until the run ends, or until a schedule that ends at zero leaves the rest a learning rate of zero."""
        if not self.decay_lr or self.min_lr:
            return self.max_iters
        return min(self.max_iters, max(self.lr_decay_iters, self.warmup_iters))

    @property
    def learned_tokens(self) -> int:
        """Tokens read by updates that learn."""
        return 0 if self.eval_only else self.tokens_per_step * self.learning_steps

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


@dataclass(frozen=True, kw_only=True)
class Key:
    """What the line of a key says."""

    meaning: str
    default: Any
    affects: frozenset[Effect]
    kind: frozenset[Kind]
    resume: str  # a word of RESUME
    planned: bool  # whether the plan knows what it does to memory and speed
    only_with: str  # a key with its value, or a key that is not 0, without which it does nothing; empty: none is needed
    nanogpt: bool  # whether it is nanoGPT's
    choices: tuple[str, ...]  # the words it may be; () where others are allowed


def _keys() -> dict[str, Key]:
    found = {}
    for name, field in RunConfig.model_fields.items():
        facts: Any = field.json_schema_extra
        types: dict[Kind, bool] = {
            "text": field.annotation in (str, Text | None),
            "size": field.annotation == Size | None,
        }
        found[name] = Key(
            meaning=field.description or "",
            default=field.default,
            affects=frozenset(facts["affects"]),
            kind=frozenset({*facts["kind"], *(kind for kind, is_so in types.items() if is_so)}),
            resume=facts["resume"],
            planned=facts["planned"],
            only_with=facts["only_with"],
            nanogpt=name in NanoGPTConfig.model_fields,
            choices=tuple(each for each in get_args(field.annotation) if isinstance(each, str)),
        )
    return found


KEYS = _keys()


def keys_that_affect(*effects: Effect) -> tuple[str, ...]:
    """The keys that affect any of these."""
    return tuple(name for name, key in KEYS.items() if key.affects.intersection(effects))


NANOGPT_KEYS = frozenset(NanoGPTConfig.model_fields)
SHAPE_KEYS = keys_that_affect("shape")
GPT2_SHAPE_KEYS = tuple(name for name in SHAPE_KEYS if name != "model")  # the shape of one that is GPT-2
SCHEDULE_KEYS = keys_that_affect("schedule")
# What a plan reads of a run of nanoGPT's, which has its vocabulary from the data.
PLANNED_KEYS = tuple(
    name for name in keys_that_affect("memory", "speed") if KEYS[name].planned and name in {*NANOGPT_KEYS, *SHAPE_KEYS}
)
RESUMABLE_KEYS = frozenset(name for name, key in KEYS.items() if RESUME[key.resume].startswith("yes"))
GPT2_VOCABULARIES = (50257, 50304)  # GPT-2's as it is, and as nanoGPT rounds it up
