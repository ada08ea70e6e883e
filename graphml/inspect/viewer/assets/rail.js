// The scroll bar of a tall drawing: what is in sight, where layers begin, and where the marked nodes are.
// Pointers only: keys have PageUp, PageDown, Home, End and the keys of layers.

class Rail {
  constructor(pane) {
    this.pane = pane;
    this.ticks = svg("g");
    this.marks = svg("g");
    this.thumb = svg("rect", { class: "thumb", width: 12, x: 1, rx: 3 });
    this.element = svg("svg", { class: "rail", "aria-hidden": "true", onpointerdown: (event) => this.drag(event) }, this.ticks, this.marks, this.thumb);
  }

  // What does not change while nodes are chosen: layers and differences.
  draw() {
    const { pane } = this;
    const marks = pane.units.filter((unit) => unit.type === "open").map((unit) => [unit.y, "start"]);
    for (const { kind, name } of pane.app.stepper.marks(pane.pass)) marks.push([this.middle(name), kind]);
    this.ticks.replaceChildren(...this.lines(marks));
  }

  mark(selected, related) {
    const marks = [...related].map((name) => [this.middle(name), "related"]);
    if (selected !== null) marks.push([this.middle(selected), "selected"]);
    this.marks.replaceChildren(...this.lines(marks));
  }

  middle(name) {
    const spot = this.pane.spots.get(name) || this.pane.spotOfHidden(name);
    return spot ? spot.y + spot.h / 2 : null;
  }

  // One line per place: thousands of differences need no more than the rail has pixels.
  lines(marks) {
    const seen = new Set();
    const share = (y) => round((1000 * y) / Math.max(1, this.pane.size.height)) / 10;
    return marks.filter(([y, kind]) => {
      const key = `${Math.round(share(y) * 5)} ${kind}`;
      return y !== null && !seen.has(key) && seen.add(key);
    }).map(([y, kind]) => svg("line", { class: `tick tick-${kind}`, x1: 2, x2: 12, y1: `${share(y)}%`, y2: `${share(y)}%` }));
  }

  view() {
    const { view, size, room: { height } } = this.pane;
    const total = size.height * view.k;
    this.element.classList.toggle("idle", total <= height);
    if (total <= height) return;
    const top = Math.max(0, -view.y / total);
    const bottom = Math.min(1, (height - view.y) / total);
    this.thumb.setAttribute("y", `${round(100 * top)}%`);
    this.thumb.setAttribute("height", `${Math.max(1, round(100 * (bottom - top)))}%`);
  }

  drag(event) {
    event.preventDefault();
    const { pane, element } = this;
    const box = element.getBoundingClientRect();
    const move = (now) => {
      const part = Math.min(1, Math.max(0, (now.clientY - box.top) / box.height));
      pane.view.y = box.height / 2 - part * pane.size.height * pane.view.k;
      pane.apply();
    };
    move(event);
    whileDragged(move);
  }
}
