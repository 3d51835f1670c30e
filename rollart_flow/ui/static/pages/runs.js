// The runs of the store.

import { el, link } from "../dom.js";
import { get, part } from "../api.js";
import { moment, number } from "../format.js";

export const load = () => get("runs");

export function show(page) {
  const { title, runs, query } = page.data;
  const cells = (run) => [
    el("td", {}, run.status === "damaged" ? run.name : link(`/run/${part(run.name)}`, run.name)),
    el("td", { class: run.status === "failed" || run.status === "damaged" ? "bad" : null, title: run.error }, run.status),
    el("td", { class: "number" }, number(run.steps)),
    el("td", { class: "number" }, number(run.trained)),
    el("td", { class: "number" }, number(run.tokens)),
    el("td", {}, run.pipeline ?? "-"),
    el("td", {}, moment(run.created_at)),
    el("td", {}, run.parent ?? run.error ?? "-"),
  ];
  const names = ["run", "status", "steps", "trained trajectories", "trained tokens", "pipeline", "created (UTC)", "forked from, or error"];
  return [
    page.title("Runs"),
    el("p", { class: "dim" }, title),
    el("section", { class: "view", "data-view": "runs.figures" },
      el("table", {}, el("caption", {}, `${runs.length} runs`),
        el("thead", {}, el("tr", {}, names.map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, runs.map((run) => el("tr", { "data-row": true, tabindex: -1 }, cells(run))))),
      runs.length === 0 && el("p", { class: "empty" }, "no runs here; `rollart run FILE` makes one")),
  ];
}
