// The model that is served, in the head of the page; where the server may load others, a choice of them.

import { byId, element } from "./dom.js";
import { get, post } from "./server.js";

// props: called with what the server tells of the model, at first and after each change.
export async function showModel(props) {
  const wrong = byId("about-error");
  const about = await get("props");
  const name = about.model_alias || (about.model_path ?? "").split("/").pop();
  const { models, current } = await get("models/load");
  document.title = `${name} - graphml`;
  byId("about").replaceChildren(models.length > 1 ? choice(models, current) : element("span", {}, name), ` · context ${about.default_generation_settings?.n_ctx ?? "?"}`);
  props(about);

  function choice(names, chosen) {
    const known = names.includes(chosen) ? names : [chosen, ...names];
    const select = element("select", { id: "model", "aria-label": "Model" }, known.map((file) => element("option", { value: file, selected: file === chosen }, file)));
    select.addEventListener("change", async () => {
      select.disabled = true;
      wrong.textContent = "";
      byId("about").lastChild.textContent = " · is being loaded";
      try {
        await post("models/load", { model: select.value });
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
