"""The picture of memory: well-formed, complete, and drawn from the events."""

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from onecard.config.schema import RunConfig
from onecard.plan.cards import find_card
from onecard.plan.memory.predict import Memory, predict_nanogpt, predict_onecard
from onecard.report.timeline import timeline_json, timeline_svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(params=[True, False], ids=["compiled", "eager"])
def memory(request: pytest.FixtureRequest) -> Memory:
    config = RunConfig().replace({"n_layer": 3, "batch_size": 4, "dtype": "bfloat16", "compile": request.param})
    return predict_nanogpt(config, find_card("RTX 4070"))


def test_the_picture_is_valid_svg_with_its_peak_named(memory: Memory) -> None:
    picture = ElementTree.fromstring(timeline_svg(memory, title="a <b> & c under nanoGPT"))
    words = ["".join(text.itertext()) for text in picture.iter(f"{SVG}text")]
    assert "Predicted memory of a <b> & c under nanoGPT" in words
    (peak,) = [line for line in words if line.startswith("peak ")]
    drawn = int(re.sub(r"\D", "", peak.split("MiB")[0]))
    assert drawn == pytest.approx(memory.phases["train"].allocated_bytes / 2**20, rel=0.01)
    assert memory.phases["train"].moment in peak


def test_every_band_is_named_beside_the_picture(memory: Memory) -> None:
    picture = ElementTree.fromstring(timeline_svg(memory, title="x"))
    bands = [title.text for title in picture.iter(f"{SVG}title")]
    words = " ".join("".join(text.itertext()) for text in picture.iter(f"{SVG}text"))
    assert len(bands) >= 6
    for band in bands:
        assert f"{band}: " in words


def test_one_step_and_one_evaluation_are_drawn(memory: Memory) -> None:
    words = timeline_svg(memory, title="x")
    assert "one training step" in words
    assert "one evaluation" in words


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("predict", [predict_nanogpt, predict_onecard])
def test_the_step_with_the_peak_is_drawn_whole(predict: Any, compiled: bool) -> None:
    """Our compiled trainer records a micro-batch once; the updates before an evaluation allocate nothing for passes."""
    config = RunConfig().replace({"n_layer": 3, "batch_size": 4, "dtype": "bfloat16", "compile": compiled})
    memory = predict(config, find_card("RTX 4070"))
    drawn = timeline_json(memory)
    step, evaluation = drawn["moments"][: drawn["evaluation"]], drawn["moments"][drawn["evaluation"] :]
    assert {"forward pass", "backward pass of the blocks", "optimizer step"} <= set(step)
    assert step[-1] == "optimizer step"
    assert "forward pass" in evaluation
    assert "optimizer step" not in evaluation
    assert drawn["moments"][drawn["peak"]] == memory.phases["train"].moment
    assert drawn["peak_bytes"] == memory.phases["train"].allocated_bytes
    assert max(drawn["total_bytes"]) == pytest.approx(drawn["peak_bytes"], rel=0.01)
    parts = [sum(sizes) for sizes in zip(*drawn["parts"].values(), strict=True)]
    assert parts == pytest.approx(drawn["total_bytes"], abs=2**20 * len(drawn["parts"]))
