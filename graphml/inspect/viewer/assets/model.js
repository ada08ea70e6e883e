// What the document means: passes, who reads whom, layers and their repetition, and what became of what.

class Pass {
  constructor(raw, index) {
    Object.assign(this, { name: raw.name, title: raw.title || raw.name, seconds: raw.seconds, outputs: raw.outputs || {}, nodes: raw.nodes, index });
    this.byName = new Map(this.nodes.map((node) => [node.name, node]));
    this.users = new Map(this.nodes.map((node) => [node.name, []]));
    this.nodes.forEach((node, place) => {
      node.place = place;
      for (const input of new Set(node.inputs)) if (this.users.has(input)) this.users.get(input).push(node.name);
    });
    // What comes into a part of a graph is an input, wherever its name says that it was made.
    for (const node of this.nodes) node.home = node.op === "input" ? null : node.layer ?? null;
    // A leaf that only one layer reads (its cache, its weights) is drawn in that layer.
    for (const node of this.nodes) {
      if (node.home !== null || !isLeaf(node)) continue;
      const homes = new Set(this.users.get(node.name).map((user) => this.byName.get(user).home));
      if (homes.size === 1) node.home = [...homes][0];
    }
    this.layers = new Map();
    for (const node of this.nodes) {
      if (node.home === null) continue;
      if (!this.layers.has(node.home)) this.layers.set(node.home, []);
      this.layers.get(node.home).push(node);
    }
    this.layerNumbers = [...this.layers.keys()].sort((a, b) => a - b);
  }

  // What of a layer tells it from others: ops, types, attributes, who computes it, and who reads whom in it.
  structure(layer) {
    const nodes = this.layers.get(layer) || [];
    const places = new Map(nodes.map((node, at) => [node.name, at]));
    const inputs = (node) => node.inputs.map((name) => places.get(name) ?? "x");
    return nodes.map((node) => `${node.op}:${formatShape(node)}:${written(node.attributes)}:${node.backend}:${node.fallback}:${inputs(node)}`).join(";");
  }
}

// Equal attributes are one object in a document, so each is written once.
const WRITTEN = new WeakMap();

function written(attributes) {
  if (!attributes) return "";
  if (!WRITTEN.has(attributes)) WRITTEN.set(attributes, JSON.stringify(attributes));
  return WRITTEN.get(attributes);
}

function isLeaf(node) {
  return node.op === "weight" || node.op === "state";
}

class Model {
  constructor(raw) {
    this.raw = raw;
    this.passes = raw.passes.map((one, index) => new Pass(one, index));
    this.kinds = new Map();
    const fusions = raw.fusions || {};
    this.applied = fusions.applied || [];
    this.refused = fusions.refused || [];
    this.appliedTo = new Map(); // a later fusion may keep the name of a node that an earlier one made
    for (const one of this.applied) this.appliedTo.set(one.node, [...(this.appliedTo.get(one.node) || []), one]);
    this.coveredBy = new Map();
    for (const one of this.applied) {
      for (const name of one.covered) this.coveredBy.set(name, [...(this.coveredBy.get(name) || []), one]);
    }
    this.refusedAt = new Map();
    for (const one of this.refused) {
      for (const name of new Set([one.node, one.at])) {
        if (name === null || name === undefined) continue;
        if (!this.refusedAt.has(name)) this.refusedAt.set(name, []);
        this.refusedAt.get(name).push(one);
      }
    }
    this.memory = new Map();
  }

  get last() {
    return this.passes[this.passes.length - 1];
  }

  // Equal for layers that are the same after every pass, so that a box is the same in all of them.
  kind(layer) {
    if (!this.kinds.has(layer)) this.kinds.set(layer, this.passes.map((pass) => pass.structure(layer)).join("|"));
    return this.kinds.get(layer);
  }

  // Boxes of closed layers: [{layers, period}], a box per run of equal layers or of an equal sequence of kinds.
  runs(pass, open) {
    const closed = pass.layerNumbers.filter((layer) => !open.has(layer));
    const found = [];
    let at = 0;
    while (at < closed.length) {
      let best = { period: 1, count: 1 };
      for (let period = 1; period <= 8; period += 1) {
        const count = this.repeats(closed, at, period);
        if (count > 1 && period * count > best.period * best.count) best = { period, count };
      }
      const size = best.period * best.count;
      found.push({ layers: closed.slice(at, at + size), ...best });
      at += size;
    }
    return found;
  }

  repeats(closed, at, period) {
    let size = 0;
    while (at + size < closed.length && closed[at + size] === closed[at] + size
      && (size < period || this.kind(closed[at + size]) === this.kind(closed[at + size - period]))) {
      size += 1;
    }
    return Math.floor(size / period);
  }

  // Names in the pass `to` of what the node `name` of the pass `from` was made from, or of what it became.
  related(name, from, to) {
    const key = `${from}>${to}`;
    if (!this.memory.has(key)) this.memory.set(key, this.relate(from, to));
    return this.memory.get(key).get(name) || [];
  }

  relate(from, to) {
    const relation = new Map();
    if (from === to) return relation;
    if (from < to) {
      for (const [later, earlier] of this.backward(to, from)) {
        for (const name of earlier) relation.set(name, [...(relation.get(name) || []), later]);
      }
      return relation;
    }
    return this.backward(from, to);
  }

  backward(later, earlier) {
    let relation = new Map(this.passes[later].nodes.map((node) => [node.name, [node.name]]));
    for (let step = later; step > earlier; step -= 1) {
      const before = this.passes[step - 1].byName;
      const start = this.passes[earlier].byName;
      const next = new Map();
      for (const [name, names] of relation) {
        const reached = new Set();
        for (const one of names) for (const source of this.sources(step, one)) {
          if (before.has(source) || start.has(source)) reached.add(source);
        }
        next.set(name, [...reached]);
      }
      relation = next;
    }
    const known = this.passes[earlier].byName;
    // The earlier of two graphs may be the fused one, where two are compared: then its origins name the later's nodes.
    const madeFrom = new Map();
    for (const node of this.passes[earlier].nodes) {
      for (const one of node.origin || []) madeFrom.set(one, [...(madeFrom.get(one) || []), node.name]);
    }
    return new Map([...relation].map(([name, names]) => {
      const found = names.filter((one) => known.has(one));
      return [name, found.length ? found : madeFrom.get(name) || []];
    }));
  }

  // What a node of a pass was made from, as the pass before may call it; itself where it was not touched.
  sources(step, name) {
    const node = this.passes[step].byName.get(name);
    const before = this.passes[step - 1].byName.get(name);
    if (!node) return [name];
    if (before && before.op === node.op && sameList(before.origin, node.origin)) return [name];
    const origin = node.origin || [];
    return before ? [name, ...origin] : origin;
  }
}

function sameList(a, b) {
  return (a || []).join("\n") === (b || []).join("\n");
}

// Name without the layer that the surrounding box already says.
function shortName(name, layer) {
  if (layer === null || layer === undefined) return name;
  for (const prefix of [`layers.${layer}.`, `blk.${layer}.`]) {
    if (name.startsWith(prefix)) return name.slice(prefix.length);
  }
  return name;
}
