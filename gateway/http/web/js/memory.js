// What is remembered of a chat: notes, profile, facts, history, and what each said before.

import { del, get, part, patch, perhaps, post, put } from "./api.js";
import { newestChats } from "./chats.js";
import { h, replace } from "./dom.js";
import { exactly, number, when } from "./format.js";
import { overview } from "./overview.js";
import { go } from "./router.js";
import { chatChoice, fillChoice } from "./search.js";
import { S } from "./strings.js";
import { badge, button, dialog, empty, field, head, pages, shown, sure, tabs, toast, told } from "./ui.js";

export const memoryView = {
  open(root, route) {
    const choice = chatChoice(route.query.get("key") ?? "", S.memory.choose);
    const agents = h("select");
    const agentField = field(S.memory.agent, agents);
    agentField.hidden = true;
    const place = h("div.stack");
    let tab = route.query.get("tab") ?? "notes";
    let agent = route.query.get("agent") ?? "";
    const at = (key, more = {}) => go("memory", [], { key, agent, tab, ...more }, { replace: true });
    choice.addEventListener("change", () => at(choice.value, { agent: "" }));
    agents.addEventListener("change", () => at(key, { agent: agents.value }));
    replace(root, h("div.view.narrow", {}, head(S.nav.memory, S.memory.about), h("div.fields", {}, field(S.memory.chat, choice), agentField), place));

    // Each agent of a chat remembers by itself; where there is one, there is nothing to choose.
    async function offer(key) {
      const found = key ? (await perhaps(get("/v1/memory/agents", { key })))?.agents ?? [] : [];
      agentField.hidden = found.length < 2;
      replace(agents, found.map((one) => h("option", { value: one.name, selected: agent ? one.name === agent : one.answers },
        one.answers ? S.memory.agentNow(one.name) : !one.configured ? S.memory.agentFormer(one.name) : one.remembers ? one.name : S.memory.agentSilent(one.name))));
    }

    function draw(key) {
      offer(key).catch(told);
      if (!key) return void replace(place, empty("memory", S.memory.none, S.memory.noneText));
      const of = agent ? { key, agent } : { key };
      replace(place, tabs(S.nav.memory, [
        ["notes", S.memory.tabs.notes, (panel) => fileTab(panel, of, "MEMORY.md", S.memory.notesHint)],
        ["profile", S.memory.tabs.profile, (panel) => fileTab(panel, of, "USER.md", S.memory.profileHint)],
        ["facts", S.memory.tabs.facts, (panel) => factsTab(panel, of)],
        ["history", S.memory.tabs.history, (panel) => historyTab(panel, of)],
        ["versions", S.memory.tabs.versions, (panel) => versionsTab(panel, of)],
      ], tab, (name) => {
        tab = name;
        at(key);
      }));
    }

    const changed = () => {
      // Without a choice the chat that spoke last is shown.
      const first = newestChats()[0]?.key;
      if (!choice.value && first && !route.query.get("key")) at(first);
      else fillChoice(choice, choice.value, S.memory.choose);
    };
    let key = route.query.get("key") ?? "";
    draw(key);
    if (overview.loaded) changed();
    else overview.addEventListener("change", changed, { once: true });
    return {
      update(to) {
        const other = to.query.get("key") ?? "", whose = to.query.get("agent") ?? "";
        route = to;
        const panel = to.query.get("tab") ?? tab;
        if (other !== key || whose !== agent || panel !== tab) {
          key = other;
          agent = whose;
          tab = panel;
          fillChoice(choice, key, S.memory.choose);
          draw(key);
        }
        return true;
      },
    };
  },
};

// -- notes and profile -------------------------------------------------------------------------------

function fileTab(panel, of, name, hint) {
  const again = () => shown(panel, async () => {
    const found = await perhaps(get("/v1/memory/files", of));
    return found?.files.find((one) => one.file === name) ?? { text: (await get("/v1/memory", of)).memory, digest: null };
  }, (file) => {
    const text = h("textarea.editor", { dir: "auto", spellcheck: "true", readonly: file.digest === null });
    text.value = file.text;
    const save = button(S.save, async () => {
      await put("/v1/memory/files", { ...of, file: name, text: text.value, was: file.digest });
      toast(S.memory.saved);
      await again();
    }, { kind: "primary" });
    const clear = button(S.memory.clear, async () => {
      if (!await sure({ title: S.memory.clear, text: S.memory.clearText(name), action: S.memory.clear })) return;
      await put("/v1/memory/files", { ...of, file: name, text: "", was: file.digest });
      toast(S.memory.cleared);
      await again();
    }, { kind: "danger", symbol: "trash" });
    return [field(name, text, hint), file.digest !== null && h("div.actions", {}, save, file.text && clear)];
  });
  again();
}

