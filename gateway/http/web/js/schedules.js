// The jobs of the clock: when they run next, how they ran, and a form for another.

import { del, get, part, patch, perhaps, post } from "./api.js";
import { h, replace } from "./dom.js";
import { ago, exactly, span, when } from "./format.js";
import { overview } from "./overview.js";
import { href } from "./router.js";
import { chatChoice, fillChoice } from "./search.js";
import { S } from "./strings.js";
import { badge, button, dialog, empty, field, head, pages, shown, sure, toast } from "./ui.js";

const KINDS = ["every", "cron", "at", "heartbeat"];

export const schedulesView = {
  open(root) {
    const place = h("div.stack");
    const again = () => pages(place, (cursor) => get("/v1/cron", { cursor }), (found) => found.jobs.map((job) => card(job, again)), () => empty("schedules", S.schedules.none, S.schedules.noneText));
    replace(root, h("div.view.narrow", {}, head(S.nav.schedules, S.schedules.about, button(S.schedules.add, () => adding(again), { kind: "primary", symbol: "plus" })), place));
    again();
  },
};

function card(job, again) {
  const { payload = {}, state = {} } = job;
  const key = payload.channel && payload.to ? `${payload.channel}:${payload.to}` : null;
  const on = job.enabled !== false;
  const path = `/v1/cron/${part(job.id)}`;
  const turn = button(on ? S.schedules.pause : S.schedules.resume, async () => {
    await patch(path, { enabled: !on });
    toast(on ? S.schedules.paused : S.schedules.resumed);
    await again();
  }, { kind: "small", symbol: on ? "pause" : "play" });
  const run = button(S.schedules.run, async () => {
    await post(`${path}/run`);
    toast(S.schedules.begun);
  }, { kind: "small", symbol: "play" });
  const remove = button(S.schedules.remove, async () => {
    if (!await sure({ title: S.schedules.remove, text: S.schedules.removeText(job.name || payload.message || job.id), action: S.schedules.remove })) return;
    await del(path);
    toast(S.schedules.removed);
    await again();
  }, { kind: "danger small", symbol: "trash" });
  return h("section.row-card", { class: on ? null : "off", "aria-label": job.name || job.id },
    h("div.row-head", {}, h("span", { dir: "auto" }, job.name || payload.message || job.id), badge(told(job.schedule)), payload.agent && badge(S.schedules.agent(payload.agent), "faint"), on ? null : badge(S.schedules.off, "faint"), state.lastStatus && badge(state.lastStatus, state.lastStatus === "ok" ? "good" : "bad")),
    payload.message && payload.message !== job.name && h("p.words", { dir: "auto" }, payload.message),
    h("p.hint", {}, job.next_run_at ? S.schedules.next(when(job.next_run_at), ago(job.next_run_at)) : S.schedules.noNext, " · ", state.lastRunAtMs ? S.schedules.last(when(state.lastRunAtMs)) : S.schedules.never,
      key && [" · ", h("a", { href: href("chats", [key]), dir: "auto" }, key)]),
    state.lastError && h("p.error", {}, state.lastError),
    runs(job, path), h("div.actions", {}, run, turn, h("a.button.small", { href: href("chats", [`cron:${job.id}`]) }, S.schedules.talk), remove));
}

// The next times and the past runs, looked up when they are opened.
function runs(job, path) {
  const inside = h("div.fold");
  const made = h("details", {}, h("summary", {}, S.schedules.runs), inside);
  made.addEventListener("toggle", () => {
    if (!made.open || inside.childElementCount) return;
    shown(inside, async () => (await perhaps(get(`${path}/runs`, { limit: 8 }))) ?? { next: job.next_run_at ? [job.next_run_at] : [], past: [...(job.state?.runHistory ?? [])].reverse() }, (found) => [
      h("p.fold-title", {}, S.schedules.coming), found.next.length ? h("ul.plain", {}, found.next.map((at) => h("li", { title: exactly(at) }, `${when(at)} (${ago(at)})`))) : h("p.hint", {}, S.schedules.noNext),
      h("p.fold-title", {}, S.schedules.past), found.past.length ? h("ul.plain", {}, found.past.map(pastRun)) : h("p.hint", {}, S.schedules.never),
    ]);
  });
  return made;
}

function pastRun(one) {
  const at = one.runAtMs ?? one.atMs ?? one.startedAtMs;
  return h("li.row-head", {}, h("span", { title: exactly(at) }, when(at)), one.status && badge(one.status, one.status === "ok" ? "good" : one.status === "skipped" ? "" : "bad"), typeof one.durationMs === "number" && h("span.faint", {}, span(one.durationMs / 1000)), one.error && h("span.error", {}, one.error));
}

function told(schedule) {
  if (!schedule) return S.schedules.unknown;
  if (schedule.kind === "every") return S.schedules.every(span(schedule.everyMs / 1000));
  if (schedule.kind === "at") return S.schedules.once(when(schedule.atMs));
  return [schedule.expr, schedule.tz].filter(Boolean).join(" · ");
}

function adding(again) {
  const kind = h("select", {}, KINDS.map((one) => h("option", { value: one }, S.schedules.kinds[one])));
  const value = h("input", { type: "text", required: true, autocomplete: "off" });
  const zone = h("input", { type: "text", autocomplete: "off", value: Intl.DateTimeFormat().resolvedOptions().timeZone ?? "" });
  const message = h("textarea", { rows: "3", dir: "auto" });
  const name = h("input", { type: "text", maxlength: "200", dir: "auto" });
  const to = fillChoice(chatChoice("", S.schedules.nowhere), "", S.schedules.nowhere);
  const session = h("select", {}, ["job", "chat"].map((one) => h("option", { value: one }, S.schedules.sessions[one])));
  const missed = h("select", {}, ["once", "skip", "all"].map((one) => h("option", { value: one }, S.schedules.missed[one])));
  const place = h("div");
  const zoneField = field(S.schedules.zone, zone, S.schedules.zoneHint);
  const wrong = h("p.error", { role: "alert" });
  const draw = () => {
    // What was wrong with one kind says nothing of another.
    wrong.textContent = "";
    replace(place, field(S.schedules.kinds[kind.value], value, S.schedules.hints[kind.value]));
    zoneField.hidden = !["cron", "at"].includes(kind.value);
  };
  kind.addEventListener("change", draw);
  draw();
  const form = h("form.stack", { on: { submit: async (event) => {
    event.preventDefault();
    wrong.textContent = "";
    try {
      await post("/v1/cron", {
        [kind.value]: value.value.trim(), message: message.value.trim(), to: to.value, name: name.value.trim(), session: session.value, missed: missed.value,
        ...(zone.value.trim() && !zoneField.hidden ? { tz: zone.value.trim() } : {}),
      });
    } catch (error) {
      wrong.textContent = [error.message, error.hint].filter(Boolean).join(" – ");
      return;
    }
    made.close();
    toast(S.schedules.added);
    overview.look();
    await again();
  } } }, h("div.fields", {}, field(S.schedules.kind, kind), place), zoneField, field(S.schedules.message, message, S.schedules.messageHint), h("div.fields", {}, field(S.schedules.to, to), field(S.schedules.session, session)),
  h("div.fields", {}, field(S.schedules.name, name), field(S.schedules.missedLabel, missed)), wrong, h("div.actions", {}, h("button.primary", { type: "submit" }, S.schedules.add)));
  const made = dialog(S.schedules.add, form, { wide: true });
}
