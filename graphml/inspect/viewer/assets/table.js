// The nodes as a table: the same facts for those who cannot or would rather not read a drawing.

const ROWS = 300;
const COLUMNS = [
  ["node", (node) => node.name], ["op", (node) => node.op], ["type", (node) => formatShape(node)], ["layer", (node) => node.layer ?? ""],
  ["bytes", (node) => node.bytes ?? ""], ["time µs", (node, app, pass) => app.overlays.value(pass, node, "time") ?? ""],
  ["NMSE", (node, app, pass) => formatError(app.overlays.value(pass, node, "error"))], ["backend", (node) => node.backend ?? ""],
  ["source", (node) => node.source ?? ""], ["inputs", (node) => node.inputs.join(", ")],
];

function tableView(app, pass) {
  const filter = html("input", { type: "search", "aria-label": "Show only rows that contain", placeholder: "Show only rows that contain…", oninput: () => { limit = ROWS; redraw(); } });
  const count = html("span", { class: "dim", role: "status" });
  const more = html("button", { type: "button", onclick: () => { limit += ROWS; redraw(); } }, `Show ${ROWS} more`);
  const body = html("tbody");
  const columns = COLUMNS.filter(([, value]) => pass.nodes.some((node) => value(node, app, pass) !== ""));
  const heads = columns.map(([title], at) => html("th", { scope: "col", "aria-sort": "none" },
    html("button", { type: "button", class: "quiet", onclick: () => sort(at) }, title)));
  const table = html("table", {}, html("caption", {}, `Nodes of the pass ${pass.name}`), html("thead", {}, html("tr", {}, ...heads)), body);
  let limit = ROWS;
  let sorted = { at: -1, up: true };

  function sort(at) {
    sorted = { at, up: sorted.at === at ? !sorted.up : true };
    heads.forEach((head, place) => head.setAttribute("aria-sort", place === at ? (sorted.up ? "ascending" : "descending") : "none"));
    redraw();
  }

  function redraw() {
    const wanted = filter.value.toLowerCase();
    let rows = pass.nodes.map((node) => ({ node, cells: columns.map(([, value]) => value(node, app, pass)) }));
    if (wanted) rows = rows.filter(({ cells }) => cells.some((cell) => String(cell).toLowerCase().includes(wanted)));
    if (sorted.at >= 0) {
      rows.sort((a, b) => compare(a.cells[sorted.at], b.cells[sorted.at]) * (sorted.up ? 1 : -1));
    }
    body.replaceChildren(...rows.slice(0, limit).map(({ node, cells }) => html("tr", { class: node.name === app.state.selected ? "selected" : null },
      html("th", { scope: "row" }, html("button", { type: "button", class: "link", onclick: () => { app.select(node.name, pass, { still: true }); redraw(); } }, cells[0])),
      ...cells.slice(1).map((cell) => html("td", {}, String(cell))))));
    count.textContent = `${Math.min(limit, rows.length)} of ${rows.length} nodes`;
    more.hidden = rows.length <= limit;
  }

  redraw();
  return html("div", { class: "page table-view", tabindex: "0", role: "region", "aria-label": "Table of nodes" }, html("div", { class: "page-tools" }, filter, count), table, more);
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}
