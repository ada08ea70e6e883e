// The page: its state, its keys, and what is redrawn when.

const VIEWS = [["drawing", "Drawing"], ["compare", "Side by side"], ["table", "Table"], ["memory", "Memory"], ["fusions", "Fusions"]];

// Scrolls the row of tabs alone: `scrollIntoView` would also move the place that Tab goes on from.
function showTab(tab) {
  const row = tab.parentElement, left = tab.offsetLeft - row.offsetLeft;
  row.scrollLeft = Math.max(left + tab.offsetWidth - row.clientWidth, Math.min(row.scrollLeft, left));
}

class App {
  constructor(model) {
    this.model = model;
    this.overlays = new Overlays(model);
    const before = this.overlays.other;
    this.overlays.other = (pass) => {
      const { view, left, pass: right } = this.state;
      if (view !== "compare") return before(pass);
      return model.passes[pass.index === left ? right : left];
    };
    // home: the pass of the chosen node; through: the pass that was looked at before.
    const last = model.last.index;
    this.state = { view: "drawing", pass: last, left: 0, through: Math.max(0, last - 1), selected: null, home: last, open: new Set(), leaves: false };
    this.layouts = new Map();
    this.overlays.show = (pass) => this.change({ pass: pass.index });
    this.stepper = new Stepper(this);
    this.hovered = null;
    this.panel = new Panel(this, byId("panel"));
    this.panes = [new Pane(this, "Drawing"), new Pane(this, "Drawing, right side")];
    this.controls();
    this.search = new Search(this);
    window.addEventListener("keydown", (event) => pressed(this, event));
    keysDialog();
    window.addEventListener("resize", () => this.resized());
  }

  // What was fitted into the window before is fitted into the new one; other drawings stay where they are.
  resized() {
    for (const pane of this.shown()) {
      const { fitted } = pane;
      pane.measure();
      if (fitted) pane.fit(true);
      else pane.apply();
    }
    showTab(byId("passes").children[this.state.pass]);
  }

  controls() {
    const { raw, passes } = this.model;
    byId("model").textContent = raw.model || "graph";
    byId("about").textContent = [raw.backend, ...Object.entries(raw.versions || {}).map(([key, value]) => `${key} ${value}`)].filter(Boolean).join(" · ");
    byId("views").append(...VIEWS.map(([key, label]) => html("button", {
      type: "button", role: "radio", "aria-checked": "false", "data-view": key, onclick: () => this.change({ view: key }),
    }, label)));
    byId("passes").append(...passes.map((pass) => html("button", {
      type: "button", role: "tab", id: `pass-${pass.index}`, "aria-controls": "stage", onclick: () => this.change({ pass: pass.index }),
      title: `${pass.title}: ${plural(pass.nodes.length, "node")}`,
    }, html("span", { class: "tab" }, pass.name), html("span", { class: "dim" }, ` ${pass.nodes.length}`))));
    roving(byId("passes"), (at) => this.change({ pass: at }));
    roving(byId("views"), (at) => this.change({ view: VIEWS[at][0] }));
    byId("left").append(...passes.map((pass) => html("option", { value: pass.index }, pass.name)));
    byId("left").addEventListener("change", (event) => this.change({ left: Number(event.target.value) }));
    byId("overlay").append(...this.overlays.choices.map(([key, label]) => html("option", { value: key }, label)));
    byId("overlay").value = this.overlays.kind;
    byId("overlay").addEventListener("change", (event) => { this.overlays.kind = event.target.value; this.draw(); });
    byId("all").addEventListener("click", () => this.openAll());
    byId("leaves").addEventListener("change", (event) => this.change({ leaves: event.target.checked }, true));
  }

  shown() {
    return this.state.view === "compare" ? this.panes : this.state.view === "drawing" ? [this.panes[0]] : [];
  }

  // The pass of a pane; beside each other the left one is the pass before.
  passOf(pane) {
    return this.model.passes[this.state.view === "compare" && pane === this.panes[0] ? this.state.left : this.state.pass];
  }

  change(what, fit = false) {
    const { view, pass, selected } = this.state;
    Object.assign(this.state, what);
    if (this.state.pass !== pass) {
      this.state.through = pass;
      if (view !== "compare" && this.model.passes[this.state.pass].byName.has(selected)) this.state.home = this.state.pass;
    }
    if (what.view === "compare" && this.state.pass <= this.state.left && this.model.passes.length > 1) {
      this.state.pass = Math.min(this.model.passes.length - 1, this.state.left + 1);
    }
    this.draw();
    if (fit || this.state.view !== view) { this.shown().forEach((pane) => pane.fit(true)); this.reveal(true); }
    else if ("pass" in what || "left" in what) { if (this.state.selected === null) this.shown().forEach((pane) => pane.fit(true)); this.reveal(); }
  }

