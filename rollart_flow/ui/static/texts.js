// Texts of a run, which are hostile: they are set as text, and long ones are opened when asked for.

import { el } from "./dom.js";
import { number, visible } from "./format.js";

export { visible };

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
