// Moving in a drawing: zoom, pan, and walking along the edges with the keyboard.

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
      const spot = [...this.spots].find(([, one]) => one.element === event.target);
      if (spot) { this.at = spot[0]; this.rove(); }
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
      window.removeEventListener("pointermove", move);
      this.svg.classList.remove("dragging");
      if (!moved) return;
      const swallow = (click) => click.stopPropagation();
      window.addEventListener("click", swallow, { capture: true, once: true });
      setTimeout(() => window.removeEventListener("click", swallow, true));
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", stop, { once: true });
  },

  apply() {
    const { x, y, k } = this.view;
    this.scene.setAttribute("transform", `translate(${round(x)} ${round(y)}) scale(${k.toFixed(4)})`);
    this.svg.classList.toggle("far", k < 0.35);
  },

  pan(dx, dy) {
    this.view.x += dx;
    this.view.y += dy;
    this.apply();
  },

  zoom(factor, x = this.svg.clientWidth / 2, y = this.svg.clientHeight / 2) {
    const k = Math.min(4, Math.max(0.03, this.view.k * factor));
    this.view.x = x - ((x - this.view.x) * k) / this.view.k;
    this.view.y = y - ((y - this.view.y) * k) / this.view.k;
    this.view.k = k;
    this.apply();
  },

  fit() {
    const [width, height] = [this.svg.clientWidth, this.svg.clientHeight];
    const k = Math.min(1.25, (width - 40) / Math.max(1, this.size.width), (height - 40) / Math.max(1, this.size.height));
    const readable = Math.max(k, Math.min(0.5, (width - 40) / Math.max(1, this.size.width)));
    this.view = {
      k: readable, x: (width - this.size.width * readable) / 2,
      y: Math.max(20, (height - this.size.height * readable) / 2),
    };
    this.apply();
  },

  // An open layer from its head on, as wide as there is room.
  frame(layer) {
    const head = this.spots.get(`#open ${layer}`);
    if (!head) return;
    const width = this.svg.clientWidth;
    const k = Math.min(1, Math.max(0.4, (width - 40) / head.w));
    this.view = { k, x: width / 2 - (head.x + head.w / 2) * k, y: 48 - head.y * k };
    this.apply();
  },

  // Brings a spot into sight; `firm` puts it into the middle at a readable size.
  show(name, firm = false) {
    const spot = this.spots.get(name) || this.spotOfHidden(name);
    if (!spot) return;
    const [width, height] = [this.svg.clientWidth, this.svg.clientHeight];
    if (firm) this.view.k = Math.max(this.view.k, 0.8);
    const { k } = this.view;
    const [x, y] = [(spot.x + spot.w / 2) * k + this.view.x, (spot.y + spot.h / 2) * k + this.view.y];
    const inside = x > 60 && x < width - 60 && y > 40 && y < height - 40;
    if (!inside || firm) this.pan(width / 2 - x, height / 2 - y);
  },

  spotOfHidden(name) {
    const unit = this.unitOf.get(name);
    return unit && unit.type === "run" ? this.spots.get(`#run ${unit.run.layers[0]}`) : null;
  },

  // One tab stop per drawing: the spot where the walk stands.
  rove() {
    const selected = this.app.marks(this.pass).selected;
    if (!this.spots.has(this.at)) this.at = this.spots.has(selected) ? selected : this.rows[0] && spotKey(this.rows[0][0]);
    for (const [name, { element }] of this.spots) element.setAttribute("tabindex", name === this.at ? "0" : "-1");
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
    this.at = name;
    this.rove();
    this.show(name);
    const spot = this.spots.get(name);
    spot.element.focus({ preventScroll: true });
    if (spot.node) this.app.select(name, this.pass, { still: true });
  },
});

function middle({ x, y, w, h }) {
  return { x: x + w / 2, y: y + h / 2 };
}

function spotKey(unit) {
  if (unit.type === "node") return unit.nodes[0].name;
  return unit.type === "run" ? `#run ${unit.run.layers[0]}` : `#open ${unit.layer}`;
}
