// The events of a run, and what its processes wait for now.

import { el, link } from "../dom.js";
import { mark, panel } from "../facts.js";
import { moment, number, seconds } from "../format.js";
import { dots, figure } from "../lanes.js";
import { go } from "../main.js";
import { visible } from "../texts.js";

const SUBJECTS = { admit: "group", abandon: "group", drop: "trajectory", evict: "trajectory", abort: "trajectory" };
const STEPS = ["checkpoint", "skip", "divergence"];
const BAD = ["crash", "stall", "divergence", "maintenance", "quarantine"];

export function show(page) {
  return [
    page.title("Events and waits"),
    waits(page),
    filters(page),
    timeline(page),
    page.table("events.rows", {
      empty: "no event is like this",
      columns: {
        seq: { hidden: true },
        at: { label: "at (UTC)", format: (value) => el("time", { datetime: value }, moment(value)) },
        kind: { format: (value) => mark(value, BAD.includes(value) ? "bad" : "") },
        subject: { format: visible, link: (row) => subject(page, row) },
        policy_version: { label: "version" },
        step: { link: (row) => (row.step === null ? null : page.run(`step/${row.step}`)) },
        detail: { format: (value) => el("code", {}, value === "{}" ? "-" : visible(typeof value === "object" ? `${value.cut} ...` : value)) },
      },
    }),
    page.table("events.counts", { columns: { kind: { link: (row) => to(page, { kind: row.kind, reason: row.reason ?? "", subject: "" }) }, first: { label: "first (UTC)" }, last: { label: "last (UTC)" } } }),
  ];
}

function subject(page, row) {
  const what = STEPS.includes(row.kind) && /^\d+$/.test(row.subject) ? "step" : SUBJECTS[row.kind];
  return what ? page.run(`${what}/${encodeURIComponent(row.subject)}`) : null;
}

// The address of the page with other filters.
function to(page, changed) {
  const given = { kind: page.query.get("kind"), reason: page.query.get("reason"), subject: page.query.get("subject"), ...changed };
  const text = new URLSearchParams(Object.entries(given).filter(([, value]) => value)).toString();
  return page.run(`events${text ? `?${text}` : ""}`);
}

function filters(page) {
  const counts = page.rows("events.counts");
  const pick = (name) => {
    const current = page.query.get(name) ?? "";
    const values = [...new Set([current, ...counts.map((row) => row[name])])].filter(Boolean).sort();
    return el("label", {}, `${name} `, el("select", { id: `pick-${name}`, onchange: (event) => go(page.link(to(page, { [name]: event.target.value }))) }, el("option", { value: "" }, "all"), values.map((each) => el("option", { value: each, selected: each === current }, each))));
  };
  const search = el("input", { type: "search", name: "subject", value: page.query.get("subject") ?? "", "data-search": true, id: "pick-subject", placeholder: "part of a subject" });
  return el("form", { class: "controls", onsubmit: (event) => (event.preventDefault(), go(page.link(to(page, { subject: search.value })))) }, pick("kind"), pick("reason"), el("label", {}, "subject ", search), el("button", {}, "filter"), link(page.link(page.run("events")), "all events"));
}

function timeline(page) {
  const rows = page.rows("events.timeline");
  if (!rows.length) return null;
  const names = [...new Set(rows.map((row) => row.kind))];
  const drawn = dots(rows.map((row) => ({
    row: row.kind, at: row.bin, value: row.events, kind: BAD.includes(row.kind) ? "bad" : "s0",
    label: `${number(row.events)} of ${row.kind} from ${moment(row.first)} to ${moment(row.last)}`, href: page.link(to(page, { kind: row.kind })),
  })), names, 60, "events over time");
  return panel(page, "events.timeline", figure(null, drawn));
}

function waits(page) {
  const place = el("section", { class: "view" });
  if (page.data.status !== "running") {
    place.append(el("p", { class: "dim" }, `The run is ${page.data.status}: nothing waits.`));
    return place;
  }
  page.get("waits").then(({ processes }) => {
    const rows = processes.flatMap((each) => (each.waits.length ? each.waits : [{ name: "the next call", seconds: null }]).map((wait, index) => [index ? "" : each.process, index ? "" : `${each.pid} on ${each.host}`, index ? "" : each.state, wait.name, wait.seconds === null ? "-" : seconds(wait.seconds)]));
    place.replaceChildren(el("table", {}, el("caption", {}, "Open waits, as the processes report them"), el("thead", {}, el("tr", {}, ["process", "pid", "state", "waits for", "since"].map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, rows.map((row) => el("tr", { "data-row": true, tabindex: -1 }, row.map((cell) => el("td", {}, visible(cell))))))),
      rows.length === 0 ? el("p", { class: "empty" }, "no process of the run reports waits on this machine") : "");
  }, (error) => place.replaceChildren(el("p", { class: "error" }, error.message)));
  return place;
}