// -- facts -------------------------------------------------------------------------------------------

function factsTab(panel, of) {
  const again = () => pages(panel, (cursor) => get("/v1/memory/facts", { ...of, cursor }), (found) => {
    const now = found.facts.filter((fact) => !fact.replaced_by);
    const former = found.facts.filter((fact) => fact.replaced_by);
    return [...now.map((fact) => factCard(fact, of, again)),
      ...(former.length ? [h("details", {}, h("summary", {}, S.memory.former(former.length)), h("div.fold", {}, former.map((fact) => h("p.faint", { dir: "auto" }, fact.text))))] : [])];
  }, () => empty("memory", S.memory.noFacts, S.memory.noFactsText));
  again();
}

function factCard(fact, of, again) {
  const edit = button(S.memory.edit, () => {
    const text = h("textarea", { rows: "3", maxlength: "2000", dir: "auto" });
    text.value = fact.text;
    const made = dialog(S.memory.editFact, [field(S.memory.fact, text), h("div.actions", {}, button(S.save, async () => {
      await patch(`/v1/memory/facts/${part(fact.id)}?${new URLSearchParams(of)}`, { text: text.value.trim() });
      made.close();
      toast(S.memory.saved);
      await again();
    }, { kind: "primary" }))]);
  }, { kind: "small", symbol: "edit", "aria-label": S.memory.editOf(fact.text) });
  const forget = button(S.memory.forget, async () => {
    if (!await sure({ title: S.memory.forget, text: S.memory.forgetText(fact.text), action: S.memory.forget })) return;
    await del(`/v1/memory/facts/${part(fact.id)}`, of);
    toast(S.memory.forgotten);
    await again();
  }, { kind: "danger small", symbol: "trash", "aria-label": S.memory.forgetOf(fact.text) });
  return h("section.row-card", {}, h("p.words", { dir: "auto" }, fact.text),
    h("div.row-head", {}, badge(fact.category), h("span.faint", {}, S.memory.sure(Math.round(fact.confidence * 100))), h("span.faint", { title: exactly(fact.created_at) }, when(fact.created_at)),
      h("div.actions", {}, edit, forget)));
}

// -- what was ------------------------------------------------------------------------------------------

function historyTab(panel, of) {
  shown(panel, () => get("/v1/memory", { ...of, limit: 1 }), (found) => (found.history.trim() ? h("div.card", {}, h("p.doc", { dir: "auto" }, found.history.trim())) : empty("memory", S.memory.noHistory, S.memory.noHistoryText)));
}

function versionsTab(panel, of) {
  const again = () => shown(panel, () => get("/v1/memory/history", of), (found) => {
    if (!found.versions.length) return empty("memory", S.memory.noVersions, S.memory.noVersionsText);
    return found.versions.map((one) => h("section.row-card", {}, h("div.row-head", {}, h("span", {}, one.file), h("time.faint", { datetime: one.at, title: exactly(one.at) }, when(one.at)), badge(one.cause), h("span.faint", {}, S.memory.size(number(one.bytes))),
      h("div.actions", {}, button(S.memory.restore, async () => {
        if (!await sure({ title: S.memory.restore, text: S.memory.restoreText(one.file, when(one.at)), action: S.memory.restore, danger: false })) return;
        await post("/v1/memory/restore", { ...of, version: one.version });
        toast(S.memory.restored);
        await again();
      }, { kind: "small", symbol: "retry", "aria-label": S.memory.restoreOf(one.file, when(one.at)) }))), changed(one.changed)));
  });
  again();
}

function changed(said) {
  const lines = Array.isArray(said) ? said.map((one) => (typeof one === "string" ? one : JSON.stringify(one))) : said ? [typeof said === "string" ? said : JSON.stringify(said)] : [];
  return lines.length > 0 && h("p.doc", { dir: "auto" }, lines.join("\n"));
}
