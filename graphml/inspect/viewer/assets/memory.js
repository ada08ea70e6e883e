// The arena of the last pass: a box per value, from the step that makes it to the last that reads it.

const MAP = { width: 1100, height: 520, left: 76, bottom: 36, top: 14 };

// [{node, offset, size, from, to}]: lives run through views, which read their operand's storage.
function lives(pass) {
  const end = new Map();
  const own = new Map();
  pass.nodes.forEach((node, step) => {
    for (const input of node.inputs) {
      for (let name = input; name; name = own.get(name)) end.set(name, step);
    }
    if (!node.buffer && !isLeaf(node)) own.set(node.name, node.inputs[0]);
    end.set(node.name, Math.max(step, end.get(node.name) ?? 0));
  });
  const wanted = new Set(Object.values(pass.outputs));
  return pass.nodes.filter((node) => node.buffer).map((node) => ({
    node, ...node.buffer, from: node.place, to: wanted.has(node.name) ? pass.nodes.length - 1 : end.get(node.name),
  }));
}

function memoryView(app) {
  const { model } = app;
  const pass = [...model.passes].reverse().find((one) => one.nodes.some((node) => node.buffer));
  if (!pass) return html("div", { class: "page" }, html("p", {}, "No pass of this document has buffers."));
  const boxes = lives(pass);
  const peak = Math.max(model.raw.plan?.peak || 0, ...boxes.map((box) => box.offset + box.size));
  const x = (step) => MAP.left + ((MAP.width - MAP.left - 10) * step) / pass.nodes.length;
  const y = (offset) => MAP.top + ((MAP.height - MAP.top - MAP.bottom) * offset) / peak;
  const drawing = svg("svg", { class: "arena", viewBox: `0 0 ${MAP.width} ${MAP.height}`, role: "img", "aria-label": `Memory of the pass ${pass.name}: ${boxes.length} values in ${formatBytes(peak)}` });
  for (let tick = 0; tick <= 4; tick += 1) {
    drawing.append(svg("line", { class: "grid", x1: MAP.left, x2: MAP.width - 10, y1: y((peak * tick) / 4), y2: y((peak * tick) / 4) }),
      svg("text", { class: "tick", x: MAP.left - 8, y: y((peak * tick) / 4) + 4, "text-anchor": "end" }, formatBytes((peak * tick) / 4)),
      svg("text", { class: "tick", x: x((pass.nodes.length * tick) / 4), y: MAP.height - 14, "text-anchor": tick === 4 ? "end" : "middle" }, String(Math.round((pass.nodes.length * tick) / 4))));
  }
  for (const box of boxes) {
    const rect = svg("rect", {
      class: `life${box.node.name === app.state.selected ? " selected" : ""}`, x: round(x(box.from)), y: y(box.offset).toFixed(2), width: Math.max(1.5, x(box.to + 1) - x(box.from)).toFixed(2),
      height: Math.max(0.8, y(box.offset + box.size) - y(box.offset)).toFixed(2),
      onclick: () => { app.select(box.node.name, pass, { still: true }); app.draw(); },
    }, svg("title", {}, `${box.node.name}\n${box.node.op} ${formatShape(box.node)}\n${formatBytes(box.size)} at ${box.offset}\nsteps ${box.from} to ${box.to}`));
    rect.dataset.family = family(box.node);
    drawing.append(rect);
    const room = x(box.to + 1) - x(box.from), height = y(box.offset + box.size) - y(box.offset);
    if (height > 18 && room > box.node.name.length * LETTER + 16) {
      drawing.append(svg("text", { class: "life-name", x: round(x(box.from) + 8), y: round(y(box.offset) + 15) }, box.node.name));
    }
  }
  const lower = model.raw.plan?.lower_bound;
  const text = `${boxes.length} values in ${formatBytes(peak)}${lower ? `; no plan can take less than ${formatBytes(lower)} (${(peak / lower).toFixed(2)} ×)` : ""}. Across: the steps of the pass ${pass.name}; down: offsets in the arena.`;
  const largest = [...boxes].sort((a, b) => b.size - a.size).slice(0, 10);
  return html("div", { class: "page", tabindex: "0", role: "region", "aria-label": "Memory" }, html("h2", {}, "Arena"), html("p", { class: "dim" }, text), drawing,
    html("h3", {}, "Largest values"),
    html("ul", { class: "links" }, ...largest.map((box) => html("li", {}, app.panel.link(box.node.name, pass), html("span", { class: "dim" }, ` ${formatBytes(box.size)} at ${box.offset}, steps ${box.from} to ${box.to}`)))));
}
