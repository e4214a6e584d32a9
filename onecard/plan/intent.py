"""What the comments and names of a config say it is, set against what it is.

People copy configs and forget the comments. A comment costs nothing at run time, so nobody notices that the
"~125M" model has 40M parameters until the loss stalls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from onecard import units
from onecard.config.command import flags_of
from onecard.config.resolve import Resolved
from onecard.config.schema import GPT2_VOCABULARIES, KEYS, MOST_TOKENS, RunConfig
from onecard.findings import Finding
from onecard.plan.counts import count_params, shape_for_count

PARAMS_TOLERANCE = 0.15  # people say "~125M" for 123.59M
TOKENS_TOLERANCE = 0.05
UPDATE_TOLERANCE = 0.1  # an update with more or fewer tokens is another run

# As many digits as people write. Zero is not a size and not a factor (0x10 is hexadecimal).
_NUMBER = r"(?<![\d.])(?=[\d.]*[1-9])\d{1,6}(?:\.\d{1,6})?(?!\d)"
_FACTOR = r"(?<!\d)[1-9]\d{0,8}(?!\d)"
_PARAMS_IN_COMMENT = re.compile(rf"~?\s*({_NUMBER})\s*([MB])\b(?!\s*(?:tok|B\b))", re.ASCII)
_PARAMS_IN_NAME = re.compile(rf"(?:^|[-_/ ])({_NUMBER})([mM])(?:$|[-_/ .])", re.ASCII)
_ABOUT_PARAMS = re.compile(r"param|model", re.IGNORECASE)
_TIMES = r"\s*[*x×]\s*"
_PRODUCT = re.compile(
    rf"(?<![*.])({_FACTOR}){_TIMES}({_FACTOR})(?:{_TIMES}({_FACTOR}))?(?:\s*=\s*([\d,_]+))?", re.ASCII
)
_TOKENS = re.compile(rf"({_NUMBER})\s*([MBT])\s*tok", re.ASCII)
_SCALE = {"M": 10**6, "B": 10**9, "T": 10**12}


def intent_findings(resolved: Resolved) -> list[Finding]:
    """Where a config's comments and names contradict its values."""
    return [
        *_params_said(resolved),
        *_sequences_said(resolved),
        *_tokens_said(resolved),
        *_accumulation_forgotten(resolved),
        *_vocabulary_unsaid(resolved),
        *_odd_head_size(resolved),
    ]


def _params_said(resolved: Resolved) -> Iterator[Finding]:
    config = resolved.config
    params = count_params(config)
    sizes = (config.vocab_size, *GPT2_VOCABULARIES)  # the same shape with GPT-2's tokens is what most names are of
    gpt2s = (config.model_copy(update={"model": "gpt2", "vocab_size": size}) for size in sizes)
    counted = (params.total, params.nanogpt, *(count_params(each).total for each in gpt2s))
    if any(resolved.origins[key].startswith("--") for key in ("n_layer", "n_embd", "vocab_size")):
        return  # a size that was typed is meant, whatever the comments say
    free_to_choose = not config.starts_pretrained
    said: dict[int, list[tuple[str, str]]] = {}  # parameters -> (who says so, the words)
    # beside another key, as in `learning_rate = 6e-4  # GPT-3's for a 125M model`, a size explains that key's value
    elsewhere = {line for key, line in resolved.lines.items() if key in KEYS and not _is_about_the_model(key)}
    for line, comment in resolved.comments.items():
        if line not in elsewhere and _ABOUT_PARAMS.search(comment):
            for number, letter in _PARAMS_IN_COMMENT.findall(comment):
                said.setdefault(round(float(number) * _SCALE[letter]), []).append(
                    ("comment", f"line {line}: # {comment}")
                )
    for key, who in (("wandb_run_name", "run name"), ("out_dir", "out_dir")):
        text = getattr(config, key)
        if resolved.origins[key] != "default":
            for number, _ in _PARAMS_IN_NAME.findall(text):
                said.setdefault(round(float(number) * 1e6), []).append((who, f"{key} = {text!r}"))
    by = resolved.origins["n_embd"].removeprefix("in ")  # of a run folder
    for wanted, witnesses in said.items():
        if any(abs(count - wanted) <= PARAMS_TOLERANCE * wanted for count in counted):
            continue
        patch = shape_for_count(config, wanted)
        reached = count_params(config.replace(patch)).nanogpt
        if free_to_choose and abs(reached - wanted) <= PARAMS_TOLERANCE * wanted:
            heads = patch.get("n_head")
            wide = f"{patch['n_embd']}" + (f" with {units.things(heads, 'head')}" if heads else "")
            meant = f"; {wide} gives {units.count(reached)}"
            fix = f"{' '.join(f'--{key}={value}' for key, value in patch.items())} if that size was meant; otherwise "
        else:  # no width comes near it, or the weights it starts from have theirs
            patch, meant, fix = {}, "", ""
        who = " and ".join(dict.fromkeys(f"the {who}" if i == 0 else who for i, (who, _) in enumerate(witnesses)))
        yield Finding(
            rule="params-mismatch",
            severity="warn",
            sure="high",
            what=f"{who} {'say' if len(witnesses) > 1 else 'says'} ~{units.count(wanted).replace('.00', '')}; "
            f"this config is {units.count(params.nanogpt)} "
            f"(n_embd={config.n_embd}{meant})",
            why=f"parameters grow with the square of n_embd; this config's is set by {by}",
            fix=f"{fix}fix the comment or the name",
            seen=tuple(words for _, words in witnesses),
            patch=patch,
        )


