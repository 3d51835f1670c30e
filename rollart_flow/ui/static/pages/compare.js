// Two to four runs, or a run and its forks: what differs, and their curves over steps, tokens, time.

import { el, link } from "../dom.js";
import { get, part, query } from "../api.js";
import { number, seconds, share } from "../format.js";

const ALONG = { step: "steps", tokens: "trained tokens", seconds: "seconds of steps" };
const CURVES = { reward: "Mean reward of the batch", loss: "Loss", grad_norm: "Gradient norm before clipping", entropy: "Entropy [nats]", staleness: "Staleness, largest [versions]", tokens_per_s: "Trained tokens per second", step_s: "Seconds of a step" };
const MOST = 4;

export async function load(page) {
  const names = (page.query.get("runs") ?? "").split(",").filter(Boolean).map(decodeURIComponent);
  const { runs } = await get("runs");
  const answer = names.length > 1 ? await get("compare", { run: names }) : { runs: [], settings: [], views: {} };
  const data = { names, known: runs.filter((run) => run.status !== "damaged"), settings: answer.settings, views: {}, status: null };
  if (names.length > 1) {
    for (const curve of Object.keys(CURVES)) data.views[`comparison.${curve}`] = merged(names, answer, "comparison.curves");
    data.views["comparison.success"] = merged(names, answer, "comparison.success");
    data.views["comparison.figures"] = merged(names, answer, "comparison.figures");
  }
  return data;
}

// The rows of one view of all runs, with the run's name in front.
function merged(names, answer, view) {
  const each = names.map((name) => [name, answer.views[name][view]]);
  return {
    ...each[0][1],
    more: false,
    query: each.map(([name, rows]) => `-- ${name}\n${rows.query}`).join("\n\n"),
    columns: [{ name: "run", type: "text" }, ...each[0][1].columns],
    rows: each.flatMap(([name, rows]) => rows.rows.map((row) => [name, ...row])),
  };
}

export function show(page) {
  const { names, settings } = page.data;
  const x = page.query.get("by") in ALONG ? page.query.get("by") : "step";
  const address = (runs, by) => `/compare${query({ runs: runs.map(encodeURIComponent).join(","), by })}`;
  const parts = [page.title(names.length ? `Compare ${names.join(", ")}` : "Compare"), choice(page, names, (runs) => address(runs, x))];
  if (names.length < 2) return [...parts, el("p", { class: "empty" }, `choose two to ${MOST} runs`)];
  const options = {
    x, by: ["run"], zoom: "local", along: x === "seconds" ? seconds : number,
    link: (row) => (row.step ? `/run/${part(row.run)}/step/${row.step}` : null),
  };
  return [
    ...parts,
    differences(names, settings),
    page.table("comparison.figures", { sortable: false, columns: { run: { link: (row) => `/run/${part(row.run)}` }, seconds: { format: seconds }, training: { label: "training", format: share } } }),
    el("nav", { class: "pager", "aria-label": "aligned by" }, "over", Object.entries(ALONG).map(([by, label]) => el("a", { href: address(names, by), id: `by-${by}`, "aria-current": by === x ? "true" : null }, label))),
    el("div", { class: "charts" },
      page.chart("comparison.success", { ...options, by: ["run", "domain"], choose: "metric", first: "success", y: { value: "success" }, format: share }),
      Object.entries(CURVES).map(([curve, caption]) => page.chart(`comparison.${curve}`, { ...options, y: { [curve]: curve }, caption, format: curve === "step_s" ? seconds : number }))),
  ];
}

function choice(page, names, address) {
  const change = (name, chosen) => page.go(address(chosen ? [...names, name] : names.filter((each) => each !== name)));
  return el("fieldset", { class: "choice" }, el("legend", {}, "Runs"), page.data.known.map(({ name }) => {
    const chosen = names.includes(name);
    return el("label", {}, el("input", { type: "checkbox", id: `run-${name}`, checked: chosen, disabled: !chosen && names.length >= MOST, onchange: () => change(name, !chosen) }), ` ${name}`);
  }));
}

function differences(names, settings) {
  if (!settings.length) return el("p", { class: "empty" }, "no setting differs");
  return el("section", { class: "view", "data-view": "settings" }, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "settings that differ" },
    el("table", {}, el("caption", {}, "Settings that differ"),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "setting"), names.map((name) => el("th", { scope: "col" }, link(`/run/${part(name)}`, name))))),
      el("tbody", {}, settings.map(({ name, values }) => el("tr", {}, el("th", { scope: "row", class: "mono" }, name), values.map((value) => el("td", { class: "mono" }, value))))))));
}
