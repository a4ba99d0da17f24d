// The view of chats: the list beside one conversation; on a narrow screen one of the two.

import { ChatPane, titleOf } from "./chats.js";
import { Conversation } from "./conversation.js";
import { h, replace } from "./dom.js";
import { overview } from "./overview.js";
import { S } from "./strings.js";
import { empty } from "./ui.js";

export const chatsView = {
  open(root, route) {
    const pane = new ChatPane();
    const spot = h("div.talk-spot");
    const view = h("div.chats-view", {}, pane.element, spot);
    replace(root, view);
    let talk = null, shown = null, open = null;

    function update(to) {
      const [key, until] = to.parts;
      const at = Number(to.query.get("at")) || 0;
      const now = [key, until, at].join("\u0000");
      if (now === shown) return true;
      shown = now;
      talk?.close();
      talk = null;
      open = key ?? null;
      view.classList.toggle("talking", Boolean(key));
      pane.choose(key ?? null);
      if (!key) {
        replace(spot, h("div.nothing-chosen", {}, empty("chats", S.talk.choose, S.talk.chooseText)));
        return true;
      }
      talk = new Conversation(key, { until: until ?? null, at });
      replace(spot, talk.element);
      talk.list.toEnd();
      // Who presses a chat in the list goes on writing; a phone would show its keyboard.
      if (!until && !at && matchMedia("(hover: hover)").matches) talk.composer.focus();
      return true;
    }

    update(route);
    return {
      update,
      close() {
        talk?.close();
        pane.close();
      },
      search: () => (pane.filter.focus(), true),
      title: () => open && titleOf(overview.chats.get(open) ?? { key: open }),
      stop: () => talk?.composer?.stopTurn(),
      focusSend: () => talk?.composer?.focus(),
    };
  },
};
