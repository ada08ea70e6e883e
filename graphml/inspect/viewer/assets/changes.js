// What differs between two passes: pairs of nodes, which facts changed, and the same change in several layers as one.

const FACTS = ["op", "dtype", "shape", "inputs", "attributes"];
const LAYER = /(^|[^A-Za-z0-9_])(layers|blk|cache)\.(\d+)(?=\.)/g;

class Changes {
  constructor(model, left, right) {
    Object.assign(this, { left, right });
    const told = model.raw.difference;
    // Of two compared graphs the document says it: it also pairs nodes that have other names.
    this.list = told && left.index === 0 && right.index === 1 ? told.map((one) => ({ ...one })) : between(left, right);
    this.kinds = [new Map(), new Map()];
    for (const one of this.list) {
      if (one.left !== null) this.kinds[0].set(one.left, one);
      if (one.right !== null) this.kinds[1].set(one.right, one);
    }
    this.order();
  }

  of(pass, name) {
    return this.kinds[pass === this.right ? 1 : 0].get(name);
  }

  // In the order of the graphs: what was removed is where it stood, after the node before it.
  order() {
    let at = -1;
    const places = new Map();
    for (const node of this.left.nodes) {
      const pair = this.kinds[0].get(node.name)?.right ?? node.name;
      const twin = this.right.byName.get(pair);
      if (twin) at = twin.place;
      else places.set(node.name, at + 0.5);
    }
    const place = (one) => (one.right !== null ? this.right.byName.get(one.right)?.place : places.get(one.left)) ?? 0;
    this.list.sort((a, b) => place(a) - place(b));
  }

  // [{title, kind, facts, members}]: changes that are equal up to the number of the layer.
  groups() {
    if (this.found) return this.found;
    const found = new Map();
    for (const one of this.list) {
      const name = one.right ?? one.left;
      const layer = layerOf(name);
      const title = numberless(name, layer);
      const facts = one.facts.map((fact) => fact.map((value) => numberless(show(value), layer)));
      const key = JSON.stringify([one.kind, title, facts]);
      if (!found.has(key)) found.set(key, { title, kind: one.kind, facts, members: [] });
      found.get(key).members.push(one);
    }
    this.found = [...found.values()];
    return this.found;
  }

  count(kind) {
    return this.list.filter((one) => one.kind === kind).length;
  }
}

function between(left, right) {
  const list = [];
  for (const node of left.nodes) {
    const twin = right.byName.get(node.name);
    if (!twin) list.push({ kind: "removed", left: node.name, right: null, facts: [] });
    else {
      const facts = FACTS.map((fact) => [fact, node[fact], twin[fact]]).filter(([, a, b]) => JSON.stringify(a) !== JSON.stringify(b));
      if (facts.length) list.push({ kind: "changed", left: node.name, right: node.name, facts });
    }
  }
  for (const node of right.nodes) if (!left.byName.has(node.name)) list.push({ kind: "added", left: null, right: node.name, facts: [] });
  return list;
}

function layerOf(name) {
  const found = /(?:^|\.)(?:layers|blk|cache)\.(\d+)\./.exec(name);
  return found ? Number(found[1]) : null;
}

// A text with # for the number of the layer and #-1 for that of the one before.
function numberless(text, layer) {
  if (layer === null) return text;
  return text.replace(LAYER, (whole, before, word, number) => {
    const far = Number(number) - layer;
    return Math.abs(far) > 1 ? whole : `${before}${word}.#${far ? (far > 0 ? "+1" : "-1") : ""}`;
  });
}

// Goes from difference to difference of what is in sight.
class Stepper {
  constructor(app) {
    this.app = app;
    this.at = null;
    byId("before").addEventListener("click", () => this.step(-1));
    byId("after").addEventListener("click", () => this.step(1));
  }

  // The two passes that are compared now; null while nothing is.
  changes() {
    const { app } = this;
    const { view, left, pass } = app.state;
    const shown = app.model.passes[pass];
    if (view === "compare") return left === pass ? null : app.overlays.changes(app.model.passes[left], shown);
    if (view !== "drawing" || app.overlays.kind !== "change") return null;
    return app.overlays.changes(app.overlays.other(shown), shown);
  }

  // Weights and states only where they are drawn; what is in no shown pass cannot be gone to.
  groups() {
    const changes = this.changes();
    if (!changes) return [];
    const seen = (one) => {
      const found = this.target(changes, one);
      return found && (this.app.state.leaves || !isLeaf(found.pass.byName.get(found.name)));
    };
    return changes.groups().map((group) => ({ ...group, members: group.members.filter(seen) })).filter((group) => group.members.length);
  }

  target(changes, one) {
    const passes = this.app.shown().map((pane) => this.app.passOf(pane));
    for (const [pass, name] of [[changes.right, one.right], [changes.left, one.left]]) {
      if (name !== null && passes.includes(pass) && pass.byName.has(name)) return { pass, name };
    }
    return null;
  }

  // What the scroll bars show.
  marks(pass) {
    const changes = this.app.overlays.kind === "change" ? this.changes() : null;
    if (!changes || (pass !== changes.left && pass !== changes.right)) return [];
    const side = pass === changes.right ? "right" : "left";
    return changes.list.filter((one) => one[side] !== null).map((one) => ({ kind: one.kind, name: one[side] }));
  }

  // To the next difference; `within`: to the same one in the next layer.
  step(way, within = false) {
    const groups = this.groups();
    if (!groups.length) return;
    const [group, member] = this.place(groups);
    if (group === null) this.go(groups, way > 0 ? 0 : groups.length - 1, 0);
    else if (within) this.go(groups, group, (member + way + groups[group].members.length) % groups[group].members.length);
    else this.go(groups, (group + way + groups.length) % groups.length, 0);
  }

  // Where the chosen node is among the differences.
  place(groups) {
    const { selected, home } = this.app.state;
    const changes = this.changes();
    for (const [at, group] of groups.entries()) {
      const member = group.members.findIndex((one) => selected !== null && ((changes.right.index === home && one.right === selected) || (changes.left.index === home && one.left === selected)));
      if (member >= 0) return [at, member];
    }
    return [null, 0];
  }

  go(groups, at, member) {
    const { pass, name } = this.target(this.changes(), groups[at].members[member]);
    this.app.jump(name, pass.index);
  }

  draw() {
    const changes = this.changes();
    byId("steps").hidden = !changes;
    if (!changes) return;
    const groups = this.groups();
    const [at, member] = this.place(groups);
    const text = !groups.length ? "no difference" : at === null ? plural(groups.length, "difference") : `${at + 1} of ${plural(groups.length, "difference")}`;
    const layers = at !== null && groups[at].members.length > 1 ? `, ${member + 1} of ${groups[at].members.length} layers` : "";
    byId("step").textContent = text + layers;
    byId("before").disabled = byId("after").disabled = !groups.length;
  }
}
