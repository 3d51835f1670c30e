// One row of a view as a list of names and values, and other small parts of pages.

import { el } from "./dom.js";
import { queryOf } from "./table.js";

// Facts: pairs of name and value; those without a value are left out.
export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs
    .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== "-")
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

// A part of a page that shows a view, with its heading and its query.
export function panel(page, name, content, { title, id } = {}) {
  const view = page.data.views[name];
  return el("section", { class: "view panel", "data-view": name, id },
    el("h2", {}, title ?? view.title), content, queryOf(page, name, view));
}

// A word in a box, such as a mark of a group without variance.
export function mark(text, kind = "", title = null) {
  return el("span", { class: `mark ${kind}`, title }, text);
}

export const CODES = { completed: "good", trained: "good", truncated: "warn", failed: "bad", timed_out: "bad" };

export function outcome(value) {
  return mark(value, CODES[value] ?? "");
}

export function reward(value) {
  return value === null || value === undefined ? "-" : String(Number(value.toPrecision(4)));
}

// Nothing of this name: what a page says in place of its parts.
export function missing(page, what, name) {
  return [page.title(`${what} ${name}`), el("p", { class: "error", role: "alert" }, `this run has no ${what.toLowerCase()} ${name} at this moment`)];
}
