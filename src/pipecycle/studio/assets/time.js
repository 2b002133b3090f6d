"use strict";
// The stretch of time that all pipelines show, and a strip of the whole run to choose it in.
(() => {
  const { byId, theme } = Studio;
  const LEAST = 10; // slots
  const stretch = { from: 0, to: 0, chosen: false };

  const slots = () => Math.max(1, ...Studio.shown().map((side) => Studio.plans[side].facts.slots));

  // The beginning: from the first session on, a dozen sessions long where there is room.
  function usual() {
    const plans = Studio.shown().map((side) => Studio.plans[side]);
    const first = Math.min(
      ...plans.map((plan) => plan.session.start.reduce((least, slot) => Math.min(least, slot), plan.facts.slots)),
    );
    const from = first < slots() ? Math.max(0, first - 2) : 0; // nobody may train at all
    return {
      from,
      to: Math.min(
        slots(),
        from + Math.max(Math.max(4, Math.min(12, innerWidth / 100)) * plans[0].facts.session, LEAST),
      ),
    };
  }

  function fit() {
    if (!stretch.chosen) Object.assign(stretch, usual());
    const whole = slots(),
      length = Math.min(whole, Math.max(LEAST, stretch.to - stretch.from));
    stretch.from = Math.max(0, Math.min(stretch.from, whole - length));
    stretch.to = stretch.from + length;
  }

  let waiting = false;
  function show(from, to) {
    Object.assign(stretch, { from, to, chosen: true });
    fit();
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      Studio.tell("stretch");
    });
  }
  const pan = (part) => {
    const by = part * (stretch.to - stretch.from);
    show(stretch.from + by, stretch.to + by);
  };
  function zoom(factor, around = (stretch.from + stretch.to) / 2) {
    const from = around - (around - stretch.from) * factor,
      to = around + (stretch.to - around) * factor;
    if (to - from >= LEAST || factor > 1) show(Math.max(0, from), Math.min(slots(), to));
  }
  function reset() {
    stretch.chosen = false;
    fit();
    Studio.tell("stretch");
  }

  const MOVES = {
    earlier: () => pan(-0.5),
    later: () => pan(0.5),
    in: () => zoom(0.5),
    out: () => zoom(2),
    all: () => show(0, slots()),
  };
  document
    .querySelectorAll("[data-move]")
    .forEach((button) => button.addEventListener("click", () => MOVES[button.dataset.move]()));
  const KEYS = {
    ArrowLeft: () => pan(-0.25),
    ArrowRight: () => pan(0.25),
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    0: reset,
  };

  // Dragging, pinching and wheels on a plot whose horizontal axis is the stretch.
  function steer(plot, more = {}) {
    const { canvas } = plot;
    const slotAt = (x) => stretch.from + ((x - plot.inner.x) / plot.inner.w) * (stretch.to - stretch.from);
    const fingers = new Map();
    let held = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      fingers.set(event.pointerId, event.offsetX);
      canvas.setPointerCapture(event.pointerId);
      held = { x: event.offsetX, from: stretch.from, to: stretch.to, moved: false, y: event.offsetY };
      if (fingers.size === 2) held = { pinch: Array.from(fingers.values(), slotAt) };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held || !fingers.has(event.pointerId)) return;
      fingers.set(event.pointerId, event.offsetX);
      if (held.pinch) {
        const [p, q] = Array.from(fingers.values(), (x) => (x - plot.inner.x) / plot.inner.w),
          [s, t] = held.pinch;
        if (fingers.size < 2 || Math.abs(q - p) < 0.02) return;
        const length = (t - s) / (q - p);
        show(s - p * length, s - p * length + Math.max(LEAST, length));
        return;
      }
      if (Math.abs(event.offsetX - held.x) > 3) held.moved = true;
      if (!held.moved) return;
      canvas.classList.add("held");
      const by = ((held.x - event.offsetX) / plot.inner.w) * (held.to - held.from);
      show(held.from + by, held.to + by);
    });
    const let_go = (event) => {
      fingers.delete(event.pointerId);
      canvas.classList.remove("held");
      if (event.type === "pointerup" && held && !held.moved && !held.pinch) more.click?.(event.offsetX, event.offsetY);
      held = null;
    };
    canvas.addEventListener("pointerup", let_go);
    canvas.addEventListener("pointercancel", let_go);
    canvas.addEventListener("dblclick", (event) => zoom(0.5, slotAt(event.offsetX)));
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (event.ctrlKey || event.metaKey) {
          event.preventDefault();
          zoom(Math.exp(event.deltaY / 200), slotAt(event.offsetX));
        } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          event.preventDefault();
          pan(event.deltaX / plot.inner.w);
        }
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => {
      const act = KEYS[event.key] ?? more.keys?.[event.key];
      if (act && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        act();
      }
    });
  }

  // How many clients train, over the whole run, with the stretch as a window on it.
  const strip = new Studio.Plot(byId("overview"), {
    caption: false,
    height: () => 58,
    margin: { left: 64, top: 4, bottom: 20 },
    words: () =>
      `The whole run of ${Studio.count(slots())} slots; shown above are slots ${Studio.count(stretch.from)} to ${Studio.count(stretch.to)}.`,
    draw(plot) {
      const c = plot.context,
        { x, y, w, h } = plot.inner,
        whole = slots();
      const top = Math.max(
        1,
        ...Studio.shown().map((side) => Studio.plans[side].energy.busy.reduce((most, one) => Math.max(most, one), 0)),
      );
      Studio.shown().forEach((side) => {
        const { moment, busy } = Studio.plans[side].energy,
          at = Studio.SIDES.indexOf(side);
        c.beginPath();
        c.moveTo(x, y + h);
        moment.forEach((slot, k) => c.lineTo(x + ((slot + 0.5) / whole) * w, y + h - (busy[k] / top) * h));
        c.lineTo(x + ((moment.at(-1) + 1) / whole) * w, y + h);
        c.closePath();
        c.fillStyle = Studio.fade(theme.sides[at], 0.22);
        c.fill();
        c.strokeStyle = theme.sides[at];
        c.lineWidth = 1.2;
        c.stroke();
      });
      const left = x + (stretch.from / whole) * w,
        right = x + (stretch.to / whole) * w;
      c.fillStyle = theme.veil;
      c.fillRect(x, y, left - x, h);
      c.fillRect(right, y, x + w - right, h);
      c.strokeStyle = theme.focus;
      c.lineWidth = 1.5;
      c.strokeRect(left + 0.5, y + 0.5, Math.max(3, right - left - 1), h - 1);
      plot.below(0, whole, (slot) => x + (slot / whole) * w, "slot #");
      c.fillStyle = theme.soft;
      c.textAlign = "right";
      c.textBaseline = "middle";
      c.fillText("training", x - 8, y + h / 2);
    },
  });
  strip.ready = () => Studio.shown().length > 0;
  let grip = null;
  function drag(event) {
    const { x, w } = strip.inner,
      slot = ((event.offsetX - x) / w) * slots(),
      length = stretch.to - stretch.from;
    if (event.type === "pointerdown") {
      strip.canvas.setPointerCapture(event.pointerId);
      const near = (7 / w) * slots();
      grip = Math.abs(slot - stretch.from) < near ? "from" : Math.abs(slot - stretch.to) < near ? "to" : "all";
      if (grip === "all" && slot > stretch.from && slot < stretch.to) grip = slot - stretch.from;
    }
    if (grip === null || !event.buttons) return;
    if (grip === "from") show(Math.max(0, Math.min(slot, stretch.to - LEAST)), stretch.to);
    else if (grip === "to") show(stretch.from, Math.max(slot, stretch.from + LEAST));
    else {
      const from = grip === "all" ? slot - length / 2 : slot - grip;
      show(from, from + length);
    }
  }
  for (const name of ["pointerdown", "pointermove"]) strip.canvas.addEventListener(name, drag);
  strip.canvas.addEventListener("pointerup", () => {
    grip = null;
  });
  Studio.on("stretch", () => strip.refresh());

  Studio.time = { stretch, fit, show, reset, slots, steer, strip };
})();
