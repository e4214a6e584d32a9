"""Maps GPT-2's tokens to a small vocabulary, so that small models learn in minutes.

    python bench/small_vocabulary.py FOLDER OUT --vocab_size=2048

FOLDER holds train.bin (or train.bin.xz) and val.bin: GPT-2's tokens as uint16. OUT gets both with the most frequent
tokens of train.bin numbered from 0 by frequency, and all others as one unknown token, the last.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from recipe_ablations import gpt2_tokens, small_numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocab_size", type=int, default=2048)
    given = parser.parse_args()
    number = small_numbers(gpt2_tokens(given.folder, "train"), given.vocab_size)
    given.out.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val"):
        tokens = number[gpt2_tokens(given.folder, split)]
        tokens.tofile(given.out / f"{split}.bin")
        unknown = np.mean(tokens == given.vocab_size - 1)
        print(f"{split}.bin: {len(tokens):,} tokens, {unknown:.1%} of them unknown")


if __name__ == "__main__":
    main()
