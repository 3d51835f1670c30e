// Keys: j k go through rows, Enter opens one, arrows go to the neighbours, / searches, ? helps.

export const KEYS = [
  [["j"], "next row"], [["k"], "previous row"], [["Enter"], "open the row"],
  [["←"], "previous step, group, trajectory"], [["→"], "next step, group, trajectory"],
  [["/"], "search"], [["?"], "this help"], [["Esc"], "close, leave a field"],
];

function step(forward) {
  const rows = [...document.querySelectorAll("main [data-row]")].filter((row) => row.offsetParent !== null || row.getClientRects().length);
  if (!rows.length) return;
  const here = rows.findIndex((row) => row.classList.contains("here"));
  const next = here < 0 ? (forward ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, here + (forward ? 1 : -1)));
  rows[here]?.classList.remove("here");
  rows[next].classList.add("here");
  rows[next].focus({ preventScroll: true });
  rows[next].scrollIntoView({ block: "nearest" });
}

export function listen(current, go, help) {
  document.addEventListener("keydown", (event) => {
    const field = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && field) return field.blur();
    if (field || event.metaKey || event.ctrlKey || event.altKey) return;
    const page = current();
    const way = event.key === "ArrowLeft" ? page?.ways.previous : event.key === "ArrowRight" ? page?.ways.next : null;
    if (event.key === "j") step(true);
    else if (event.key === "k") step(false);
    else if (event.key === "Enter" && event.target.matches("[data-row]")) event.target.querySelector("a")?.click();
    else if (event.key === "/") document.querySelector("[data-search]")?.focus();
    else if (event.key === "?") help();
    else if (way) go(page.link(way));
    else return;
    event.preventDefault();
  });
}
