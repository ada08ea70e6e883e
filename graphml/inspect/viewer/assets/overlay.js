// Colours of nodes: by family of ops, or by a measured number; and the legend that explains them.

const FAMILIES = ["linear", "norm", "attention", "position", "elementwise", "reduce", "index", "layout", "own", "leaf", "other"];
const WORDS = [
  ["linear", /mul_mat|linear|quantize|qkv|experts?|dequant/], ["norm", /norm/], ["attention", /attention/],
  ["position", /rope/], ["reduce", /softmax|sum_rows/], ["index", /rows|gather|top_k/],
  ["layout", /reshape|permute|concat|columns|copy|view/], ["leaf", /^(input|weight|state)$/],
  ["elementwise", /^(add|sub|mul|div|neg|abs|sqr|sqrt|exp|tanh|sigmoid|relu|silu|gelu|gelu_erf|gelu_quick|softplus|scale|clamp|.*glu.*)$/],
];

function family(node) {
  if (FAMILIES.includes(node.family)) return node.family;
  const found = WORDS.find(([, pattern]) => pattern.test(node.op));
  return found ? found[0] : "other";
}

class Overlays {
  constructor(model) {
    this.model = model;
    // Maps: a node may be called `constructor`.
    const measured = (key) => new Map(Object.entries(model.raw.overlays?.[key] || {}));
    this.measured = { time: measured("time_us"), bytes: measured("bytes"), error: measured("nmse") };
    const some = (key) => this.measured[key].size > 0;
    const hasBytes = some("bytes") || model.last.nodes.some((node) => node.bytes);
    this.choices = [["family", "op family"]];
    if (model.passes.length > 1) this.choices.push(["change", "change"]);
    if (some("time")) this.choices.push(["time", "time"], ["share", "time: share"]);
    if (hasBytes) this.choices.push(["bytes", "bytes"]);
    if (some("error")) this.choices.push(["error", "error (NMSE)"]);
    if (new Set(model.last.nodes.map((node) => node.backend)).size > 1) this.choices.push(["backend", "backend"]);
    this.backends = [...new Set(model.passes.flatMap((one) => one.nodes.map((node) => node.backend)))].filter(Boolean);
    // What was measured is what the document is about.
    this.kind = some("time") ? "time" : some("error") ? "error" : "family";
    this.first = this.kind;
    this.ranges = new Map();
    this.sums = new Map();
    this.compared = new Map();
    // With which pass the overlay of changes compares; the page says so when two stand beside each other.
    this.other = (pass) => model.passes[pass.index ? pass.index - 1 : 1];
  }

  // The number of a node under an overlay. Times belong to the program, so to the last pass only.
  value(pass, node, kind = this.kind) {
    if (kind === "time") return pass === this.model.last ? this.measured.time.get(node.name) : undefined;
    if (kind === "share") {
      const time = this.value(pass, node, "time");
      return time === undefined ? undefined : share(time, this.sum(pass, node.home));
    }
    if (kind === "error") return this.measured.error.get(node.name);
    if (kind !== "bytes") return undefined;
    const moved = pass === this.model.last ? this.measured.bytes.get(node.name) : undefined;
    return moved ?? node.bytes ?? undefined;
  }

  // Of several nodes: the worst error, the sum of times and bytes, the share of the whole graph's time.
  total(pass, nodes, kind = this.kind) {
    if (kind === "share") {
      const time = this.total(pass, nodes, "time");
      return time === undefined ? undefined : share(time, this.sum(pass, null));
    }
    const values = nodes.filter((node) => kind !== "bytes" || !isLeaf(node))
      .map((node) => this.value(pass, node, kind)).filter((value) => value !== undefined).map(Number);
    if (!values.length) return undefined;
    return kind === "error" ? Math.max(...values) : values.reduce((sum, value) => sum + value, 0);
  }

  // The time of a layer; of the whole pass for null.
  sum(pass, layer) {
    const key = `${pass.index}:${layer}`;
    if (!this.sums.has(key)) this.sums.set(key, this.total(pass, layer === null ? pass.nodes : pass.layers.get(layer), "time") ?? 0);
    return this.sums.get(key);
  }

  changes(left, right) {
    const key = `${left.index}:${right.index}`;
    if (!this.compared.has(key)) this.compared.set(key, new Changes(this.model, left, right));
    return this.compared.get(key);
  }

  // What differs between this node and the pass that is compared with: {kind, facts}; undefined where nothing does.
  change(pass, node) {
    const other = this.other(pass);
    if (other === pass) return undefined;
    return (other.index < pass.index ? this.changes(other, pass) : this.changes(pass, other)).of(pass, node.name);
  }

