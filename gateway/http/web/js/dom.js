// Builds nodes. Text is always text here: nothing in this page ever becomes markup.

const SVG = "http://www.w3.org/2000/svg";

// h("button.primary", { type: "button", on: { click } }, "Save"): an element with classes, attributes, children.
// A property that is null, undefined or false is left out; true stands alone; `props` are set on the element itself.
export function h(spec, attributes = {}, ...children) {
  const [name, ...classes] = spec.split(".");
  return fill(document.createElement(name || "div"), classes, attributes, children);
}

export function svg(spec, attributes = {}, ...children) {
  const [name, ...classes] = spec.split(".");
  return fill(document.createElementNS(SVG, name), classes, attributes, children);
}

function fill(element, classes, attributes, children) {
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "props") {
      Object.assign(element, value);
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else if (name === "class") {
      for (const one of String(value).split(" ")) if (one) element.classList.add(one);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false || child === "") continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child);
  }
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

export const byId = (id) => document.getElementById(id);

// Say something to a screen reader, once, without showing it.
export function announce(text) {
  const region = byId("announcer");
  region.textContent = "";
  // The same text twice in a row is heard twice only if the region was empty between.
  setTimeout(() => (region.textContent = text), 50);
}

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

export const fresh = () =>
  [...crypto.getRandomValues(new Uint8Array(12))].map((b) => b.toString(16).padStart(2, "0")).join("");

// What is kept in this browser; a full or forbidden storage costs the memory of the page, nothing else.
export const kept = {
  get(name, otherwise = null) {
    try {
      const found = localStorage.getItem(`chat-gateway.${name}`);
      return found === null ? otherwise : JSON.parse(found);
    } catch {
      return otherwise;
    }
  },
  set(name, value) {
    try {
      if (value === null || value === undefined) localStorage.removeItem(`chat-gateway.${name}`);
      else localStorage.setItem(`chat-gateway.${name}`, JSON.stringify(value));
    } catch {
      // nothing is lost but the draft
    }
  },
};

const PREFIX = "chat-gateway.";

// What the page keeps under a name that begins so.
export function keptUnder(name) {
  try {
    return Object.keys(localStorage).filter((one) => one.startsWith(PREFIX + name)).map((one) => kept.get(one.slice(PREFIX.length)));
  } catch {
    return [];
  }
}

// Forget all that is kept here but the colours.
export function forgetAll() {
  try {
    for (const one of Object.keys(localStorage)) if (one.startsWith(PREFIX) && one !== `${PREFIX}theme`) localStorage.removeItem(one);
  } catch {
    // nothing was kept
  }
}
