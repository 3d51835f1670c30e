// One trajectory: what became of it, its conversation, tokens, time, branches, boxes and verdicts.

import { branches } from "../branches.js";
import { commands } from "../commands.js";
import { unified } from "../diff.js";
import { el, fold, link } from "../dom.js";
import { drawn, withSources } from "../drawn.js";
import { facts, mark, missing, outcome, panel, reward } from "../facts.js";
import { moment, number, seconds } from "../format.js";
import { figure, lanes } from "../lanes.js";
import { messages, turnLink } from "../messages.js";
import { longText, visible } from "../texts.js";
import { replayed, strip } from "../tokens.js";

const part = encodeURIComponent;
const TOKENS = "trajectory.tokens";
const LANES = ["environment", "policy", "queue", "reward", "training"];

export async function load(page) {
  const { turn, token } = page.route;
  if (/^\d+$/.test(token ?? "") && !page.states[TOKENS]) page.state(TOKENS, { sort: "", offset: Number(token) - (Number(token) % 400) });
  if (turn && !page.hash) page.hash = token ? `#token-${token}` : `#turn-${turn - 1}`;
  const [data, about] = await Promise.all([page.fetch(), page.get("about")]);
  return withSources(page, { ...data, about }, "trajectory.drawn");
}

export function show(page) {
  const name = page.route.trajectory;
  const [head] = page.rows("trajectory.head");
  const from = page.rows("trajectory.drawn");
  const draws = from.length ? drawn(page, "trajectory.drawn", () => name, { step: { link: (row) => page.run(`step/${row.step}`) } }) : null;
  if (!head) return draws ? [page.title(`Trajectory ${name}`), draws] : missing(page, "Trajectory", name);
  const [beside] = page.rows("trajectory.neighbours");
  const to = (id) => (id ? page.run(`trajectory/${part(id)}`) : null);
  page.neighbours({ previous: to(beside?.previous), next: to(beside?.next) });
  const [told] = page.rows("trajectory.story");
  const trained = page.rows("trajectory.trained");
  return [
    page.title(`Trajectory ${name}`),
    el("p", { class: "ways" }, beside?.previous && link(page.link(to(beside.previous)), `← ${beside.previous}`), link(page.link(page.run(`group/${part(head.group_id)}`)), `group ${head.group_id}`), beside?.next && link(page.link(to(beside.next)), `${beside.next} →`)),
    panel(page, "trajectory.story", [el("p", { class: "story" }, mark(told.fate, told.fate === "trained" ? "good" : "warn"), " ", visible(told.sentence)), moments(told)]),
    panel(page, "trajectory.head", known(page, head), { title: "The attempt" }),
    commands(lines(page, head, trained)),
    trained.length ? page.table("trajectory.trained", { columns: { step: { link: (row) => page.run(`step/${row.step}`) }, policy_version: { label: "served version" }, trained_version: { label: "trained version" }, batched_at: { label: "batched (UTC)", format: (value) => moment(value).slice(11) }, finished_at: { label: "step ended", format: (value) => moment(value).slice(11) }, step_ratio_mean: { label: "mean ratio of the step" }, step_ratio_max: { label: "largest ratio of the step" } } }) : null,
    time(page),
    messages(page),
    strip(page, head),
    replayed(page),
    branches(page),
    judged(page, head),
    page.rows("trajectory.boxes").length ? boxes(page) : null,
    page.rows("trajectory.calls").length ? calls(page) : null,
    fold("turns", "turns as stored", () => page.table("trajectory.turns", { columns: { number: { label: "turn", format: (value) => value + 1, link: (row) => `${page.run(`trajectory/${part(name)}`)}/turn/${row.number + 1}` }, generate_s: { label: "generated in", format: seconds }, step_s: { label: "step took", format: seconds } } })),
    page.rows("trajectory.events").length ? page.table("trajectory.events", { columns: { at: { label: "at (UTC)" }, seq: { hidden: true }, policy_version: { label: "version" } } }) : null,
  ];
}

function moments(told) {
  const list = [["group admitted", told.admitted_at], ["began", told.created_at], ["sampled", told.finished_at], ["scored", told.scored_at], ["committed", told.committed_at], ["left the buffer", told.left_at], ["in a batch", told.batched_at], ["trained", told.trained_at]];
  return el("ol", { class: "moments", "aria-label": "moments (UTC)" }, list.filter(([, at]) => at).map(([what, at]) => el("li", {}, el("span", { class: "dim" }, what), " ", el("time", { datetime: at }, moment(at).slice(11)))));
}

function known(page, head) {
  const parts = (head.reward_parts ?? []).map((each) => `${each.name} ${reward(each.value)}`).join(", ");
  const versions = head.policy_version_start === null ? "none trained" : head.policy_version_start === head.policy_version_end ? head.policy_version_start : `${head.policy_version_start} to ${head.policy_version_end}`;
  const sampling = head.sampling && Object.entries(head.sampling).filter(([, value]) => !Array.isArray(value)).map(([key, value]) => `${key} ${value}`).join(", ");
  return [
    facts([
      ["outcome", [outcome(head.outcome), head.reason && ` ${head.reason}`]], ["reward", [reward(head.reward), parts && el("span", { class: "dim" }, ` (${parts})`)]],
      ["solved", head.solved === null ? null : head.solved ? "yes" : "no"], ["task", el("span", { class: "mono" }, visible(head.task_id))], ["domain", head.domain], ["split", head.split], ["attempt", head.attempt],
      ["policy versions", versions], ["tokens", `${number(head.tokens)}, ${number(head.action_tokens)} trained on`], ["delivered", head.delivered_fraction === null ? null : `${number(100 * head.delivered_fraction)} % of the sampled tokens`], ["turns", head.turns], ["tool calls", head.tool_calls], ["that could not be made", head.tool_errors || null],
      ["sampling", sampling], ["environment", `${head.env_version}, seed ${head.env_seed}`], ["reset took", seconds(head.reset_s)], ["rendering differs from token", head.rewritten_at],
    ]),
    head.error && el("p", { class: "error" }, visible(head.error)),
    (head.suspicions ?? []).length ? el("p", { class: "suspicion" }, mark("suspicious", "bad"), " ", head.suspicions.map(visible).join("; ")) : null,
    fold("task", "task", () => longText(page, "trajectory.head", "task", { ...head, index: 0 }, page.data.views["trajectory.head"], "seen")),
  ];
}