  draw() {
    const { state, model } = this;
    const stage = byId("stage");
    const pass = model.passes[state.pass];
    stage.className = state.view;
    stage.setAttribute("aria-labelledby", `pass-${state.pass}`);
    const pages = { table: () => tableView(this, pass), memory: () => memoryView(this), fusions: () => fusionsView(this) };
    const children = pages[state.view] ? [pages[state.view]()] : this.shown().map((pane) => pane.element);
    if (children.length !== stage.childElementCount || children.some((child, at) => stage.children[at] !== child)) stage.replaceChildren(...children);
    this.shown().forEach((pane) => pane.measure());
    for (const pane of this.shown()) { pane.draw(this.passOf(pane)); pane.apply(); }
    [...byId("passes").children].forEach((tab, at) => {
      const was = tab.getAttribute("aria-selected");
      choose(tab, "aria-selected", at === state.pass);
      if (at === state.pass && was !== "true") showTab(tab);
    });
    [...byId("views").children].forEach((button) => choose(button, "aria-checked", button.dataset.view === state.view));
    byId("all").hidden = !this.shown().length || !pass.layerNumbers.length;
    byId("all").textContent = pass.layerNumbers.every((layer) => state.open.has(layer)) ? "Close all layers" : "Open all layers";
    byId("beside").hidden = state.view !== "compare" || model.passes.length < 3;
    byId("left").value = String(state.left);
    byId("legend").replaceChildren(...this.overlays.legend(pass));
    this.stepper.draw();
    this.panel.draw();
    this.remember();
  }

  // What is to be highlighted in a pass: the chosen node, what it came from or became, and what shared its fate.
  marks(pass) {
    const { selected, home } = this.state;
    const related = new Set();
    for (const [name, from] of [this.hovered || [null], [selected, home]]) {
      if (name === null) continue;
      if (from !== pass.index) this.model.related(name, from, pass.index).forEach((one) => related.add(one));
      else this.fate(name, from).forEach((one) => related.add(one));
    }
    return { selected: home === pass.index ? selected : null, related };
  }

  // Nodes of the same pass that became one node with this one, in the pass beside or the one seen before.
  fate(name, from) {
    const { view, left, pass, through } = this.state;
    const other = view === "compare" ? (from === left ? pass : left) : through;
    if (other <= from) return [];
    return this.model.related(name, from, other).flatMap((later) => this.model.related(later, other, from)).filter((one) => one !== name);
  }

  mark() {
    this.shown().forEach((pane) => pane.mark());
  }

  hover(name, pass) {
    this.hovered = name === null ? null : [name, pass.index];
    this.mark();
  }

  // Chooses a node of a pass and opens its layer.
  select(name, pass, { still = false } = {}) {
    this.hovered = null;
    Object.assign(this.state, { selected: name, home: pass.index });
    const layer = (name !== null && pass.byName.get(name)?.home) ?? null;
    if (name !== null && layer !== null && !this.state.open.has(layer) && this.shown().length) {
      this.state.open.add(layer);
      this.draw();
    }
    this.refresh();
    if (!still && name !== null) this.reveal();
  }

  refresh() {
    this.mark();
    this.stepper.draw();
    this.panel.draw();
    this.remember();
    byId("status").textContent = this.state.selected !== null ? `${this.state.selected} chosen` : "";
  }

  // Brings the chosen node, or what it is on the other side, into sight; `firm`: into the middle, at one scale.
  reveal(firm = false) {
    if (this.state.selected === null) return;
    const targets = this.shown().map((pane) => {
      const { selected, related } = this.marks(pane.pass);
      return [pane, selected && pane.pass.byName.has(selected) ? selected : [...related][0]];
    }).filter(([, target]) => target);
    const scale = firm ? Math.min(...targets.map(([pane, target]) => pane.scaleTo(target))) : null;
    for (const [pane, target] of targets) pane.show(target, scale);
  }

  jump(name, index) {
    const pass = this.model.passes[index];
    const node = pass.byName.get(name);
    if (!node) return;
    if (isLeaf(node) && !this.state.leaves) { this.state.leaves = true; byId("leaves").checked = true; }
    if (node.home !== null) this.state.open.add(node.home);
    if (!this.shown().length) this.state.view = "drawing";
    if (!this.shown().some((pane) => this.passOf(pane) === pass)) this.change({ pass: index });
    Object.assign(this.state, { selected: name, home: index });
    this.draw();
    this.select(name, pass, { still: true });
    this.reveal(true);
  }

  open(layer) {
    this.state.open.add(layer);
    this.draw();
    const key = `#open ${layer}`;
    const pane = this.shown().find((one) => one.spots.has(key));
    pane?.focus(key);
    this.frame(layer);
  }

