// The router, and what all pages have in common: header, time travel, live refresh, keyboard.
//
// How to add a page: a row in PAGES, the page's views in rollart_flow/views/pages.py, and a module
// pages/NAME.js with `export function show(page)`, which returns the elements of the page.
// `page` is a Page:
//   page.route        parts of the address: {run: "a", step: "3"}
//   page.query        URLSearchParams of the address
//   page.data         the answer: {cut, newest, status, views: {NAME: rows}}; see ui/encoding.py
//   page.rows(NAME)   rows of a view as objects by column
//   page.table(NAME, options)     the view as a table with its query; see table.js
//   page.chart(NAME, options)     the view as a chart with its query; see chart.js
//   page.link(path)   the address of another page at the same moment; page.run("step/3") within the run
//   page.get(path, parameters)    another answer about the run, at the same moment
//   page.go(path)    go there
//   page.title(text)  the heading's and the window's title
//   page.neighbours({previous, next})    paths that the arrow keys go to
// A module may also export `load(page)`, which returns `page.data` in place of the page's own views
// (`page.fetch()`). `show` is called again whenever rows are new: it must give the same ids to the same elements, so
// that focus and folded parts stay. Text from a run goes through `el`, as text.

import { ApiError, get, part, query } from "./api.js";
import { el, say } from "./dom.js";
import { header, showHelp } from "./header.js";
import { follow } from "./live.js";
import { listen } from "./keyboard.js";
import { chart } from "./chart.js";
import { objects, table } from "./table.js";

// Address, page of the API (null: the module loads its data by itself), module.
const PAGES = [
  ["/runs", null, "runs"],
  ["/compare", null, "compare"],
  ["/run/:run", "overview", "overview"],
  ["/run/:run/sql", null, "sql"],
  ["/run/:run/step/:step", "step", "step"],
  ["/run/:run/group/:group", "group", "group"],
  ["/run/:run/trajectory/:trajectory", "trajectory", "trajectory"],
  ["/run/:run/trajectory/:trajectory/turn/:turn", "trajectory", "trajectory"],
  ["/run/:run/trajectory/:trajectory/turn/:turn/token/:token", "trajectory", "trajectory"],
  ["/run/:run/events", "events", "events"],
];

class Page {
  constructor(row, route, address) {
    [, this.page, this.module] = row;
    this.route = route;
    this.query = address.searchParams;
    this.hash = address.hash;
    this.at = this.query.get("at");
    this.states = {};
    this.ways = {};
  }

  // Parameters of the views: parts of the address, then what follows its question mark.
  get parameters() {
    const { run, ...route } = this.route;
    return { ...Object.fromEntries(this.query), ...route };
  }

  async fetch(views = null) {
    const states = {};
    for (const [name, state] of Object.entries(this.states)) {
      for (const [key, value] of Object.entries(state)) if (value !== "" && (key !== "offset" || value)) states[`${name}.${key}`] = value;
    }
    return this.get(`page/${this.page}`, { ...this.parameters, ...states, views: views?.join(",") });
  }

  get(path, parameters = {}) {
    return get(`run/${part(this.route.run)}/${path}`, { ...parameters, at: this.at });
  }

  state(name, state) {
    this.states[name] = state;
  }

  rows(name) {
    return objects(this.data.views[name]);
  }

  table(name, options) {
    return table(this, name, options);
  }

  chart(name, options) {
    return chart(this, name, options);
  }

  link(path) {
    const [address, hash] = path.split("#");
    const at = this.at === null || !address.startsWith("/run/") ? "" : `${address.includes("?") ? "&" : "?"}at=${this.at}`;
    return `${address}${at}${hash ? `#${hash}` : ""}`;
  }

  run(path) {
    return `/run/${part(this.route.run)}${path ? `/${path}` : ""}`;
  }

  go(path) {
    return go(path);
  }

  isCurrent() {
    return current === this;
  }

  title(text) {
    document.title = `${text} - rollart`;
    return el("h1", {}, text);
  }

  neighbours(ways) {
    this.ways = ways;
  }
}

function matched(address) {
  for (const row of PAGES) {
    const names = [];
    const pattern = row[0].replace(/:(\w+)/g, (_, name) => (names.push(name), "([^/]+)"));
    const found = new RegExp(`^${pattern}/?$`).exec(address.pathname);
    if (found) {
      try {
        return new Page(row, Object.fromEntries(names.map((name, i) => [name, decodeURIComponent(found[i + 1])])), address);
      } catch {
        return null; // a path that is not well-formed
      }
    }
  }
  return null;
}

let current = null;

export async function go(path, replace = false) {
  if (replace) history.replaceState(null, "", path);
  else history.pushState(null, "", path);
  await load();
}

async function load() {
  const page = matched(new URL(location.href));
  current = page;
  if (page === null) return fail(new ApiError("there is no page at this address"), null);
  await refresh(page, true);
}

// Ask for the rows again and show them.
async function refresh(page, first = false) {
  const main = document.getElementById("main");
  main.setAttribute("aria-busy", "true");
  try {
    const module = await import(`./pages/${page.module}.js`);
    const data = await (module.load ? module.load(page) : page.fetch());
    if (current !== page) return;
    page.data = data;
    const focused = document.activeElement?.id; // a page may show an element again, which loses it
    const shown = [module.show(page)].flat(Infinity).filter(Boolean);
    main.replaceChildren(...shown);
    if (!first && focused) document.getElementById(focused)?.focus({ preventScroll: true });
    await header(page);
    if (first) arrive(page, main);
    follow(page, () => refresh(page));
  } catch (error) {
    if (current === page) fail(error, page);
  } finally {
    main.removeAttribute("aria-busy");
  }
}

// Go to the part that the address names after #, else to the beginning.
function arrive(page, main) {
  const target = page.hash && document.getElementById(decodeURIComponent(page.hash.slice(1)));
  if (target) {
    target.closest("details")?.setAttribute("open", "");
    target.scrollIntoView({ block: "center" });
    target.classList.add("here");
  } else window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
}

function fail(error, page) {
  if (!(error instanceof ApiError)) console.error(error);
  const text = error instanceof ApiError ? error.message : "the page could not be shown; the console of the browser says why";
  document.getElementById("main").replaceChildren(el("p", { class: "error", role: "alert" }, text));
  header(page);
}

document.addEventListener("click", (event) => {
  const anchor = event.target.closest("a[href]");
  if (!anchor || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  const href = anchor.getAttribute("href");
  if (!href.startsWith("/") || anchor.hasAttribute("download")) return;
  event.preventDefault();
  go(href);
});
window.addEventListener("popstate", load);
listen(() => current, go, showHelp);
load();