function lines(page, head, trained) {
  const run = page.data.about.handle, before = trained.length ? trained[0].step - 1 : null;
  return [
    ["run it again and compare every token", ["rollart", "replay", run, "--trajectory", head.trajectory_id]],
    head.action_tokens > 0 && ["compute the trainer's logprobs, and keep them for this page", ["rollart", "replay", run, "--trajectory", head.trajectory_id, "--logprobs"]],
    ["read it in a terminal", ["rollart", "show", run, "--trajectory", head.trajectory_id]],
    before !== null && ["start a run from before it was trained on", ["rollart", "fork", run, "--step", before, "PIPELINE.py"]],
  ].filter(Boolean);
}

function time(page) {
  const rows = page.rows("trajectory.spans");
  if (!rows.length) return null;
  const kinds = { environment: "s1", policy: "s0", queue: "s6", reward: "s2", training: "s3" };
  const spans = rows.map((row) => {
    const version = row.version_first === null ? "" : row.version_first === row.version_last ? `v${row.version_first}` : `v${row.version_first}-${row.version_last}`;
    const turn = row.turn === null ? "" : `, turn ${row.turn + 1}`;
    return { lane: row.lane, start: row.start_s, end: row.end_s, kind: kinds[row.lane], text: version, label: `${row.span}${turn}: ${seconds(row.end_s - row.start_s)} from ${seconds(row.start_s)}${version && `, policy version ${version.slice(1).replace("-", " to ")}`}`, href: row.turn === null ? null : turnLink(page, row.turn) };
  });
  return panel(page, "trajectory.spans", figure(null, lanes(spans, LANES.filter((lane) => spans.some((span) => span.lane === lane)), "spans of the trajectory")));
}

function judged(page, head) {
  const verdicts = page.rows("trajectory.verdicts");
  if (!verdicts.length && !head.diff) return null;
  const passed = (value) => (value === null ? el("span", { class: "dim" }, "-") : mark(value ? "passed" : "failed", value ? "good" : "bad"));
  return [
    verdicts.length ? page.table("trajectory.verdicts", { columns: { passed: { format: passed }, seq: { hidden: true }, judged_at: { label: "judged (UTC)", format: (value) => moment(value).slice(11) }, seconds: { format: (value) => (value === null ? "-" : seconds(value)) }, verifier: { format: (value) => (value ? el("code", { title: value }, value.slice(0, 8)) : "-") } } }) : null,
    head.diff && el("section", { class: "view" }, el("h2", {}, "Change of files"), change(page, head)),
  ];
}

function change(page, head) {
  if (typeof head.diff === "string") return unified(visible(head.diff));
  const place = el("div", {}, unified(visible(head.diff.cut)));
  place.append(el("button", { type: "button", onclick: async () => {
    const { value } = await page.get("cell", { ...page.parameters, view: "trajectory.head", column: "diff", offset: 0 });
    place.replaceChildren(unified(visible(value)));
  } }, `all ${number(head.diff.length)} characters`));
  return place;
}

function boxes(page) {
  const time = { format: (value) => (value ? moment(value).slice(11) : "-") };
  return page.table("trajectory.boxes", { columns: {
    sandbox_id: { label: "box" }, peak_memory_mb: { label: "peak memory [MiB]" }, killed_by: { label: "killed by", format: (value) => (value ? mark(value, "bad") : "-") }, leaked: { label: "leaked processes", format: (value) => (value ? mark(value, "warn") : "0") },
    exec_s: { label: "commands took", format: seconds }, wait_s: { label: "waited for", format: seconds }, created_at: time, ready_at: time, leased_at: time, ended_at: time,
  } });
}

function calls(page) {
  const hidden = { hidden: true }, view = page.data.views["trajectory.calls"];
  const text = (column) => ({ format: (value, row) => (value === null ? "-" : fold(`${column}-${row.number}`, column, () => longText(page, "trajectory.calls", column, { ...row, index: view.rows.findIndex(([number]) => number === row.number) }, view, "seen"))) });
  return page.table("trajectory.calls", { columns: {
    number: { label: "call" }, trajectory_id: { label: "row", link: (row) => row.trajectory_id && page.run(`trajectory/${part(row.trajectory_id)}`) }, answer_start: hidden, answer_end: hidden,
    parent: { label: "goes on from" }, trained_tokens: { label: "trained" }, request: text("request"), answer: text("answer"), requested: text("requested"), effective: text("effective"),
    refusal: { format: (value, row) => (value ? el("div", { class: "roomy" }, mark(value, "bad"), " ", visible(row.error ?? "")) : "-") }, error: hidden,
    note: { format: (value) => value || "-" },
    queue_s: { label: "queued", format: (value) => (value === null ? "-" : seconds(value)) }, call_s: { label: "took", format: seconds },
  } });
}
