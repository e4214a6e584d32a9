"""The name that was meant, of those that are known."""

import pytest

from onecard.config.names import ELSEWHERE, meant_by, nearest, nearest_file
from onecard.config.schema import KEYS

KNOWN = ("characters", "fineweb-edu", "beta1", "beta2", "eval_iters", "eval_only", "My-Run.log", "backend")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("char", "characters"),  # an abbreviation of one of them
        ("Fine", "fineweb-edu"),
        ("fineweb_edu", "fineweb-edu"),
        ("my_run.log", "My-Run.log"),
        ("eval_iter", "eval_iters"),
        ("eval_onyl", "eval_only"),  # no beginning, and near
        ("beta", "beta2"),  # the beginning of two
        ("beta1", "beta1"),
        ("fin", None),  # too short for an abbreviation
        ("bet1", "beta1"),
        ("bad", None),  # 0.6 of the letters of backend
        ("", None),
        ("something", None),
    ],
)
def test_the_only_name_that_begins_so_is_meant_or_else_the_nearest(word: str, meant: str | None) -> None:
    assert nearest(word, KNOWN) == meant


def test_a_name_that_another_begins_with_is_itself() -> None:
    assert nearest("fineweb", ("fineweb-edu", "fineweb")) == "fineweb"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lr=3e-4", "learning_rate=3e-4"),
        ("precision=bf16-mixed", "dtype=bfloat16"),
        ("precision=16", "dtype=float16"),
        ("amp=True", "dtype=auto"),
        ("seq_len=512", "block_size=512"),
        ("context_length=512", "block_size=512"),
        ("grad_accum=4", "gradient_accumulation_steps=4"),
        ("grad-accum-steps=4", "gradient_accumulation_steps=4"),
        ("per_device_train_batch_size=4", "batch_size=4"),
        ("hidden_size=512", "n_embd=512"),
        ("num_layers=4", "n_layer=4"),
        ("warmup_steps=9", "warmup_iters=9"),
        ("fp16=True", "dtype=float16"),
        ("bf16=1", "dtype=bfloat16"),
        ("fp16=False", "dtype=auto"),
        ("n_embed=64", "n_embd=64"),
        ("weigt_decay=0.1", "weight_decay=0.1"),
        ("grad_zip=1", "grad_clip=1"),
    ],
)
def test_what_other_trainers_call_a_key_is_known(typed: str, meant: str) -> None:
    key, _, value = typed.partition("=")
    assert meant_by(key, value, KEYS) == meant


def test_other_trainers_names_stand_for_keys_that_exist_and_are_no_keys_themselves() -> None:
    assert set(ELSEWHERE.values()) <= KEYS.keys()
    assert not ELSEWHERE.keys() & KEYS.keys()


@pytest.mark.parametrize("word", ["foo", "temperature", "my_note", "grad_scaler", "flash_attention", "zero_stage"])
def test_a_word_that_is_far_from_every_key_gets_no_suggestion(word: str) -> None:
    assert nearest(word, KEYS) is None


def test_an_ending_makes_no_two_files_alike() -> None:
    known = ["prepare.py", "model.py", "train_gpt2.py", "notes.txt"]
    assert nearest_file("train_gpt.py", known) == "train_gpt2.py"
    assert nearest_file("Model.py", known) == "model.py"
    for far in ("moor.py", "nosuch.py", "xyz.txt", "sample.py"):
        assert nearest_file(far, known) is None
