// How a figure looks: one place for every unit. Bytes, seconds and losses come from the server as they are.

const grouped = new Intl.NumberFormat("en-GB");
const GIB = 2 ** 30;
const MIB = 2 ** 20;

export const missing = (value) => value === null || value === undefined || Number.isNaN(value);
export const int = (value) => grouped.format(Math.round(value));
export const gib = (bytes, digits = 2) => (bytes / GIB).toFixed(digits);
export const mib = (bytes) => int(bytes / MIB);
export const loss = (value, digits = 3) => value.toFixed(digits);
export const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
export const rate = (value) =>
  value >= 1e6 ? short(value) : value >= 1000 ? `${(value / 1000).toFixed(value >= 1e5 ? 0 : 1)}k` : int(value);
export const learningRate = (value) => (value === 0 ? "0" : value.toExponential(1).replace(".0e", "e"));

/** 124,373,760 as 124M. */
export function short(value) {
  for (const [size, unit] of [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    const times = value / size;
    if (times >= 1) return `${times.toFixed(times >= 100 ? 0 : times >= 10 ? 1 : 2)}${unit}`;
  }
  return Number.isInteger(value) ? String(value) : value.toPrecision(3);
}

/** The same on an axis: 500M, 1.5B, 40k, without zeros at the end. */
export const tick = (value) =>
  short(value)
    .replace(/(\.\d*?)0+(?=[kMBT]$)/, "$1")
    .replace(/\.(?=[kMBT]$)/, "");
export const timeTick = (seconds) =>
  seconds === 0
    ? "0"
    : seconds >= 5400 && seconds < 4 * 3600 && seconds % 1800
      ? `${int(seconds / 60)} min` // 100 min, where hours would be rounded
      : duration(seconds).replace(".0 ", " ");

export function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 180) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${(seconds / 3600).toFixed(1)} h`;
  const hours = Math.round(seconds / 3600);
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** "3.14 to 3.32" of {low, high}. */
export const range = (values, word) => `${word(values.low)} to ${word(values.high)}`;
