// Curves by uPlot: one crosshair and one zoom for all charts of a page, by mouse and by keyboard.

import { colour, h, icon } from "./dom.js";

const SYNC = "page";
const charts = [];
const font = () => `11px ${colour("--sans")}`;

export function axes({ x, y, size = 46, space = 34, incrs }) {
  const base = { stroke: colour("--ink-3"), font: font(), ticks: { show: false }, border: { show: false } };
  const words = (word) => (_, ticks) => ticks.map((tick) => (tick === null ? "" : word(tick)));
  return [
    { ...base, size: 24, gap: 5, space: 72, values: words(x), grid: { show: false } },
    {
      ...base,
      size,
      gap: 6,
      space,
      values: words(y),
      ...(incrs ? { incrs } : {}),
      grid: { show: true, stroke: colour("--grid"), width: 1 },
    },
  ];
}

/** Between two seconds on an axis. */
export const TIME_STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 432000];
export const LOSS_STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5];
/** Losses with one decimal, or two where the picture is narrow. */
export const lossTick = (limits) => (value) => {
  const [low, high] = limits();
  return value.toFixed(high - low < 0.8 ? 2 : 1);
};

export const cursor = () => ({
  sync: { key: SYNC, setSeries: false },
  drag: { x: true, y: false, setScale: true },
  y: false,
  points: { size: 6, fill: colour("--accent"), stroke: colour("--surface"), width: 1.5 },
});

/** The whole range unless a part of it was chosen by dragging. */
export const whole = (full) => (u, min, max) => {
  const x = u.data[0];
  return !x.length || (min <= x[0] && max >= x.at(-1)) ? full() : [min, max];
};

/**
 * A chart in `holder`, drawn again when its width or the theme changes.
 * `make(width)` gives uPlot's options and data; `refresh` takes new data and keeps crosshair and zoom.
 */
export function chart(holder, make) {
  let plot = null;
  let width = 0;
  const draw = () => {
    const now = Math.floor(holder.clientWidth);
    if (!now) return;
    width = now;
    plot?.destroy();
    const { options, data } = make(now);
    plot = new window.uPlot({ width: now, legend: { show: false }, ...options }, data, holder);
  };
  const refresh = () => {
    if (!plot) return draw();
    const { min, max } = plot.scales.x;
    const old = plot.data[0];
    const zoomed = old.length > 0 && (min > old[0] || max < old.at(-1));
    const at = old[plot.cursor.idx ?? -1];
    plot.setData(make(width).data, !zoomed);
    if (zoomed) plot.setScale("x", { min, max });
    if (at !== undefined && document.activeElement === holder) place(plot, plot.valToIdx(at));
  };
  new ResizeObserver(() => {
    if (Math.abs(holder.clientWidth - width) > 1) draw();
  }).observe(holder);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  holder.tabIndex = 0;
  holder.addEventListener("keydown", (event) => plot && keys(event, plot));
  const made = {
    draw,
    refresh,
    get plot() {
      return plot;
    },
  };
  charts.push(made);
  return made;
}

function place(plot, index) {
  const at = Math.max(0, Math.min(plot.data[0].length - 1, index));
  plot.setCursor({ left: plot.valToPos(plot.data[0][at], "x"), top: 1 });
}

/** Arrows move the crosshair, Home and End go to the ends, + and - zoom, Escape shows everything. */
function keys(event, plot) {
  const last = plot.data[0].length - 1;
  const at = plot.cursor.idx ?? last;
  const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, PageUp: at - 20, PageDown: at + 20, Home: 0, End: last };
  if (event.key in moves) place(plot, moves[event.key]);
  else if (event.key === "+" || event.key === "-") zoom(plot, at, event.key === "+" ? 0.5 : 2);
  else if (event.key === "Escape") showAll();
  else return;
  event.preventDefault();
}
function zoom(plot, at, times) {
  const { min, max } = plot.scales.x;
  const middle = plot.data[0][at];
  scaleAll(middle - (middle - min) * times, middle + (max - middle) * times);
}
/** The whole of every chart of the page. */
export const showAll = () => scaleAll(-Infinity, Infinity);
function scaleAll(min, max) {
  for (const { plot } of charts) {
    if (!plot || !plot.root.isConnected) continue;
    const x = plot.data[0];
    plot.setScale("x", { min: Math.max(min, Math.min(x[0], 0)), max: Math.min(max, Math.max(x.at(-1), 0)) });
  }
}

