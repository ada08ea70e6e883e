// One drawing of one pass: which boxes it has, where they are, and what is marked. cards.js makes the elements.

const LETTER = 6.7;
const HEAD = 26;
const PAD = 14;
const DISTANT = 0.12; // below this scale a layer is one box with its name beside it
const MANY_READERS = 2; // a value that more boxes read has a line to the first alone

class Pane {
  constructor(app, label) {
    this.app = app;
    this.scene = svg("g", { class: "scene" });
    this.svg = svg("svg", { class: "drawing", role: "group", tabindex: "-1", "aria-label": label }, this.scene);
    this.title = html("div", { class: "pane-title" });
    this.rail = new Rail(this);
    this.element = html("div", { class: "pane" }, this.title, this.svg, this.rail.element);
    this.view = { x: 0, y: 0, k: 1 };
    this.inner = new Map();
    this.drawn = new Map();
    this.marked = [];
    this.listen();
  }

  draw(pass) {
    this.pass = pass;
    this.title.textContent = `${pass.name}: ${plural(pass.nodes.length, "node")}`;
    this.title.title = pass.title;
    this.svg.setAttribute("aria-label", `Drawing of the pass ${pass.name}. Arrow keys walk along the edges, Enter opens a box of layers.`);
    this.unmark();
    this.forgetColours();
    this.units = this.makeUnits();
    const edges = this.outerEdges();
    const { centres, paths, width, height, rows } = layered(this.units, edges);
    this.size = { width, height };
    this.rows = rows.map((row) => row.map((at) => this.units[at]));
    this.spots = new Map();
    this.unitOf = new Map();
    this.lines = new Map();
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
    this.rail.draw();
    this.fillSoon();
    this.mark();
  }

  // Drawn layers are kept from one drawing to the next, as long as their colours mean the same.
  forgetColours() {
    const { overlays } = this.app;
    const meaning = `${overlays.kind}:${overlays.kind === "change" ? overlays.other(this.pass).index : ""}`;
    if (this.meaning !== meaning) this.drawn.clear();
    this.meaning = meaning;
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
      const total = app.overlays.sumOf(pass, nodes);
      const line = `${plural(nodes.length, "node")}${total ? ` · ${total}` : ""}`;
      units.push({ type: "run", run, nodes, label, line, w: Math.max(170, label.length * 7.4 + 46, line.length * 5.9 + 30), h: run.layers.length > 1 ? 56 : 48, first: nodes[0].place });
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
    const key = this.keyOf(layer);
    if (!this.inner.has(key)) this.inner.set(key, this.layOutLayer(layer));
    const inner = this.inner.get(key);
    return {
      ...inner, type: "open", layer, label: `layer ${layer}`, nodes: pass.layers.get(layer), first: pass.layers.get(layer)[0].place,
      w: Math.max(inner.width, 220) + 2 * PAD, h: inner.height + HEAD + 2 * PAD,
    };
  }

  keyOf(layer) {
    return `${this.pass.index}:${layer}:${this.app.state.leaves}`;
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
    return { items, edges, ...app.geometry(items, edges) };
  }

  outerEdges() {
    const home = new Map();
    this.units.forEach((unit, at) => unit.nodes.forEach((node) => home.set(node.name, at)));
    const readers = new Map();
    for (const node of this.pass.nodes) {
      for (const input of node.inputs) {
        const to = home.get(node.name);
        if (to === undefined || home.get(input) === to) continue;
        if (!readers.has(input)) readers.set(input, new Set());
        readers.get(input).add(to);
      }
    }
    const edges = new Map();
    for (const node of this.pass.nodes) {
      for (const input of node.inputs) {
        const [from, to] = [home.get(input), home.get(node.name)];
        if (from === undefined || to === undefined || from === to) continue;
        const source = this.units[from];
        const target = this.units[to];
        const [first] = readers.get(input);
        // An open layer names what it reads; a long light line to each of many readers would only be noise.
        if (first !== to && this.minor(input) && (target.type === "open" || readers.get(input).size > MANY_READERS)) continue;
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

  // What goes nearly everywhere (positions, tables) is drawn lightly: it would hide the way of the data.
  minor(name) {
    const node = this.pass.byName.get(name);
    if (!node) return true;
    return node.op === "input" || isLeaf(node) || (node.home === null && this.pass.users.get(name).length > 6);
  }

  // Shows the selection, its edges and what is related to it. Only what changes is touched: there may be 10,000 elements.
  mark() {
    const { selected, related } = this.app.marks(this.pass);
    this.unmark();
    const add = (element, kind) => { element.classList.add(kind); this.marked.push([element, kind]); };
    for (const name of related) this.markNode(name, "related", "related", add);
    if (selected !== null) this.markNode(selected, "selected", "holds", add);
    for (const { element, targets, sources } of this.lines.get(selected) || []) {
      if (targets.has(selected)) add(element, "in");
      else if (sources.has(selected)) add(element, "out");
    }
    this.rail.mark(selected, related);
    this.rove();
  }

  unmark() {
    for (const [element, kind] of this.marked) {
      element.classList.remove(kind);
      if (kind === "selected") element.setAttribute("aria-pressed", "false");
    }
    this.marked = [];
  }

  markNode(name, kind, boxKind, add) {
    const spot = this.spots.get(name);
    const unit = this.unitOf.get(name);
    if (spot?.element) add(spot.element, kind);
    else if (unit?.type === "run") add(unit.element, boxKind);
    if (spot?.element && kind === "selected") spot.element.setAttribute("aria-pressed", "true");
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
