// The header: where one is, the search, the moment, light or dark.

import { get, part } from "./api.js";
import { el } from "./dom.js";
import { KEYS } from "./keyboard.js";
import { number } from "./format.js";

const TABS = [["", "overview"], ["events", "events"], ["sql", "SQL"]];
const THEMES = ["auto", "light", "dark"];

export function theme(wanted) {
  if (wanted === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = wanted;
  try {
    localStorage.setItem("theme", wanted);
  } catch {
    // A browser may refuse to store anything; the choice holds for this page then.
  }
}

function stored() {
  try {
    const found = localStorage.getItem("theme");
    return THEMES.includes(found) ? found : "auto";
  } catch {
    return "auto";
  }
}

theme(stored());

export async function header(page) {
  const run = page?.route.run;
  const place = document.getElementById("header");
  const tabs = run ? TABS.map(([path, label]) => {
    const here = location.pathname.replace(/\/$/, "") === page.run(path);
    return el("a", { href: page.link(page.run(path)), "aria-current": here ? "page" : null }, label);
  }) : [];
  const focused = document.activeElement?.id;
  place.replaceChildren(
    el("a", { class: "brand", href: "/runs" }, "rollart"),
    el("nav", { "aria-label": "pages" }, el("a", { href: "/runs", "aria-current": location.pathname === "/runs" ? "page" : null }, "runs"), run && [el("span", { class: "dim", "aria-hidden": "true" }, "/"), el("a", { href: page.link(page.run("")), class: "mono" }, run), tabs.slice(1), el("a", { href: `/compare?runs=${part(run)}` }, "compare")]),
    el("div", { class: "right" }, page?.data?.status && el("span", { class: "dim" }, page.data.status), themes(), el("button", { type: "button", id: "help-button", "aria-label": "keys", onclick: showHelp }, "?")),
  );
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function themes() {
  const choice = el("select", { id: "theme", "aria-label": "colors", onchange: (event) => theme(event.target.value) }, THEMES.map((name) => el("option", { value: name, selected: name === stored() }, name)));
  return choice;
}

export function showHelp() {
  const dialog = document.getElementById("help");
  dialog.replaceChildren(
    el("h2", { id: "help-title" }, "Keys"),
    el("table", {}, el("tbody", {}, KEYS.map(([keys, what]) => el("tr", {}, el("th", { scope: "row" }, keys.map((key) => el("kbd", {}, key))), el("td", {}, what))))),
    el("form", { method: "dialog" }, el("button", {}, "close")),
  );
  dialog.showModal();
}
