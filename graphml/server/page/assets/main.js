// The page: its two views, what they share, and the keys.

import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { EngineView } from "./engine.js";
import { showModel } from "./models.js";
import { get } from "./server.js";
import { Settings, toggleSettings } from "./settings.js";
import { Store } from "./store.js";
import { hideAlternatives } from "./tokens.js";

async function start() {
  const store = new Store();
  const settings = new Settings(store, {}, (name) => (name === "show_tokens" || name === "") && chat.draw());
  const chat = new Chat(store, settings), engine = new EngineView(byId("engine"));
  chat.draw();
  settings.draw();
  for (const tab of byId("views").children) tab.addEventListener("click", () => show(tab.id, engine));
  byId("views").addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") show(byId("tab-chat").ariaSelected === "true" ? "tab-engine" : "tab-chat", engine, true);
  });
  byId("show-settings").addEventListener("click", () => toggleSettings());
  byId("show-list").addEventListener("click", () => {
    const open = document.body.classList.toggle("list-open");
    byId("show-list").setAttribute("aria-expanded", String(open));
  });
  byId("alternatives").addEventListener("mouseleave", hideAlternatives);
  byId("alternatives").addEventListener("mousedown", (event) => event.preventDefault()); // the token keeps the focus
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    hideAlternatives();
    if (chat.running) chat.stop();
    else if (!byId("settings").hidden) toggleSettings(false);
    else if (chat.edited) chat.leaveEdit();
  });
  if (location.hash === "#engine") show("tab-engine", engine);
  else chat.focus();
  document.body.dataset.ready = "";
  chat.resume();
  let hasMcp = false;
  try {
    await showModel((props) => {
      settings.defaults = props.default_generation_settings?.params ?? {};
      settings.deterministic = props.deterministic;
      settings.draw();
      chat.model = props.model_alias || (props.model_path ?? "").split("/").pop();
      chat.hasTemplate = props.has_chat_template !== false;
      chat.draw();
      engine.model = props.model_path ?? "";
      hasMcp = props.endpoint_mcp;
    });
    if (hasMcp) {
      settings.mcpTools = (await get("mcp/tools")).tools;
      settings.draw();
      chat.draw();
    }
  } catch (error) {
    byId("about-error").textContent = error.message;
  }
}

function show(id, engine, focus = false) {
  if (matchMedia("(max-width: 760px)").matches && !byId("settings").hidden) toggleSettings(false); // there they cover the view
  for (const tab of byId("views").children) {
    const chosen = tab.id === id;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !chosen;
    if (chosen && focus) tab.focus();
  }
  hideAlternatives();
  engine.watch(id === "tab-engine");
}

start();
