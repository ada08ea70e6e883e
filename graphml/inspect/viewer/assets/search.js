// The search box: words that a node's name, op, type, source line or backend all hold; Enter jumps.
// It lists the nodes of the pass in sight, and says which other passes have more.

const FOUND = 40;

class Search {
  constructor(app) {
    this.app = app;
    this.input = byId("search");
    this.list = byId("found");
    this.at = 0;
    this.elsewhere = null; // another pass whose nodes are listed
    this.input.addEventListener("input", () => { this.elsewhere = null; this.draw(); });
    this.input.addEventListener("focus", () => { this.elsewhere = null; this.input.select(); this.draw(); });
    this.input.addEventListener("blur", () => setTimeout(() => this.hide(), 150));
    this.input.addEventListener("keydown", (event) => this.key(event));
  }

  get pass() {
    return this.elsewhere ?? this.app.model.passes[this.app.state.pass];
  }

  // Best first: a name that is or ends so, a name that holds all words, then the rest.
  matches(text, pass) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return [];
    const words = wanted.split(/\s+/);
    const score = (node) => {
      const name = node.name.toLowerCase();
      if (name === wanted) return 0;
      if (name.endsWith(wanted)) return 1;
      if (words.every((word) => name.includes(word))) return 2;
      if (node.op.toLowerCase() === wanted) return 3;
      const all = searched(node);
      return words.every((word) => all.includes(word)) ? 4 : 9;
    };
    return pass.nodes.map((node) => ({ node, rank: score(node) + (isLeaf(node) ? 0.5 : 0) })).filter(({ rank }) => rank < 9)
      .sort((a, b) => a.rank - b.rank || a.node.place - b.node.place).map(({ node }) => node);
  }

  draw() {
    const { pass } = this;
    const text = this.input.value;
    const found = this.matches(text, pass);
    const others = this.app.model.passes.filter((one) => one !== pass).map((one) => [one, this.matches(text, one).length]).filter(([, count]) => count);
    const shown = found.slice(0, FOUND);
    this.options = [
      ...shown.map((node) => ({ take: () => this.jump(node, pass), parts: [html("span", { class: "name" }, node.name), html("span", { class: "dim" }, ` ${node.op}  ${formatShape(node)}`)] })),
      ...others.map(([one, count]) => ({ take: () => this.listPass(one), parts: [html("span", { class: "dim" }, "in "), one.name, html("span", { class: "dim" }, `: ${plural(count, "node")}`)], stays: true })),
    ];
    const items = this.options.map((option, at) => html("li", {
      role: "option", id: `found-${at}`, "aria-selected": "false", class: option.stays ? "pass" : null,
      onpointerdown: (event) => { event.preventDefault(); this.take(at); },
    }, ...option.parts));
    const note = (words) => html("li", { class: "dim note", role: "presentation" }, words);
    const where = !found.length ? (others.length ? `none in ${pass.name}` : "no such node in any pass") : found.length > FOUND ? `and ${found.length - FOUND} more in ${pass.name}` : null;
    if (text.trim() && this.elsewhere) items.unshift(note(`in ${pass.name}:`));
    this.items = items.filter((item) => item.id);
    if (text.trim() && where) items.splice(items.length - others.length, 0, note(where));
    this.list.replaceChildren(...items);
    this.list.hidden = !this.list.childElementCount;
    this.input.setAttribute("aria-expanded", String(!this.list.hidden));
    if (text.trim()) byId("status").textContent = [`${plural(found.length, "node")} in ${pass.name}`, ...others.map(([one, count]) => `${count} in ${one.name}`)].join(", ");
    this.move(0);
  }

  move(at) {
    if (!this.items.length) { this.input.removeAttribute("aria-activedescendant"); return; }
    this.at = (at + this.items.length) % this.items.length;
    this.items.forEach((item, place) => item.setAttribute("aria-selected", String(place === this.at)));
    this.items[this.at].scrollIntoView({ block: "nearest" });
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
    this.options?.[at]?.take();
  }

  // The nodes of another pass; the drawing stays until one is chosen.
  listPass(pass) {
    this.elsewhere = pass;
    this.draw();
  }

  jump(node, pass) {
    this.hide();
    this.app.jump(node.name, pass.index);
    const pane = this.app.shown().find((one) => one.pass === pass);
    if (pane?.spots.has(node.name)) pane.focus(node.name);
    else this.input.blur();
  }

  hide() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
  }
}

function searched(node) {
  node.searched ??= [node.name, node.op, formatShape(node), node.source, node.backend, node.fallback ? "fallback" : ""].join(" ").toLowerCase();
  return node.searched;
}
