// The branches of an episode as a tree: which of them were delivered, and why the others were not.

import { el, link } from "./dom.js";
import { mark, panel, reward } from "./facts.js";
import { number } from "./format.js";

const NAME = "trajectory.branches";

export function branches(page) {
  const rows = page.rows(NAME);
  if (rows.length < 2) return null;
  const calls = page.rows("trajectory.calls");
  const kinds = (row) => [...new Set(calls.filter((call) => call.trajectory_id === row.trajectory_id).map((call) => call.kind))].join(", ");
  const below = (parent) => rows.filter((row) => (row.parent ?? null) === parent);
  const node = (row) => el("li", { "aria-current": row.trajectory_id === page.route.trajectory ? "true" : null },
    el("span", { class: "branch" }, link(page.link(page.run(`trajectory/${encodeURIComponent(row.trajectory_id)}`)), `branch ${row.branch}`), " ", kinds(row) && mark(kinds(row)), " ",
      row.step !== null ? mark(`delivered, trained in step ${row.step}`, "good") : mark(row.reason ? `not delivered: ${row.reason}` : "not trained on", "warn"),
      el("span", { class: "dim" }, ` ${number(row.tokens)} tokens, ${number(row.shared_tokens ?? 0)} shared with its parent, ${number(row.action_tokens)} trained on, ${row.turns} turns, reward ${reward(row.reward)}`)),
    below(row.trajectory_id).length ? el("ul", {}, below(row.trajectory_id).map(node)) : null);
  const known = new Set(rows.map((row) => row.trajectory_id));
  const roots = rows.filter((row) => row.parent === null || !known.has(row.parent));
  return panel(page, NAME, el("ul", { class: "tree" }, roots.map(node)));
}
