// The token strip: each token of the chain, coloured by a value, with all that the tables say of it.

import { el } from "./dom.js";
import { mark, panel } from "./facts.js";
import { number } from "./format.js";
import { pager } from "./messages.js";
import { visible } from "./texts.js";

const NAME = "trajectory.tokens";
const METRICS = ["logprob", "advantage", "version", "mask"];
const LEGENDS = {
  logprob: [["likely", "t0"], ["over 50 %", "t1"], ["over 20 %", "t2"], ["over 5 %", "t3"], ["less", "t4"]],
  advantage: [["positive", "up"], ["none", "t0"], ["negative", "down"]],
  ratio: [["over 1.1", "up"], ["about 1", "t0"], ["under 0.9", "down"]],
  difference: [["under 0.001 nats", "t0"], ["under 0.01", "t1"], ["under 0.1", "t2"], ["under 1", "t3"], ["more", "t4"]],
  mask: [["trained on", "up"], ["sampled, not trained on", "t3"]],
};
let metric = "logprob";

export function strip(page, head) {
  const place = el("div", { class: "strip" });
  const detail = el("p", { class: "detail", "aria-live": "polite" }, "Arrow keys go from token to token.");
  const legend = el("p", { class: "dim" });
  const more = el("div");
  const fill = () => {
    const rows = page.rows(NAME), versions = [...new Set(rows.map((row) => row.version).filter((each) => each !== null))].sort((a, b) => a - b);
    place.replaceChildren(...rows.map((row, index) => token(row, index, versions)));
    const kinds = LEGENDS[metric === "trainer logprob" ? "logprob" : metric] ?? versions.map((version, index) => [`version ${version}`, `v${index % 8}`]);
    legend.replaceChildren(...kinds.flatMap(([label, kind]) => [el("span", { class: `token ${kind}` }, label), " "]), el("span", { class: "token seen" }, "observed"));
    more.replaceChildren(...[pager(page, fill, NAME, "tokens"), turns(page, fill)].filter(Boolean));
  };
  place.addEventListener("focusin", (event) => tell(page, event.target, detail));
  place.addEventListener("mouseover", (event) => tell(page, event.target, detail));
  place.addEventListener("keydown", move);
  const [kept] = page.rows("trajectory.replayed");
  const metrics = [...METRICS, ...trainers(kept)];
  if (!metrics.includes(metric)) metric = "logprob";
  const select = el("select", { id: "token-metric", onchange: (event) => ((metric = event.target.value), fill()) }, metrics.map((each) => el("option", { value: each, selected: each === metric }, each)));
  fill();
  return panel(page, NAME, [
    el("div", { class: "controls" }, el("label", {}, "colour by ", select), legend),
    place, detail, more,
    !kept && head.action_tokens > 0 && el("p", { class: "dim" }, "The run did not keep its trainer's logprobs, which ", el("code", {}, "train(keep_logprobs=True)"), " does; the command above with ", el("code", {}, "--logprobs"), " computes them."),
  ]);
}

export function replayed(page) {
  const [kept] = page.rows("trajectory.replayed");
  if (!kept) return null;
  const ratio = kept.step === null ? "" : `Under version ${kept.trained_version}, from which step ${kept.step} started, the mean ratio of a token is ${number(kept.ratio_mean)} and the largest ${number(kept.ratio_max)}. `;
  const again = kept.tokens === 0 ? "" : `A replay computed the logprobs of ${number(kept.tokens)} tokens again, in float32: under the version of each token they differ from the engine's by at most ${number(kept.difference_max)} nats.`;
  return panel(page, "trajectory.replayed", el("p", {}, `${ratio}${again}`));
}

// What can colour the tokens beside the engine's values: what the run or a replay kept of the trainer's.
function trainers(kept) {
  if (!kept) return [];
  return ["trainer logprob", ...(kept.step === null ? [] : ["ratio"]), ...(kept.tokens ? ["difference"] : [])];
}

function token(row, index, versions) {
  const said = visible(row.text).replaceAll("\n", "⏎\n").replaceAll("\t", "⇥");
  return el("span", { class: `token ${kind(row, versions)}${row.trained ? "" : " masked"}`, tabindex: index ? -1 : 0, role: "img", id: `token-${row.position}`, "data-index": index, title: `token ${row.position}`, "aria-label": label(row) }, said || "∅");
}

function kind(row, versions) {
  if (!row.sampled) return "seen";
  if (metric === "version") return `v${versions.indexOf(row.version) % 8}`;
  if (metric === "mask") return row.trained ? "up" : "t3";
  if (metric === "advantage") return row.advantage > 0 ? "up" : row.advantage < 0 ? "down" : "t0";
  const value = { ratio: row.ratio, difference: row.difference, "trainer logprob": trainer(row) }[metric];
  if (value === null) return "";
  if (metric === "ratio") return value > 1.1 ? "up" : value < 0.9 ? "down" : "t0";
  if (metric === "difference") return `t${[0.001, 0.01, 0.1, 1].filter((bound) => Math.abs(value) >= bound).length}`;
  const chance = Math.exp(value ?? row.logprob);
  return `t${[0.9, 0.5, 0.2, 0.05].filter((bound) => chance < bound).length}`;
}

function trainer(row) {
  return row.trained_logprob ?? row.replayed_logprob; // no step trained on a row without the former
}

function again(row) {
  if (trainer(row) === null) return [];
  const under = row.ratio === null ? [] : [`ratio ${number(row.ratio)}`];
  const apart = row.difference === null ? [] : [`difference ${number(row.difference)} under version ${row.version}`];
  return [`trainer's logprob ${number(trainer(row))}`, ...under, ...apart];
}

function label(row) {
  const parts = [`token ${row.position}`, JSON.stringify(visible(row.text)), `id ${row.token_id}`, `turn ${row.turn + 1}`];
  if (row.sampled) parts.push(`logprob ${number(row.logprob)} (${number(100 * Math.exp(row.logprob))} %)`, `policy version ${row.version}`, row.trained ? "trained on" : "masked", row.advantage === null ? "no advantage stored" : `advantage ${number(row.advantage)}`, ...again(row));
  else parts.push("observed, mask false");
  return parts.join(", ");
}

function tell(page, target, detail) {
  if (target.dataset?.index !== undefined) detail.textContent = label(page.rows(NAME)[Number(target.dataset.index)]);
}

function move(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
  if (!step || event.target.dataset.index === undefined) return;
  const all = [...event.currentTarget.children];
  const next = all[Math.min(all.length - 1, Math.max(0, Number(event.target.dataset.index) + step))];
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
  event.preventDefault();
  event.stopPropagation(); // the arrow keys of the page go to other trajectories
}

function turns(page, fill) {
  const list = page.rows("trajectory.turns");
  if (list.length < 2 && list[0]?.start === 0 && !page.data.views[NAME].more) return null;
  const to = async (offset) => {
    page.state(NAME, { sort: "", offset });
    page.data.views[NAME] = (await page.fetch([NAME])).views[NAME];
    fill();
  };
  return el("p", { class: "dim jumps" }, "from turn ", list.map((turn) => el("button", { type: "button", class: "small", onclick: () => to(turn.start) }, turn.number + 1)));
}