def _is_about_the_model(key: str) -> bool:
    """Whether a comment beside a key is about the model: its shape, its name, the weights it starts from."""
    return "shape" in KEYS[key].affects or "name" in KEYS[key].kind or key == "init_from"


def _sequences_said(resolved: Resolved) -> Iterator[Finding]:
    config = resolved.config
    lines = {resolved.lines[key] for key in ("batch_size", "gradient_accumulation_steps") if key in resolved.lines}
    truth = {config.batch_size, config.gradient_accumulation_steps}
    for line in sorted(line for line in lines if line in resolved.comments):
        for first, second, third, result in _PRODUCT.findall(resolved.comments[line]):
            factors = [int(factor) for factor in (first, second, third) if factor]
            if set(factors) == (truth | {config.block_size} if third else truth):
                continue
            said = math.prod(factors)
            actual = config.tokens_per_step if third else config.sequences_per_step
            unit = "tokens" if third else "sequences"
            words = " * ".join(str(factor) for factor in factors) + (f" = {result}" if result else "")
            product = f"{config.batch_size} * {config.gradient_accumulation_steps}"
            product += f" * {config.block_size:,}" if third else ""
            same = said == actual
            yield Finding(
                rule="stale-comment",
                severity="info",
                sure="high",
                what=f"the comment says {words} {unit}; this is {product}" + ("" if same else f" = {actual:,}"),
                why="the same product from other factors"
                if same
                else f"that is {actual / said:.2g} times as many per update",
                fix="fix the comment" if same else "fix the comment, or set batch_size and gradient_accumulation_steps",
                seen=(f"line {line}: # {resolved.comments[line]}",),
            )


def _tokens_said(resolved: Resolved) -> Iterator[Finding]:
    config = resolved.config
    line = resolved.lines.get("max_iters")
    comment = resolved.comments.get(line, "") if line else ""
    for number, letter in _TOKENS.findall(comment):
        said = float(number) * _SCALE[letter]
        if abs(config.total_tokens - said) > TOKENS_TOLERANCE * said:
            yield Finding(
                rule="stale-comment",
                severity="info",
                sure="high",
                what=f"the comment says ~{number}{letter} tokens; this run reads {units.count(config.total_tokens)}",
                why=f"{config.max_iters:,} updates of {config.tokens_per_step:,} tokens",
                fix=f"fix the comment, or set {flags_of({'max_iters': round(said / config.tokens_per_step)})} "
                f"to read {number}{letter} tokens",
                seen=(f"line {line}: # {comment}",),
            )


