// Tables of the rows of a view: sorted and paged by the server, values opened when asked for.

import { copyButton, el, fold, link } from "./dom.js";
import { get, part } from "./api.js";
import { word } from "./commands.js";
import { text } from "./format.js";

// Rows of a view as objects by column.
export function objects(view) {
  const names = view.columns.map((column) => column.name);
  return view.rows.map((row) => Object.fromEntries(names.map((name, index) => [name, row[index]])));
}

// The command that runs SQL on the run of a page, at its moment.
export function commandOf(page, sql) {
  const at = page.at === null ? "" : ` --at ${word(page.at)}`;
  return `rollart query ${page.data.handle.map(word).join(" ")}${at} ${word(sql)}`;
}

// The query of a view with a button to copy it, folded.
export function queryOf(page, name, view) {
  const python = view.language === "python";
  return fold(`query-${name}`, python ? "Python" : "query", () => el("div", { class: "query" },
    el("pre", { tabindex: 0 }, view.query),
    copyButton(view.query, python ? "copy" : "copy the query"),
    !python && page.data.handle && copyButton(commandOf(page, view.query), "copy as a command")));
}

// A table of a view of the page, with its caption, pages and query.
//
// options: {columns: {NAME: {label, format(value, row), link(row), hidden}}, caption, empty, sortable, query}
// `link` returns the address of a page or null; `format` returns text or an element. `sortable` and
// `query` may be false.
export function table(page, name, options = {}) {
  const view = page.data.views[name];
  const place = el("section", { class: "view", "data-view": name });
  show(place, page, name, view, options);
  return place;
}

function show(place, page, name, view, options) {
  const rows = objects(view);
  const columns = view.columns.filter((column) => !options.columns?.[column.name]?.hidden);
  const again = async (state) => {
    page.state(name, state);
    const focused = document.activeElement?.id;
    page.data.views[name] = (await page.fetch([name])).views[name];
    show(place, page, name, page.data.views[name], options);
    if (focused) document.getElementById(focused)?.focus();
  };
  const grid = el(
    "table",
    {},
    el("caption", {}, options.caption ?? view.title),
    el("thead", {}, el("tr", {}, columns.map((column) => heading(name, view, column, options, again)))),
    el("tbody", {}, rows.map((row, index) => body(page, name, view, columns, row, index, options))),
  );
  const empty = rows.length === 0 && el("p", { class: "empty" }, options.empty ?? "no rows");
  place.replaceChildren(
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": options.caption ?? view.title }, grid),
    ...[empty, pager(name, view, again)].filter(Boolean),
    ...(options.query === false ? [] : [queryOf(page, name, view)]),
  );
}

function heading(name, view, column, options, again) {
  const { label = column.name } = options.columns?.[column.name] ?? {};
  const kind = column.type === "number" ? "number" : null;
  if (options.sortable === false) return el("th", { scope: "col", class: kind }, label);
  const current = view.sort.replace(/^-/, "") === column.name ? (view.sort.startsWith("-") ? "descending" : "ascending") : null;
  const next = current === "descending" ? column.name : current === "ascending" ? "" : `-${column.name}`;
  const mark = current === "descending" ? " ▾" : current === "ascending" ? " ▴" : "";
  const button = el("button", { type: "button", class: "sort", id: `sort-${name}-${column.name}`, onclick: () => again({ sort: next, offset: 0 }) }, label, el("span", { "aria-hidden": "true" }, mark));
  return el("th", { scope: "col", class: kind, "aria-sort": current }, button);
}

function body(page, name, view, columns, row, index, options) {
  const cells = columns.map((column) => {
    const how = options.columns?.[column.name] ?? {};
    const value = row[column.name];
    let shown = how.format ? how.format(value, row) : text(value, column.type);
    const href = how.link?.(row);
    if (href) shown = link(page.link(href), shown);
    if (typeof shown === "string" && shown.length > 80) shown = el("div", { class: "clip" }, shown);
    const opens = value !== null && typeof value === "object" && "cut" in value && !how.format;
    return el("td", { class: column.type === "number" ? "number" : null }, shown, opens && opener(page, name, view, column.name, index, value.length));
  });
  return el("tr", { "data-row": true, tabindex: -1 }, cells);
}

function opener(page, name, view, column, index, length) {
  const button = el("button", { type: "button", class: "small", onclick: async () => {
    const { value } = await page.get("cell", { ...page.parameters, view: name, column, offset: view.offset + index, sort: view.sort });
    button.replaceWith(el("pre", {}, typeof value === "string" ? value : JSON.stringify(value)));
  } }, `all ${length}`);
  return button;
}

function pager(name, view, again) {
  if (!view.more && view.offset === 0) return null;
  const move = (offset) => again({ sort: view.sort, offset });
  const first = view.rows.length ? view.offset + 1 : view.offset;
  return el(
    "nav",
    { class: "pager", "aria-label": `pages of ${view.title}` },
    el("button", { type: "button", id: `before-${name}`, disabled: view.offset === 0, onclick: () => move(Math.max(0, view.offset - view.size)) }, "previous"),
    el("span", {}, `rows ${first} to ${view.offset + view.rows.length}${view.more ? "" : ", the last"}`),
    el("button", { type: "button", id: `after-${name}`, disabled: !view.more, onclick: () => move(view.offset + view.size) }, "next"),
  );
}
