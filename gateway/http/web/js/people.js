// Who asks for access, and who was let in: one press each.

import { del, getAll, part, perhaps, post } from "./api.js";
import { h, replace } from "./dom.js";
import { ago, exactly } from "./format.js";
import { S } from "./strings.js";
import { badge, button, empty, head, shown, sure, toast, unavailable } from "./ui.js";

export const peopleView = {
  open(root) {
    const place = h("div.stack");
    const again = () => shown(place, () => perhaps(getAll("/v1/pairing", "pairing")), (found) => {
      if (!found) return unavailable(S.people.what);
      const waits = found.filter((row) => row.state === "pending");
      const inside = found.filter((row) => row.state !== "pending");
      return [
        h("section.stack", {}, h("h2", {}, S.people.asking), waits.length ? waits.map((row) => card(row, again)) : empty("people", S.people.none, S.people.noneText)),
        h("section.stack", {}, h("h2", {}, S.people.inside), inside.length ? inside.map((row) => card(row, again)) : h("p.hint", {}, S.people.nobody)),
      ];
    });
    replace(root, h("div.view.narrow", {}, head(S.nav.people, S.people.about), place));
    again();
  },
};

function card(row, again) {
  const pending = row.state === "pending";
  const name = row.name || row.who;
  const approve = pending && button(S.people.approve, async () => {
    await post(`/v1/pairing/${part(row.code)}/approve`);
    toast(S.people.approved(name));
    await again();
  }, { kind: "primary", symbol: "check", "aria-label": S.people.approveOf(name) });
  const refuse = button(pending ? S.people.refuse : S.people.revoke, async () => {
    if (!pending && !await sure({ title: S.people.revoke, text: S.people.revokeText(name), action: S.people.revoke })) return;
    await del(`/v1/pairing/${part(row.who)}`);
    toast(pending ? S.people.refused(name) : S.people.revoked(name));
    await again();
  }, { kind: pending ? "" : "danger", symbol: "close", "aria-label": pending ? S.people.refuseOf(name) : S.people.revokeOf(name) });
  return h("section.row-card", { "aria-label": name }, h("div.row-head", {}, h("span", { dir: "auto" }, name), badge(row.channel, "channel"), h("code.faint", {}, row.who),
    h("time.faint", { datetime: row.at, title: exactly(row.at) }, ago(row.at)), h("div.actions", {}, approve, refuse)), pending && h("p.hint", {}, S.people.code, " ", h("code", {}, row.code)));
}
