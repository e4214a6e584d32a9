"""Compares a run with its GGUF files in llama.cpp itself: tokens, next-token probabilities, greedy text.

    python3 -m venv /tmp/llama && /tmp/llama/bin/pip install llama-cpp-python
    python bench/gguf_in_llama_cpp.py RUN… --llama /tmp/llama/bin/python

For each run it writes f32, f16 and q8_0 beside it (in RUN/export, if they are not there) and prints one line each:

- the largest and the mean difference between a probability of onecard's and llama.cpp's, over every token of the
  vocabulary at every position of TEXTS that fit the context, with float32 keys and values in llama.cpp
- at how many of the steps the likeliest token is the same; and after how many tokens the greedy text of a prompt parts
- how many texts have other tokens in llama.cpp: TEXTS, and those of random characters
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np

TEXTS = {
    "spaces": "  two  three   and\ttabs\n\n\n  lines \r\n end ",
    "English": "It's what we'll see: they've 12345 reasons, don't they? \"Yes,\" she said... THE END!",
    "accents": "Ça va? Naïve café, Straße, smörgåsbord, Ελληνικά, Ångström, ﬁn",
    "emoji": "🙂 👩‍👩‍👧 🇫🇷 ok 👍🏽👍 ❤️.",
    "Arabic": "مرحبا بالعالم، كيف حالك؟ ١٢٣",
    "Devanagari": "नमस्ते दुनिया, आप कैसे हैं? १२३",
    "Chinese": "世界，你好！第１２章",
    "code": 'def f(self, x: int = 0) -> str:\n    return f"{x!r:>{10}}"  # \\x00 <|done|>\n\n\tif x != 1e-5:\n\t\tpass',
}
PROMPTS = ("def ", "The ", "import os\n", "class A:\n    def __init__(self")
RANDOM_TEXTS, GREEDY_TOKENS = 300, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--llama", type=Path, help="the Python that has llama-cpp-python")
    parser.add_argument("--in-llama", type=Path, help=argparse.SUPPRESS)  # the other side, in that Python
    given = parser.parse_args()
    if given.in_llama:
        in_llama(given.in_llama)
        return
    for run in given.runs:
        for number_type in ("f32", "f16", "q8_0"):
            print(f"{run} {number_type}: {compared(run, number_type, given.llama)}", flush=True)


def compared(run: Path, number_type: str, llama: Path) -> str:
    import torch

    from onecard.data.samples import printable
    from onecard.inputs.before_run import config_of
    from onecard.inputs.tokenizer import tokenizer_of
    from onecard.runs.folder import load_run
    from onecard.train.interchange import read_run
    from onecard.train.model import GPT
    from onecard.train.sample import generate

    config = config_of(run, load_run(run).config)
    tokenizer, snapshot = tokenizer_of(run, config), read_run(run)
    model = GPT(config)
    model.load_state_dict({**snapshot.weights, "lm_head.weight": snapshot.weights["transformer.wte.weight"]})
    model.eval()
    texts = {name: text for name, text in [*TEXTS.items(), *random_texts()] if encodes(tokenizer, text)}
    tokens = {name: tokenizer.encode(text) for name, text in texts.items()}
    parts = {name: tokens[name][: config.block_size] for name in TEXTS if name in tokens}
    prompts = [prompt for prompt in PROMPTS if encodes(tokenizer, prompt)]
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "file": str(exported(run, number_type)),
            "texts": texts,
            "parts": parts,
            "prompts": [tokenizer.encode(prompt) for prompt in prompts],
            "context": config.block_size,
        }
        Path(folder, "asked.json").write_text(json.dumps(asked))
        subprocess.run([llama, __file__, "--in-llama", folder], check=True)
        theirs = json.loads(Path(folder, "answered.json").read_text())
        differences, same = [], []
        for name, part in parts.items():
            with torch.no_grad():
                logits = model.logits(model.hidden(torch.tensor([part]))[0])[:, : tokenizer.vocab_size]
            ours = torch.softmax(logits.double(), dim=-1).numpy()
            probabilities = np.load(Path(folder, f"{name}.npy"))
            differences.append(np.abs(ours - probabilities))
            same.append(ours.argmax(-1) == probabilities.argmax(-1))
    largest, mean = (f(np.concatenate([part.ravel() for part in differences])) for f in (np.max, np.mean))
    likeliest = np.concatenate(same)
    other = [name for name in texts if theirs["tokens"][name] != tokens[name]]
    parted = []
    for prompt, answer in zip(prompts, theirs["greedy"], strict=True):
        count = len(answer)
        size = tokenizer.vocab_size
        wanted = list(generate(model, tokenizer.encode(prompt), max_new_tokens=count, temperature=0, vocab_size=size))
        first = next((index for index in range(count) if wanted[index] != answer[index]), None)
        parted.append(f"all {count}" if first is None else f"{first} of {count}")
    shown = f"; other tokens: {printable(', '.join(other[:5]))}" if other else ""
    return (
        f"probabilities differ by at most {largest:.1e}, {mean:.1e} on average; likeliest the same at "
        f"{likeliest.sum()} of {likeliest.size} positions; greedy tokens the same: {', '.join(parted)}; "
        f"{len(texts) - len(other)} of {len(texts)} texts have the same tokens{shown}"
    )


def exported(run: Path, number_type: str) -> Path:
    """The file of a run in this type; written if it is not there."""
    found = sorted(run.glob(f"export/*-{number_type}.gguf"))
    if not found:
        command = [sys.executable, "-m", "onecard", "export", str(run), "--to", "gguf", "--type", number_type]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return found[-1] if found else sorted(run.glob(f"export/*-{number_type}.gguf"))[-1]


def random_texts() -> list[tuple[str, str]]:
    """Short texts of characters from everywhere in Unicode that are assigned, with spaces between some."""
    chosen = random.Random(1)
    known = [chr(code) for code in range(32, 0x1FAFF) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]
    return [
        (f"random {number}", "".join(chosen.choice([*chosen.choices(known, k=2), " "]) for _ in range(30)))
        for number in range(RANDOM_TEXTS)
    ]


def encodes(tokenizer: Any, text: str) -> bool:
    """Whether a tokenizer has every character of a text; a vocabulary of characters may not."""
    from onecard.errors import OnecardError

    try:
        return bool(tokenizer.encode(text))
    except OnecardError:
        return False


def in_llama(folder: Path) -> None:
    """The side of llama.cpp: what is asked for in the folder is answered there."""
    import llama_cpp  # type: ignore[import-not-found]

    asked = json.loads((folder / "asked.json").read_text())
    model = llama_cpp.Llama(
        asked["file"],
        n_ctx=asked["context"],
        n_batch=asked["context"],
        logits_all=True,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        verbose=False,
    )
    for name, part in asked["parts"].items():
        model.reset()
        model.eval(part)
        logits = model.scores[: len(part)].astype(np.float64)
        likely = np.exp(logits - logits.max(-1, keepdims=True))
        np.save(folder / f"{name}.npy", likely / likely.sum(-1, keepdims=True))
    greedy = []
    for prompt in asked["prompts"]:
        model.reset()
        tokens: list[int] = []
        model.eval(prompt)
        for _ in range(min(GREEDY_TOKENS, asked["context"] - len(prompt))):
            tokens.append(int(model.scores[model.n_tokens - 1].argmax()))
            model.eval(tokens[-1:])
        greedy.append(tokens)
    ids = {name: model.tokenize(text.encode(), add_bos=False, special=False) for name, text in asked["texts"].items()}
    (folder / "answered.json").write_text(json.dumps({"tokens": ids, "greedy": greedy}))


if __name__ == "__main__":
    main()
