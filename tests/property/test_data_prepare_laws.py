"""Whatever the documents, and wherever it was stopped: each is in one split, once, in order, as its text says."""

import json
import tempfile
import unicodedata
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.data.dataset import open_path
from onecard.data.documents import read_documents
from onecard.data.encode import content_hash
from onecard.data.manifest import Settings
from onecard.data.prepare import prepare
from onecard.data.sources import SourceFile, local_source
from onecard.data.tokenizers import ByteTokenizer
from onecard.visible import visible

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=40)
@given(
    st.lists(texts, min_size=1, max_size=30),
    st.sampled_from(["onecard", "nanogpt", "llmc"]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.lists(st.integers(1, 400), max_size=4),
    st.booleans(),
)
def test_what_goes_in_comes_out_however_often_it_was_stopped(
    documents: list[str], format: str, share: float, stops: list[int], dedup: bool
) -> None:
    good = [text for text in documents if text and not text.isspace()]
    expected = list(dict.fromkeys(good)) if dedup else good
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "x.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*documents, "the last"]))
        source = local_source([str(path)], but=folder / "out")
        assert source is not None
        how = Settings(tokenizer="bytes", format=format, val_share=share, dedup=dedup, shard_tokens=50)  # type: ignore[arg-type]
        for tokens in [*stops, None]:
            prepare(source, folder / "out", settings=how, tokenizer=ByteTokenizer(), tokens=tokens)
        data = open_path(folder / "out", name="x", environ={})
        found = {}
        for split, tokens_of in (("train", data.train), ("val", data.val)):
            raw = bytes(tokens_of.read(0, len(tokens_of)).astype(np.uint8))
            found[split] = [part.decode() for part in raw.split(b"\0") if part]
    threshold = share * 2**64
    everything = [*expected, "the last"] if not dedup or "the last" not in expected else expected
    assert found["val"] == [text for text in everything if content_hash(text.encode()) < threshold]
    assert found["train"] == [text for text in everything if content_hash(text.encode()) >= threshold]


@given(
    st.binary(max_size=300),
    st.sampled_from(["jsonl", "text", "document", "parquet"]),
    st.sampled_from([None, ".gz", ".zst", ".xz"]),
)
def test_no_bytes_make_a_reader_fail(raw: bytes, kind: str, packing: str | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "x")
        path.write_bytes(raw)
        file = SourceFile(name="x", kind=kind, packing=packing, size_bytes=len(raw), path=path)  # type: ignore[arg-type]
        places = [read.after for read in read_documents(file)]
    assert places == sorted(set(places))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_shown_text_has_no_control_characters(text: str) -> None:
    assert not any(unicodedata.category(each) == "Cc" and each not in "\n\t" for each in visible(text))
