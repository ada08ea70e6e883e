// The keys of the page, as they are pressed and as the dialog names them.

// [keys, what they do, action]: an action gets the app; keys without one are those of the drawing.
const KEYS = [
  [["/"], "find a node by name, op, type or source line; several words must all match", () => byId("search").focus()],
  [["["], "the pass before", (app) => app.turn(-1)],
  [["]"], "the next pass", (app) => app.turn(1)],
  [["n"], "the next difference", (app) => app.stepper.step(1)],
  [["p"], "the difference before", (app) => app.stepper.step(-1)],
  [["N"], "the same difference in the next layer", (app) => app.stepper.step(1, true)],
  [["P"], "the same difference in the layer before", (app) => app.stepper.step(-1, true)],
  [["."], "the next open layer", (app) => app.shown().forEach((pane) => pane.step(1))],
  [[","], "the open layer before", (app) => app.shown().forEach((pane) => pane.step(-1))],
  [["o"], "open all layers, or close them", (app) => app.shown().length && app.openAll()],
  [["PageDown"], "a screen down", (app) => app.shown().forEach((pane) => pane.scroll(0.8))],
  [["PageUp"], "a screen up", (app) => app.shown().forEach((pane) => pane.scroll(-0.8))],
  [["Home"], "the top", (app) => app.shown().forEach((pane) => pane.scroll("top"))],
  [["End"], "the end", (app) => app.shown().forEach((pane) => pane.scroll("end"))],
  [["+", "="], "larger", (app) => app.shown().forEach((pane) => pane.zoom(1.25))],
  [["-"], "smaller", (app) => app.shown().forEach((pane) => pane.zoom(0.8))],
  [["0"], "all, however small", (app) => app.shown().forEach((pane) => pane.fit())],
  [["1"], "as large as can be read", (app) => app.shown().forEach((pane) => pane.fit(true))],
  [["←", "↑", "↓", "→"], "in the drawing: along the edges, and to neighbours; in a row of tabs: to the next"],
  [["Enter"], "open a box of layers, choose a node"],
  [["Esc"], "let go of the chosen node"],
  [["?"], "these keys", () => byId("keys").showModal()],
];

function keysDialog() {
  byId("keys").append(html("h2", { id: "keys-title" }, "Keys"),
    html("dl", {}, ...KEYS.flatMap(([keys, does]) => [html("dt", {}, ...keys.filter((key) => key !== "=").map((key) => html("kbd", {}, key))), html("dd", {}, does)])),
    html("p", { class: "dim" }, "Mouse: the wheel zooms, with Shift it moves sideways; drag moves; the bar at the right scrolls."),
    html("form", { method: "dialog" }, html("button", { type: "button", onclick: () => byId("keys").close() }, "Close")));
  byId("help").addEventListener("click", () => byId("keys").showModal());
}

function pressed(app, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "Escape") { if (app.state.selected !== null) app.select(null, app.model.passes[app.state.pass]); return; }
  if (typing) return;
  const action = KEYS.find(([keys]) => keys.includes(event.key))?.[2];
  // A page that scrolls by itself keeps its keys.
  if (!action || (/^(Page|Home|End)/.test(event.key) && !app.shown().length)) return;
  event.preventDefault();
  action(app);
}
