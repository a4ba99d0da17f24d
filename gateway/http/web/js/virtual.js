// Shows the part of a long list that is in view: a few dozen elements, however many rows there are.
//
// Rows may have any height. One that was never shown counts as `estimate`; once it was, its true height is
// known, and what stands in view stays where it is while rows above it find theirs.

const OVERSCAN = 500;
const AT_END = 48;
const AT_TOP = 8;
const ANCHORS = 8;

export class Windowed {
  // `render(item)` makes an element, `keyOf(item)` names it for as long as it lives, `rowHeight` fixes the height.
  constructor({ scroller, render, keyOf, estimate = 80, rowHeight = 0, role = "list", label = "" }) {
    this.scroller = scroller;
    this.render = render;
    this.keyOf = keyOf;
    this.estimate = rowHeight || estimate;
    this.fixed = rowHeight > 0;
    this.items = [];
    this.index = new Map();
    this.heights = new Map();
    this.offsets = new Float64Array(1);
    this.shown = new Map();
    this.sticky = false;
    this.onScroll = null;
    this.pending = 0;
    this.space = document.createElement("div");
    this.space.className = "window-space";
    this.named = { role, "aria-label": label };
    scroller.append(this.space);
    scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.observer = new ResizeObserver((entries) => this.resized(entries));
    this.observer.observe(scroller);
  }

  // A list or feed says what it is once it has rows: one without any is none to a screen reader.
  name(filled) {
    for (const [name, value] of Object.entries(this.named)) {
      if (filled && value) this.space.setAttribute(name, value);
      else this.space.removeAttribute(name);
    }
  }

  close() {
    this.observer.disconnect();
    cancelAnimationFrame(this.pending);
    this.space.remove();
  }

  get atEnd() {
    const s = this.scroller;
    return s.scrollHeight - s.scrollTop - s.clientHeight < AT_END;
  }

  get atTop() {
    return this.scroller.scrollTop < AT_TOP;
  }

  inView(key) {
    const at = this.index.get(key);
    if (at === undefined) return false;
    const middle = (this.offsets[at] + this.offsets[at + 1]) / 2 + this.space.offsetTop - this.scroller.scrollTop;
    return middle > 0 && middle < this.scroller.clientHeight;
  }

  // Show other items. Where the end was in view and `stick` is set, it stays in view; where it is at its top and
  // `top` is set, it stays there. Else what is in view stays in its place, but for the keys that `moved`.
  set(items, { stick = false, end = false, top = false, moved = new Set() } = {}) {
    const toEnd = end || (stick && (this.sticky || this.atEnd));
    const anchor = toEnd || (top && this.atTop) ? null : this.anchor().filter(([key]) => !moved.has(key));
    this.items = items;
    this.name(items.length > 0);
    this.index = new Map(items.map((item, at) => [this.keyOf(item), at]));
    for (const [key, element] of this.shown) if (!this.index.has(key)) this.drop(key, element);
    this.measureFrom(0);
    if (toEnd) this.toEnd();
    else {
      this.restore(anchor);
      this.paint();
    }
  }

  // Make the element of one item anew, where it is in view.
  refresh(key) {
    const old = this.shown.get(key);
    if (!old) return;
    const end = this.sticky;
    const item = this.items[this.index.get(key)];
    const made = this.make(item, key);
    const focused = old.contains(document.activeElement);
    old.replaceWith(made);
    this.observer.unobserve(old);
    this.shown.set(key, made);
    if (focused) made.querySelector("a, button, summary")?.focus();
    this.remeasure([made]);
    if (end) this.toEnd();
  }

