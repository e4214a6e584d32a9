"""Tokenizers in llama.cpp words. That it makes the same tokens is measured: bench/gguf_in_llama_cpp.py."""

import json

import pytest

pytest.importorskip("numpy", reason="needs numpy: pip install 'onecard[train]'")
pytest.importorskip("tokenizers", reason="needs tokenizers: pip install 'onecard[data]'")

from onecard.data.gguf_vocabulary import CONTROL, NORMAL, UNUSED, NotInLlamaCpp, vocabulary_of
from onecard.data.tokenizer_json import END_OF_TEXT, JsonTokenizer, train_bpe
from onecard.data.tokenizers import ByteTokenizer, CharacterTokenizer

LEARNED = train_bpe(iter(["def f(x):\n    return x  # ça va? 世界\n"] * 3), vocab_size=300)


def changed(**changes: object) -> JsonTokenizer:
    described = json.loads(LEARNED)
    model = changes.pop("model", {})
    return JsonTokenizer(json.dumps(described | changes | {"model": described["model"] | model}))


def test_every_byte_is_a_token_and_byte_0_ends_a_text() -> None:
    found = vocabulary_of(ByteTokenizer())
    assert (found.way, found.end_of_text, found.merges) == ("rwkv", 0, ())
    assert (found.tokens[0], found.kinds[0]) == (END_OF_TEXT, CONTROL)
    assert (found.tokens[ord("a")], found.tokens[10], found.tokens[ord("\\")]) == ("a", r"\x0a", r"\x5c")
    assert found.tokens[0xE9] == r"\xe9"
    assert set(found.kinds[1:]) == {NORMAL}
    assert len(set(found.tokens)) == 256


def test_characters_have_no_end_of_text() -> None:
    found = vocabulary_of(CharacterTokenizer(["b", "é", "\n", "\\"]))
    assert found.tokens == ("b", r"\xc3\xa9", r"\x0a", r"\x5c")
    assert (found.way, found.end_of_text) == ("rwkv", None)


def test_learned_byte_pairs_keep_their_ids_and_merges() -> None:
    tokenizer = JsonTokenizer(LEARNED)
    found = vocabulary_of(tokenizer)
    model = json.loads(LEARNED)["model"]
    assert {text: token for token, text in enumerate(found.tokens)} == model["vocab"]
    assert found.merges == tuple(" ".join(pair) for pair in model["merges"])
    assert (found.way, found.split, found.end_of_text) == ("gpt2", "gpt-2", tokenizer.end_of_text)
    assert [token for token, kind in enumerate(found.kinds) if kind == CONTROL] == [tokenizer.end_of_text]


def test_ids_are_the_librarys_and_those_without_text_are_unused() -> None:
    described = json.loads(LEARNED)
    vocabulary = described["model"]["vocab"] | {"x": 310}
    added = described["added_tokens"][0] | {"id": 400, "content": "<mask>"}  # not the id that the library gives it
    found = vocabulary_of(changed(added_tokens=[*described["added_tokens"], added], model={"vocab": vocabulary}))
    assert found.tokens[310] == "x"
    assert (found.kinds[310], found.kinds[309], found.kinds[json.loads(LEARNED)["model"]["vocab"]["x"]]) == (
        NORMAL,
        UNUSED,
        UNUSED,
    )
    assert found.kinds[found.tokens.index("<mask>")] == CONTROL


@pytest.mark.parametrize(
    ("tokenizer", "why"),
    [
        (CharacterTokenizer(["ab", "c"]), "not one character"),
        (changed(added_tokens=[]), "end of text"),
        (changed(normalizer={"type": "Lowercase"}), "Lowercase"),
        (changed(pre_tokenizer={"type": "Whitespace"}), "as GPT-2 does"),
        (changed(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}), "as GPT-2"),
        (changed(model={"byte_fallback": True}), "byte_fallback"),
        (changed(model={"ignore_merges": True}), "ignore_merges"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_llama_cpp_would_read_otherwise_is_refused(tokenizer: object, why: str) -> None:
    if why == "end of text":  # the text is gone from the vocabulary, too
        tokenizer = JsonTokenizer(LEARNED.replace(END_OF_TEXT, "<nothing>"))
    with pytest.raises(NotInLlamaCpp, match=why):
        vocabulary_of(tokenizer)  # type: ignore[arg-type]
