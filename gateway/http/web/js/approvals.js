// What waits for a person: the cards with their buttons, and the view of all of them.

import { part, post } from "./api.js";
import { announce, h, replace } from "./dom.js";
import { clock } from "./format.js";
import { codeBlock } from "./markdown.js";
import { overview } from "./overview.js";
import { href } from "./router.js";
import { S } from "./strings.js";
import { button, empty, head, toast, told } from "./ui.js";

// Everything that a model wrote is text here, never markup.
export function approvalCard(one, { chat = false } = {}) {
  const decide = async (decision) => {
    for (const each of made.querySelectorAll("button.decides")) each.disabled = true;
    try {
      await post(`/v1/approvals/${part(one.id)}`, { decision });
      toast(decision === "allow" ? S.approvals.allowed(one.tool) : S.approvals.denied(one.tool));
    } catch (error) {
      // Somebody else was quicker, or it came too late: the list says what still waits.
      told(error);
    }
    await overview.look({ approvals: true });
  };
  const made = h("section.approval", { "aria-label": S.approvals.asks(one.tool), data: { approval: one.id } },
    h("h2", {}, S.approvals.asks(one.tool)),
    h("p.hint", {}, [chat && h("a", { href: href("chats", [one.key]), dir: "auto" }, one.key), chat && " · ", S.approvals.where(one.folder, clock(one.expires_at))]),
    codeBlock(one.shown, "json"),
    h("div.actions", {}, button(S.approvals.allow, () => decide("allow"), { kind: "primary decides", symbol: "check", "aria-label": S.approvals.allowTool(one.tool) }),
      button(S.approvals.deny, () => decide("deny"), { kind: "decides", symbol: "close", "aria-label": S.approvals.denyTool(one.tool) })));
  return made;
}

// Keep `place` filled with the approvals of a chat (or all), as they come and go.
export function keepApprovals(place, { key = null } = {}) {
  let known = "";
  const draw = () => {
    const mine = overview.approvals.filter((one) => key === null || one.key === key);
    const now = mine.map((one) => one.id).join(" ");
    if (now === known && place.childElementCount) return;
    if (mine.length && now !== known) announce(S.approvals.waiting(mine.length));
    known = now;
    place.hidden = key !== null && mine.length === 0;
    replace(place, mine.map((one) => approvalCard(one, { chat: key === null })),
      !mine.length && key === null && empty("approvals", S.approvals.none, S.approvals.noneText));
  };
  overview.addEventListener("change", draw);
  draw();
  return () => overview.removeEventListener("change", draw);
}

export const approvalsView = {
  title: S.nav.approvals,
  open(root) {
    const place = h("div.stack");
    replace(root, h("div.view.narrow", {}, head(S.nav.approvals, S.approvals.about), place));
    const end = keepApprovals(place);
    overview.look({ approvals: true });
    return { close: end };
  },
};

