// The log of fusions: how often each rule fired, where, and why it did not fire elsewhere.

function fusionsView(app) {
  const { model } = app;
  const names = [...new Set([...model.applied, ...model.refused].map((one) => one.fusion))];
  if (!names.length) return html("div", { class: "page" }, html("p", {}, "No fusion was applied or refused."));
  const count = (list, name) => list.filter((one) => one.fusion === name).length;
  names.sort((a, b) => count(model.applied, b) - count(model.applied, a));
  const table = html("table", {}, html("caption", {}, "Fusions"),
    html("thead", {}, html("tr", {}, ...["fusion", "applied", "refused"].map((title, at) => html("th", { scope: "col", class: at ? "number" : null }, title)))),
    html("tbody", {}, ...names.map((name) => html("tr", {}, html("th", { scope: "row" }, html("code", {}, name)),
      html("td", { class: "number" }, String(count(model.applied, name))), html("td", { class: "number" }, String(count(model.refused, name)))))));
  return html("div", { class: "page", tabindex: "0", role: "region", "aria-label": "Fusions" }, table, ...names.flatMap((name) => fusionParts(app, name)));
}

function fusionParts(app, name) {
  const applied = app.model.applied.filter((one) => one.fusion === name);
  const reasons = new Map();
  for (const one of app.model.refused.filter((each) => each.fusion === name)) {
    const reason = general(one.reason);
    if (!reasons.has(reason)) reasons.set(reason, []);
    reasons.get(reason).push(one);
  }
  const parts = [html("h3", {}, name)];
  if (applied.length) parts.push(many(app, `applied ${times(applied.length)}`, applied));
  for (const [reason, list] of reasons) parts.push(many(app, `refused ${times(list.length)}: ${list.length > 1 ? reason : list[0].reason}`, list));
  return parts;
}

function many(app, title, entries) {
  const list = html("ul", { class: "links" });
  const details = html("details", { ontoggle: () => {
    if (list.childElementCount) return;
    list.append(...entries.map((one) => {
      const pass = [...app.model.passes].reverse().find((each) => each.byName.has(one.node));
      return html("li", {}, pass ? app.panel.link(one.node, pass) : one.node, html("span", { class: "dim" }, one.reason ? ` ${one.reason}` : ` covers ${one.covered.join(", ")}`));
    }));
  } }, html("summary", {}, title), list);
  return details;
}

function times(count) {
  return count === 1 ? "once" : `${count} times`;
}

// The reason without its numbers: layers that were refused alike stand together.
function general(reason) {
  return String(reason).replace(/\d+/g, "N");
}
