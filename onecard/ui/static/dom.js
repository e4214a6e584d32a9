// Builds the page. Text is always text: no name, log line or config value is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") node.textContent = value;
    else if (key === "style") for (const [name, words] of Object.entries(value)) node.style.setProperty(name, words);
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(4)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
/** Begins with a capital, unless the first word is a name of code, like ckpt.pt or n_embd=768. */
export const capital = (words) =>
  /^[a-z]+[ ,:;]/.test(words ?? "") ? words[0].toUpperCase() + words.slice(1) : (words ?? "");

/** A dash for a value that is not there, with the reason. */
export const none = (why) =>
  h(
    "span",
    { class: "none", title: why },
    h("span", { "aria-hidden": "true", text: "–" }),
    h("span", { class: "sr", text: why }),
  );

// A state's shape and its word carry it; the colour only repeats it.
const ICONS = {
  training: "M5 3.5v9l7.5-4.5z",
  finished: "M3.5 8.5l3 3 6-7",
  interrupted: "M5.5 4v8M10.5 4v8",
  waiting: "M8 4v4l2.5 2M8 2.5a5.5 5.5 0 1 0 .010 0z",
  died: "M4 4l8 8M12 4l-8 8",
  diverged: "M2.5 11.5c3 0 4.5-1 5.5-3.5s2-4.5 5.5-5M11 2.5l2.6.4-.7 2.6",
  fatal: "M4 4l8 8M12 4l-8 8",
  error: "M4 4l8 8M12 4l-8 8",
  warn: "M8 3v6.5M8 12.3v.2",
  info: "M8 7v5.5M8 3.8v.2",
  copy: "M6 5.5h6.5v8H6zM3.5 10.5v-8H10",
  down: "M4 6l4 4 4-4",
  save: "M8 2.5v7.5M4.8 7L8 10.2 11.2 7M3 13.5h10",
};
export const icon = (name) =>
  s(
    "svg",
    { class: `icon icon-${name}`, viewBox: "0 0 16 16", "aria-hidden": "true" },
    s("path", { d: ICONS[name] ?? ICONS.info }),
  );
/** What a run trains on, null where it does not say. */
export const hardware = (run) => run.card ?? (run.device === "cpu" ? "on the processor" : null);
export const state = (name) => h("span", { class: `state state-${name}` }, icon(name), name);

let hiding;
/** A short word at the bottom of the page, also for screen readers. */
export function say(words) {
  const toast = document.getElementById("toast");
  toast.textContent = words;
  toast.classList.add("on");
  clearTimeout(hiding);
  hiding = setTimeout(() => toast.classList.remove("on"), 2400);
}

export function copyButton(text, label = "Copy") {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied");
    } catch {
      say("Select the text and press Ctrl+C");
    }
  };
  return h("button", { class: "copy", type: "button", onclick: copy }, icon("copy"), h("span", { text: label }));
}

/** Text to copy. A command breaks between its flags, not inside them. */
export function code(text, label) {
  const words = text.includes("\n")
    ? text
    : text.split(" ").flatMap((word, i) => [i ? " " : "", h("span", { class: "word", text: word })]);
  return h(
    "div",
    { class: "code wrap" },
    h("pre", { tabindex: "0", "aria-label": label }, h("code", {}, words)),
    copyButton(text),
  );
}

export function segmented(name, options, chosen, change) {
  const choice = ([value, label]) =>
    h(
      "label",
      {},
      h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => change(value) }),
      h("span", { text: label }),
    );
  return h("div", { class: "seg", role: "radiogroup", "aria-label": name }, options.map(choice));
}

export const mark = () =>
  s(
    "svg",
    { viewBox: "0 0 32 22", "aria-hidden": "true" },
    s("rect", { x: 1, y: 1, width: 30, height: 20, rx: 3.5 }),
    s("path", { d: "M6 16V11M11 16V8M16 16V12.5M21 16V6M26 16V10" }),
  );
/** The header and the footer of every page. `current` is the page's name. */
export function frame(current) {
  const link = (href, label, page) => h("a", { href, "aria-current": page === current ? "page" : null, text: label });
  document
    .getElementById("top")
    .replaceChildren(
      h(
        "div",
        { class: "bar" },
        h("a", { class: "mark", href: "/", "aria-label": "onecard, runs" }, mark(), h("span", { text: "onecard" })),
        h(
          "nav",
          { "aria-label": "Pages" },
          link("/", "Runs", "runs"),
          link("plan.html", "Planner", "plan"),
          link("compare.html", "Compare", "compare"),
        ),
        h("p", { class: "where", id: "live", role: "status" }),
      ),
    );
  document
    .getElementById("foot")
    .replaceChildren(
      h(
        "p",
        {},
        "Drop a nanoGPT, nanochat, llm.c, modded-nanogpt or Hugging Face log on the page of runs: it is read here, never run, never sent.",
      ),
      h("p", { class: "quiet", text: "Nothing on this page can start, stop or delete a run." }),
    );
}

/** Says in the header whether the page follows the files. */
export function connection(live) {
  document.getElementById("live").replaceChildren(
    h(
      "span",
      {
        class: live ? "live" : "live off",
        title: live ? "The page follows the files" : "The page tries again by itself",
      },
      h("i", {}),
      live ? "live" : "reconnecting",
    ),
  );
}

export function show(...nodes) {
  const main = document.getElementById("main");
  main.replaceChildren(...nodes.flat(4).filter(Boolean));
  main.removeAttribute("aria-busy");
}

/** What a page shows where the server could not answer. */
export const failed = (error) => [
  h("h1", { class: "verdict", text: capital(error.what ?? error.message) }),
  error.why ? h("p", { class: "lede", text: capital(error.why) }) : null,
  error.fix ? h("p", { class: "lede", text: error.fix }) : null,
];