  toEnd() {
    this.sticky = true;
    // Each look at the end finds the true heights of what stands there.
    for (let i = 0; i < 4; i++) {
      this.scroller.scrollTop = this.scroller.scrollHeight;
      if (!this.paint()) break;
    }
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  // Bring a row into view; `block` is "nearest" or "center".
  reveal(key, block = "nearest") {
    const at = this.index.get(key);
    if (at === undefined) return null;
    this.sticky = false;
    for (let i = 0; i < 4; i++) {
      const top = this.offsets[at], height = this.offsets[at + 1] - top;
      const { scrollTop, clientHeight } = this.scroller;
      const lead = this.space.offsetTop;
      if (block === "center") this.scroller.scrollTop = lead + top - Math.max(0, (clientHeight - height) / 2);
      else if (lead + top < scrollTop) this.scroller.scrollTop = lead + top;
      else if (lead + top + height > scrollTop + clientHeight) this.scroller.scrollTop = lead + top + height - clientHeight;
      if (!this.paint()) break;
    }
    return this.shown.get(key) ?? null;
  }

  scrolled() {
    this.sticky = this.atEnd;
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.paint();
      this.onScroll?.();
    });
  }

  resized(entries) {
    const rows = entries.filter((entry) => entry.target !== this.scroller).map((entry) => entry.target);
    const end = this.sticky;
    if (rows.length) this.remeasure(rows);
    if (rows.length < entries.length) this.paint();
    if (end) this.toEnd();
  }

  // -- inner ----------------------------------------------------------------------------------------

  heightOf(item) {
    return this.heights.get(this.keyOf(item)) ?? this.estimate;
  }

  measureFrom(at) {
    const { items } = this;
    if (this.offsets.length < items.length + 1) {
      const grown = new Float64Array(Math.ceil((items.length + 1) * 1.25));
      grown.set(this.offsets);
      this.offsets = grown;
    }
    if (at === 0) this.offsets[0] = 0;
    for (let i = at; i < items.length; i++) {
      this.offsets[i + 1] = this.offsets[i] + (this.fixed ? this.estimate : this.heightOf(items[i]));
    }
    this.space.style.height = `${this.offsets[items.length]}px`;
  }

  // The first rows in view, and how far the top of each is from the top of the view: one of them may be gone
  // when the view is put back, as what stood for rows that were still to come.
  anchor() {
    const top = this.scroller.scrollTop - this.space.offsetTop;
    const first = this.items.length ? this.rowAt(top) : 0;
    return this.items.slice(first, first + ANCHORS).filter((item) => item.kind !== "more")
      .map((item) => [this.keyOf(item), this.offsets[this.index.get(this.keyOf(item))] - top]);
  }

  restore(anchors) {
    for (const [key, off] of anchors ?? []) {
      const at = this.index.get(key);
      if (at === undefined) continue;
      const wanted = this.offsets[at] - off + this.space.offsetTop;
      if (Math.abs(wanted - this.scroller.scrollTop) > 0.5) this.scroller.scrollTop = wanted;
      return;
    }
  }

  rowAt(offset) {
    let low = 0, high = this.items.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.offsets[middle] <= offset) low = middle;
      else high = middle - 1;
    }
    return Math.max(0, low);
  }

  // Put into the page what is in view; say whether a height was other than it was thought.
  paint() {
    if (!this.items.length) {
      this.space.style.height = "0px";
      return false;
    }
    let changed = false;
    for (let round = 0; round < 3; round++) {
      const made = this.fillView();
      if (this.fixed || !made.length) break;
      if (!this.remeasure(made)) break;
      changed = true;
    }
    return changed;
  }

  fillView() {
    const top = this.scroller.scrollTop - this.space.offsetTop;
    const first = this.rowAt(top - OVERSCAN);
    const last = this.rowAt(top + this.scroller.clientHeight + OVERSCAN);
    const wanted = new Set();
    const made = [];
    let before = null;
    for (let at = last; at >= first; at--) {
      const item = this.items[at], key = this.keyOf(item);
      wanted.add(key);
      let element = this.shown.get(key);
      if (!element) {
        element = this.make(item, key);
        this.shown.set(key, element);
        made.push(element);
        this.space.insertBefore(element, before);
      } else if (element.nextSibling !== before) {
        this.space.insertBefore(element, before);
      }
      this.place(element, at);
      before = element;
    }
    for (const [key, element] of this.shown) {
      // What has the focus stays, or the keyboard would lose its place.
      if (!wanted.has(key) && !element.contains(document.activeElement)) this.drop(key, element);
    }
    return made;
  }

  make(item, key) {
    const element = this.render(item);
    element.classList.add("window-row");
    element.dataset.row = key;
    if (!this.fixed) this.observer.observe(element);
    const at = this.index.get(key);
    if (at !== undefined) this.place(element, at);
    return element;
  }

  place(element, at) {
    const y = this.offsets[at];
    if (element._y !== y) {
      element._y = y;
      element.style.transform = `translateY(${y}px)`;
    }
    if (element._at !== at || element._of !== this.items.length) {
      element._at = at;
      element._of = this.items.length;
      element.setAttribute("aria-posinset", at + 1);
      element.setAttribute("aria-setsize", this.items.length);
    }
  }

  drop(key, element) {
    this.observer.unobserve(element);
    element.remove();
    this.shown.delete(key);
  }

  // Read true heights; where one changed, put everything below it in its place and keep the view.
  remeasure(elements) {
    if (this.fixed) return false;
    let lowest = Infinity;
    const found = elements.map((element) => [element.dataset.row, element.offsetHeight]);
    for (const [key, height] of found) {
      if (height === 0 || this.heights.get(key) === height) continue;
      const at = this.index.get(key);
      if (at === undefined) continue;
      const known = this.heights.has(key) || height !== this.estimate;
      this.heights.set(key, height);
      if (known) lowest = Math.min(lowest, at);
    }
    if (lowest === Infinity) return false;
    const anchor = this.sticky ? null : this.anchor();
    this.measureFrom(lowest);
    for (const [key, element] of this.shown) {
      const at = this.index.get(key);
      if (at !== undefined) this.place(element, at);
    }
    if (anchor) this.restore(anchor);
    return true;
  }
}
