"""defaults < recipe < file < --key=value: one checked RunConfig, and where each of its values came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources

from pydantic import ValidationError

from onecard import units
from onecard.config.hf_config import OPENAI_CONTEXT, OPENAI_WEIGHTS, openai_weights
from onecard.config.names import meant_by, nearest
from onecard.config.paths import expanded, refuse_empty
from onecard.config.plain import plain
from onecard.config.reader import MAX_NUMBER, ConfigFile, NotAConfig, Value, is_too_large, read_config, read_value
from onecard.config.recipes import NANOGPT, RECIPES, following, keys_between, recipe_values, values_back
from onecard.config.schema import KEYS, NANOGPT_KEYS, PLANNED_KEYS, KeysDoNotFit, RunConfig, keys_that_affect
from onecard.config.shown import typed
from onecard.errors import ConfigError

# Without these a plan would describe another run, so a file must state them, and not leave them to code.
NEEDED_KEYS = frozenset({*PLANNED_KEYS, *keys_that_affect("tokens")})
PACKAGED_DEFAULT = "packaged default"
_OVER = ", over "  # between the origin of a value and that of the one it replaces


@dataclass(frozen=True)
class Resolved:
    """A config with its history."""

    config: RunConfig
    origins: Mapping[str, str]  # key -> "default", "recipe fast", "train_gpt2.py:12", "--batch_size"
    warnings: tuple[str, ...] = ()  # sentences about what has no effect, or was not read
    source: str | None = None  # the file's name as shown; None for the packaged default
    comments: Mapping[int, str] = field(default_factory=dict)  # of the file, by line
    lines: Mapping[str, int] = field(default_factory=dict)  # where the file sets each name
    overridden: Mapping[str, object] = field(default_factory=dict)  # what the file said where a flag says otherwise
    unused: tuple[str, ...] = ()  # keys the file sets and nanoGPT does not have
    without_recipe: Mapping[str, object] = field(default_factory=dict)  # the recipe's keys as nanoGPT's recipe has them

    @property
    def set_by_user(self) -> dict[str, object]:
        """The values that somebody set, in the file or with a flag."""
        return {key: getattr(self.config, key) for key, origin in self.origins.items() if not _nobody_set(origin)}

    @property
    def typed(self) -> dict[str, object]:
        """The values set on the command line, which no file holds."""
        return {key: getattr(self.config, key) for key, origin in self.origins.items() if origin.startswith("--")}


def resolve(
    text: str | None,
    *,
    filename: str | None = None,
    flags: Iterable[tuple[str, str]] = (),
    others: Callable[[], Sequence[str]] = tuple,
) -> Resolved:
    """The config of a file's text (or the packaged default) under flags such as ("n_layer", "6").

    `others` looks for config files nearby; it is called only where this file is not one.
    """
    if text is None:
        default = resources.files("onecard.config").joinpath("packaged_default.py").read_text()
        return _under_flags(_read(default, PACKAGED_DEFAULT), flags, shown=PACKAGED_DEFAULT, packaged=True)
    shown = filename or "config"
    file = _read(text, shown)
    if not file.is_blank and not file.lines.keys() & KEYS.keys():
        raise _sets_no_key(file, shown, others())
    resolved = _under_flags(file, flags, shown=shown)
    if not file.is_blank:
        return resolved
    return replace(resolved, warnings=(f"{shown} sets nothing: nanoGPT's defaults apply", *resolved.warnings))


def _sets_no_key(file: ConfigFile, shown: str, others: Sequence[str]) -> ConfigError:
    """The error for Python that is not a config, such as model.py, or whose keys are all mistyped."""
    meant = [f"`{near} = {_short(value)}`" for key, value in file.values.items() if (near := nearest(key, KEYS))]
    example = "a config has lines such as `n_layer = 12`"
    fix = f"did you mean {', '.join(meant[:3])} ?" if meant else example
    return ConfigError(
        f"{shown} sets no config key",
        why="none of the names that it sets is a key of nanoGPT or onecard, such as n_layer or batch_size",
        fix=f"name a config, such as {' or '.join(others[:3])}" if others and not meant else fix,
        name="no-config-key",
    )


def resolve_mapping(keys: Mapping[str, object], *, flags: Iterable[tuple[str, str]] = ()) -> Resolved:
    """The config of keys and values as a program has them, nanoGPT's defaults for the rest; an unknown key is refused.

    The line of a key is its place among the others.
    """
    _refuse_unknown({str(key): _short(value) for key, value in keys.items() if key not in KEYS})
    values = {key: plain(value) for key, value in keys.items()}
    file = ConfigFile(values=values, lines={key: place for place, key in enumerate(keys, 1)})
    return _under_flags(file, flags, shown="config")


def _under_flags(file: ConfigFile, flags: Iterable[tuple[str, str]], *, shown: str, packaged: bool = False) -> Resolved:
    given = flag_values(flags)
    written_for = str(file.values.get("recipe", NANOGPT))
    recipe = str(given.get("recipe", written_for))
    replaced = keys_between(recipe, written_for)
    stated = {key: value for key, value in file.values.items() if key not in replaced}
    back = values_back({**stated, **given}) if written_for != NANOGPT else {}
    of_recipe = recipe_values(recipe, {**stated, **given}) or back
    values: dict[str, object] = {}
    origins = dict.fromkeys(KEYS, "default")
    for key in KEYS:
        in_file = shown if packaged else f"{shown}:{file.lines.get(key)}"
        if key in given:
            values[key], origins[key] = given[key], f"--{key}"
        elif key in stated:
            values[key], origins[key] = stated[key], in_file
        elif key in of_recipe:
            over = f"{_OVER}{in_file}" if key in file.values and not packaged else ""
            values[key], origins[key] = of_recipe[key], f"recipe {recipe}{over}"
    warnings = [] if packaged else _warnings(file, shown, {**dict.fromkeys(replaced), **of_recipe, **given})
    if not packaged:
        warnings += _replaced(file, shown, recipe, {key: values.get(key, KEYS[key].default) for key in replaced})
    warnings += _take_gpt2_shape(values, origins)
    config = checked(values, origins)
    warnings += _idle(config, origins, of_recipe)
    nanogpts = file.values if written_for == NANOGPT else back
    without = {key: nanogpts.get(key, KEYS[key].default) for key in keys_between(recipe, NANOGPT)}
    return Resolved(
        config,
        origins,
        tuple(warnings),
        source=None if packaged else shown,
        comments=file.comments,
        lines=file.lines,
        overridden={key: file.values[key] for key in file.values if key in given or key in replaced},
        unused=() if packaged else tuple(_unused(file)),
        without_recipe=without,
    )


def _replaced(file: ConfigFile, shown: str, recipe: str, values: Mapping[str, object]) -> list[str]:
    """A warning that names the file's values that a flag's recipe replaces."""
    lost = {key: said for key, said in file.values.items() if key in values and said != values[key] and key != "recipe"}
    if not lost:
        return []
    first = next(iter(lost))
    listed = ", ".join(f"{key}={typed(key, said)}" for key, said in lost.items())
    keep = f"--{first}={typed(first, lost[first])}"
    return [f"--recipe={recipe} replaces {listed} of {shown}; to keep one, type it: {keep}"]


def _read(text: str, shown: str) -> ConfigFile:
    defaults: dict[str, Value] = {key: KEYS[key].default for key in NANOGPT_KEYS}
    defaults["device"] = "cuda"
    del defaults["dtype"]  # nanoGPT asks the card
    try:
        file = read_config(text, defaults)
    except NotAConfig as problem:
        raise ConfigError(
            f"{shown} is not a config file",
            why=str(problem),
            fix="a config has lines such as `n_layer = 12`; for a log: onecard doctor FILE",
            name="unreadable-config",
        ) from problem
    if not text.strip() and not shown.endswith(".py"):  # nanoGPT accepts an empty .py
        raise ConfigError(
            f"{shown} sets nothing",
            why="it is empty",
            fix="put a line such as `n_layer = 12` into it, or leave the file out: then a small default is used",
            name="empty-config",
        )
    # nanoGPT's own default line, copied into many configs, means what `auto` means here
    if "is_bf16_supported" in file.unresolved.get("dtype", ""):
        file.values["dtype"] = "auto"
        del file.unresolved["dtype"]
    return file


def flag_values(flags: Iterable[tuple[str, str]]) -> dict[str, object]:
    """The values of `--key=value` flags, read like those of a file; an unknown key is refused."""
    typed = dict(flags)
    _refuse_unknown(typed, sign="--")
    given: dict[str, object] = {}
    for key, text in typed.items():
        value = read_value(text)
        is_text = "text" in KEYS[key].kind and value is not None  # --dataset=2024 names one, --dataset=None does not
        value = text if is_text and not isinstance(value, str) else value
        if "path" in KEYS[key].kind and isinstance(value, str):
            refuse_empty(f"--{key}", value)
            value = expanded(value)
        given[key] = value
    return given


def _refuse_unknown(given: Mapping[str, str], *, sign: str = "") -> None:
    """ConfigError if any of these is not a config key; the fix has the nearest key with the same value."""
    unknown = [key for key in given if key not in KEYS]
    if not unknown:
        return
    meant = [f"{sign}{near}" for key in unknown if (near := meant_by(key, given[key], KEYS))]
    are = "is not a config key" if len(unknown) == 1 else "are not config keys"
    raise ConfigError(
        f"{units.listed(sign + key for key in unknown)} {are}",
        why="an unknown key is an error, so that a typo never passes silently",
        fix=f"did you mean {' '.join(meant)} ?" if meant else "onecard plan --explain lists all keys",
        name="unknown-key",
    )


def _warnings(file: ConfigFile, shown: str, given: Mapping[str, object]) -> list[str]:
    warnings = []
    unused = _unused(file)
    is_gpt2 = given.get("model", file.values.get("model", "gpt2")) == "gpt2"
    ignored = [key for key in unused if key in KEYS and is_gpt2]  # no other model is nanoGPT's to run
    unknown = [key for key in unused if key not in KEYS]
    if ignored or unknown:
        said = []
        if unknown:
            guesses = {key: nearest(key, KEYS) for key in unknown}
            said.append("unknown, ignored: " + ", ".join(f"{k} ({g}?)" if g else k for k, g in guesses.items()))
        if ignored:
            honours = "it" if len(ignored) == 1 else "them"
            said.append(f"nanoGPT would silently ignore {', '.join(ignored)}; onecard honours {honours}")
        warnings.append(f"{shown}: " + "; ".join(said))
    unresolved = [key for key in KEYS if key in file.unresolved and key not in given]
    unresolved.sort(key=lambda key: file.lines[key])
    if needed := [key for key in unresolved if key in NEEDED_KEYS]:
        raise _not_known(needed, file, shown)
    for key in unresolved:
        snippet = file.unresolved[key].splitlines()[0]
        where = f"{shown}:{file.lines[key]}"
        warnings.append(f"{where}: {key} is left at its default; it comes from code that was not run: {snippet}")
    for line, snippet in file.code.items():
        warnings.append(f"{shown}:{line}: not run, and could change any value: {snippet.splitlines()[0]}")
    return warnings


def _not_known(keys: Sequence[str], file: ConfigFile, shown: str) -> ConfigError:
    """The error for keys that a plan needs and only code sets, all at once."""
    lines = list(dict.fromkeys(file.lines[key] for key in keys))
    code = list(dict.fromkeys(file.unresolved[key].splitlines()[0] for key in keys))
    where = f"{shown}:{lines[0]}" if len(lines) == 1 else f"{shown}, lines {units.listed(map(str, lines))}"
    one = len(keys) == 1
    return ConfigError(
        f"{where}: the {'value' if one else 'values'} of {units.listed(keys)} {'is' if one else 'are'} not known",
        why=f"{'it comes' if one else 'they come'} from code, and configs are read, never run: {'; '.join(code)}",
        fix=f"set {'it' if one else 'them'} on the command line: "
        + " ".join(f"--{key}={file.earlier.get(key, 'VALUE')}" for key in keys),
        name="unresolved-key",
    )


def _idle(config: RunConfig, origins: Mapping[str, str], of_recipe: Mapping[str, object]) -> list[str]:
    """Warnings about values that somebody set and that do nothing here; of `of_recipe` a run's config.json has some."""
    new = {
        key: value
        for key, value in config.model_dump().items()
        if not _nobody_set(origins[key]) and value != of_recipe.get(key, KEYS[key].default)
    }
    warnings = []
    for key in new:
        other, _, needed = KEYS[key].only_with.partition("=")
        is_known = other != "model" or not config.starts_pretrained  # weights bring their own model
        if other and is_known and not (getattr(config, other) == needed if needed else getattr(config, other)):
            beside = f"{other}={getattr(config, other)}"
            warnings.append(f"{key} has no effect with {beside}: it counts with {KEYS[key].only_with}")
    if config.model == "nanochat" and new.get("grad_checkpoint") == "selective":
        why = "its blocks keep nothing that could be left out"
        warnings.append(f"grad_checkpoint=selective has no effect with model=nanochat: {why}")
    return warnings


