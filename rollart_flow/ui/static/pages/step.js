// One training step: its figures, the time line of its phases, its groups, rewards and rows.

import { commands } from "../commands.js";
import { el, link } from "../dom.js";
import { drawn, withSources } from "../drawn.js";
import { facts, mark, missing, outcome, panel, reward } from "../facts.js";
import { moment, number, seconds } from "../format.js";
import { bars, figure, phases } from "../lanes.js";

const PHASES = [["wait_s", "wait for the batch"], ["suspend_s", "suspend"], ["update_s", "update"], ["resume_s", "resume"], ["train_s", "train"], ["publish_s", "publish"]];
const AGES = { staleness: "served version when the batch was formed minus start version", lag: "trained version minus start version" };

export async function load(page) {
  const [data, about] = await Promise.all([page.fetch(), page.get("about")]);
  return withSources(page, { ...data, about }, "step.drawn");
}

export function show(page) {
  const [row] = page.rows("step.figures");
  const [beside] = page.rows("step.neighbours");
  const rows = page.rows("step.rows"), from = page.rows("step.drawn");
  const step = page.route.step;
  if (!row && !rows.length && !from.length && !page.query.has("reward_from")) return missing(page, "Step", step);
  const to = (each) => (each === null || each === undefined ? null : page.run(`step/${each}`));
  page.neighbours({ previous: to(beside?.previous), next: to(beside?.next) });
  return [
    page.title(`Step ${step}`),
    el("p", { class: "ways" }, beside?.previous && link(page.link(to(beside.previous)), `← step ${beside.previous}`), beside?.next && link(page.link(to(beside.next)), `step ${beside.next} →`)),
    row ? panel(page, "step.figures", [figures(row), timeline(row)]) : el("p", { class: "dim" }, "this step is being trained; its batch is below"),
    commands([["train it again and compare", ["rollart", "replay", page.data.about.handle, "--step", step]], ["start another run from its weights", ["rollart", "fork", page.data.about.handle, "--step", step, "PIPELINE.py"]]]),
    histogram(page),
    page.table("step.groups", {
      columns: {
        group_id: { label: "group", link: (each) => page.run(`group/${encodeURIComponent(each.group_id)}`) },
        task_id: { label: "task" },
        reward_mean: { label: "mean reward" }, reward_std: { label: "std" }, reward_min: { label: "min" }, reward_max: { label: "max" },
        zero_variance: { label: "variance", format: (value) => (value ? mark("zero", "warn", "all rewards are equal, so that the group teaches nothing") : "yes") },
      },
    }),
    chosen(page),
    page.table("step.rows", {
      empty: "no row of the batch has such a reward",
      columns: {
        position: { label: "#" },
        trajectory_id: { label: "trajectory", link: (each) => page.run(`trajectory/${encodeURIComponent(each.trajectory_id)}`) },
        group_id: { label: "group", link: (each) => page.run(`group/${encodeURIComponent(each.group_id)}`) },
        outcome: { format: outcome },
        reward: { format: reward },
        advantage: { label: "advantage", format: (value, each) => (each.advantages > 1 ? `${number(value)} (mean of ${each.advantages})` : number(value)) },
        advantages: { hidden: true },
        policy_version_start: { label: "from version" }, policy_version_end: { label: "to version" },
      },
    }),
    from.length ? drawn(page, "step.drawn", (each) => each.trajectory_id, { position: { label: "#" }, trajectory_id: { label: "trajectory" }, group_id: { label: "group" }, ...unpaired(from) }) : null,
  ];
}

// Columns of preferences are left out where there are none.
function unpaired(rows) {
  const names = ["preferred", "pair", "implicit_reward"];
  return Object.fromEntries(names.map((name) => [name, { hidden: rows.every((row) => row[name] === null) }]));
}

function figures(row) {
  const age = (name) => (row[`${name}_max`] === null ? null : el("span", { title: AGES[name] }, `${row[`${name}_max`]}, mean ${number(row[`${name}_mean`])}`));
  return facts([
    ["publishes version", row.policy_version], ["loss", number(row.loss)], ["gradient norm", number(row.grad_norm)],
    ["mean reward", number(row.reward_mean)], ["staleness, at most", age("staleness")], ["lag, at most", age("lag")],
    ["ratio, mean", number(row.ratio_mean)], ["ratio, largest", number(row.ratio_max)], ["clipped", `${number(100 * row.clip_fraction)} %`],
    ["KL per token", number(row.kl)], ["entropy", number(row.entropy)], ["groups without variance", row.zero_variance_groups],
    ["learning rate", number(row.learning_rate)], ["trajectories", row.trajectories], ["tokens", number(row.tokens)], ["action tokens", number(row.action_tokens)],
    ["mismatch KL", number(row.mismatch_kl)], ["effective sample size", row.ess === null ? null : `${number(100 * row.ess)} % of the tokens`], ["critic's loss", number(row.value_loss)],
    ["ended (UTC)", moment(row.finished_at)], ["fingerprint", el("code", { title: row.fingerprint }, row.fingerprint.slice(0, 12))], ["not trained, since", row.skipped && el("span", { class: "bad" }, row.skipped)],
  ]);
}

function timeline(row) {
  const parts = PHASES.map(([name, label], index) => [label, row[name], `s${index}`]);
  const rest = row.step_s - parts.reduce((sum, [, value]) => sum + value, 0);
  if (rest > 0) parts.push(["the rest", rest, "s6"]);
  return figure(`Phases of the step, ${seconds(row.step_s)} since the end of the one before`, phases(parts, "phases"), parts.map(([label, value, kind]) => [`${label} ${seconds(value)}`, kind]));
}

function histogram(page) {
  const bins = page.rows("step.rewards");
  if (!bins.length) return null;
  const last = Math.max(...bins.map((bin) => bin.bin)), slots = Math.max(last + 1, 24);
  const drawn = bars(bins.map((bin) => ({
    at: bin.bin, value: bin.episodes,
    label: `${bin.episodes} episodes with rewards from ${reward(bin.low)} to ${reward(bin.high)}`,
    href: page.link(`${page.run(`step/${page.route.step}`)}?reward_from=${bin.low}&reward_to=${bin.high}#rows`),
  })), slots, "rewards", { labels: [[0, reward(bins[0].low)], [slots, reward(bins.at(-1).high)]] });
  return panel(page, "step.rewards", figure("A bar leads to its rows", drawn));
}

function chosen(page) {
  const [from, to] = ["reward_from", "reward_to"].map((name) => page.query.get(name));
  const said = from === null ? null : [`rewards from ${reward(Number(from))} to ${reward(Number(to))}; `, link(page.link(page.run(`step/${page.route.step}`)), "show all rows")];
  return el("p", { id: "rows", class: "filter" }, said);
}
