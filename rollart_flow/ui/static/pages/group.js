// One group: the rewards of its attempts, and their texts side by side.

import { difference } from "../diff.js";
import { el, link } from "../dom.js";
import { facts, mark, missing, outcome, panel, reward } from "../facts.js";
import { moment, number } from "../format.js";
import { bars, figure } from "../lanes.js";
import { longText } from "../texts.js";
import { go } from "../main.js";

const part = encodeURIComponent;

export function show(page) {
  const [figures] = page.rows("group.figures");
  const attempts = page.rows("group.attempts");
  if (!attempts.length) return missing(page, "Group", page.route.group);
  const [beside] = page.rows("group.neighbours");
  const to = (name) => (name ? page.run(`group/${part(name)}`) : null);
  page.neighbours({ previous: to(beside?.previous), next: to(beside?.next) });
  const steps = [...new Set(attempts.map((each) => each.step).filter((each) => each !== null))];
  return [
    page.title(`Group ${page.route.group}`),
    el("p", { class: "ways" }, beside?.previous && link(page.link(to(beside.previous)), `← ${beside.previous}`), beside?.next && link(page.link(to(beside.next)), `${beside.next} →`)),
    panel(page, "group.figures", [
      figures.zero_variance ? el("p", {}, mark("zero variance", "warn"), " all rewards are equal: the group has no advantage to learn from") : null,
      facts([
        ["task", el("span", { class: "mono" }, figures.task_id)], ["domain", figures.domain], ["split", figures.split], ["attempts", figures.attempts], ["scored", figures.scored],
        ["mean reward", number(figures.reward_mean)], ["standard deviation", number(figures.reward_std)], ["lowest", number(figures.reward_min)], ["highest", number(figures.reward_max)],
        ["oldest version", figures.oldest_version], ["trained in", steps.length ? steps.map((step) => [link(page.link(page.run(`step/${step}`)), `step ${step}`), " "]) : "no step"],
      ]),
      rewards(page, attempts),
    ]),
    page.table("group.attempts", {
      columns: {
        trajectory_id: { label: "trajectory", link: (row) => page.run(`trajectory/${part(row.trajectory_id)}`) },
        outcome: { format: outcome }, reward: { format: reward },
        step: { link: (row) => (row.step === null ? null : page.run(`step/${row.step}`)) },
        policy_version_start: { label: "from version" }, policy_version_end: { label: "to version" },
        created_at: { label: "began (UTC)", format: (value) => moment(value).slice(11) }, finished_at: { label: "ended", format: (value) => moment(value).slice(11) },
      },
    }),
    sideBySide(page, attempts),
    page.rows("group.events").length ? page.table("group.events", {}) : null,
  ];
}

function rewards(page, attempts) {
  const scored = attempts.filter((each) => each.reward !== null);
  if (!scored.length) return el("p", { class: "dim" }, "no attempt was scored");
  const slots = Math.max(attempts.length, 8);
  const drawn = bars(scored.map((each) => ({
    at: attempts.indexOf(each), value: each.reward, text: reward(each.reward), kind: each.step === null ? "s6" : "s0",
    label: `attempt ${each.attempt}: reward ${reward(each.reward)}${each.step === null ? ", not trained on" : `, advantage ${number(each.advantage)}`}`,
    href: page.link(page.run(`trajectory/${part(each.trajectory_id)}`)),
  })), slots, "rewards of the attempts", { labels: attempts.map((each, index) => [index + 0.5, `${each.attempt}`]) });
  return figure("Rewards by attempt", drawn, [["trained on", "s0"], ["not trained on", "s6"]]);
}

function sideBySide(page, attempts) {
  const texts = page.rows("group.texts"), view = page.data.views["group.texts"];
  const ids = attempts.map((each) => each.trajectory_id);
  const left = chosen(page, "left", ids, 0), right = chosen(page, "right", ids, Math.min(1, ids.length - 1));
  const differs = page.query.get("diff") === "1";
  const to = (state) => go(page.link(`${page.run(`group/${part(page.route.group)}`)}?left=${part(state.left ?? left)}&right=${part(state.right ?? right)}${(state.diff ?? differs) ? "&diff=1" : ""}`), true);
  const pick = (name, value) => el("label", {}, `${name} `, el("select", { id: `pick-${name}`, onchange: (event) => to({ [name]: event.target.value }) }, ids.map((id) => el("option", { value: id, selected: id === value }, id))));
  const said = (id) => texts.map((row, index) => ({ ...row, index })).filter((row) => row.trajectory_id === id);
  const [a, b] = [said(left), said(right)];
  const plain = (value) => (value === null || value === undefined ? "" : typeof value === "object" ? value.cut : value);
  const pairs = Array.from({ length: Math.max(a.length, b.length) }, (_, index) => [a[index], b[index]]);
  const box = (row) => el("div", { class: "message" }, row && [
    el("p", { class: "role" }, `turn ${row.number + 1}`, row.reward ? `, reward ${reward(row.reward)}` : ""),
    longText(page, "group.texts", "observation", row, view, "seen"), longText(page, "group.texts", "action", row, view, "said"),
  ]);
  const both = ([one, other], index) => differs && one && other
    ? el("div", { class: "message wide" }, el("p", { class: "role" }, `turn ${index + 1}`), difference(plain(one.observation), plain(other.observation)), difference(plain(one.action), plain(other.action)))
    : [box(one), box(other)];
  return panel(page, "group.texts", [
    el("div", { class: "controls" }, pick("left", left), pick("right", right), el("label", {}, el("input", { type: "checkbox", id: "pick-diff", checked: differs, onchange: (event) => to({ diff: event.target.checked }) }), " difference")),
    differs && el("p", { class: "dim" }, el("del", {}, "only left"), " ", el("ins", {}, "only right")),
    el("div", { class: "beside" }, pairs.map(both)),
    view.more && el("p", { class: "dim" }, `only the first ${view.size} turns of the group are here; the page of a trajectory has all of its own`),
  ], { title: "Two attempts side by side" });
}

function chosen(page, name, ids, otherwise) {
  const given = page.query.get(name);
  return ids.includes(given) ? given : ids[otherwise];
}
