// A console for SQL over the tables of a run: it reads them and nothing else.

import { copy, el, fold, say } from "../dom.js";
import { get, part, query } from "../api.js";
import { text } from "../format.js";
import { commandOf } from "../table.js";

const FIRST = "select domain, outcome, count(*) as n, avg(reward) as reward\nfrom trajectories group by domain, outcome order by n desc";

export async function load(page) {
  const q = page.query.get("q");
  const ask = () => page.get("sql", { q, "sql.offset": page.states.sql?.offset || "" });
  page.fetch = ask;
  const [tables, about] = await Promise.all([get("tables"), page.get("about")]);
  let answer = { views: {}, cut: null, status: about.status };
  if (q) {
    try {
      answer = await ask();
    } catch (error) {
      answer.error = error.message;
    }
  }
  return { ...answer, tables, handle: about.handle };
}

export function show(page) {
  const { views, tables, error, cut } = page.data;
  const q = page.query.get("q");
  // The same element when the rows are shown again, so that what is typed meanwhile stays.
  const field = page.field ??= el("textarea", { id: "q", "data-search": true, spellcheck: "false", autocapitalize: "off", "aria-label": "SQL", value: q ?? FIRST });
  const run = () => page.go(`${location.pathname}${query({ q: field.value, at: page.at })}`);
  field.onkeydown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  };
  return [
    page.title(`SQL of ${page.route.run}`),
    el("form", { class: "console", onsubmit: (event) => (event.preventDefault(), run()) },
      field,
      el("div", { class: "pager" }, el("button", { id: "run-query" }, "run"), el("span", { class: "dim" }, el("kbd", {}, "Ctrl"), " ", el("kbd", {}, "Enter")),
        el("button", { type: "button", onclick: () => copy(commandOf(page, field.value)) }, "copy the command"),
        views.sql && el("button", { type: "button", id: "copy-rows", onclick: () => copyRows(views.sql) }, "copy these rows"),
        views.sql && el("a", { id: "csv", download: "query.csv", href: `/api/run/${part(page.route.run)}/sql.csv${query({ q, at: page.at })}` }, "CSV"))),
    error && el("p", { class: "error", role: "alert" }, error),
    views.sql && page.table("sql", { sortable: false, query: false, caption: `rows up to seq ${cut}` }),
    el("h2", {}, "Tables"),
    Object.entries(tables).map(([name, columns]) => fold(`schema-${name}`, name, () => el("table", {}, el("caption", {}, name),
      el("thead", {}, el("tr", {}, ["column", "type", "meaning"].map((each) => el("th", { scope: "col" }, each)))),
      el("tbody", {}, columns.map((column) => el("tr", {}, el("td", { class: "mono" }, column.name), el("td", { class: "mono" }, column.type), el("td", {}, column.comment))))))),
  ];
}

// Rows as text with tabs, which a spreadsheet takes from the clipboard.
function copyRows(view) {
  const cell = (value, index) => {
    const shown = text(value, view.columns[index].type).replace(/[\t\r\n]+/g, " ");
    return typeof value === "string" && /^[=+\-@]/.test(shown) ? `'${shown}` : shown;
  };
  copy([view.columns.map((column) => column.name).join("\t"), ...view.rows.map((row) => row.map(cell).join("\t"))].join("\n"));
  say(`${view.rows.length} rows copied`);
}
