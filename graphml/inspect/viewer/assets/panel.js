// The panel of details: a node, or the model as long as none is chosen.

class Panel {
  constructor(app, element) {
    this.app = app;
    this.element = element;
  }

  draw() {
    const { selected, home, pass } = this.app.state;
    const { passes } = this.app.model;
    const node = selected === null ? null : passes[home].byName.get(selected);
    this.element.replaceChildren(...(node ? this.node(node, passes[home]) : this.overview(passes[pass])));
    requestAnimationFrame(() => { this.element.scrollTop = 0; });
  }

  node(node, pass) {
    const { app } = this;
    const time = app.overlays.value(pass, node, "time");
    const error = app.overlays.value(pass, node, "error");
    const parts = [
      html("div", { class: "panel-head" }, html("h2", {}, node.name),
        html("button", { type: "button", class: "quiet", "aria-label": "Close details", onclick: () => app.select(null, pass) }, "×")),
      html("p", { class: "op" }, html("span", { class: "swatch", "data-family": family(node) }, node.op), html("span", { class: "dim" }, ` in the pass ${pass.name}`)),
      facts([
        ["type", formatShape(node)], ["bytes", node.bytes ? `${formatBytes(node.bytes)} (${node.bytes})` : node.bytes === 0 ? "none of its own" : ""],
        ["buffer", buffer(node.buffer)], ["workspace", buffer(node.workspace)], ["backend", node.backend],
        ["fallback", node.fallback], ["time", this.time(node, pass, time)], ["error", error === undefined ? "" : `NMSE ${formatError(error)}`],
        ["op", node.declared], ["source", node.source], ["layer", node.layer], ["output", Object.keys(pass.outputs).filter((one) => pass.outputs[one] === node.name).join(", ")],
      ]),
    ];
    parts.push(...this.change(node, pass));
    parts.push(...this.list("Inputs", node.inputs.map((name) => [name, pass])));
    parts.push(...this.list("Read by", (pass.users.get(node.name) || []).map((name) => [name, pass])));
    parts.push(...this.fusion(node, pass), ...this.history(node, pass), ...this.refusals(node, pass));
    const attributes = Object.entries(node.attributes || {});
    if (attributes.length) parts.push(html("h3", {}, "Attributes"), facts(attributes.map(([key, value]) => [key, show(value)])));
    return parts;
  }

  time(node, pass, time) {
    if (time === undefined) return "";
    const { overlays } = this.app;
    const all = formatShare(share(time, overlays.sum(pass, null)));
    return `${formatTime(time)}, ${node.home === null ? "" : `${formatShare(share(time, overlays.sum(pass, node.home)))} of its layer, `}${all} of all`;
  }

  // What differs from the other side, where two passes are compared.
  change(node, pass) {
    const changes = this.app.stepper.changes();
    if (!changes || (pass !== changes.left && pass !== changes.right)) return [];
    const found = changes.of(pass, node.name);
    const title = `Against ${(pass === changes.right ? changes.left : changes.right).name}`;
    if (!found) return [html("h3", {}, title), html("p", { class: "dim" }, "the same")];
    const rows = found.facts.map(([fact, a, b]) => [fact, `${show(a)} → ${show(b)}`]);
    if (found.left !== null && found.right !== null && found.left !== found.right) rows.unshift(["name", `${found.left} → ${found.right}`]);
    return [html("h3", {}, title), html("p", {}, html("span", { class: "swatch", "data-family": found.kind }, found.kind)), facts(rows)];
  }

  // The rule that made this node, or the one that took it.
  fusion(node, pass) {
    const { model } = this.app;
    const origin = new Set(node.origin || []);
    const made = (model.appliedTo.get(node.name) || []).filter((one) => one.covered.every((name) => origin.has(name))).at(-1);
    const rule = (one, ...rest) => html("p", { class: "rule" }, html("code", {}, one.fusion), ...rest);
    if (made) return [html("h3", {}, "Fused by"), rule(made, ` covers ${made.covered.length} nodes`)];
    const taken = !origin.size ? model.coveredBy.get(node.name) || [] : [];
    return taken.length ? [html("h3", {}, "Taken by"), ...taken.map((one) => rule(one, ` into ${one.node}`))] : [];
  }

  history(node, pass) {
    const { model } = this.app;
    const parts = [];
    for (const other of model.passes) {
      const names = model.related(node.name, pass.index, other.index);
      if (other === pass || !names.length || (names.length === 1 && names[0] === node.name && other.byName.get(node.name).op === node.op)) continue;
      const word = other.index < pass.index ? "Made from, in" : "Became, in";
      parts.push(...this.list(`${word} ${other.name}`, names.map((name) => [name, other]), "covers"));
    }
    return parts;
  }

