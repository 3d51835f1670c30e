// One run: its curves, and what became of its attempts.

import { commands } from "../commands.js";
import { el, fold } from "../dom.js";
import { moment, number, seconds, share } from "../format.js";

export async function load(page) {
  const [data, about] = await Promise.all([page.fetch(), page.get("about")]);
  return { ...data, about };
}

export function show(page) {
  const { about } = page.data;
  const step = (row) => page.run(`step/${row.step}`);
  const curve = (name, y, more) => page.chart(`overview.${name}`, { x: "step", y, link: step, ...more });
  const range = { band: ["lowest", "highest"] };
  return [
    page.title(page.route.run),
    facts(page, about),
    el("h2", {}, "Curves"),
    el("p", { class: "dim" }, "A point opens its step. Drag over a chart to zoom."),
    el("div", { class: "charts" },
      page.chart("overview.success", { x: "step", y: { value: "success" }, by: ["domain"], choose: "metric", first: "success", link: step, format: (value) => share(value) }),
      curve("reward", { reward: "mean reward" }, range),
      curve("loss", { loss: "loss" }, range),
      curve("gradient", { grad_norm: "gradient norm" }, range),
      curve("policy", { entropy: "entropy [nats]", kl: "KL from the behavior policy [nats]", mismatch_kl: "KL of trainer and engine [nats]", clip_fraction: "clipped fraction" }),
      curve("ratio", { ratio_mean: "mean ratio to the behavior policy", ratio_max: "largest ratio", ess: "effective sample size [share]" }),
      curve("ages", { staleness_max: "staleness, largest", staleness_mean: "staleness, mean", lag_max: "lag, largest", lag_mean: "lag, mean" }),
      curve("phases", { wait: "wait for a batch", suspend: "suspend", update: "update", resume: "resume", train: "train", publish: "publish" }, { kind: "bars", format: seconds }),
    ),
    el("h2", {}, "Attempts"),
    page.table("overview.domains", { columns: { solved: { format: share }, seconds: { label: "mean seconds", format: seconds } } }),
    page.table("overview.waste", { columns: { share: { format: share }, seconds: { label: "seconds, summed", format: seconds } } }),
    page.table("overview.drops", { empty: "nothing" }),
    el("h2", {}, "Pools"),
    page.table("overview.pools"),
    page.table("overview.busy", { sortable: false, columns: { training: { format: share }, training_waits: { label: "training waits", format: share }, rollout_suspended: { label: "rollout suspended", format: share }, publishing: { format: share } } }),
    page.table("overview.engines", { columns: { generate_s: { format: seconds }, environment_s: { format: seconds } } }),
    el("h2", {}, "Steps"),
    page.table("overview.latest", { columns: { step: { link: step }, step_s: { label: "seconds", format: seconds } } }),
  ];
}

function facts(page, about) {
  const entry = (name, value, kind = null) => value !== null && value !== undefined && el("div", {}, el("dt", {}, name), el("dd", { class: kind }, value));
  return [
    about.error && el("p", { class: "error" }, about.error),
    el("dl", { class: "facts" },
      entry("status", about.status, about.status === "failed" ? "bad" : null),
      entry("pipeline", about.pipeline),
      entry("seed", String(about.seed)),
      entry("created (UTC)", moment(about.created_at)),
      entry("forked from", about.parent && `${about.parent.uri}, step ${about.parent.step}`),
      entry("rows up to", number(page.data.cut)),
      entry("place", about.uri)),
    commands([["read it in a terminal", ["rollart", "show", about.handle]], about.status === "interrupted" && ["go on", ["rollart", "resume", about.handle]]].filter(Boolean)),
    fold("settings", "settings", () => el("pre", { tabindex: 0 }, JSON.stringify({ overrides: about.overrides, ...about.settings, versions: about.versions }, null, 2))),
  ];
}