def _take_gpt2_shape(values: dict[str, object], origins: dict[str, str]) -> list[str]:
    """Overwrite the shape where the run starts from OpenAI's weights, whatever the config says, as nanoGPT does; warns
    of keys that then have no effect."""
    name = values.get("init_from")
    if (weights := openai_weights(name)) is None:
        return []
    _check_model(values, origins, held="gpt2", by=f"init_from={name}")
    if isinstance(size := values.get("block_size"), int) and size > OPENAI_CONTEXT:
        raise context_too_long(size, OPENAI_CONTEXT, name)
    n_layer, n_head, n_embd = OPENAI_WEIGHTS[weights]
    sizes = {"n_layer": n_layer, "n_head": n_head, "n_embd": n_embd, "vocab_size": 50257}
    shape = {"model": "gpt2", **sizes, "bias": True}
    warnings = _set_in_vain(shape, values, origins, origin=f"init_from={name}")
    values |= shape
    origins |= dict.fromkeys(shape, f"init_from={name}")
    return warnings


def with_shape(resolved: Resolved, shape: Mapping[str, object], *, origin: str) -> Resolved:
    """The config with the shape of the weights it starts from; a shorter block_size stays, as in nanoGPT."""
    config = resolved.config
    _check_model(config.model_dump(), resolved.origins, held=shape.get("model", "gpt2"), by=origin)
    fixed = {key: value for key, value in shape.items() if key != "block_size"}
    longest = shape["block_size"]
    if isinstance(longest, int) and config.block_size > longest:
        if not _nobody_set(resolved.origins["block_size"]):
            raise context_too_long(config.block_size, longest, origin)
        fixed["block_size"] = longest
    warnings = _set_in_vain(fixed, config.model_dump(), resolved.origins, origin=origin)
    shaped = checked({**config.model_dump(), **fixed}, {**resolved.origins, **dict.fromkeys(fixed, origin)})
    return replace(
        resolved,
        config=shaped.replace({**following(config.model_dump(), shaped.model_dump()), **fixed}),
        origins={**resolved.origins, **dict.fromkeys(fixed, origin)},
        warnings=(*resolved.warnings, *warnings),
    )


