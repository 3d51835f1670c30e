// Texts of a run, which are hostile: they are set as text, and long ones are opened when asked for.

import { el } from "./dom.js";
import { number } from "./format.js";

// One text of a row of a view. `row.index` is its place among the rows that the page has.
export function longText(page, name, column, row, view, kind) {
  const value = row[column];
  if (value === null || value === undefined || value === "") return null;
  if (typeof value !== "object") return el("pre", { class: kind, dir: "auto" }, visible(value));
  const place = el("pre", { class: kind, dir: "auto" }, visible(value.cut), " ...");
  const button = el("button", { type: "button", class: "small", onclick: async () => {
    const whole = await page.get("cell", { ...page.parameters, view: name, column, offset: view.offset + row.index, sort: view.sort });
    place.replaceChildren(visible(whole.value));
    button.remove();
  } }, `all ${number(value.length)} characters`);
  return el("div", {}, place, button);
}

const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

// A text in which controls are names: escape sequences, and marks that turn the direction of text.
export function visible(text) {
  return String(text).replace(CONTROLS, (each) => `\u27e8${each.codePointAt(0).toString(16).padStart(4, "0")}\u27e9`);
}
