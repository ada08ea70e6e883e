// One drawing of one pass: which boxes stand in it, where, and how one moves in it.

const LETTER = 6.7;
const HEAD = 26;
const PAD = 14;

class Pane {
  constructor(app, label) {
    this.app = app;
    this.scene = svg("g", { class: "scene" });
    this.svg = svg("svg", { class: "drawing", role: "group", tabindex: "-1", "aria-label": label }, this.scene);
    this.title = html("div", { class: "pane-title" });
    this.element = html("div", { class: "pane" }, this.title, this.svg);
    this.view = { x: 0, y: 0, k: 1 };
    this.inner = new Map();
    this.listen();
  }

  draw(pass) {
    this.pass = pass;
    this.title.textContent = `${pass.name}: ${pass.nodes.length} nodes`;
    this.svg.setAttribute("aria-label", `Drawing of the pass ${pass.name}. Arrow keys walk along the edges, Enter opens a box of layers.`);
    const started = performance.now();
    this.units = this.makeUnits();
    const edges = this.outerEdges();
    const { centres, paths, width, height, rows } = layered(this.units, edges);
    this.size = { width, height };
    this.rows = rows.map((row) => row.map((at) => this.units[at]));
    this.spots = new Map();
    this.unitOf = new Map();
    this.lines = [];
    const under = svg("g", { class: "edges" });
    const over = svg("g", { class: "units" });
    edges.forEach((edge, at) => under.append(this.line(paths[at], edge.sources, edge.targets)));
    this.units.forEach((unit, at) => {
      unit.x = centres[at].x - unit.w / 2;
      unit.y = centres[at].y - unit.h / 2;
      for (const node of unit.nodes) this.unitOf.set(node.name, unit);
      over.append(this.drawUnit(unit));
    });
    this.scene.replaceChildren(under, over);
    this.layoutTime = performance.now() - started;
    this.mark();
  }

  makeUnits() {
    const { pass, app } = this;
    const shown = (node) => app.state.leaves || !isLeaf(node);
    const units = [];
    for (const node of pass.nodes) {
      if (node.home === null && shown(node)) units.push({ ...this.cardSize(node, null), type: "node", nodes: [node], first: node.place });
    }
    for (const run of app.model.runs(pass, app.state.open)) {
      const nodes = run.layers.flatMap((layer) => pass.layers.get(layer));
      const label = boxLabel(run);
      units.push({ type: "run", run, nodes, label, w: Math.max(170, label.length * 7.4 + 46), h: run.layers.length > 1 ? 56 : 48, first: nodes[0].place });
    }
    for (const layer of pass.layerNumbers.filter((one) => app.state.open.has(one))) units.push(this.openLayer(layer));
    return units.sort((a, b) => a.first - b.first);
  }

  cardSize(node, layer) {
    const name = clip(shortName(node.name, layer), 30);
    const type = clip(`${node.op}  ${formatShape(node)}`, 38);
    return { name, line: type, w: Math.max(110, Math.max(name.length * LETTER, type.length * 5.9) + 22), h: 40 };
  }

  // A layer drawn inside a frame: its nodes, a small mark for every value that comes in, one for each that leaves.
  openLayer(layer) {
    const { pass } = this;
    const key = `${pass.index}:${layer}:${this.app.state.leaves}`;
    if (!this.inner.has(key)) this.inner.set(key, this.layOutLayer(layer));
    const inner = this.inner.get(key);
    const label = `layer ${layer}`;
    return {
      ...inner, type: "open", layer, label, nodes: pass.layers.get(layer), first: pass.layers.get(layer)[0].place,
      w: Math.max(inner.width, 160) + 2 * PAD, h: inner.height + HEAD + 2 * PAD,
    };
  }

  layOutLayer(layer) {
    const { pass, app } = this;
    const nodes = pass.layers.get(layer).filter((node) => app.state.leaves || !isLeaf(node));
    const inside = new Set(pass.layers.get(layer).map((node) => node.name));
    const items = [];
    const places = new Map();
    const add = (item, key) => { places.set(key, items.length); items.push(item); };
    const port = (name, way) => ({ port: way, name, label: clip(name, 26), w: Math.min(name.length, 26) * 5.9 + 28, h: 20 });
    for (const node of nodes) add({ ...this.cardSize(node, layer), node }, node.name);
    const edges = [];
    for (const node of nodes) {
      for (const input of new Set(node.inputs)) {
        const source = pass.byName.get(input);
        if (source && isLeaf(source) && !app.state.leaves) continue;
        const key = inside.has(input) ? input : `in ${input}`;
        if (!places.has(key)) add(port(input, "in"), key);
        edges.push({ from: places.get(key), to: places.get(node.name) });
      }
    }
    const wanted = new Set(Object.values(pass.outputs));
    for (const node of nodes) {
      if (!wanted.has(node.name) && pass.users.get(node.name).every((user) => inside.has(user))) continue;
      add(port(node.name, "out"), `out ${node.name}`);
      edges.push({ from: places.get(node.name), to: items.length - 1 });
    }
    return { items, edges, ...layered(items, edges) };
  }