def _accumulation_forgotten(resolved: Resolved) -> Iterator[Finding]:
    """A flag that changes the micro-batch changes the tokens per update, unless the accumulation is changed too."""
    config, before = resolved.config, resolved.overridden.get("batch_size")
    if not isinstance(before, int) or "gradient_accumulation_steps" in resolved.typed:
        return
    sequences = before * config.gradient_accumulation_steps
    meant = sequences * config.block_size
    if 0 < meant <= MOST_TOKENS and config.tokens_per_step != meant:
        batch, steps = config.batch_size, max(1, round(sequences / config.batch_size))
        patch, unkept = {"gradient_accumulation_steps": steps}, ""
        if not _is_near(batch * steps, sequences):
            batch, steps = _largest_batch(sequences, at_most=config.batch_size)
            patch = {"batch_size": batch, "gradient_accumulation_steps": steps}
            unkept = f"no accumulation keeps it at {config.batch_size}; "
        kept = batch * steps * config.block_size
        keeps = "exactly" if kept == meant else f"nearly: {kept:,}"
        yield Finding(
            rule="accumulation-for-target",
            severity="info",
            sure="high",
            what=f"{flags_of({'batch_size': config.batch_size})} makes an update of {config.tokens_per_step:,} tokens; "
            f"the file's {before} x {config.gradient_accumulation_steps} makes {meant:,}",
            why="tokens per update are batch_size x gradient_accumulation_steps x block_size",
            fix=f"{unkept}{flags_of(patch)} keeps it {keeps}",
            seen=(f"batch_size = {before} ({resolved.source}:{resolved.lines.get('batch_size')})",),
            patch=patch,
        )


def _largest_batch(sequences: int, *, at_most: int) -> tuple[int, int]:
    """The largest micro-batch, with its accumulation, that makes about `sequences` per update."""
    fewest = -(-sequences // at_most)
    each = ((round(sequences / steps), steps) for steps in range(fewest, sequences + 1))
    return next((batch, steps) for batch, steps in each if _is_near(batch * steps, sequences))


def _is_near(made: int, wanted: int) -> bool:
    return abs(made - wanted) <= UPDATE_TOLERANCE * wanted


def _vocabulary_unsaid(resolved: Resolved) -> Iterator[Finding]:
    """Character datasets have a small vocabulary. nanoGPT reads it from meta.pkl in the data folder."""
    config = resolved.config
    if resolved.origins["vocab_size"] == "default" and re.search(r"(^|[-_])char", config.dataset):
        small = count_params(config.replace({"vocab_size": 65})).nanogpt
        yield Finding(
            rule="vocabulary-from-data",
            severity="info",
            sure="medium",
            what=f"dataset {config.dataset!r} looks character-level; this plan assumes {config.vocab_size:,} tokens",
            why=f"the data folder was not read; nanoGPT takes vocab_size from it (65 would give {units.count(small)})",
            fix=f"{flags_of({'vocab_size': 65})} for Shakespeare's characters",
            seen=(f"dataset = {config.dataset!r} ({resolved.origins['dataset']})",),
        )


def _odd_head_size(resolved: Resolved) -> Iterator[Finding]:
    """Heads that fast kernels must pad. Heads that are only a little slower are left to the doctor."""
    config, origins = resolved.config, resolved.origins
    if config.starts_pretrained:  # the heads are those of its weights
        return
    seen = tuple(f"{key} = {getattr(config, key)} ({origins[key]})" for key in ("n_embd", "n_head"))
    finding = head_size_finding(config, seen=seen)
    if finding and finding.severity == "warn":
        yield finding


def head_size_finding(config: RunConfig, *, seen: tuple[str, ...]) -> Finding | None:
    """A finding about the head size; None at 64 and 128, for which attention kernels are tuned."""
    if config.head_size in (64, 128):
        return None
    odd = config.head_size % 8 != 0
    heads = max(1, round(config.n_embd / 64))
    fits = config.n_embd % heads == 0 and config.n_embd // heads in (64, 128)
    patch = {"n_head": heads} if fits else {"n_embd": heads * 64, "n_head": heads}
    return Finding(
        rule="odd-head-size",
        severity="warn" if odd else "info",
        sure="high",
        what=f"heads are {config.head_size} wide ({config.n_embd} / {config.n_head})",
        why="flash attention pads them to a multiple of 8"
        if odd
        else "attention kernels are tuned for 64 and 128; this works, a little slower",
        fix=" ".join(f"--{key}={value}" for key, value in patch.items()) + ", heads of 64",
        seen=seen,
        patch=patch if odd else {},
    )
