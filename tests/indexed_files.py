"""Files as datatrove 0.10 and Megatron-core 0.16 write them, by the layouts that both publish."""

import struct
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

Documents = Sequence[Sequence[int]]


def documents(count: int, *, vocab_size: int = 250, end: int | None = 0, longest: int = 30) -> list[list[int]]:
    """Made documents of uneven length, the same at every call; `end` is the last token of each."""
    random = np.random.RandomState(1)
    made = [random.randint(1, vocab_size, random.randint(1, longest)).tolist() for _ in range(count)]
    return [each if end is None else [*each, end] for each in made]


def write_datatrove(
    path: Path, texts: Documents, *, token_bytes: int = 2, tokenizer: str | None = "gpt2", index: bool = True
) -> Path:
    """NAME.ds, with an index unless it is not wanted, with metadata unless `tokenizer` is None."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = [token for text in texts for token in text]
    path.write_bytes(struct.pack(f"<{len(ids)}{'H' if token_bytes == 2 else 'I'}", *ids))
    if index:
        ends = list(accumulate(map(len, texts)))
        Path(f"{path}.index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    if tokenizer is not None:
        Path(f"{path}.metadata").write_text(f"{tokenizer}|{token_bytes}\n{len(ids)}\n{len(ids)} T")
    return path


def write_megatron(path: Path, texts: Documents, *, code: int = 8, sequences_each: int = 1) -> Path:
    """NAME.bin and NAME.idx; the code of a type is 8 for uint16, 4 for int32."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = {8: "<u2", 4: "<i4", 5: "<i8"}[code]
    sequences = [part for text in texts for part in np.array_split(np.array(text), sequences_each)]
    lengths = [len(each) for each in sequences]
    begins = [0, *accumulate(length * np.dtype(kind).itemsize for length in lengths)][: len(lengths)]
    ended = [sequences_each * number for number in range(len(texts) + 1)]
    path.write_bytes(b"".join(each.astype(kind).tobytes() for each in sequences))
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sequences), len(ended))
    index += np.array(lengths, "<i4").tobytes() + np.array(begins, "<i8").tobytes() + np.array(ended, "<i8").tobytes()
    path.with_suffix(".idx").write_bytes(index)
    return path