def context_too_long(block_size: int, longest: int, source: object) -> ConfigError:
    """The error for weights that were trained on shorter contexts."""
    return ConfigError(
        f"block_size={block_size} is longer than the {longest} positions of {source}",
        why="the model was not trained on the positions beyond",
        fix=f"--block_size={longest}",
        name="context-too-long",
    )


def _check_model(values: Mapping[str, object], origins: Mapping[str, str], *, held: object, by: str) -> None:
    """ConfigError where the recipe's model is another than the one that weights are of."""
    if values.get("model", "gpt2") == held or not origins["model"].startswith("recipe "):
        return
    raise ConfigError(
        f"recipe={values['recipe']} trains model={values['model']}, and {by} is a {held}",
        why="a recipe's rates are for its own model, from random weights on",
        fix="--recipe=nanogpt, or a run from scratch: --init_from=scratch",
        name="keys-do-not-fit",
    )


def _set_in_vain(
    shape: Mapping[str, object], values: Mapping[str, object], origins: Mapping[str, str], *, origin: str
) -> list[str]:
    asked = [key for key in shape if origins[key] != origin and not _nobody_set(origins[key])]
    keys = [key for key in asked if values[key] != shape[key]]
    verb = "has" if len(keys) == 1 else "have"
    return [f"{origin} fixes the shape: {', '.join(keys)} {verb} no effect"] if keys else []


