// The search box: names, ops and source lines of the pass in sight; Enter jumps.

const FOUND = 40;

class Search {
  constructor(app) {
    this.app = app;
    this.input = byId("search");
    this.list = byId("found");
    this.at = 0;
    this.input.addEventListener("input", () => this.draw());
    this.input.addEventListener("focus", () => this.draw());
    this.input.addEventListener("blur", () => setTimeout(() => this.hide(), 150));
    this.input.addEventListener("keydown", (event) => this.key(event));
  }

  // Best first: a name that ends so, a name that holds it, an op or a source line that does.
  matches(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return [];
    const score = (node) => {
      const name = node.name.toLowerCase();
      if (name === wanted) return 0;
      if (name.endsWith(wanted)) return 1;
      if (name.includes(wanted)) return 2;
      if (node.op.toLowerCase() === wanted) return 3;
      return `${node.op} ${node.source || ""}`.toLowerCase().includes(wanted) ? 4 : 9;
    };
    const pass = this.app.model.passes[this.app.state.pass];
    return pass.nodes.map((node) => ({ node, rank: score(node) + (isLeaf(node) ? 0.5 : 0) })).filter(({ rank }) => rank < 9)
      .sort((a, b) => a.rank - b.rank || a.node.place - b.node.place).map(({ node }) => node);
  }

  draw() {
    const found = this.matches(this.input.value);
    this.found = found.slice(0, FOUND);
    this.at = 0;
    this.list.replaceChildren(...this.found.map((node, at) => html("li", {
      role: "option", id: `found-${at}`, "aria-selected": "false", onpointerdown: (event) => { event.preventDefault(); this.take(at); },
    }, html("span", {}, node.name), html("span", { class: "dim" }, ` ${node.op}`))));
    if (found.length > FOUND) this.list.append(html("li", { class: "dim", role: "presentation" }, `and ${found.length - FOUND} more`));
    if (!found.length && this.input.value.trim()) this.list.append(html("li", { class: "dim", role: "presentation" }, "no such node in this pass"));
    this.list.hidden = !this.list.childElementCount;
    this.input.setAttribute("aria-expanded", String(!this.list.hidden));
    this.move(0);
  }

  move(at) {
    if (!this.found.length) { this.input.removeAttribute("aria-activedescendant"); return; }
    this.at = (at + this.found.length) % this.found.length;
    [...this.list.children].forEach((item, place) => item.setAttribute("aria-selected", String(place === this.at)));
    this.list.children[this.at].scrollIntoView({ block: "nearest" });
    this.input.setAttribute("aria-activedescendant", `found-${this.at}`);
  }

  key(event) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      this.move(this.at + (event.key === "ArrowDown" ? 1 : -1));
    } else if (event.key === "Enter") this.take(this.at);
    else if (event.key === "Escape") { event.stopPropagation(); this.hide(); this.input.blur(); }
  }

  take(at) {
    const node = this.found?.[at];
    if (!node) return;
    this.hide();
    this.app.jump(node.name, this.app.state.pass);
    const pane = this.app.shown()[this.app.shown().length - 1];
    if (pane?.spots.has(node.name)) pane.focus(node.name);
  }

  hide() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
  }
}
