// One answer that stands in this file, as `plan --html`, `doctor --html` and `compare --html` write it.

import { comparison } from "./comparison.js";
import { h, mark, show } from "./dom.js";
import { planned, toType } from "./planned.js";
import { memoryStep } from "./step.js";
import { view } from "./view.js";

const { command, name, version, answer } = JSON.parse(document.getElementById("data").textContent);

function plan() {
  const box = h("div", { class: "answer" });
  const step = memoryStep();
  const typed = h("section", {}, step.node, toType({ ...answer.ui, note: "in the folder of the config" }));
  const draw = () => {
    const open = box.querySelector(".parts-box")?.open ?? false;
    const nodes = planned(answer, { width: box.clientWidth, open, typed });
    box.replaceChildren(...(nodes ?? [h("h1", { class: "verdict", text: "No trainer can run this config." })]));
  };
  let width = 0;
  new ResizeObserver(() => {
    if (Math.abs(box.clientWidth - width) < 12) return;
    width = box.clientWidth;
    draw();
  }).observe(box);
  return {
    nodes: [box],
    draw: () => {
      draw();
      step.update(answer.ui.timeline);
    },
  };
}

function doctor() {
  const runs = answer.ui.runs.map((run, i) =>
    view({ ...run, doctor: answer.runs[i], run: { ...run.run, name: answer.runs[i].source } }, { alone: true }),
  );
  return {
    nodes: runs.map((run) => h("div", { class: "one-run" }, run.nodes)),
    draw: () => {
      for (const run of runs) run.draw();
    },
  };
}

document
  .getElementById("top")
  .replaceChildren(
    h(
      "div",
      { class: "bar" },
      h("span", { class: "mark" }, mark(), h("span", { text: "onecard" })),
      h("p", { class: "where shared", text: name }),
    ),
  );
document
  .getElementById("foot")
  .replaceChildren(
    h("p", { text: `Written by onecard ${version}: onecard ${command} --html.` }),
    h("p", { class: "quiet", text: "Everything is in this file: it loads nothing and sends nothing." }),
  );
const shown = { plan, doctor, compare: () => comparison(answer) }[command]();
show(shown.nodes);
shown.draw();