def _nobody_set(origin: str) -> bool:
    """Whether nobody set a value with this origin."""
    return origin.partition(_OVER)[0] in ("default", PACKAGED_DEFAULT, *(f"recipe {name}" for name in RECIPES))


def _unused(file: ConfigFile) -> list[str]:
    """What the file sets and nanoGPT does not have: onecard's own keys, typos, notes to oneself."""
    own = [key for key in file.values if key in KEYS and key not in NANOGPT_KEYS]
    return own + [k for k in (*file.values, *file.unresolved) if k not in KEYS and _looks_like_a_key(k, file)]


def _looks_like_a_key(name: str, file: ConfigFile) -> bool:
    """Not an import, a private name, or a helper that a later line reads."""
    snippet = file.unresolved.get(name, "")
    return not (name.startswith("_") or name in file.used or snippet.startswith(("import ", "from ", "def ", "class ")))


def assignments(values: Mapping[str, object]) -> str:
    """Keys and values as a config file has them, line by line."""
    return "".join(f"{key} = {value!r}\n" for key, value in values.items())


def checked(values: Mapping[str, object], origins: Mapping[str, str]) -> RunConfig:
    try:
        return RunConfig.model_validate(dict(values))
    except ValidationError as problem:
        raise _config_error(problem, origins) from problem


