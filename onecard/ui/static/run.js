// The page of one run: /run.html?run=ID. It moves by itself while the run trains.

import { failed, frame, show } from "./dom.js";
import { ask, follow } from "./live.js";
import { playground } from "./playground.js";
import { view } from "./view.js";

frame("runs");
const id = new URLSearchParams(location.search).get("run") ?? "";
const path = `/api/runs/${encodeURIComponent(id)}`;

try {
  let answer = await ask(path);
  document.title = `${answer.run.name} · onecard`;
  const finer = (from, to) => ask(`${path}?from=${from}&to=${to}`);
  const shown = view(answer, { play: playground(path), finer });
  show(shown.nodes);
  shown.draw();
  follow("/api/events", ["hello", "run"], async (event) => {
    if (event.type === "run" && event.data.id !== id) return;
    shown.update((answer = await ask(path)));
  });
  if (!answer.doctor) {
    const diagnosis = await ask(`${path}/diagnosis`).catch(() => ({})); // the curves did not wait for it
    shown.update({ ...answer, ...diagnosis });
  }
} catch (error) {
  show(failed(error));
}
