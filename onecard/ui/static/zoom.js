// A zoomed stretch of curves, as fine as the server has it: its buckets take the place of the coarse ones.

const WAIT_MS = 120; // after the last movement

const isSeries = (value) => value && typeof value === "object" && "mean" in value;

/** The curves with the finer ones of the same run in the place of those that they cover. */
function spliced(coarse, fine) {
  const before = coarse.step.findIndex((step) => step >= fine.from);
  const after = coarse.step.findIndex((step) => step > fine.to);
  if (before < 0) return coarse;
  const join = (old, now) => [...old.slice(0, before), ...now, ...(after < 0 ? [] : old.slice(after))];
  const unknown = fine.step.map(() => null);
  const joined = ([name, old]) => {
    if (name === "not_finite") return [name, old];
    if (Array.isArray(old)) return [name, join(old, fine[name])];
    if (!isSeries(old)) return [name, old];
    return [name, Object.fromEntries(Object.keys(old).map((kind) => [kind, join(old[kind], fine[name]?.[kind] ?? unknown)]))];
  };
  return Object.fromEntries(Object.entries(coarse).map(joined));
}

/**
 * Looks closer at parts of curves. `ask(from, to)` gives those of some steps, null where there is no server;
 * `changed()` is called when `shown(coarse)` gives more than before.
 */
export function closer(ask, changed) {
  let fine = null;
  let wanted = null;
  let waiting;
  return {
    shown: (coarse) => (fine ? spliced(coarse, fine) : coarse),
    /** How many updates one bucket of the picture holds, in the zoomed part where there is one. */
    each: (coarse) => Math.ceil((fine ?? coarse).steps / Math.max(1, (fine ?? coarse).buckets)),
    /** The picture shows buckets `first` to `last` of the coarse curves; null for all of them. */
    look(coarse, first, last) {
      const range = ask && first !== null && coarse.steps > coarse.buckets;
      const from = range ? (first > 0 ? coarse.step[first - 1] + 1 : coarse.from) : null;
      const now = range ? `${from} ${coarse.step[last]}` : null;
      if (now === wanted) return;
      wanted = now;
      clearTimeout(waiting);
      if (!range) {
        if (fine) queueMicrotask(changed);
        fine = null;
        return;
      }
      waiting = setTimeout(async () => {
        const found = await ask(from, coarse.step[last]).catch(() => null);
        if (now !== wanted || !found?.curves.step.length) return; // moved on meanwhile
        fine = found.curves;
        changed();
      }, WAIT_MS);
    },
  };
}