def _config_error(problem: ValidationError, origins: Mapping[str, str]) -> ConfigError:
    first = problem.errors()[0]
    if not first["loc"]:  # a check between keys
        mismatch: KeysDoNotFit = first["ctx"]["error"]
        set_by = ", ".join(f"{key}: {origins[key]}" for key in mismatch.keys)
        return ConfigError(str(mismatch), why=f"set by {set_by}", fix=mismatch.fix, name="keys-do-not-fit")
    key = str(first["loc"][0])
    shown = _short(first["input"])
    limits = first.get("ctx", {})
    why = f"{key} is: {KEYS[key].meaning} (set by {origins[key]})"
    if first["type"] == "value_error":
        fix = f"--{key}={_meant_size(first['input'])}"
        return ConfigError(f"{key}={shown} {limits['error']}", why=why, fix=fix, name="bad-value")
    wanted = {
        "int_type": "a whole number",
        "float_type": "a number",
        "bool_type": "True or False",
        "string_type": "text",
        "string_unicode": "text in UTF-8",
        "finite_number": "a finite number",
        "greater_than_equal": f"at least {limits.get('ge')}",
        "greater_than": f"more than {limits.get('gt')}",
        "less_than_equal": f"at most {limits.get('le')}",
        "less_than": f"less than {limits.get('lt')}",
        "literal_error": f"one of {limits.get('expected')}",
        "string_too_long": f"text of at most {limits.get('max_length')} characters",
    }.get(first["type"], first["msg"])
    meant = nearest(str(first["input"]), KEYS[key].choices) or KEYS[key].default
    too_large = (
        isinstance(first["input"], str) and first["type"] in ("int_type", "float_type") and is_too_large(first["input"])
    )
    return ConfigError(
        f"{key}={first['input']:.60} is too large: numbers end at {MAX_NUMBER:.0e}"
        if too_large
        else f"{key}={shown} is not {wanted}",
        why=why,
        fix=f"--{key}={meant}" if meant is not None else f"leave {key} out",
        name="bad-value",
    )


def _meant_size(value: object) -> str:
    """The size that was probably meant: a unit was forgotten, or a comma typed for a point."""
    if isinstance(value, int | float):
        return f"{value}GiB"
    return (units.with_point(value, parse=units.parse_bytes) if isinstance(value, str) else None) or "10GiB"


def _short(value: object) -> str:
    """A value as a program writes it, cut to fit a line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
