// The runs of the store, the newest first.

import { copyButton, el, fold, link } from "../dom.js";
import { get, part } from "../api.js";
import { moment, number } from "../format.js";

const SIZE = 50;

export const load = (page) => get("runs", { offset: page.query.get("offset") });

export function show(page) {
  const { title, runs, more, query } = page.data;
  const offset = Number(page.query.get("offset") ?? 0);
  const bad = (run) => run.status === "failed" || run.status === "damaged";
  const cells = (run) => [
    el("td", {}, run.status === "damaged" ? run.name : link(`/run/${part(run.name)}`, run.name)),
    el("td", { class: bad(run) ? "bad" : null }, run.status),
    el("td", { class: "number" }, number(run.steps)),
    el("td", { class: "number" }, number(run.trained)),
    el("td", { class: "number" }, number(run.tokens)),
    el("td", {}, run.pipeline ?? "-"),
    el("td", {}, moment(run.created_at)),
    el("td", {}, run.error ?? (run.parent ? `forked from ${run.parent}` : "-")),
  ];
  const names = ["run", "status", "steps", "trained trajectories", "trained tokens", "pipeline", "created (UTC)", "note"];
  return [
    page.title("Runs"),
    el("p", { class: "dim" }, title),
    el("section", { class: "view", "data-view": "runs.figures" },
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "runs" },
        el("table", {}, el("caption", {}, runs.length ? `runs ${offset + 1} to ${offset + runs.length}` : "runs"),
          el("thead", {}, el("tr", {}, names.map((name, index) => el("th", { scope: "col", class: index > 1 && index < 5 ? "number" : null }, name)))),
          el("tbody", {}, runs.map((run) => el("tr", { "data-row": true, tabindex: -1 }, cells(run)))))),
      runs.length === 0 && el("p", { class: "empty" }, "no runs here; `rollart run FILE` makes one"),
      (offset > 0 || more) && el("nav", { class: "pager", "aria-label": "pages of runs" },
        offset > 0 && link(`/runs?offset=${Math.max(0, offset - SIZE)}`, "newer"), more && link(`/runs?offset=${offset + SIZE}`, "older")),
      fold("query-runs", "query of each run", () => el("div", { class: "query" }, el("pre", { tabindex: 0 }, query), copyButton(query, "copy the query"))))];
}
