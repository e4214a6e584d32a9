"""A log of any program, dropped on the page: its text has no word of a value that is not there."""

import re
from typing import Any

from tests import made_logs as made
from tests.browser.conftest import Site

DROP = """([text, name]) => {
  const files = new DataTransfer();
  files.items.add(new File([text], name, { type: "text/plain" }));
  document.dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }));
}"""
# every text, and what a screen reader says
SAID = """(root) => [root.innerText, ...[...root.querySelectorAll("*")].flatMap((one) =>
  ["aria-label", "aria-valuetext", "title", "alt", "href", "value"].map((name) => one.getAttribute(name) ?? ""))]
  .join("\\n")"""
NOT_WORDS = re.compile(r"undefined|\bNaN\b|\bnull\b|\bInfinity\b|\[object|\binf\b")

ONE_STEP = [made.nanogpt(steps=0, eval_interval=10**9)[0]]
LOGS = {
    "nanogpt": made.nanogpt_header() + made.nanogpt(),
    "nanogpt, no header": made.nanogpt(mfu=False, eval_interval=10**9, first=1),
    "nanogpt, one step": ONE_STEP,
    "nanogpt, one evaluation": ["step 0: train loss 10.8684, val loss 10.8727"],
    "nanogpt, nan": [*made.nanogpt_header(), *made.nanogpt(steps=100), "iter 110: loss nan, time 250.00ms, mfu 21.50%"],
    "nanogpt, nan from the start": [f"iter {n}: loss nan, time 250.00ms, mfu -100.00%" for n in range(5)],
    "nanogpt, nan evaluation": ["step 0: train loss nan, val loss nan", "step 10: train loss inf, val loss nan"],
    "llm.c main.log": made.llmc_main(),
    "llm.c stdout": made.llmc_stdout(),
    "llm.c, an evaluation alone": ["s:0 tel:10.98"],
    "modded-nanogpt": made.modded(),
    "nanochat": made.nanochat(),
    "trainer": made.trainer_stdout(),
    "trainer, steps that nothing tells": made.trainer_lines(end=False),
    "trainer, bare losses": [f"{{'loss': {made.smooth_loss(n):.4f}}}" for n in range(3)],
    "trainer, evaluations alone": ["{'eval_loss': 3.2}", "{'eval_loss': 3.1}"],
    "trainer_state": [made.trainer_state()],
    "minimal": made.minimal(),
    "out of memory": [made.OOM["2024"]],
    "out of memory in a run": [*made.nanogpt_header(), *made.nanogpt(steps=20), *made.traceback(made.OOM["2023"])],
    "records": [
        '{"kind": "step", "step": 1, "loss": 3.5}',
        '{"kind": "eval", "step": 1, "val_loss": 3.4}',
        '{"kind": "step", "step": 2, "loss": NaN}',
    ],
    "two runs": [*made.nanogpt_header(), *made.nanogpt(steps=50), *made.nanogpt_header(), *made.nanogpt(steps=20)],
    "no log": ["hello"],
    "empty": [],
}


def not_words(place: Any) -> list[str]:
    """The lines of a part of the page that show what is no value."""
    return [line for line in place.evaluate(SAID).splitlines() if NOT_WORDS.search(line)]


def test_a_dropped_log_shows_no_value_that_is_not_there(site: Site) -> None:
    page = site.open("/")
    place, shown = page.locator("#dropped"), {}
    for name, lines in LOGS.items():
        page.evaluate("document.getElementById('dropped').replaceChildren()")
        page.evaluate(DROP, ["".join(f"{line}\n" for line in lines), "mine.log"])
        page.wait_for_selector("#dropped :text('Close this log')")
        shown[name] = not_words(place)
        for chart in place.locator(".u-over").all():
            if chart.is_visible():
                chart.hover(force=True)
                shown[name] += not_words(place)
    assert {name: words for name, words in shown.items() if words} == {}
    site.complaints[:] = [each for each in site.complaints if "status of 4" not in each]  # no log, and an empty one


def test_the_command_of_a_dropped_log_is_that_of_the_text_and_fits(site: Site) -> None:
    config = "# Model (~125M parameters)\nn_embd = 384\nbatch_size = 16\ngradient_accumulation_steps = 32\n"
    page = site.open("/")
    page.evaluate(
        """([log, config]) => {
          const files = new DataTransfer();
          files.items.add(new File([log], "mine.log", { type: "text/plain" }));
          files.items.add(new File([config], "wide.py", { type: "text/plain" }));
          document.dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }));
        }""",
        [made.FULL_CARD + "\n", config],
    )
    page.wait_for_selector("#dropped .prescription")
    typed = page.locator("#dropped .prescription code").all_inner_texts()
    assert typed[0].startswith("python train.py wide.py ")
    assert "--batch_size=8 " in f"{typed[0]} "
    assert "--n_embd" not in typed[0]
    assert typed[1].startswith("onecard train wide.py ")
    assert "the same run in" in page.locator("#dropped .prescription").inner_text()