  // An open layer in all drawings, at one scale.
  frame(layer) {
    const k = Math.min(...this.shown().map((pane) => pane.scaleOf(layer)));
    this.shown().forEach((pane) => pane.frame(layer, k));
  }

  openAll() {
    const { open } = this.state;
    const all = this.model.passes.flatMap((pass) => pass.layerNumbers);
    const full = all.every((layer) => open.has(layer));
    if (full) open.clear();
    else all.forEach((layer) => open.add(layer));
    this.draw();
    this.shown().forEach((pane) => pane.fit(true));
  }

  close(layer) {
    this.state.open.delete(layer);
    this.draw();
    const pane = this.shown()[0];
    const run = [...pane.spots].find(([, spot]) => spot.unit?.type === "run" && spot.unit.run.layers.includes(layer));
    if (run) pane.focus(run[0]);
  }

  turn(way) {
    const count = this.model.passes.length;
    this.change({ pass: (this.state.pass + way + count) % count });
  }

  // The layout of boxes and edges; layers that are alike share one.
  geometry(items, edges) {
    const key = `${items.map((item) => `${round(item.w)},${item.h}`).join(" ")}|${edges.map((edge) => `${edge.from},${edge.to}`).join(" ")}`;
    if (!this.layouts.has(key)) this.layouts.set(key, layered(items, edges));
    return this.layouts.get(key);
  }

  // The state in the address, so that a place can be given to others.
  remember() {
    const { view, pass, selected, left, open } = this.state;
    const parts = new URLSearchParams({ view, pass: this.model.passes[pass].name });
    if (selected !== null) parts.set("node", selected);
    if (view === "compare") parts.set("left", this.model.passes[left].name);
    if (this.overlays.kind !== this.overlays.first) parts.set("overlay", this.overlays.kind);
    if (open.size) parts.set("layer", ranges([...open].sort((a, b) => a - b)));
    try { history.replaceState(null, "", `#${parts}`); } catch { /* a sandboxed frame has no address */ }
  }

  recall() {
    const parts = new URLSearchParams(location.hash.slice(1) || this.model.raw.view);
    if (this.overlays.choices.some(([kind]) => kind === parts.get("overlay"))) {
      this.overlays.kind = byId("overlay").value = parts.get("overlay");
    }
    const index = (key) => this.model.passes.findIndex((pass) => pass.name === parts.get(key));
    if (VIEWS.some(([key]) => key === parts.get("view"))) this.state.view = parts.get("view");
    if (index("pass") >= 0) this.state.pass = index("pass");
    if (index("left") >= 0) this.state.left = index("left");
    const known = new Set(this.model.passes.flatMap((pass) => pass.layerNumbers));
    for (const layer of numbers(parts.get("layer") || "")) if (known.has(layer)) this.state.open.add(layer);
    const layers = this.model.passes[this.state.pass].layerNumbers;
    const node = parts.get("node");
    if (layers.length === 1 && !node) this.state.open.add(layers[0]);
    this.change({ view: this.state.view }, true);
    if (this.state.open.size === 1) this.frame([...this.state.open][0]);
    const home = [this.state.pass, this.state.left].find((at) => this.model.passes[at].byName.has(node));
    if (node && home !== undefined) this.jump(node, home);
  }
}

// Sorted numbers as 0-28,30, and back.
function ranges(sorted) {
  const runs = [];
  for (const one of sorted) {
    if (runs.length && one === runs[runs.length - 1][1] + 1) runs[runs.length - 1][1] = one;
    else runs.push([one, one]);
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(",");
}

function numbers(text) {
  return text.split(",").slice(0, 200).flatMap((part) => {
    const found = /^(\d{1,4})(?:-(\d{1,4}))?$/.exec(part);
    if (!found) return [];
    const [from, to] = [Number(found[1]), Number(found[2] ?? found[1])];
    return Array.from({ length: Math.max(0, to - from + 1) }, (_, at) => from + at);
  });
}

function choose(element, attribute, chosen) {
  element.setAttribute(attribute, String(chosen));
  element.setAttribute("tabindex", chosen ? "0" : "-1");
}

// Arrow keys, Home and End move and choose in a row of tabs or radio buttons.
function roving(row, pick) {
  row.addEventListener("keydown", (event) => {
    const all = [...row.children];
    const at = all.indexOf(event.target.closest("button"));
    const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (next === undefined || at < 0) return;
    event.preventDefault();
    const place = (next + all.length) % all.length;
    pick(place);
    all[place].focus();
  });
}

async function start() {
  try {
    const started = performance.now();
    const app = new App(new Model(await readDocument()));
    app.recall();
    document.body.dataset.ready = String(Math.round(performance.now() - started));
  } catch (error) {
    document.body.dataset.failed = "";
    byId("stage").replaceChildren(html("p", { class: "page" }, `This page could not be drawn: ${error.message}`));
    throw error;
  }
}
