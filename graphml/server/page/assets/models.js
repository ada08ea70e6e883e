// The model that answers, in the head of the page; where the server has several, a choice of them.

import { byId, element } from "./dom.js";
import { chooseModel, get, post } from "./server.js";

// props: called with what the server tells of the model, at first and after each change.
export async function showModel(props) {
  const wrong = byId("about-error");
  const { data } = await get("v1/models");
  const several = data.some((model) => model.status);
  const stateOf = (name) => data.find((model) => model.id === name)?.status?.value;
  let about = await get("props");
  const loaded = data.find((model) => model.status?.value === "loaded");
  if (about.role === "router" && loaded) {
    chooseModel(loaded.id);
    about = await get("props");
  }
  const name = about.model_alias || (about.model_path ?? "").split("/").pop();
  document.title = name ? `${name} - graphml` : "graphml";
  const context = about.role === "router" ? "" : ` · context ${about.default_generation_settings?.n_ctx ?? "?"}`;
  byId("about").replaceChildren(several ? choice(data.map((model) => model.id), name) : element("span", {}, name), context);
  props(about);

  function choice(names, chosen) {
    const every = chosen ? names : ["", ...names];
    const select = element("select", { id: "model", "aria-label": "Model" }, every.map((model) => element("option", { value: model, selected: model === chosen }, model || "Choose a model")));
    select.addEventListener("change", async () => {
      select.disabled = true;
      wrong.textContent = "";
      byId("about").lastChild.textContent = " · is being loaded";
      try {
        // As any request does, since `models/load` is for admins alone.
        if (stateOf(select.value) !== "loaded") await post("tokenize?autoload=true", { model: select.value, content: "" });
        chooseModel(select.value);
      } catch (error) {
        wrong.textContent = error.message;
      }
      await showModel(props).catch((error) => {
        wrong.textContent = error.message;
        select.disabled = false;
        byId("about").lastChild.textContent = "";
      });
    });
    return select;
  }
}
