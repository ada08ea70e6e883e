// The nodes as a table: the same facts for those who cannot or would rather not read a drawing.

const ROWS = 300;
// [title, value, cell, class]: the value sorts and is searched; a cell is drawn where it is more than its text.
const COLUMNS = [
  ["node", (node) => node.name], ["op", (node) => node.op], ["type", (node) => formatShape(node), null, "type"],
  ["time µs", (node, app, pass) => app.overlays.value(pass, node, "time") ?? "", (node, app, pass) => Number(app.overlays.value(pass, node, "time")).toPrecision(3), "number"],
  ["of its layer", (node, app, pass) => app.overlays.value(pass, node, "share") ?? "", (node, app, pass) => formatShare(app.overlays.value(pass, node, "share")), "number"],
  ["NMSE", (node, app, pass) => formatError(app.overlays.value(pass, node, "error")), null, "number"],
  ["inputs", (node) => node.inputs.join(", "), (node, app, pass) => inputLinks(node, app, pass), "inputs"],
  ["layer", (node) => node.layer ?? "", null, "number"], ["bytes", (node) => node.bytes ?? "", (node) => formatBytes(node.bytes), "number"],
  ["backend", (node) => node.backend ?? ""], ["source", (node) => node.source ?? ""],
];

// Names without the layer that the row says already, never broken inside; a click goes to the input.
function inputLinks(node, app, pass) {
  return node.inputs.map((name) => html("button", { type: "button", class: "link", title: name, onclick: () => app.select(name, pass, { still: true }) }, shortName(name, node.layer)));
}

function tableView(app, pass) {
  const filter = html("input", { type: "search", "aria-label": "Show only rows that contain", placeholder: "Show only rows that contain…", oninput: () => { limit = ROWS; redraw(); } });
  const count = html("span", { class: "dim", role: "status" });
  const more = html("button", { type: "button", onclick: () => { limit += ROWS; redraw(); } }, `Show ${ROWS} more`);
  const body = html("tbody");
  const several = ([title, value]) => title !== "backend" || new Set(pass.nodes.map((node) => value(node))).size > 1;
  const columns = COLUMNS.filter(([, value]) => pass.nodes.some((node) => value(node, app, pass) !== "")).filter(several);
  const heads = columns.map(([title], at) => html("th", { scope: "col", "aria-sort": "none", class: columns[at][3] },
    html("button", { type: "button", class: "quiet", onclick: () => sort(at) }, title)));
  const table = html("table", {}, html("caption", {}, `Nodes of the pass ${pass.name}`), html("thead", {}, html("tr", {}, ...heads)), body);
  let limit = ROWS;
  let sorted = { at: -1, up: true };

  function sort(at) {
    sorted = { at, up: sorted.at === at ? !sorted.up : true };
    heads.forEach((head, place) => head.setAttribute("aria-sort", place === at ? (sorted.up ? "ascending" : "descending") : "none"));
    redraw();
  }

  function cell([, , draw, kind], value, node) {
    const parts = value === "" ? [] : draw ? draw(node, app, pass) : String(value);
    return html("td", { class: kind }, ...[parts].flat());
  }

  function redraw() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let rows = pass.nodes.map((node) => ({ node, cells: columns.map(([, value]) => value(node, app, pass)) }));
    if (words.length) {
      rows = rows.filter(({ cells }) => {
        const text = cells.join("\n").toLowerCase();
        return words.every((word) => text.includes(word));
      });
    }
    if (sorted.at >= 0) {
      rows.sort((a, b) => compare(a.cells[sorted.at], b.cells[sorted.at]) * (sorted.up ? 1 : -1));
    }
    body.replaceChildren(...rows.slice(0, limit).map(({ node, cells }) => html("tr", { class: node.name === app.state.selected ? "selected" : null },
      html("th", { scope: "row" }, html("button", { type: "button", class: "link", onclick: () => { app.select(node.name, pass, { still: true }); redraw(); } }, cells[0])),
      ...cells.slice(1).map((value, at) => cell(columns[at + 1], value, node)))));
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
