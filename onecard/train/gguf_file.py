"""A model as a GGUF file, which llama.cpp opens, and with it Ollama and LM Studio.

llama.cpp knows GPT-2's layers, with biases: a model without any is written with zeros. It does not know nanochat's.
The file has the tokens of the tokenizer and no more (50257 of 50304), so llama.cpp never draws one without text.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from onecard import units
from onecard.config.schema import RunConfig
from onecard.data.extras import extra
from onecard.data.gguf_vocabulary import Vocabulary
from onecard.files import sync_file, whole
from onecard.models.architectures import structure_of
from onecard.models.structure import parameters_of
from onecard.train.snapshot import Snapshot

NumberType = Literal["f32", "f16", "q8_0"]
Array = npt.NDArray[Any]

GROUP = 32  # numbers that share a scale in q8_0
_BYTES_PER_NUMBER = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32}
_NAMES = (  # parts of nanoGPT's names and of llama.cpp's
    ("transformer.wte.", "token_embd."),
    ("transformer.wpe.", "position_embd."),
    ("transformer.ln_f.", "output_norm."),
    ("transformer.h.", "blk."),
    (".ln_1.", ".attn_norm."),
    (".attn.c_attn.", ".attn_qkv."),
    (".attn.c_proj.", ".attn_output."),
    (".ln_2.", ".ffn_norm."),
    (".mlp.c_fc.", ".ffn_up."),
    (".mlp.c_proj.", ".ffn_down."),
)
_TOKENS, _POSITIONS = "token_embd.weight", "position_embd.weight"
_NORM_EPSILON = 1e-5  # torch's, in nanoGPT


def needed_bytes(config: RunConfig, number_type: NumberType) -> int:
    """What the file takes on the disk, about: weights with biases, and a vocabulary."""
    with_biases = parameters_of(structure_of(config.replace({"bias": True})))
    numbers = sum(math.prod(size) for size in with_biases.values())
    return round(_BYTES_PER_NUMBER[number_type] * numbers) + 4 * config.block_size * config.n_embd + 8 * units.MIB


def write(
    path: Path,
    snapshot: Snapshot,
    config: RunConfig,
    vocabulary: Vocabulary,
    *,
    number_type: NumberType,
    told: Mapping[str, str],
    instead: str,
) -> None:
    """Write the file, whole or not at all. `told`: texts by key."""
    library = extra("gguf", purpose="writing a GGUF file", brought_by="gguf")
    logging.getLogger("gguf").setLevel(logging.WARNING)  # else it says which files it writes
    with whole(path, needed_bytes=needed_bytes(config, number_type), instead=instead) as new:
        writer = library.GGUFWriter(new, config.model)
        _describe(library, writer, config, vocabulary, number_type, told)
        for name, numbers in tensors(snapshot, config, tokens=len(vocabulary.tokens)):
            packed, packed_type = _packed(library, name, numbers, number_type)
            writer.add_tensor(name, packed, raw_dtype=packed_type)
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()
        sync_file(new)


def tensors(snapshot: Snapshot, config: RunConfig, *, tokens: int) -> Iterator[tuple[str, Array]]:
    """Every tensor of the file in float32, by llama.cpp's names, with its first `tokens` tokens."""
    for name, size in parameters_of(structure_of(config.replace({"bias": True}))).items():
        found = snapshot.weights.get(name)
        numbers = np.zeros(size, dtype=np.float32) if found is None else found.float().numpy()
        theirs = _renamed(name)
        yield theirs, numbers[:tokens] if theirs == _TOKENS else numbers


def _renamed(name: str) -> str:
    for ours, theirs in _NAMES:
        name = name.replace(ours, theirs)
    return name


def _packed(library: Any, name: str, numbers: Array, number_type: NumberType) -> tuple[Array, Any]:
    """A tensor's numbers as they are written; vectors and positions stay exact, as in llama.cpp's own files."""
    if number_type == "f32" or numbers.ndim == 1 or name == _POSITIONS:
        return np.ascontiguousarray(numbers), None
    if number_type == "f16":
        return numbers.astype(np.float16), None
    packed_type = library.GGMLQuantizationType.Q8_0
    return library.quants.quantize(np.ascontiguousarray(numbers), packed_type), packed_type


def _describe(
    library: Any,
    writer: Any,
    config: RunConfig,
    vocabulary: Vocabulary,
    number_type: NumberType,
    told: Mapping[str, str],
) -> None:
    file_types = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}
    for key, text in told.items():
        writer.add_string(key, text)
    writer.add_file_type(library.LlamaFileType[file_types[number_type]])
    if number_type == "q8_0":
        writer.add_quantization_version(library.GGML_QUANT_VERSION)
    writer.add_context_length(config.block_size)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(_NORM_EPSILON)
    writer.add_tokenizer_model(vocabulary.way)
    if vocabulary.split:
        writer.add_tokenizer_pre(vocabulary.split)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.kinds)
    if vocabulary.merges:
        writer.add_token_merges(vocabulary.merges)
    if vocabulary.end_of_text is not None:
        writer.add_bos_token_id(vocabulary.end_of_text)
        writer.add_eos_token_id(vocabulary.end_of_text)
    writer.add_add_bos_token(False)  # a prompt is the prompt, as in onecard sample
    writer.add_add_eos_token(False)
