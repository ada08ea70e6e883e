// The elements of a drawing: cards of nodes, boxes of closed layers, frames of open ones, lines between them.
// The inside of an open layer is made when it comes into sight, the rest when the browser has nothing to do.

const AT_ONCE = 3; // layers that are filled before the browser draws again

Object.assign(Pane.prototype, {
  line(path, sources, targets) {
    const element = svg("path", { class: sources.every((one) => this.minor(one)) ? "edge minor" : "edge", d: curve(path) });
    this.keepLine({ element, sources: new Set(sources), targets: new Set(targets) });
    return element;
  },

  keepLine(line) {
    for (const name of new Set([...line.sources, ...line.targets])) {
      if (!this.lines.has(name)) this.lines.set(name, []);
      this.lines.get(name).push(line);
    }
  },

  drawUnit(unit) {
    if (unit.type === "node") {
      const element = this.card(unit, unit.nodes[0], unit.x, unit.y);
      this.spots.set(unit.nodes[0].name, { element, x: unit.x, y: unit.y, w: unit.w, h: unit.h, node: unit.nodes[0] });
      return element;
    }
    unit.element = unit.type === "run" ? this.drawRun(unit) : this.drawOpen(unit);
    return unit.element;
  },

  drawRun(unit) {
    const { overlays } = this.app;
    const group = svg("g", {
      transform: `translate(${round(unit.x)} ${round(unit.y)})`, class: "run", role: "button", tabindex: "-1", "aria-expanded": "false",
      "aria-label": `${unit.label}, closed, ${plural(unit.nodes.length, "node")}; Enter opens the first`,
      onclick: () => this.app.open(unit.run.layers[0]),
    });
    const under = Math.min(3, unit.run.layers.length) - 1;
    for (let at = under; at >= 0; at -= 1) {
      group.append(svg("rect", { class: "box", x: at * 4, y: at * 4, width: round(unit.w - under * 4), height: unit.h - under * 4, rx: 8 }));
    }
    group.append(svg("text", { x: 14, y: 20, class: "name" }, `▸ ${unit.label}`),
      svg("text", { x: 14, y: 37, class: "type" }, unit.line));
    overlays.paint(group, this.pass, unit.nodes);
    this.spots.set(`#run ${unit.run.layers[0]}`, { element: group, x: unit.x, y: unit.y, w: unit.w, h: unit.h, unit });
    return group;
  },

  // The frame and the head of an open layer, and where its cards will be.
  drawOpen(unit) {
    const key = this.keyOf(unit.layer);
    if (!this.drawn.has(key)) this.drawn.set(key, this.makeFrame(unit));
    const kept = this.drawn.get(key);
    kept.group.setAttribute("transform", `translate(${round(unit.x)} ${round(unit.y)})`);
    unit.kept = kept;
    this.spots.set(`#open ${unit.layer}`, { element: kept.head, x: unit.x, y: unit.y, w: unit.w, h: HEAD, unit });
    unit.items.forEach((item, at) => {
      if (!item.node) return;
      const { x, y } = itemPlace(unit, at);
      this.spots.set(item.node.name, { element: kept.cards.get(item.node.name), x: unit.x + x, y: unit.y + y, w: item.w, h: item.h, node: item.node, unit });
    });
    for (const line of kept.lines) this.keepLine(line);
    return kept.group;
  },

  makeFrame(unit) {
    const { overlays } = this.app;
    const size = { width: round(unit.w), height: round(unit.h), rx: 10 };
    const total = overlays.sumOf(this.pass, unit.nodes);
    const head = svg("g", {
      class: "head", role: "button", tabindex: "-1", "aria-expanded": "true", "aria-label": `${unit.label}, open; Enter closes it`,
      onclick: () => this.app.close(unit.layer),
    }, svg("rect", { class: "hit", width: round(unit.w), height: HEAD, rx: 10 }), svg("text", { x: PAD, y: 18 }, `▾ ${unit.label}`),
    svg("text", { x: round(unit.w - PAD), y: 18, class: "count" }, `${total ? `${total} · ` : ""}${plural(unit.nodes.length, "node")}`));
    // No g: browsers lay out the inside of one that is not displayed.
    const inside = svg("svg", { class: "inside", role: "presentation", overflow: "visible" });
    // From far away a layer is a box with a name beside it; a click goes there.
    const whole = svg("g", { class: "whole", "aria-hidden": "true", onclick: () => this.frame(unit.layer) }, svg("rect", { class: "box", ...size }),
      svg("g", { transform: `translate(${round(unit.w)} ${round(unit.h / 2)})` }, svg("text", { class: "sign", x: 8, y: 4 }, `${unit.label}${total ? ` · ${total}` : ""}`)));
    overlays.paint(whole, this.pass, unit.nodes);
    const group = svg("g", { class: "layer" }, svg("rect", { class: "frame", ...size }), inside, head, whole);
    return { group, head, inside, cards: new Map(), lines: [], filled: false };
  },

  fill(unit) {
    const { kept } = unit;
    if (kept.filled) return;
    kept.filled = true;
    const shift = { x: (unit.w - unit.width) / 2, y: HEAD + PAD };
    unit.edges.forEach((edge, at) => {
      const ends = [unit.items[edge.from], unit.items[edge.to]].map((item) => (item.node ? item.node.name : item.name));
      const path = unit.paths[at].map(({ x, y }) => ({ x: x + shift.x, y: y + shift.y }));
      const element = this.line(path, [ends[0]], [ends[1]]);
      kept.lines.push({ element, sources: new Set([ends[0]]), targets: new Set([ends[1]]) });
      kept.inside.append(element);
    });
    unit.items.forEach((item, at) => {
      const { x, y } = itemPlace(unit, at);
      if (!item.node) { kept.inside.append(this.portMark(item, x, y)); return; }
      const card = this.card(item, item.node, x, y);
      kept.cards.set(item.node.name, card);
      this.spots.get(item.node.name).element = card;
      kept.inside.append(card);
    });
  },

  // The layers in sight at once, a few at a time; then the others.
  fillSoon() {
    const waiting = this.units.filter((unit) => unit.type === "open" && !unit.kept.filled);
    this.element.setAttribute("aria-busy", String(waiting.length > 0));
    if (!waiting.length) return;
    const now = this.view.k < DISTANT ? [] : waiting.filter((unit) => this.near(unit)).slice(0, AT_ONCE);
    now.forEach((unit) => this.fill(unit));
    if (now.length) this.mark();
    if (this.idle) return;
    this.idle = true;
    whenIdle((deadline) => {
      this.idle = false;
      const rest = this.units.filter((unit) => unit.type === "open" && !unit.kept.filled);
      const near = rest.filter((unit) => this.near(unit));
      const queue = [...near, ...rest.filter((unit) => !near.includes(unit))];
      do { if (queue.length) this.fill(queue.shift()); } while (queue.length && deadline.timeRemaining() > 8);
      this.mark();
      this.fillSoon();
    });
  },

  card(size, node, x, y) {
    const { overlays } = this.app;
    const value = overlays.label(this.pass, node);
    const group = svg("g", {
      class: "node", role: "button", tabindex: "-1", transform: `translate(${round(x)} ${round(y)})`, "data-name": node.name,
      "aria-label": `${node.name}, ${node.op}, ${formatShape(node)}${value ? `, ${value}` : ""}`, "aria-pressed": "false",
      onclick: () => this.app.select(node.name, this.pass), onpointerenter: () => this.app.hover(node.name, this.pass),
      onpointerleave: () => this.app.hover(null, this.pass),
    }, svg("rect", { class: "card", width: round(size.w), height: size.h, rx: 6 }),
    svg("rect", { class: "stripe", width: 5, height: size.h - 8, x: 3, y: 4, rx: 2.5 }),
    svg("text", { x: 14, y: 16, class: "name" }, size.name),
    svg("text", { x: 14, y: 31, class: "type" }, value && overlays.kind !== "family" ? clip(`${node.op} · ${value}`, 38) : size.line));
    if (node.fallback) group.append(svg("circle", { class: "fallback", cx: round(size.w), cy: 0, r: 5 }));
    overlays.paint(group, this.pass, [node]);
    return group;
  },

  portMark(item, x, y) {
    const { name } = item;
    return svg("g", {
      class: `port ${item.port}`, transform: `translate(${round(x)} ${round(y)})`, "data-port": name, onclick: () => this.app.jump(name, this.pass.index),
      "aria-hidden": "true",
    }, svg("rect", { width: round(item.w), height: item.h, rx: 10 }), svg("text", { x: 10, y: 14 }, `${item.port === "in" ? "↧" : "↦"} ${item.label}`));
  },
});

function itemPlace(unit, at) {
  const item = unit.items[at];
  return { x: unit.centres[at].x + (unit.w - unit.width) / 2 - item.w / 2, y: unit.centres[at].y + HEAD + PAD - item.h / 2 };
}

function whenIdle(work) {
  if (window.requestIdleCallback) requestIdleCallback(work, { timeout: 200 });
  else setTimeout(() => work({ timeRemaining: () => 0 }), 16);
}