  outerEdges() {
    const home = new Map();
    this.units.forEach((unit, at) => unit.nodes.forEach((node) => home.set(node.name, at)));
    const edges = new Map();
    const first = new Map();
    for (const node of this.pass.nodes) {
      for (const input of node.inputs) {
        const [from, to] = [home.get(input), home.get(node.name)];
        if (from === undefined || to === undefined || from === to) continue;
        const source = this.units[from];
        const target = this.units[to];
        if (!first.has(input)) first.set(input, to);
        // An open layer names what it reads; a long light line to each would only be noise.
        if (target.type === "open" && first.get(input) !== to && this.minor(input)) continue;
        const key = `${from}:${source.type === "open" ? input : ""}:${to}:${target.type === "open" ? input : ""}`;
        if (!edges.has(key)) {
          edges.set(key, { from, to, fromDx: portDx(source, `out ${input}`), toDx: portDx(target, `in ${input}`), sources: [], targets: [] });
        }
        edges.get(key).sources.push(input);
        edges.get(key).targets.push(node.name);
      }
    }
    return [...edges.values()];
  }

  line(path, sources, targets) {
    const element = svg("path", { class: sources.every((one) => this.minor(one)) ? "edge minor" : "edge", d: curve(path) });
    this.lines.push({ element, sources: new Set(sources), targets: new Set(targets) });
    return element;
  }

  // What goes nearly everywhere (positions, tables) is drawn lightly: it would hide the way of the data.
  minor(name) {
    const node = this.pass.byName.get(name);
    if (!node) return true;
    return node.op === "input" || isLeaf(node) || (node.home === null && this.pass.users.get(name).length > 6);
  }

  drawUnit(unit) {
    if (unit.type === "node") return this.card(unit, unit.nodes[0], unit.x, unit.y);
    const place = { transform: `translate(${round(unit.x)} ${round(unit.y)})` };
    if (unit.type === "run") return this.drawRun(unit, place);
    const group = svg("g", { ...place, class: "layer" },
      svg("rect", { class: "frame", width: round(unit.w), height: round(unit.h), rx: 10 }));
    const head = svg("g", {
      class: "head", role: "button", tabindex: "-1", "aria-expanded": "true", "aria-label": `${unit.label}, open; Enter closes it`,
      onclick: () => this.app.close(unit.layer),
    }, svg("rect", { class: "hit", width: round(unit.w), height: HEAD, rx: 10 }), svg("text", { x: PAD, y: 18 }, `▾ ${unit.label}`),
    svg("text", { x: round(unit.w - PAD), y: 18, class: "count" }, `${unit.nodes.length} nodes`));
    group.append(head);
    this.spots.set(`#open ${unit.layer}`, { element: head, x: unit.x, y: unit.y, w: unit.w, h: HEAD, unit, row: 0 });
    const shift = { x: (unit.w - unit.width) / 2, y: HEAD + PAD };
    unit.edges.forEach((edge, at) => {
      const ends = [unit.items[edge.from], unit.items[edge.to]].map((item) => (item.node ? item.node.name : item.name));
      const path = unit.paths[at].map(({ x, y }) => ({ x: x + shift.x, y: y + shift.y }));
      group.append(this.line(path, [ends[0]], [ends[1]]));
    });
    unit.items.forEach((item, at) => {
      const x = unit.centres[at].x + shift.x - item.w / 2;
      const y = unit.centres[at].y + shift.y - item.h / 2;
      group.append(item.node ? this.card(item, item.node, x, y, unit) : this.portMark(item, x, y));
    });
    return group;
  }

