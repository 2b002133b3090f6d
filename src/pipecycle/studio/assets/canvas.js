"use strict";
// A canvas that is sharp on every screen, draws only when it is near the window, and has words.
(() => {
  const { make, theme, byId } = Studio;
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  const all = new Set();

  class Plot {
    // `draw(plot)` paints; `words()` says the same in a sentence; `height(width)` in pixels.
    constructor(host, { draw, words, height, margin, keys = false, caption = true }) {
      Object.assign(this, {
        paint: draw,
        words,
        tall: height,
        near: false,
        dirty: true,
        width: 0,
        height: 0,
        ready: () => true,
      });
      this.margin = { left: 46, right: 10, top: 8, bottom: 26, ...margin };
      this.canvas = make("canvas", { role: "img", tabIndex: keys ? 0 : -1 });
      if (!keys) this.canvas.removeAttribute("tabindex");
      this.caption = caption ? make("figcaption", { className: "words" }) : null;
      this.box = make("div", { className: "plot" }, this.canvas);
      host.append(this.box, ...(this.caption ? [this.caption] : []));
      this.context = this.canvas.getContext("2d");
      all.add(this);
      sizes.observe(this.box);
      nearness.observe(this.box);
    }

    remove() {
      all.delete(this);
      sizes.unobserve(this.box);
      nearness.unobserve(this.box);
      this.box.remove();
      this.caption?.remove();
    }

    get inner() {
      const { left, right, top, bottom } = this.margin;
      return { x: left, y: top, w: Math.max(1, this.width - left - right), h: Math.max(1, this.height - top - bottom) };
    }

    // Draw now if anybody could see it, else once somebody can.
    refresh() {
      this.dirty = true;
      if (this.near) this.draw();
      else this.speak();
    }

    speak() {
      if (!this.ready()) return;
      const text = this.words();
      this.canvas.setAttribute("aria-label", text);
      if (this.caption && this.caption.textContent !== text) this.caption.textContent = text;
    }

    draw() {
      if (!this.ready()) return;
      const width = this.box.clientWidth;
      if (!width) return;
      const height = Math.round(this.tall(width)),
        ratio = devicePixelRatio || 1;
      if (this.width !== width || this.height !== height || this.ratio !== ratio) {
        Object.assign(this, { width, height, ratio });
        this.canvas.width = Math.round(width * ratio);
        this.canvas.height = Math.round(height * ratio);
        this.canvas.style.width = `${width}px`;
        this.canvas.style.height = `${height}px`;
      }
      const c = this.context;
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      c.clearRect(0, 0, width, height);
      c.font = `12px ${FONT}`;
      c.lineWidth = 1;
      c.globalAlpha = 1;
      c.setLineDash([]);
      this.dirty = false;
      this.paint(this);
      this.speak();
    }

    // Axes; `at` maps a value to a pixel, and in `label` the first tick's number stands for #.
    below(low, high, at, label, whole = true, lines = true) {
      const c = this.context,
        { x, y, w, h } = this.inner;
      c.fillStyle = theme.soft;
      c.strokeStyle = theme.line;
      c.textAlign = "center";
      c.textBaseline = "top";
      let words = label;
      for (const tick of ticks(low, high, Math.max(2, w / 90), whole)) {
        const place = Math.round(at(tick)) + 0.5;
        if (place < x - 1 || place > x + w + 1) continue;
        c.beginPath();
        c.moveTo(place, lines ? y : y + h);
        c.lineTo(place, y + h + 4);
        c.stroke();
        c.fillText(words.replace("#", Studio.figure(tick)), Math.min(Math.max(place, x + 6), x + w - 8), y + h + 7);
        words = "#";
      }
    }

    beside(low, high, at, unit = "", whole = false) {
      const c = this.context,
        { x, y, w, h } = this.inner;
      c.fillStyle = theme.soft;
      c.strokeStyle = theme.line;
      c.textAlign = "right";
      c.textBaseline = "middle";
      for (const tick of ticks(low, high, Math.max(3, h / 42), whole)) {
        const place = Math.round(at(tick)) + 0.5;
        if (place < y - 1 || place > y + h + 1) continue;
        c.beginPath();
        c.moveTo(x, place);
        c.lineTo(x + w, place);
        c.stroke();
        c.fillText(short(tick) + unit, x - 6, place);
      }
    }

    frame() {
      const c = this.context,
        { x, y, w, h } = this.inner;
      c.strokeStyle = theme.soft;
      c.beginPath();
      c.moveTo(x + 0.5, y);
      c.lineTo(x + 0.5, y + h + 0.5);
      c.lineTo(x + w, y + h + 0.5);
      c.stroke();
    }

    empty(text) {
      const c = this.context;
      c.fillStyle = theme.soft;
      c.textAlign = "center";
      c.textBaseline = "middle";
      c.fillText(text, this.width / 2, this.height / 2);
    }

    // `what(x, y)` says lines about a place in the picture, or nothing.
    hover(what) {
      this.canvas.addEventListener("pointermove", (event) => {
        if (event.buttons) {
          hide();
          return;
        }
        const lines = what(event.offsetX, event.offsetY);
        if (lines) tip(lines, event.clientX, event.clientY);
        else hide();
      });
      this.canvas.addEventListener("pointerleave", hide);
    }
  }

  const sizes = new ResizeObserver((entries) => {
    for (const plot of all)
      if (entries.some((entry) => entry.target === plot.box) && plot.box.clientWidth !== plot.width) plot.refresh();
  });
  const nearness = new IntersectionObserver(
    (entries) => {
      for (const plot of all)
        for (const entry of entries) {
          if (entry.target !== plot.box) continue;
          plot.near = entry.isIntersecting;
          if (plot.near && plot.dirty) plot.draw();
        }
    },
    { rootMargin: "300px 0px" },
  );

  // Round numbers between two others.
  function ticks(low, high, most, whole = false) {
    const span = high - low;
    if (!(span > 0)) return [low];
    let step = 10 ** Math.floor(Math.log10(span / most));
    for (const more of [2, 2.5, 2]) if (span / step > most) step *= more;
    if (span / step > most) step *= 2;
    if (whole) step = Math.max(1, Math.round(step));
    const found = [];
    for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step)
      found.push(Number(tick.toPrecision(10)));
    return found;
  }

  // 12,000 as 12k.
  function short(value) {
    const size = Math.abs(value);
    if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
    return size >= 1e4 ? `${Number((value / 1e3).toPrecision(3))}k` : Studio.figure(value);
  }

  function tip(lines, x, y) {
    const node = byId("tip");
    node.replaceChildren(...lines.map((line, at) => make(at ? "span" : "b", {}, line)));
    node.hidden = false;
    const { width, height } = node.getBoundingClientRect();
    const left = x + 14 + width > innerWidth - 6 ? x - width - 14 : x + 14;
    const top = y + 16 + height > innerHeight - 6 ? y - height - 12 : y + 16;
    node.style.left = `${Math.max(6, left)}px`;
    node.style.top = `${Math.max(6, top)}px`;
  }
  function hide() {
    byId("tip").hidden = true;
  }

  // Diagonal lines, for what was never used.
  const hatches = new Map();
  function hatch(context, colour) {
    const key = colour + theme.ink;
    if (!hatches.has(key)) {
      const tile = make("canvas", { width: 6, height: 6 }),
        c = tile.getContext("2d");
      c.fillStyle = colour;
      c.fillRect(0, 0, 6, 6);
      c.strokeStyle = "rgba(0,0,0,.55)";
      c.lineWidth = 1.2;
      c.beginPath();
      for (const shift of [-6, 0, 6]) {
        c.moveTo(shift, 6);
        c.lineTo(shift + 6, 0);
      }
      c.stroke();
      hatches.set(key, context.createPattern(tile, "repeat"));
    }
    return hatches.get(key);
  }

  function fade(colour, part) {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    return `rgba(${r},${g},${b},${part})`;
  }

  Studio.on("theme", () => all.forEach((plot) => plot.refresh()));
  Object.assign(Studio, { Plot, tip, hide, hatch, fade, ticks, short });
})();
