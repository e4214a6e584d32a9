// Memory through one training step and one evaluation, stacked by part; part and bytes under the cursor.

import { axes, chart, cursor, pen, saves, texture } from "./charts.js";
import { colour, h, segmented } from "./dom.js";
import { PARTS } from "./memory.js";
import { gib, missing } from "./numbers.js";

const REST = PARTS.find((part) => part.name === "the rest");
const TEXTURES = { model: null, batch: "stripes", over: "dots" };
const SHORT = {
  "forward pass": "forward",
  loss: "loss",
  "head and loss": "loss",
  "backward pass of the blocks": "backward",
  "optimizer step": "update",
};

/** The parts from the floor up, as the bars have them; what has no place there belongs to the rest. */
function layers(parts) {
  const place = (name) => PARTS.find((part) => part.name === name) ?? { ...REST, name };
  return Object.entries(parts)
    .map(([name, bytes]) => ({ ...place(name), bytes }))
    .sort((one, other) => one.number - other.number);
}

/** A chart with `update(timeline)`, where `timeline` has the steps by the name of the trainer. */
export function memoryStep() {
  let steps = {};
  let trainer = "onecard";
  const now = () => steps[trainer];
  const readout = h("p", { class: "readout", role: "status" });
  const holder = h("div", { class: "plot", role: "group" });
  const tools = h("div", { class: "tools" });
  const node = h(
    "figure",
    { class: "card timeline" },
    h(
      "figcaption",
      { class: "head" },
      h("h2", { text: "Memory through one step" }),
      h("span", { class: "quiet", text: "GiB allocated; in order, not in time" }),
      tools,
    ),
    readout,
    holder,
  );

  const tops = (stack, i) => {
    let sum = 0;
    return stack.map(({ bytes }) => (sum += bytes[i]));
  };
  const tell = (u) => {
    const step = now();
    if (!step) return readout.replaceChildren();
    const i = u?.cursor.idx;
    const item = (words, value) => h("span", {}, `${words} `, h("b", { text: value }));
    if (missing(i))
      return readout.replaceChildren(
        item("peak", `${gib(step.peak_bytes)} GiB`),
        h("span", { text: step.moments[step.peak] }),
      );
    const stack = layers(step.parts);
    const height = u.posToVal(u.cursor.top, "y");
    const under = u.cursor.top > 1 ? stack.find((_, k) => tops(stack, i)[k] >= height) : null;
    const there = stack.filter((part) => part.bytes[i] > 0);
    readout.replaceChildren(
      h("span", { text: `${i >= step.evaluation ? "evaluation" : "step"}, ${step.moments[i]}:` }),
      ...(under ? [h("b", { text: `${under.number} ${under.name} ${gib(under.bytes[i])} GiB` })] : []),
      item("all", `${gib(step.total_bytes[i])} GiB`),
      ...(under ? [] : there.map((part) => item(`${part.number} ${part.name}`, gib(part.bytes[i])))),
    );
  };
  const draw = (u) => {
    const step = now();
    const stack = layers(step.parts);
    const p = pen(u);
    const count = step.total_bytes.length;
    const edges = Array.from({ length: count + 1 }, (_, i) => p.X(i - 0.5));
    const outline = (values) => values.flatMap((value, i) => [[edges[i], p.Y(value)], [edges[i + 1], p.Y(value)]]);
    let lower = new Array(count).fill(0);
    const bands = [];
    p.clip(() => {
      for (const part of stack) {
        const upper = lower.map((value, i) => value + part.bytes[i]);
        const kind = TEXTURES[part.family];
        p.area(outline(upper), outline(lower), colour(`--p${part.number}`), kind ? texture(kind) : null);
        bands.push({ part, lower, upper });
        lower = upper;
      }
      for (const { part, lower, upper } of bands) name(p, part, lower, upper, edges.slice(0, step.evaluation + 1));
      const boundary = edges[step.evaluation];
      p.line([[boundary, p.top], [boundary, p.bottom]], { stroke: colour("--ink-2"), dash: [4, 3] });
      const halo = colour("--surface");
      const [x, y] = [p.X(step.peak), p.Y(step.total_bytes[step.peak])];
      p.dot(x, y, 4, halo, colour("--ink"));
      const left = x < (p.left + p.right) / 2;
      const short = `peak ${gib(step.peak_bytes)} GiB`;
      const long = `${short}, ${step.moments[step.peak]}`;
      const words = long.length * 6.8 * p.ratio < (left ? p.right - x : x - p.left) ? long : short;
      const beside = (left ? 9 : -9) * p.ratio;
      const style = { fill: colour("--ink"), weight: "600", halo, align: left ? "left" : "right" };
      p.text(words, x + beside, y - 5 * p.ratio, style);
    });
  };
  // A band carries its name within the step, where it has most room, if the words fit there.
  const name = (p, part, lower, upper, edges) => {
    const words = `${part.number} ${part.name}`;
    const half = (words.length * 3.4 + 4) * p.ratio;
    const [tops, floors] = [upper, lower].map((values) => values.slice(0, edges.length - 1).map(p.Y));
    let best = { room: 15 * p.ratio };
    tops.forEach((_, i) => {
      const x = (edges[i] + edges[i + 1]) / 2;
      if (x - half < edges[0] || x + half > edges.at(-1)) return;
      const covered = (_, k) => edges[k + 1] > x - half && edges[k] < x + half;
      const [top, floor] = [Math.max(...tops.filter(covered)), Math.min(...floors.filter(covered))];
      if (floor - top > best.room) best = { room: floor - top, x, y: (top + floor) / 2 };
    });
    const style = { fill: colour(`--t${part.number}`), align: "center", base: "middle", weight: "600" };
    if (best.x) p.text(words, best.x, best.y, style);
  };
  /** The names of what happens, below the axis, each once where its stretch begins. */
  const moments = (u) => {
    const step = now();
    const p = pen(u);
    const boundary = p.X(step.evaluation - 0.5);
    let last = -Infinity;
    step.moments.forEach((moment, i) => {
      if (i > step.evaluation || moment === step.moments[i - 1]) return;
      const words = i === step.evaluation ? "evaluation" : (SHORT[moment] ?? "");
      const x = p.X(i - 0.5);
      const end = x + (words.length * 6.4 + 10) * p.ratio;
      if (!words || x < last || (x < boundary && end > boundary)) return;
      p.line([[x, p.bottom], [x, p.bottom + 4 * p.ratio]], { stroke: colour("--line-2") });
      p.text(words, x + 3 * p.ratio, p.bottom + 15 * p.ratio, { fill: colour("--ink-3") });
      last = end;
    });
  };
  const drawn = chart(holder, (width) => {
    const step = now();
    const [x, y] = axes({ x: () => "", y: (value) => String(Number((value / 2 ** 30).toFixed(2))), size: 38 });
    y.incrs = [1 / 16, 1 / 8, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128].map((size) => size * 2 ** 30);
    return {
      options: {
        height: width < 520 ? 260 : 320,
        padding: [4, 8, 0, 0],
        cursor: { ...cursor(), drag: { x: false, y: false }, points: { show: false } },
        axes: [x, y],
        scales: {
          x: { time: false, range: () => [-0.5, step.total_bytes.length - 0.5] },
          y: { range: () => [0, Math.max(...step.total_bytes) * 1.09] },
        },
        series: [{}, { stroke: "transparent", points: { show: false } }],
        hooks: { setCursor: [tell], draw: [draw, moments] },
      },
      data: [step.total_bytes.map((_, i) => i), step.total_bytes],
    };
  });
  const columns = () => [
    ["moment", now().moments],
    ["total_bytes", now().total_bytes],
    ...Object.entries(now().parts).map(([part, bytes]) => [`${part}_bytes`, bytes]),
  ];
  const again = () => {
    const step = now();
    holder.setAttribute(
      "aria-label",
      `Memory through one step under ${trainer}: ${gib(step.peak_bytes)} GiB at the peak, in the ${step.moments[step.peak]}. Arrow keys read it.`,
    );
    tell();
    drawn.draw();
  };
  return {
    node,
    update(timeline) {
      steps = timeline;
      const names = Object.keys(steps);
      node.hidden = !names.length;
      if (!names.length) return;
      if (!steps[trainer]) [trainer] = names;
      const choose = (chosen) => {
        trainer = chosen;
        again();
      };
      tools.replaceChildren(
        ...(names.length > 1 ? [segmented("Trainer", names.map((one) => [one, one]), trainer, choose)] : []),
        saves("memory-step", () => drawn.plot, columns),
      );
      again();
    },
  };
}