  // Why rules did not take this node or its neighbours.
  refusals(node, pass) {
    const { model } = this.app;
    const own = new Set([node.name, ...(node.origin || [])]);
    const near = new Set([...node.inputs, ...(pass.users.get(node.name) || [])]);
    for (const name of own) near.delete(name);
    const rows = (names) => [...new Set([...names].flatMap((name) => model.refusedAt.get(name) || []))];
    const here = rows(own);
    const around = rows(near).filter((one) => !here.includes(one));
    const item = (one) => html("li", {}, html("code", {}, one.fusion), ` at ${one.node}: ${one.reason}`);
    const parts = [];
    if (here.length) parts.push(html("h3", {}, "Fusions refused here"), html("ul", { class: "reasons" }, ...here.map(item)));
    if (around.length) parts.push(html("h3", {}, "Refused at neighbours"), html("ul", { class: "reasons" }, ...around.slice(0, 12).map(item)));
    return parts;
  }

  list(title, entries, kind = "") {
    if (!entries.length) return [];
    const items = entries.map(([name, pass]) => {
      const node = pass.byName.get(name);
      return html("li", {}, this.link(name, pass), node ? html("span", { class: "dim" }, ` ${node.op}  ${formatShape(node)}`) : null);
    });
    return [html("h3", {}, title), html("ul", { class: `links ${kind}` }, ...items)];
  }

  link(name, pass) {
    return html("button", { type: "button", class: "link", onclick: () => this.app.jump(name, pass.index) }, name);
  }

  // The differences of the two sides; what several layers share is one line.
  differences() {
    const { stepper } = this.app;
    const changes = stepper.changes();
    if (!changes) return [];
    const groups = stepper.groups();
    const counts = ["removed", "added", "changed"].map((kind) => `${changes.count(kind)} ${kind}`).join(", ");
    const item = (group, at) => html("li", {}, html("span", { class: "swatch", "data-family": group.kind }),
      html("button", { type: "button", class: "link", onclick: () => stepper.go(groups, at, 0) }, group.members.length > 1 ? group.title : group.members[0].right ?? group.members[0].left),
      html("span", { class: "dim" }, ` ${group.kind}${group.members.length > 1 ? ` in ${group.members.length} layers` : ""}${group.facts.length ? `: ${group.facts.map(([fact]) => fact).join(", ")}` : ""}`));
    return [html("h3", {}, "Differences"), facts([["left", changes.left.title], ["right", changes.right.title]]), html("p", { class: "dim" }, counts),
      html("ul", { class: "links" }, ...groups.slice(0, 60).map(item)), groups.length > 60 ? html("p", { class: "dim" }, `and ${groups.length - 60} more`) : null].filter(Boolean);
  }

  overview(pass) {
    const { model } = this.app;
    const { raw } = model;
    const counts = new Map();
    for (const node of pass.nodes) counts.set(node.op, (counts.get(node.op) || 0) + 1);
    const ops = [...counts].sort((a, b) => b[1] - a[1]);
    const fallbacks = pass.nodes.filter((node) => node.fallback);
    const parts = [
      html("h2", {}, `Pass ${pass.name}`), ...this.differences(),
      facts([
        ["nodes", pass.nodes.length], ["layers", pass.layerNumbers.length || ""], ["took", pass.seconds ? formatTime(pass.seconds * 1e6) : ""],
        ["outputs", Object.entries(pass.outputs).map(([key, name]) => (key === name ? key : `${key} = ${name}`)).join(", ")],
        ["arena", raw.plan?.peak ? `${formatBytes(raw.plan.peak)}, at least ${formatBytes(raw.plan.lower_bound)}` : ""],
        ["fallbacks", fallbacks.length || ""],
      ]),
      html("p", { class: "dim" }, "Choose a node to see its details; choose a box of layers to open it."),
    ];
    const sum = (kind) => pass.nodes.map((node) => [node.name, this.app.overlays.value(pass, node, kind)]).filter(([, value]) => value);
    const slow = sum("time").sort((a, b) => b[1] - a[1]).slice(0, 8);
    if (slow.length) parts.push(html("h3", {}, "Slowest"), html("ul", { class: "links" }, ...slow.map(([name, value]) => html("li", {}, this.link(name, pass), html("span", { class: "dim" }, ` ${formatTime(value)}`)))));
    if (fallbacks.length) parts.push(...this.list("Not on the backend", fallbacks.slice(0, 20).map((node) => [node.name, pass])));
    parts.push(html("h3", {}, "Ops"), facts(ops));
    return parts;
  }
}

function buffer(place) {
  return place ? `${formatBytes(place.size)} at ${place.offset}` : "";
}

function show(value) {
  if (Array.isArray(value) && value.every((one) => typeof one === "string")) return value.join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function facts(rows) {
  const list = html("dl");
  for (const [key, value] of rows) {
    if (value === null || value === undefined || value === "") continue;
    list.append(html("dt", {}, key), html("dd", {}, String(value)));
  }
  return list;
}
