// Moving in a drawing: zoom, pan, and walking along the edges with the keyboard.

const READABLE = 0.7;
const NEARLY = 0.5; // a drawing that fits the width at this scale is not cut for a larger one
const SMALLEST = 0.62; // a layer is shown whole beside its other side if it can be read at that scale
const TOP = 48; // where the head of a layer comes to be
const MARGIN = 36; // above a drawing: its title
const SIGN = 12; // pixels that a name beside a layer needs

Object.assign(Pane.prototype, {
  listen() {
    this.svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      const amount = event.deltaY * (event.deltaMode ? 30 : 1);
      const box = this.svg.getBoundingClientRect();
      if (event.shiftKey) this.pan(-amount - event.deltaX, 0);
      else this.zoom(Math.exp(-amount * 0.0016), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
    this.svg.addEventListener("pointerdown", (event) => this.drag(event));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("focusin", (event) => {
      const name = event.target.dataset.name ?? [...this.spots].find(([, one]) => one.element === event.target)?.[0];
      if (this.spots.has(name)) { this.at = name; this.rove(); }
    });
  },

  drag(event) {
    if (event.button !== 0) return;
    let [x, y] = [event.clientX, event.clientY];
    let moved = false;
    const move = (now) => {
      if (!moved && Math.hypot(now.clientX - event.clientX, now.clientY - event.clientY) < 4) return;
      moved = true;
      this.svg.classList.add("dragging");
      this.pan(now.clientX - x, now.clientY - y);
      [x, y] = [now.clientX, now.clientY];
    };
    const stop = () => {
      this.svg.classList.remove("dragging");
      if (!moved) return;
      const swallow = (click) => click.stopPropagation();
      window.addEventListener("click", swallow, { capture: true, once: true });
      setTimeout(() => window.removeEventListener("click", swallow, true));
    };
    whileDragged(move, stop);
  },

  // The size of the drawing, read once: to ask for it after each change would lay out everything each time.
  measure() {
    this.room = { width: this.svg.clientWidth, height: this.svg.clientHeight };
  },

  apply() {
    const { x, y, k } = this.view;
    this.fitted = false;
    this.scene.setAttribute("transform", `translate(${round(x)} ${round(y)}) scale(${k.toFixed(5)})`);
    this.scene.style.setProperty("--k", k.toFixed(5));
    this.svg.classList.toggle("far", k < 0.35);
    this.svg.classList.toggle("distant", k < DISTANT);
    if (k < DISTANT) this.nameLayers();
    this.hideAway();
    this.fillSoon();
    this.rail.view();
  },

  // Whether a layer is in sight, or nearly so.
  near(unit) {
    const { y, k } = this.view;
    return unit.y * k + y < this.room.height * 1.3 && (unit.y + unit.h) * k + y > this.room.height * -0.3;
  },

  // What is out of sight costs as much to lay out as what is in it, so it is not; the walk's place stays.
  hideAway() {
    const here = this.spots.get(this.at)?.unit;
    for (const unit of this.units) {
      if (unit.type !== "open") continue;
      const away = unit !== here && !this.near(unit);
      if (unit.kept.away !== away) unit.kept.group.classList.toggle("away", away);
      unit.kept.away = away;
    }
  },

  // Beside small layers as many names as there is room for.
  nameLayers() {
    const open = this.units.filter((unit) => unit.type === "open");
    const every = Math.ceil((open.length * SIGN) / Math.max(1, this.size.height * this.view.k));
    open.sort((a, b) => a.y - b.y).forEach((unit, at) => unit.kept.group.classList.toggle("unnamed", at % every > 0));
  },

  pan(dx, dy) {
    this.view.x += dx;
    this.view.y += dy;
    this.apply();
  },

  zoom(factor, x = this.room.width / 2, y = this.room.height / 2) {
    const k = Math.min(4, Math.max(Math.min(0.03, this.whole()), this.view.k * factor));
    this.view.x = x - ((x - this.view.x) * k) / this.view.k;
    this.view.y = y - ((y - this.view.y) * k) / this.view.k;
    this.view.k = k;
    this.apply();
  },

  // The scale at which everything is in sight, however many layers are open.
  whole() {
    const { width, height } = this.room;
    return Math.max(0.001, Math.min(1.25, (width - 40) / Math.max(1, this.size.width), (height - MARGIN - 20) / Math.max(1, this.size.height)));
  },

  // Everything, or (`readable`) as much from the top as can be read.
  fit(readable = false) {
    const { width, height } = this.room;
    const wide = (width - 40) / Math.max(1, this.size.width);
    const k = readable ? Math.max(this.whole(), Math.min(READABLE, wide > NEARLY ? wide : Math.max(SMALLEST, (width - 40) / this.spine().w))) : this.whole();
    const middle = this.size.width * k > width - 20 ? this.spine().x + this.spine().w / 2 : this.size.width / 2;
    this.view = { k, x: width / 2 - middle * k, y: Math.max(MARGIN, (height - this.size.height * k) / 2) };
    this.apply();
    this.fitted = readable;
  },

  // What is in the middle where not everything can be seen: an open layer, else the box that holds most.
  spine() {
    const open = this.units.filter((unit) => unit.type === "open");
    const all = { x: 0, w: this.size.width, nodes: [] };
    return (open.length ? open : this.units).reduce((best, unit) => (unit.nodes.length > best.nodes.length ? unit : best), all);
  },

  // An open layer from its head on, as wide as there is room.
  frame(layer, k = this.scaleOf(layer)) {
    const head = this.spots.get(`#open ${layer}`);
    if (!head) return;
    const { width } = this.room;
    this.view = { k, x: width / 2 - (head.x + head.w / 2) * k, y: TOP - head.y * k };
    this.apply();
  },

  scaleOf(layer) {
    const head = this.spots.get(`#open ${layer}`);
    return head ? Math.min(1, Math.max(SMALLEST, (this.room.width - 40) / head.w)) : 1;
  },

  // The next open layer (or the one before) as seen from the top edge.
  step(way) {
    const heads = this.units.filter((unit) => unit.type === "open").sort((a, b) => a.y - b.y);
    const at = (TOP - this.view.y) / this.view.k;
    const slack = 4 / this.view.k;
    const next = way > 0 ? heads.find((unit) => unit.y > at + slack) : heads.reverse().find((unit) => unit.y < at - slack);
    if (next) this.focusLayer(next.layer);
  },

  focusLayer(layer) {
    this.frame(layer);
    const key = `#open ${layer}`;
    this.at = key;
    this.rove();
    this.spots.get(key).element.focus({ preventScroll: true });
  },

  // To the top or to the end, or by a part of what is in sight.
  scroll(part) {
    const { height } = this.room;
    const ends = { top: MARGIN, end: height - 20 - this.size.height * this.view.k };
    this.view.y = part in ends ? ends[part] : this.view.y - part * height;
    this.apply();
  },

  // Brings a spot into sight; with a scale it comes to the middle.
  show(name, scale = null) {
    const spot = this.spots.get(name) || this.spotOfHidden(name);
    if (!spot) return;
    const { width, height } = this.room;
    if (scale !== null) this.view.k = scale;
    const { k } = this.view;
    const [x, y] = [(spot.x + spot.w / 2) * k + this.view.x, (spot.y + spot.h / 2) * k + this.view.y];
    const inside = x > 60 && x < width - 60 && y > 40 && y < height - 40;
    if (inside && scale === null) return;
    // A layer that is no wider than the drawing is seen whole.
    const frame = frameOf(spot);
    const middle = frame.w * k <= width ? (frame.x + frame.w / 2) * k + this.view.x : x;
    this.pan(width / 2 - middle, height / 2 - y);
  },

  // The scale at which a spot can be read, with its layer if that has room.
  scaleTo(name) {
    const spot = this.spots.get(name) || this.spotOfHidden(name);
    if (!spot) return Infinity;
    const { width } = this.room;
    const fitting = Math.max(SMALLEST, (width - 40) / frameOf(spot).w);
    return frameOf(spot).w * this.view.k > width ? fitting : Math.max(this.view.k, Math.min(0.8, fitting));
  },

  spotOfHidden(name) {
    const unit = this.unitOf.get(name);
    return unit && unit.type === "run" ? this.spots.get(`#run ${unit.run.layers[0]}`) : null;
  },

  // One tab stop per drawing: the spot where the walk stands.
  rove() {
    const selected = this.app.marks(this.pass).selected;
    if (!this.spots.has(this.at)) this.at = this.spots.has(selected) ? selected : this.rows[0] && spotKey(this.rows[0][0]);
    const stop = this.spots.get(this.at)?.element;
    if (this.stop && this.stop !== stop) this.stop.setAttribute("tabindex", "-1");
    if (stop) stop.setAttribute("tabindex", "0");
    this.stop = stop;
  },

  key(event) {
    const steps = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
    if (steps[event.key]) {
      event.preventDefault();
      event.stopPropagation();
      this.walk(...steps[event.key]);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.spots.get(this.at)?.element.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    }
  },

  walk(dx, dy) {
    const here = this.spots.get(this.at);
    const linked = dy && here.node ? this.linked(here.node, dy) : [];
    const from = middle(here);
    const ahead = [...this.spots].filter(([name, spot]) => {
      const to = middle(spot);
      return name !== this.at && (dx ? Math.sign(to.x - from.x) === dx && Math.abs(to.y - from.y) < 30 : Math.sign(to.y - from.y) === dy && Math.abs(to.y - from.y) > 8);
    });
    const near = (name) => {
      const to = middle(this.spots.get(name));
      return dx ? Math.abs(to.x - from.x) : Math.abs(to.y - from.y) * 2 + Math.abs(to.x - from.x);
    };
    const names = linked.length ? linked : ahead.map(([name]) => name);
    if (!names.length) return;
    this.focus(names.reduce((best, name) => (near(name) < near(best) ? name : best)));
  },

  linked(node, dy) {
    const names = dy > 0 ? this.pass.users.get(node.name) : node.inputs;
    const visible = names.map((name) => {
      if (this.spots.has(name)) return name;
      const unit = this.unitOf.get(name);
      return unit && unit.type === "run" ? `#run ${unit.run.layers[0]}` : null;
    });
    return [...new Set(visible.filter((name) => name && this.spots.has(name)))];
  },

  focus(name) {
    const { unit } = this.spots.get(name);
    if (unit?.type === "open") this.fill(unit);
    this.at = name;
    this.rove();
    this.show(name);
    this.hideAway();
    const spot = this.spots.get(name);
    spot.element.focus({ preventScroll: true });
    if (spot.node) this.app.select(name, this.pass, { still: true });
  },
});

function frameOf(spot) {
  return spot.unit?.type === "open" ? spot.unit : spot;
}

function middle({ x, y, w, h }) {
  return { x: x + w / 2, y: y + h / 2 };
}

function spotKey(unit) {
  if (unit.type === "node") return unit.nodes[0].name;
  return unit.type === "run" ? `#run ${unit.run.layers[0]}` : `#open ${unit.layer}`;
}
