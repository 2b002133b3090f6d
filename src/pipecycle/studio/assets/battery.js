"use strict";
// What every battery held, and one of them by itself.
(() => {
  const { byId, make, theme, count, figure } = Studio;
  const panels = {};
  let chosen = null; // a client, or none for the mean of all

  // Cividis: the same order of brightness for every kind of colour vision.
  const STOPS = [
    "#00224e",
    "#123570",
    "#3b496c",
    "#575d6d",
    "#707173",
    "#8a8678",
    "#a59c74",
    "#c3b369",
    "#e1cc55",
    "#fee838",
  ].map((colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)));
  const COLOURS = Uint32Array.from({ length: 256 }, (_, at) => {
    const place = (at / 255) * (STOPS.length - 1),
      low = Math.min(STOPS.length - 2, Math.floor(place)),
      part = place - low;
    const [r, g, b] = STOPS[low].map((value, k) => Math.round(value + part * (STOPS[low + 1][k] - value)));
    return (255 << 24) | (b << 16) | (g << 8) | r;
  });

  const unit = (plan) => plan.facts.fullest / 65535;
  const moments = (plan) => plan.battery.moment.length;

  // The level that 99 % of all entries stay below, so that one full battery does not darken all others.
  function high(plan) {
    if (plan.high === undefined) {
      const { level } = plan.battery,
        bins = new Uint32Array(1024);
      for (let at = 0; at < level.length; at++) bins[level[at] >> 6]++;
      let rest = 0.01 * level.length,
        bin = 1023;
      while (bin > 0 && (rest -= bins[bin]) > 0) bin--;
      plan.high = Math.max(1, (bin + 1) * 64 * unit(plan));
    }
    return plan.high;
  }
  const top = () => Math.max(...Studio.shown().map((side) => high(Studio.plans[side])));

  // Rows of clients, means over neighbours where there are more than pixels.
  function image(plan, rows) {
    const { level } = plan.battery,
      columns = moments(plan),
      { clients } = plan.facts;
    const canvas = make("canvas", { width: columns, height: rows }),
      c = canvas.getContext("2d");
    const data = c.createImageData(columns, rows),
      pixels = new Uint32Array(data.data.buffer),
      by = (255 * unit(plan)) / top();
    const sums = new Float64Array(columns);
    for (let row = 0; row < rows; row++) {
      const first = Math.floor((row * clients) / rows),
        last = Math.max(first + 1, Math.floor(((row + 1) * clients) / rows));
      sums.fill(0);
      for (let client = first; client < last; client++)
        for (let k = 0, at = client * columns; k < columns; k++) sums[k] += level[at + k];
      for (let k = 0; k < columns; k++)
        pixels[row * columns + k] = COLOURS[Math.min(255, Math.round((sums[k] / (last - first)) * by))];
    }
    c.putImageData(data, 0, 0);
    return canvas;
  }

  function heat(plot, plan) {
    const c = plot.context,
      { x, y, w, h } = plot.inner,
      { clients, slots } = plan.facts;
    const longest = Studio.time.slots(),
      wide = (slots / longest) * w;
    c.imageSmoothingEnabled = false;
    c.drawImage(image(plan, Math.min(clients, Math.round(h))), x, y, wide, h);
    plot.below(0, longest, (slot) => x + (slot / longest) * w, "slot #", true, false);
    c.fillStyle = theme.soft;
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const tick of Studio.ticks(0, clients - 1, Math.max(2, h / 36), true))
      c.fillText(Studio.short(tick), x - 6, y + ((tick + 0.5) / clients) * h);
    if (chosen !== null && chosen < clients) {
      c.strokeStyle = theme.focus;
      c.lineWidth = 2;
      const tall = Math.max(3, h / clients);
      c.strokeRect(x + 1, y + ((chosen + 0.5) / clients) * h - tall / 2, wide - 2, tall);
    }
    // The scale.
    const left = x + w + 8,
      bar = plot.margin.right - 46;
    for (let at = 0; at < h; at++) {
      const colour = COLOURS[Math.round(255 * (1 - at / h))];
      c.fillStyle = `rgb(${colour & 255},${(colour >> 8) & 255},${(colour >> 16) & 255})`;
      c.fillRect(left, y + at, bar, 1.5);
    }
    c.fillStyle = theme.soft;
    c.textAlign = "left";
    c.fillText(Studio.short(Math.round(top())), left + bar + 4, y + 6);
    c.fillText("0", left + bar + 4, y + h - 5);
  }

  function series(plan) {
    const columns = moments(plan),
      { level } = plan.battery,
      { clients } = plan.facts,
      by = unit(plan);
    if (chosen !== null && chosen < clients)
      return Float64Array.from(level.subarray(chosen * columns, (chosen + 1) * columns), (one) => one * by);
    if (plan.mean === undefined) {
      plan.mean = new Float64Array(columns);
      for (let at = 0; at < level.length; at += columns)
        for (let k = 0; k < columns; k++) plan.mean[k] += (level[at + k] * by) / clients;
    }
    return plan.mean;
  }

  function line(plot, plan) {
    const c = plot.context,
      { x, y, w, h } = plot.inner,
      longest = Studio.time.slots();
    const values = series(plan),
      both = Studio.shown().map((side) => series(Studio.plans[side])),
      most = Math.max(1, ...both.flatMap((all) => [...all])) * 1.08;
    const X = (slot) => x + (slot / longest) * w,
      Y = (level) => y + h - (level / most) * h;
    plot.beside(0, most, Y);
    plot.below(0, longest, X, "slot #");
    if (chosen !== null) {
      const { client, start, end, chain } = plan.session;
      for (let at = 0; at < client.length; at++) {
        if (client[at] !== chosen) continue;
        c.fillStyle = Studio.fade(Studio.chainColour(chain[at]), 0.35);
        c.fillRect(X(start[at]), y, Math.max(1, X(end[at] + 1) - X(start[at])), h);
      }
    }
    c.strokeStyle = theme.ink;
    c.lineWidth = 1.4;
    c.beginPath();
    values.forEach((level, at) => c.lineTo(X(plan.battery.moment[at] + 1), Y(level)));
    c.stroke();
    plot.frame();
  }

  function words(plan, side) {
    const { stored } = plan.facts.figures.energy,
      mean = stored / plan.facts.clients;
    return (
      `${Studio.name(side)}: at the end a battery holds ${figure(mean)} units on average; the fullest of the run held ` +
      `${figure(plan.facts.fullest)}. Together they hold ${count(stored)}, and ${count(plan.facts.figures.energy.overflowed)} did not fit.`
    );
  }

  function wordsOfOne(plan) {
    const values = series(plan),
      last = values.at(-1),
      fullest = Math.max(...values);
    if (chosen === null || chosen >= plan.facts.clients)
      return `All clients, mean: ${figure(last)} units at the end, ${figure(fullest)} at most.`;
    const sessions = plan.session.client.reduce((sum, client) => sum + (client === chosen), 0);
    return `Client ${chosen}: ${Studio.plural(sessions, "session")}, ${figure(last)} units at the end, ${figure(fullest)} at most.`;
  }

  function panel(side) {
    const head = make("h3", { className: `side-${side}` }),
      host = make("figure", { className: "panel", data: { side } }, head);
    Studio.hang("batteries", host, side);
    const plan = () => Studio.plans[side],
      ready = () => plan() !== null;
    const map = new Studio.Plot(host, {
      margin: { right: 64 },
      height: () => 240,
      draw: (plot) => heat(plot, plan()),
      words: () => words(plan(), side),
    });
    const one = new Studio.Plot(host, {
      margin: { right: 64 },
      height: () => 130,
      draw: (plot) => line(plot, plan()),
      words: () => wordsOfOne(plan()),
    });
    map.ready = one.ready = ready;
    map.canvas.classList.add("clicked");
    const place = (px, py) => {
      const { x, y, w, h } = map.inner,
        { clients, slots } = plan().facts,
        slot = ((px - x) / w) * Studio.time.slots();
      if (px < x || py < y || py >= y + h || slot >= slots) return null;
      return {
        client: Math.min(clients - 1, Math.floor(((py - y) / h) * clients)),
        at: Math.min(moments(plan()) - 1, Math.floor((slot / slots) * moments(plan()))),
      };
    };
    map.hover((px, py) => {
      const found = plan() && place(px, py);
      if (!found) return null;
      const { level, moment } = plan().battery;
      return [
        `Client ${found.client}`,
        `slot ${count(moment[found.at])}: ${figure(level[found.client * moments(plan()) + found.at] * unit(plan()))} units`,
      ];
    });
    map.canvas.addEventListener("click", (event) => {
      const found = place(event.offsetX, event.offsetY);
      if (found) Studio.tell("client", found.client);
    });
    return { host, head, plots: [map, one] };
  }

  function show(side) {
    const plan = Studio.plans[side];
    if (plan === null) {
      if (panels[side]) {
        panels[side].plots.forEach((plot) => plot.remove());
        panels[side].host.remove();
        delete panels[side];
      }
      return;
    }
    const made = (panels[side] ??= panel(side));
    made.head.textContent =
      Studio.shown().length > 1 ? `${side.toUpperCase()}: ${Studio.name(side)}` : Studio.name(side);
    byId("client").max = plan.facts.clients - 1;
    made.plots.forEach((plot) => plot.refresh());
  }

  function choose(client) {
    chosen = client;
    byId("client").value = client ?? "";
    Object.values(panels).forEach(({ plots }) => plots.forEach((plot) => plot.refresh()));
    Studio.tell("view");
  }
  Studio.on("client", choose);
  byId("client").addEventListener("change", () => {
    const text = byId("client").value,
      most = Math.max(...Studio.shown().map((side) => Studio.plans[side].facts.clients)) - 1;
    choose(text === "" ? null : Math.max(0, Math.min(most, Math.round(Number(text)))));
  });
  byId("all-clients").addEventListener("click", () => choose(null));

  Studio.battery = { show, choose, chosen: () => chosen };
})();
