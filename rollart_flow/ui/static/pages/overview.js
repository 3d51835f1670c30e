// One run: its curves, and what became of its attempts.

export function show(page) {
  return [
    page.title(page.route.run),
    page.table("overview.steps", { columns: { step: { link: (row) => page.run(`step/${row.step}`) } } }),
  ];
}
