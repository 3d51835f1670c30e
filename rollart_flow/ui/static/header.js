// The header: where one is, the search, the moment, light or dark.

import { get, part } from "./api.js";
import { el } from "./dom.js";
import { number } from "./format.js";
import { KEYS } from "./keyboard.js";
import { objects } from "./table.js";

const TABS = [["events", "events"], ["sql", "SQL"]];
const THEMES = ["auto", "light", "dark"];
let shown = ""; // what the header was made for

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
  const wanted = `${location.pathname} ${page?.at} ${page?.data?.newest} ${page?.data?.status}`;
  if (wanted === shown) return;
  const moments = run && page.data ? await momentsOf(page) : null;
  if (page && !page.isCurrent()) return;
  shown = wanted;
  const focused = document.activeElement?.id;
  const typed = document.getElementById("search")?.value ?? "";
  document.getElementById("header").replaceChildren(...[
    el("a", { class: "brand", href: "/runs" }, "rollart"),
    el("nav", { "aria-label": "pages" }, tab("/runs", "runs", "/runs"), run && runTabs(page, run)),
    el("div", { class: "right" },
      run && search(page),
      moments && time(page, moments),
      page?.data?.status && el("span", { id: "status", class: page.data.status === "failed" ? "bad" : "dim" }, page.data.status),
      el("select", { id: "theme", "aria-label": "colors", onchange: (event) => theme(event.target.value) }, THEMES.map((name) => el("option", { value: name, selected: name === stored() }, name))),
      el("button", { type: "button", id: "help-button", "aria-label": "keys", onclick: showHelp }, "?")),
  ]);
  const field = document.getElementById("search");
  if (field && focused === "search") field.value = typed;
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function tab(path, label, href) {
  const here = decodeURI(location.pathname).replace(/\/$/, "") === decodeURI(path);
  return el("a", { href, "aria-current": here ? "page" : null }, label);
}

function runTabs(page, run) {
  const tabs = TABS.map(([path, label]) => tab(page.run(path), label, page.link(page.run(path))));
  return [el("span", { class: "dim", "aria-hidden": "true" }, "/"), tab(page.run(""), run, page.link(page.run(""))), tabs, el("a", { href: `/compare?runs=${part(run)}` }, "compare")];
}

// The search: a number is a step, any other text the beginning of an id.
function search(page) {
  const field = el("input", { id: "search", type: "search", "data-search": true, "aria-label": "step, group or trajectory", placeholder: "step or id  ( / )", size: 16, list: "found", autocomplete: "off" });
  const found = el("datalist", { id: "found" });
  const lookUp = async () => (await page.get("page/found", { text: field.value })).views["runs.found"].rows;
  let asked = 0;
  field.addEventListener("input", async () => {
    const mine = (asked += 1);
    if (field.value.length < 2 || /^\d+$/.test(field.value)) return;
    const rows = await lookUp().catch(() => []);
    if (mine === asked) found.replaceChildren(...rows.map(([kind, id]) => el("option", { value: id }, kind)));
  });
  const submit = async (event) => {
    event.preventDefault();
    const wanted = field.value.trim();
    if (!wanted) return;
    if (/^\d+$/.test(wanted)) return page.go(page.link(page.run(`step/${wanted}`)));
    const rows = await lookUp();
    const [kind, id] = rows.find((row) => row[1] === wanted) ?? rows[0] ?? [];
    if (kind) page.go(page.link(page.run(`${kind}/${part(id)}`)));
    else field.setCustomValidity("nothing begins so"), field.reportValidity(), field.setCustomValidity("");
  };
  return el("form", { role: "search", onsubmit: submit }, field, found);
}

async function momentsOf(page) {
  try {
    const answer = await get(`run/${part(page.route.run)}/page/moments`);
    return { newest: answer.newest, steps: objects(answer.views["runs.moments"]) };
  } catch {
    return null; // the page itself says what is wrong
  }
}

// Time travel: a slider over the moments after each step; its right end is the present.
function time(page, { newest, steps }) {
  const stops = [...steps.map(({ step, seq }) => ({ seq, label: `step ${number(step)}` })), { seq: newest, label: "live" }];
  const at = page.at === null ? newest : Number(page.at);
  let here = page.at === null ? stops.length - 1 : stops.findIndex((stop) => stop.seq >= at);
  if (here < 0) here = stops.length - 1;
  const label = (index) => (index === here && page.at !== null && stops[index].seq !== at ? `seq ${number(at)}` : stops[index].label);
  const output = el("output", { for: "time" }, label(here));
  const address = new URL(location.href);
  const slider = el("input", { id: "time", type: "range", min: 0, max: stops.length - 1, step: 1, value: here, "aria-label": "moment", "aria-valuetext": label(here) });
  slider.addEventListener("input", () => {
    output.textContent = label(Number(slider.value));
    slider.setAttribute("aria-valuetext", label(Number(slider.value)));
  });
  slider.addEventListener("change", () => {
    const index = Number(slider.value);
    if (index === stops.length - 1) address.searchParams.delete("at");
    else address.searchParams.set("at", stops[index].seq);
    page.go(address.pathname + address.search + address.hash);
  });
  const live = page.at !== null && el("button", { type: "button", id: "live", class: "small", onclick: () => (address.searchParams.delete("at"), page.go(address.pathname + address.search)) }, "live");
  return el("div", { class: `time${page.at === null ? "" : " past"}`, role: "group", "aria-label": "time travel" }, slider, output, live);
}

export function showHelp() {
  const dialog = document.getElementById("help");
  dialog.replaceChildren(
    el("h2", { id: "help-title" }, "Keys"),
    el("table", {}, el("tbody", {}, KEYS.map(([keys, what]) => el("tr", {}, el("th", { scope: "row" }, keys.map((key) => el("kbd", {}, key))), el("td", {}, what))))),
    el("form", { method: "dialog" }, el("button", { id: "close-help" }, "close")),
  );
  dialog.showModal();
}