/** Canvas drawing inside a uPlot hook, in the chart's own units. */
export function pen(u) {
  const ratio = window.devicePixelRatio || 1;
  const { ctx, bbox } = u;
  const trace = (points) => points.forEach(([x, y], i) => (i ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
  const kept = (draw) => {
    ctx.save();
    draw();
    ctx.restore();
  };
  return {
    ratio,
    X: (value) => u.valToPos(value, "x", true),
    Y: (value) => u.valToPos(value, "y", true),
    left: bbox.left,
    right: bbox.left + bbox.width,
    top: bbox.top,
    bottom: bbox.top + bbox.height,
    clip: (draw) =>
      kept(() => {
        ctx.beginPath();
        ctx.rect(bbox.left, bbox.top - 1, bbox.width + 1, bbox.height + 2);
        ctx.clip();
        draw();
      }),
    line: (points, { stroke, width = 1, dash = [] }) =>
      kept(() => {
        ctx.strokeStyle = stroke;
        ctx.lineWidth = width * ratio;
        ctx.lineJoin = "round";
        ctx.setLineDash(dash.map((length) => length * ratio));
        ctx.beginPath();
        trace(points);
        ctx.stroke();
      }),
    area: (upper, lower, fill, texture = null) =>
      kept(() => {
        ctx.fillStyle = fill;
        ctx.beginPath();
        trace([...upper, ...lower.slice().reverse()]);
        ctx.closePath();
        ctx.fill();
        if (texture) ctx.fillStyle = ctx.createPattern(texture, "repeat");
        if (texture) ctx.fill();
      }),
    dot: (x, y, radius, fill, ring) =>
      kept(() => {
        ctx.beginPath();
        ctx.arc(x, y, radius * ratio, 0, 7);
        ctx.fillStyle = fill;
        ctx.fill();
        if (!ring) return;
        ctx.lineWidth = 1.5 * ratio;
        ctx.strokeStyle = ring;
        ctx.stroke();
      }),
    box: (x, y, size, fill, stroke) =>
      kept(() => {
        ctx.fillStyle = fill;
        ctx.strokeStyle = stroke;
        ctx.lineWidth = ratio;
        ctx.beginPath();
        ctx.roundRect(x, y, size, size, 3 * ratio);
        ctx.fill();
        ctx.stroke();
      }),
    text: (words, x, y, { fill, align = "left", weight = "", base = "alphabetic", size = 11, halo = null }) =>
      kept(() => {
        ctx.font = `${weight} ${size * ratio}px ${colour("--sans")}`;
        ctx.textAlign = align;
        ctx.textBaseline = base;
        ctx.lineWidth = 4 * ratio;
        ctx.lineJoin = "round";
        if (halo) ctx.strokeStyle = halo;
        if (halo) ctx.strokeText(words, x, y);
        ctx.fillStyle = fill;
        ctx.fillText(words, x, y);
      }),
  };
}

/** Stripes or dots to lay over a colour, so that it is not the colour alone that tells parts apart. */
export function texture(kind) {
  const size = 8 * (window.devicePixelRatio || 1);
  const tile = h("canvas", { width: size, height: size });
  const ctx = tile.getContext("2d");
  ctx.strokeStyle = ctx.fillStyle = "rgb(255 255 255 / 0.3)";
  ctx.lineWidth = size / 5;
  ctx.beginPath();
  if (kind === "dots") ctx.arc(size / 2, size / 2, size / 6, 0, 7);
  else
    for (const shift of [-size, 0, size]) {
      ctx.moveTo(shift - 1, size + 1);
      ctx.lineTo(shift + size + 1, -1);
    }
  if (kind === "dots") ctx.fill();
  else ctx.stroke();
  return tile;
}

/** A copy with the page's background: a canvas alone is transparent. */
function onPaper(drawn) {
  const copy = h("canvas", { width: drawn.width, height: drawn.height });
  const ctx = copy.getContext("2d");
  ctx.fillStyle = colour("--surface");
  ctx.fillRect(0, 0, copy.width, copy.height);
  ctx.drawImage(drawn, 0, 0);
  return copy;
}

/** Buttons that save what is drawn as PNG, and what is behind it as CSV. `columns()` gives [[name, values], …]. */
export function saves(name, plot, columns) {
  const down = (href, file) => h("a", { href, download: file }).click();
  const png = () => down(onPaper(plot().ctx.canvas).toDataURL("image/png"), `${name}.png`);
  const csv = () => {
    const named = columns();
    const rows = Array.from(named[0][1], (_, i) => named.map(([, values]) => values[i] ?? "").join(","));
    const text = [named.map(([title]) => title).join(","), ...rows].join("\n");
    down(URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" })), `${name}.csv`);
  };
  const button = (kind, action, label) =>
    h("button", { class: "mini", type: "button", "aria-label": label, onclick: action }, icon("save"), kind);
  return h(
    "span",
    { class: "saves" },
    button("PNG", png, `Save ${name} as PNG`),
    button("CSV", csv, `Save the data of ${name} as CSV`),
  );
}
