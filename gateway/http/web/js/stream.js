// Follows the events of one chat, over broken connections, without a gap among replies and notices.

import { ask } from "./api.js";
import { pause } from "./dom.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8000;
// The gateway says that it is there every fifteen seconds.
const SILENT_MS = 45000;

// `from` is the seq to go on behind, or null to begin now; `onEvent(event)`, `onState(connected)`.
export function follow(key, { from = null, onEvent, onState }) {
  const end = new AbortController();
  let last = from;
  const take = (event, resume) => {
    if (resume > (last ?? -1)) last = resume;
    if (event) onEvent(event);
  };
  run();
  return { close: () => end.abort(), get last() { return last; } };

  async function run() {
    for (let wait = FIRST_WAIT_MS; !end.signal.aborted; wait = Math.min(wait * 2, LONGEST_WAIT_MS)) {
      const mine = new AbortController();
      const both = () => mine.abort();
      end.signal.addEventListener("abort", both);
      try {
        const answer = await ask("GET", "/v1/events", {
          params: { key, draft: "true" },
          headers: last === null ? {} : { "Last-Event-ID": String(last) },
          signal: mine.signal,
        });
        if (answer.ok) {
          wait = FIRST_WAIT_MS;
          onState(true);
          await read(answer.body.getReader(), mine, take);
        }
      } catch {
        // the connection broke: it is taken up again below
      } finally {
        end.signal.removeEventListener("abort", both);
      }
      if (end.signal.aborted) return;
      onState(false);
      await pause(wait);
    }
  }
}

async function read(reader, mine, take) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const watch = setTimeout(() => mine.abort(), SILENT_MS);
    const { done, value } = await reader.read().finally(() => clearTimeout(watch));
    if (done || mine.signal.aborted) return;
    const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      // An id without an event is where the stream begins.
      let resume = -1, data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("id: ")) resume = Number(line.slice(4));
        if (line.startsWith("data: ")) data = line.slice(6);
      }
      take(data && JSON.parse(data), resume);
    }
  }
}
