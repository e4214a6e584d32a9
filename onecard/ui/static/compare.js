// The page that compares: two or more runs at equal tokens and at equal time.

import { comparison, letter, letterOf } from "./comparison.js";
import { failed, frame, h, show } from "./dom.js";
import { ask, follow } from "./live.js";

frame("compare");
const ids = new URLSearchParams(location.search).getAll("run");

async function chooser() {
  const { runs } = await ask("/api/runs");
  const lede = (text) => h("p", { class: "lede", text });
  if (runs.length < 2) return lede("Comparing needs two runs; there are not yet two here.");
  const select = (i) =>
    h(
      "select",
      { "aria-label": `Run ${letterOf(i)}` },
      runs.map((run, j) =>
        h("option", { value: run.id, text: run.name, selected: ids[i] ? ids[i] === run.id : i === j }),
      ),
    );
  const selects = Array.from({ length: Math.max(2, ids.length) }, (_, i) => select(i));
  const go = () => {
    location.search = selects.map((one) => `run=${encodeURIComponent(one.value)}`).join("&");
  };
  const form = h(
    "form",
    {
      class: "filters",
      onsubmit: (event) => {
        event.preventDefault();
        go();
      },
    },
    selects.map((one, i) => h("label", { class: "chooser" }, letter(i), one)),
    h("button", { class: "button", text: "Compare" }),
  );
  return ids.length < 2 ? [lede("Choose two here, or more on the list of runs."), form] : form;
}

async function page() {
  const choose = await chooser();
  if (ids.length < 2)
    return show(
      h("h1", { class: "verdict", text: "Which run is better?" }),
      choose,
    );
  const result = await ask(`/api/compare?${ids.map((id) => `run=${encodeURIComponent(id)}`).join("&")}&more=1`);
  const shown = comparison(result, choose);
  show(shown.nodes);
  shown.draw();
}
try {
  await page();
} catch (error) {
  show(failed(error));
}
follow("/api/events", ["hello"], () => {});