  range(pass) {
    const key = `${this.kind}:${pass.index}`;
    if (!this.ranges.has(key)) {
      const values = pass.nodes.filter((node) => !isLeaf(node)).map((node) => Number(this.value(pass, node)))
        .filter((value) => Number.isFinite(value) && value > 0);
      this.ranges.set(key, values.length ? [Math.min(...values), Math.max(...values)] : null);
    }
    return this.ranges.get(key);
  }

  // Colours an element through CSS classes and two custom properties; `nodes` has several for a box of layers.
  paint(element, pass, nodes) {
    const alone = nodes.length === 1;
    if (this.kind === "change") {
      const found = new Set(nodes.filter((node) => alone || !isLeaf(node)).map((node) => this.change(pass, node)?.kind ?? "same"));
      element.dataset.family = found.size === 1 ? [...found][0] : "changed";
      return;
    }
    if (this.kind === "family" || (this.kind === "backend" && !alone)) {
      if (alone) element.dataset.family = family(nodes[0]);
      return;
    }
    if (this.kind === "backend") {
      element.dataset.family = FAMILIES[this.backends.indexOf(nodes[0].backend) % FAMILIES.length] || "other";
      return;
    }
    const value = Number(alone ? this.value(pass, nodes[0]) : this.total(pass, nodes));
    const range = this.range(pass);
    if (Number.isNaN(value) || !range) {
      const bad = !range ? false : nodes.some((node) => this.value(pass, node) !== undefined);
      element.classList.add(bad ? "bad" : "unmeasured");
      return;
    }
    element.classList.add("measured");
    element.style.setProperty("--heat", `${Math.round(100 * this.heat(value, range))}%`);
  }

  // 0 to 1: logarithmic for errors and times, which span decades; a root for shares and bytes.
  heat(value, [low, high]) {
    if (this.kind === "error" || this.kind === "time") {
      const floor = this.floor([low, high]);
      if (high <= floor) return value > 0 ? 1 : 0;
      return value <= floor ? 0 : Math.min(1, Math.log(value / floor) / Math.log(high / floor));
    }
    return high > 0 ? Math.cbrt(Math.min(1, value / high)) : 0;
  }

  // Where the logarithm begins. Views take next to no time: with them the scale would have no room for the rest.
  floor([low, high]) {
    return this.kind === "error" ? Math.max(low, 1e-16) : Math.max(low, high / 1e4);
  }

  // What a box of layers says: the sum, and of times also the share of all.
  sumOf(pass, nodes) {
    const total = this.format(this.total(pass, nodes), true);
    return this.kind === "time" && total ? `${total} · ${formatShare(this.total(pass, nodes, "share"))}` : total;
  }

  // `several`: the number of a box of layers.
  format(value, several = false) {
    if (value === undefined) return "";
    if (this.kind === "share") return `${formatShare(value)}${several ? " of all" : ""}`;
    return { time: formatTime, bytes: formatBytes, error: formatError }[this.kind]?.(value) ?? "";
  }

  // The number of one node as its card has it; outside of layers a share is one of all.
  label(pass, node) {
    return this.format(this.value(pass, node), node.home === null);
  }

  legend(pass) {
    const title = this.choices.find(([kind]) => kind === this.kind)[1];
    const parts = [html("span", { class: "legend-title" }, `Colour: ${title}`)];
    if (this.kind === "change") {
      const other = this.other(pass);
      parts.push(html("span", {}, `${[other, pass].sort((a, b) => a.index - b.index).map((one) => one.name).join(" → ")}:`),
        ...["added", "removed", "changed", "same"].map((name) => html("span", { class: "swatch", "data-family": name }, name)));
      return parts;
    }
    if (this.kind === "family" || this.kind === "backend") {
      const shown = this.kind === "backend" ? this.backends : FAMILIES.filter((one) => pass.nodes.some((node) => family(node) === one));
      shown.forEach((name, at) => {
        const colour = this.kind === "backend" ? FAMILIES[at % FAMILIES.length] : name;
        parts.push(html("span", { class: "swatch", "data-family": colour }, name));
      });
      return parts;
    }
    const range = this.range(pass);
    if (!range) {
      parts.push(html("span", {}, `nothing measured in the pass ${pass.name}`));
      if (pass !== this.model.last) parts.push(html("button", { type: "button", class: "link", onclick: () => this.show(this.model.last) }, `show ${this.model.last.name}`));
      return parts;
    }
    const logarithmic = this.kind === "error" || this.kind === "time";
    const text = (value) => (this.kind === "share" ? formatShare(value) : this.format(value));
    parts.push(html("span", {}, logarithmic ? text(this.floor(range)) : "0"), html("span", { class: "ramp" }), html("span", {}, text(range[1])));
    if (logarithmic) parts.push(html("span", {}, "logarithmic"));
    if (this.kind === "share") parts.push(html("span", {}, "of its layer; of all outside of layers and for closed ones"));
    return parts;
  }
}

function share(part, whole) {
  return whole > 0 ? part / whole : 0;
}
