// The conversation of a trajectory: messages with their roles, thinking, tool calls and images.

import { part } from "./api.js";
import { el, fold, link } from "./dom.js";
import { mark, panel } from "./facts.js";
import { longText, visible } from "./texts.js";

const NAME = "trajectory.messages";
const IMAGE = /^[0-9a-f]{64}$/;

// The address of a turn: its place on this page, or the page from this turn on.
export function turnLink(page, turn) {
  if (page.rows(NAME).some((row) => row.turn === turn)) return `#turn-${turn}`;
  return page.link(`${page.run(`trajectory/${part(page.route.trajectory)}`)}/turn/${turn + 1}`);
}

export function messages(page) {
  const view = page.data.views[NAME];
  const place = el("div", { class: "conversation" });
  const fill = () => {
    const rows = page.rows(NAME).map((row, index) => ({ ...row, index }));
    const seen = new Set();
    place.replaceChildren(...rows.map((row) => message(page, row, page.data.views[NAME], seen)), ...[pager(page, fill)].filter(Boolean));
  };
  fill();
  const from = Number(page.route.turn ?? 1) > 1 && el("p", { class: "filter" }, `from turn ${page.route.turn} on; `, link(page.link(page.run(`trajectory/${part(page.route.trajectory)}`)), "from the beginning"));
  return panel(page, NAME, [from, view.rows.length ? place : el("p", { class: "empty" }, "nothing was said")]);
}

function message(page, row, view, seen) {
  const first = !seen.has(row.turn);
  seen.add(row.turn);
  const calls = typeof row.calls === "string" ? JSON.parse(row.calls) : null;
  const text = longText(page, NAME, "text", row, view, row.role === "assistant" ? "said" : "seen");
  return el("article", { class: `message ${row.role}`, id: first ? `turn-${row.turn}` : null, "data-row": true, tabindex: -1, "aria-label": `turn ${row.turn + 1}, ${row.role}` },
    el("p", { class: "role" }, el("b", {}, row.role), row.name && ` ${visible(row.name)}`, link(page.link(`${page.run(`trajectory/${part(page.route.trajectory)}`)}/turn/${row.turn + 1}`), `turn ${row.turn + 1}`), row.role === "assistant" && !row.sampled && mark("of another branch", "", "the policy saw it; its tokens are in the row of another branch")),
    row.thinking && fold(`thinking-${view.offset + row.index}`, "thinking", () => longText(page, NAME, "thinking", row, view, "thinking"), true),
    text,
    images(page, row),
    calls ? calls.map(call) : longText(page, NAME, "calls", row, view, "said"));
}

function call(each) {
  const given = JSON.stringify(each.function?.arguments ?? {}, null, 1);
  return el("div", { class: "call" }, el("p", { class: "role" }, "calls ", el("code", {}, visible(each.function?.name ?? "")), each.error && [" ", mark("could not be made", "bad"), " ", visible(each.error)]),
    el("pre", { class: "said", dir: "auto" }, visible(each.error ? each.text || given : given)));
}

function images(page, row) {
  const names = (row.images ?? []).filter((name) => IMAGE.test(name));
  return names.length ? el("p", { class: "images" }, names.map((name) => el("img", { src: `/api/run/${part(page.route.run)}/image/${name}`, alt: `image ${name.slice(0, 12)}`, loading: "lazy", class: "stored" }))) : null;
}

// Buttons for the rows before and after, which are asked for without the rest of the page.
export function pager(page, fill, name = NAME, what = "messages") {
  const view = page.data.views[name];
  if (!view.more && view.offset === 0) return null;
  const move = async (offset) => {
    page.state(name, { sort: view.sort, offset: Math.max(0, offset) });
    page.data.views[name] = (await page.fetch([name])).views[name];
    fill();
  };
  return el("nav", { class: "pager", "aria-label": `pages of ${what}` },
    el("button", { type: "button", disabled: view.offset === 0, onclick: () => move(view.offset - view.size) }, "previous"),
    el("span", {}, `${what} ${view.offset + 1} to ${view.offset + view.rows.length}${view.more ? "" : ", the last"}`),
    el("button", { type: "button", disabled: !view.more, onclick: () => move(view.offset + view.size) }, "next"));
}