  drawRun(unit, place) {
    const group = svg("g", {
      ...place, class: "run", role: "button", tabindex: "-1", "aria-expanded": "false",
      "aria-label": `${unit.label}, closed, ${unit.nodes.length} nodes; Enter opens the first`,
      onclick: () => this.app.open(unit.run.layers[0]),
    });
    const under = Math.min(3, unit.run.layers.length) - 1;
    for (let at = under; at >= 0; at -= 1) {
      group.append(svg("rect", { class: "box", x: at * 4, y: at * 4, width: round(unit.w - under * 4), height: unit.h - under * 4, rx: 8 }));
    }
    const total = this.app.overlays.format(this.app.overlays.total(this.pass, unit.nodes));
    group.append(svg("text", { x: 14, y: 20, class: "name" }, `▸ ${unit.label}`),
      svg("text", { x: 14, y: 37, class: "type" }, `${unit.nodes.length} nodes${total ? `  ${total}` : ""}`));
    this.app.overlays.paint(group, this.pass, unit.nodes);
    this.spots.set(`#run ${unit.run.layers[0]}`, { element: group, x: unit.x, y: unit.y, w: unit.w, h: unit.h, unit });
    return group;
  }

  card(size, node, x, y, unit = null) {
    const value = this.app.overlays.format(this.app.overlays.value(this.pass, node));
    const group = svg("g", {
      class: "node", role: "button", tabindex: "-1", transform: `translate(${round(x)} ${round(y)})`, "data-name": node.name,
      "aria-label": `${node.name}, ${node.op}, ${formatShape(node)}${value ? `, ${value}` : ""}`, "aria-pressed": "false",
      onclick: () => this.app.select(node.name, this.pass), onpointerenter: () => this.app.hover(node.name, this.pass),
      onpointerleave: () => this.app.hover(null, this.pass),
    }, svg("rect", { class: "card", width: round(size.w), height: size.h, rx: 6 }),
    svg("rect", { class: "stripe", width: 5, height: size.h - 8, x: 3, y: 4, rx: 2.5 }),
    svg("text", { x: 14, y: 16, class: "name" }, size.name),
    svg("text", { x: 14, y: 31, class: "type" }, value && this.app.overlays.kind !== "family" ? clip(`${node.op}  ${value}`, 38) : size.line));
    if (node.fallback) group.append(svg("circle", { class: "fallback", cx: round(size.w), cy: 0, r: 5 }));
    this.app.overlays.paint(group, this.pass, [node]);
    const base = unit ? { x: unit.x, y: unit.y } : { x: 0, y: 0 };
    this.spots.set(node.name, { element: group, x: base.x + x, y: base.y + y, w: size.w, h: size.h, node });
    return group;
  }

  portMark(item, x, y) {
    const { name } = item;
    return svg("g", {
      class: `port ${item.port}`, transform: `translate(${round(x)} ${round(y)})`, "data-port": name, onclick: () => this.app.jump(name, this.pass.index),
      "aria-hidden": "true",
    }, svg("rect", { width: round(item.w), height: item.h, rx: 10 }), svg("text", { x: 10, y: 14 }, `${item.port === "in" ? "↧" : "↦"} ${item.label}`));
  }

  // Shows the selection, its edges and what is related to it; the classes alone change.
  mark() {
    const { selected, related } = this.app.marks(this.pass);
    for (const [name, { element, node, unit }] of this.spots) {
      if (node) {
        element.classList.toggle("selected", name === selected);
        element.classList.toggle("related", related.has(name));
        element.setAttribute("aria-pressed", String(name === selected));
      } else if (unit.type === "run") {
        element.classList.toggle("related", unit.nodes.some((one) => related.has(one.name)));
        element.classList.toggle("holds", unit.nodes.some((one) => one.name === selected));
      }
    }
    for (const { element, sources, targets } of this.lines) {
      element.classList.toggle("in", targets.has(selected));
      element.classList.toggle("out", sources.has(selected) && !targets.has(selected));
    }
    this.rove();
  }
}

function portDx(unit, key) {
  if (unit.type !== "open") return 0;
  const name = key.slice(key.indexOf(" ") + 1);
  const at = unit.items.findIndex((item) => item.port && `${item.port} ${item.name}` === key && item.name === name);
  return at < 0 ? 0 : unit.centres[at].x - unit.width / 2;
}

function boxLabel({ layers, period, count }) {
  const [first, last] = [layers[0], layers[layers.length - 1]];
  if (layers.length === 1) return `layer ${first}`;
  return `layer ${first} … ${last}  × ${period > 1 ? `${count} (${period} kinds)` : count}`;
}

function clip(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
