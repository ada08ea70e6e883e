// Conversations as files: all of them out, and those of a file in.

import { button, byId, element, saveFile } from "./dom.js";

// changed: is called where conversations have come.
export function conversationFiles(store, changed) {
  const wrong = element("p", { class: "error", role: "alert" });
  const input = element("input", { type: "file", accept: "application/json,.json", class: "hidden", id: "import", tabindex: "-1", "aria-label": "A file of conversations" });
  input.addEventListener("change", async () => {
    const file = input.files[0];
    if (!file) return;
    try {
      const count = store.imported(await file.text());
      changed();
      byId("imported").textContent = count === 1 ? "1 conversation has come." : `${count} conversations have come.`;
    } catch (error) {
      wrong.textContent = `${file.name}: ${error.message}`;
    }
    input.value = "";
  });
  return element("div", { class: "conversation-files" },
    button("Export", () => saveFile(new Blob([store.exported()], { type: "application/json" }), "conversations.json"), { disabled: !store.kept.length }),
    button("Import", () => input.click()), input,
    element("p", { id: "imported", class: "dim", role: "status" }), wrong);
}
