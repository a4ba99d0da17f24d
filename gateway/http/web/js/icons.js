// The page's icons: strokes on a grid of 24, drawn in the colour of the text around them.

import { svg } from "./dom.js";

const PATHS = {
  chats: ["M4 5h16v11H9l-5 4z"],
  search: ["M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13z", "M15.5 15.5 21 21"],
  approvals: ["M12 3l8 3v6c0 5-3.5 8-8 9-4.5-1-8-4-8-9V6z", "M8.5 12l2.5 2.5 4.5-5"],
  parked: ["M4 13l2-8h12l2 8v6H4z", "M4 13h5l1 2h4l1-2h5"],
  schedules: ["M12 4a8.5 8.5 0 1 0 0 17 8.5 8.5 0 0 0 0-17z", "M12 8v5l3 2", "M9 2h6"],
  memory: ["M5 4h11a3 3 0 0 1 3 3v13H8a3 3 0 0 1-3-3z", "M5 17a3 3 0 0 1 3-3h11", "M9 8h6"],
  people: ["M9 4.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7z", "M2.5 20c0-4 3-6 6.500-6s6.500 2 6.500 6", "M16 5a3.200 3.200 0 0 1 0 6.400", "M18 14.500c2.300.7 3.500 2.600 3.500 5.500"],
  usage: ["M4 20h16", "M6.500 16v-5", "M12 16V5", "M17.500 16v-8"],
  health: ["M3 12h4l2.500-7 5 14L17 12h4"],
  config: ["M4 7h10", "M18 7h2", "M4 17h2", "M10 17h10", "M16 5v4", "M8 15v4"],
  trace: ["M6 4v16", "M6 6h8", "M6 12h12", "M6 18h6", "M16 4.500v3", "M20 10.500v3", "M14 16.500v3"],
  clip: ["M20 11.500l-8.500 8.500a5 5 0 0 1-7-7L13 4.500a3.400 3.400 0 0 1 4.800 4.800L9.500 17.600a1.700 1.700 0 0 1-2.400-2.400L14.500 8"],
  leave: ["M14 4H5v16h9", "M10 12h11", "M17.500 8.500L21 12l-3.500 3.500"],
  send: ["M4 12l16-8-6 16-3-7z"],
  stop: ["M7 7h10v10H7z"],
  plus: ["M12 5v14", "M5 12h14"],
  back: ["M15 5l-7 7 7 7"],
  close: ["M6 6l12 12", "M18 6L6 18"],
  menu: ["M4 7h16", "M4 12h16", "M4 17h16"],
  edit: ["M4 20l1-4L16 5l3 3L8 19z"],
  trash: ["M5 7h14", "M9 7V4h6v3", "M7 7l1 13h8l1-13"],
  copy: ["M9 9h11v11H9z", "M15 9V4H4v11h5"],
  down: ["M6 9l6 6 6-6"],
  up: ["M6 15l6-6 6 6"],
  info: ["M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16z", "M12 11v5", "M12 8v.01"],
  tool: ["M14.500 6.500a4 4 0 0 1 5-3l-2.500 2.500 1 2 2 1L22.500 6.500a4 4 0 0 1-5.500 4.500L8 20a2.100 2.100 0 0 1-3-3l9-9z"],
  file: ["M6 3h8l5 5v13H6z", "M14 3v5h5"],
  retry: ["M4 12a8 8 0 0 1 14-5.300L20 9", "M20 4v5h-5", "M20 12a8 8 0 0 1-14 5.300L4 15", "M4 20v-5h5"],
  sun: ["M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8z", "M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.400 1.400M17.600 17.600L19 19M5 19l1.400-1.400M17.600 6.400L19 5"],
  moon: ["M20 14.500A8.500 8.500 0 0 1 9.500 4a8.500 8.500 0 1 0 10.500 10.500z"],
  auto: ["M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16z", "M12 4v16", "M12 8h5.500M12 12h8M12 16h5.500"],
  more: ["M6 12h.01", "M12 12h.01", "M18 12h.01"],
  play: ["M8 5l11 7-11 7z"],
  pause: ["M8 5v14", "M16 5v14"],
  check: ["M5 12.500l4.500 4.500L19 7.500"],
};

export function icon(name, { label = "" } = {}) {
  return svg("svg.icon", {
    viewBox: "0 0 24 24", width: "20", height: "20", fill: "none", stroke: "currentColor",
    "stroke-width": "1.75", "stroke-linecap": "round", "stroke-linejoin": "round",
    ...(label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" }),
  }, PATHS[name].map((d) => svg("path", { d })));
}
