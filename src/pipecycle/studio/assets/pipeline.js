"use strict";
// Who trained when, on which chain, and what was handed to whom.
(() => {
  const { byId, make, theme, count, letter, chainColour } = Studio;
  const { stretch, steer } = Studio.time;
  const UNUSED = 1,
    FLYING = 2;
  const panels = {};

  const MOST_LANES = 150; // more cannot be told apart, and clients are shown instead
  const crowded = (plan) => plan.facts.lanes > MOST_LANES;
  const grouped = (plan) => plan.facts.groups > 0 && byId("rows").value === "group" && !crowded(plan);

  // Clients, evenly picked if there are more than rows, and the place of each.
  function rows(plan, most) {
    const { clients } = plan.facts,
      shown = Math.min(clients, most);
    const picked = Int32Array.from({ length: shown }, (_, at) =>
      Math.round((at * (clients - 1)) / Math.max(1, shown - 1)),
    );
    const place = new Int32Array(clients).fill(-1);
    picked.forEach((client, at) => {
      place[client] = at;
    });
    return { picked, place };
  }

  // What to draw: bars with a row each.
  function bars(plan) {
    if (grouped(plan)) {
      const { lane, start, end, chain, state } = plan.group;
      return { row: lane, start, end, chain, state, rows: plan.facts.lanes, name: (at) => `lane ${at + 1}` };
    }
    const { picked, place } = (plan.rows ??= rows(plan, 170));
    const { client, start, end, chain, state } = plan.session;
    plan.placed ??= Int32Array.from(client, (one) => place[one]);
    return { row: plan.placed, start, end, chain, state, rows: picked.length, name: (at) => (at ? count(picked[at]) : `client ${picked[at]}`) };
  }

  function draw(plot, plan) {
    const c = plot.context,
      { x, y, w, h } = plot.inner,
      { from, to } = stretch;
    const set = bars(plan),
      server = 20,
      room = h - server,
      tall = room / Math.max(1, set.rows);
    const X = (slot) => x + ((slot - from) / (to - from)) * w;
    const gap = tall > 8 ? Math.min(4, tall * 0.18) : tall > 3 ? 0.5 : 0;
    plot.below(from, to, X, "slot #");
    c.save();
    c.beginPath();
    c.rect(x, y, w, h);
    c.clip();
    const named = []; // bars with room for letters, which are written over the arrows
    for (let at = 0; at < set.start.length; at++) {
      if (set.row[at] < 0 || set.start[at] >= to || set.end[at] + 1 <= from) continue;
      const left = X(set.start[at]),
        right = X(set.end[at] + 1),
        top = y + set.row[at] * tall + gap / 2;
      const colour = chainColour(set.chain[at]),
        wide = Math.max(0.7, right - left - (right - left > 4 ? 1 : 0));
      c.globalAlpha = set.state[at] === FLYING ? 0.45 : 1;
      c.fillStyle = set.state[at] === UNUSED ? Studio.hatch(c, colour) : colour;
      c.fillRect(left, top, wide, Math.max(0.7, tall - gap));
      if (tall - gap >= 11 && wide > 18) named.push({ at, colour, left, right, middle: top + (tall - gap) / 2 + 0.5 });
    }
    c.globalAlpha = 1;
    if (grouped(plan)) handovers(plot, plan, X, (lane) => y + (lane + 0.5) * tall);
    letters(plot, plan, set, named, tall);
    published(plot, plan, X, y + room + server / 2);
    if (plot.chosen !== undefined && plot.chosen < set.start.length) {
      c.strokeStyle = theme.focus;
      c.lineWidth = 2.5;
      const left = X(set.start[plot.chosen]);
      c.strokeRect(left, y + set.row[plot.chosen] * tall, X(set.end[plot.chosen] + 1) - left, tall);
    }
    c.restore();
    names(plot, set, tall, room, server);
    if (!set.start.length) plot.empty("Nobody trains.");
  }

  // The chain of each bar, and how many clients train in it where a session is long enough to say so.
  function letters(plot, plan, set, named, tall) {
    const c = plot.context,
      long = (plot.inner.w / (stretch.to - stretch.from)) * plan.facts.session > 80,
      sizes = grouped(plan) && long;
    c.textBaseline = "middle";
    for (const { at, colour, left, right, middle } of named) {
      c.fillStyle = Studio.inkOn(colour);
      c.font = `600 ${Math.min(13, Math.max(9, tall * 0.55))}px system-ui, sans-serif`;
      c.textAlign = "left";
      c.fillText(letter(set.chain[at]), Math.max(left, plot.inner.x) + 8, middle);
      if (!sizes || right - left < 80 || set.state[at] === UNUSED) continue;
      c.font = "11px system-ui, sans-serif";
      c.textAlign = "right";
      c.fillText(Studio.plural(plan.group.at[at + 1] - plan.group.at[at], "client"), right - 7, middle);
    }
  }

  // Lines from the end of one group to the start of the next; thin where only some members took the model on.
  function handovers(plot, plan, X, Y) {
    const c = plot.context,
      { from, to, main } = plan.handover,
      { start, end, lane } = plan.group;
    const seen = [];
    for (let at = 0; at < from.length; at++) {
      if (start[to[at]] < stretch.from || end[from[at]] > stretch.to) continue;
      seen.push(at);
    }
    if (seen.length * 26 > plot.inner.w * Math.max(1, plan.facts.lanes)) return; // too many to tell one from another
    c.strokeStyle = c.fillStyle = theme.ink;
    for (const at of seen) {
      const x0 = X(end[from[at]] + 1),
        x1 = X(start[to[at]]),
        y0 = Y(lane[from[at]]),
        y1 = Y(lane[to[at]]);
      c.globalAlpha = main[at] ? 0.85 : 0.25;
      c.lineWidth = main[at] ? 1.3 : 0.8;
      const angle = Math.atan2(y1 - y0, Math.max(2, x1 - x0)),
        size = main[at] ? 6 : 4;
      c.beginPath();
      c.moveTo(x0 - 1, y0);
      c.lineTo(x1 + 1, y1);
      c.stroke();
      c.beginPath();
      c.moveTo(x1 + 3, y1);
      c.lineTo(x1 + 3 - size * Math.cos(angle - 0.5), y1 - size * Math.sin(angle - 0.5));
      c.lineTo(x1 + 3 - size * Math.cos(angle + 0.5), y1 - size * Math.sin(angle + 0.5));
      c.fill();
    }
    c.globalAlpha = 1;
  }

  function published(plot, plan, X, middle) {
    const c = plot.context,
      { slot } = plan.step,
      near = (plot.inner.w / (stretch.to - stretch.from)) * (plan.facts.slots / Math.max(1, slot.length));
    c.fillStyle = theme.focus;
    for (const one of slot) {
      if (one < stretch.from || one > stretch.to) continue;
      const at = X(one + 1);
      if (near < 11) {
        c.fillRect(at - 0.5, middle - 4, 1, 8);
        continue;
      }
      c.beginPath();
      c.moveTo(at, middle - 5);
      c.lineTo(at + 4.5, middle);
      c.lineTo(at, middle + 5);
      c.lineTo(at - 4.5, middle);
      c.fill();
    }
  }

  function names(plot, set, tall, room, server) {
    const c = plot.context,
      { x, y } = plot.inner,
      step = Math.ceil(15 / tall);
    c.font = "12px system-ui, sans-serif";
    c.fillStyle = theme.soft;
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (let at = 0; at < set.rows; at += step) c.fillText(set.name(at), x - 8, Math.max(8, y + (at + 0.5) * tall));
    c.fillText("server", x - 8, y + room + server / 2);
  }

  // The bar under a place, or the publication.
  function find(plot, plan, px, py) {
    const { x, y, w, h } = plot.inner,
      room = h - 20;
    const slot = stretch.from + ((px - x) / w) * (stretch.to - stretch.from);
    if (px < x || px > x + w) return {};
    if (py > y + room) {
      const near = (6 / w) * (stretch.to - stretch.from);
      let best = -1;
      plan.step.slot.forEach((one, at) => {
        if (Math.abs(one + 1 - slot) < near) best = at;
      });
      return { version: best };
    }
    const set = bars(plan),
      row = Math.floor(((py - y) / room) * set.rows);
    for (let at = 0; at < set.start.length; at++) {
      if (set.row[at] === row && set.start[at] <= slot && slot < set.end[at] + 1) return { bar: at };
    }
    return {};
  }

  const stale = (lag) =>
    lag < 0
      ? null
      : lag === 0
        ? "fresh when used: lag 0"
        : `${Studio.plural(lag, "version")} old when used: lag ${lag}`;
  const fate = (state, event) =>
    state === FLYING
      ? "still training at the end"
      : state === UNUSED
        ? "never used"
        : event > 0
          ? `used in aggregation ${count(event)}`
          : "its logits were used";

  function about(plan, at) {
    if (!grouped(plan)) {
      const { client, start, end, reference, lag, state, event, chain } = plan.session;
      return [
        `Client ${client[at]}, chain ${letter(chain[at])}`,
        `slots ${count(start[at])} to ${count(end[at])}`,
        `from version ${count(reference[at])}`,
        stale(lag[at]),
        fate(state[at], event[at]),
      ].filter(Boolean);
    }
    const g = plan.group,
      members = Array.from(plan.session.client.subarray(g.at[at], g.at[at + 1])).sort((p, q) => p - q);
    const who =
      members.slice(0, 12).join(", ") + (members.length > 12 ? ` and ${count(members.length - 12)} more` : "");
    const same = g.reference[at] === g.last_reference[at];
    return [
      `Group ${count(at + 1)}, chain ${letter(g.chain[at])}`,
      `client${members.length === 1 ? "" : "s"} ${who}`,
      `slots ${count(g.start[at])} to ${count(g.end[at])}`,
      same
        ? `from version ${count(g.reference[at])}`
        : `from versions ${count(g.reference[at])} to ${count(g.last_reference[at])}`,
      stale(g.lag[at]),
      fate(g.state[at], g.event[at]),
    ].filter(Boolean);
  }

  function ofVersion(plan, at) {
    const { slot, version, lag, step } = plan.step,
      limit = plan.facts.limits[lag[at]];
    return [
      `Version ${count(version[at])}`,
      `adopted by the server in slot ${count(slot[at])}`,
      lag[at] ? `its oldest update is ${Studio.plural(lag[at], "version")} old` : "it contains the models that its updates started from",
      `step ${Studio.figure(step[at])}, stable below ${Studio.figure(limit)}`,
    ];
  }

  function words(plan, side) {
    const { facts } = plan,
      by = facts.groups ? `${Studio.plural(facts.groups, "group")} on ${Studio.plural(facts.lanes, "lane")}, ` : "";
    const { lag, published: adopted } = facts.figures;
    return (
      `${Studio.name(side)}: ${by}${Studio.plural(facts.sessions, "session")} of ${Studio.plural(facts.figures.participants, "client")}, ` +
      `${Studio.plural(adopted, "version")} adopted by the server${
        lag.mean === null
          ? ""
          : `, updates ${Studio.figure(lag.mean)} versions old on ` + `average and ${Studio.figure(lag.max)} at most`
      }. Shown: slots ${count(stretch.from)} to ${count(stretch.to)}${crowded(plan) ? ", by client, because there are too many lanes" : ""}.`
    );
  }

  function panel(side) {
    const head = make("h3", { className: `side-${side}` });
    const host = make("figure", { className: "panel", data: { side } }, head);
    Studio.hang("pipelines", host, side);
    const plan = () => Studio.plans[side];
    const plot = new Studio.Plot(host, {
      keys: true,
      margin: { left: 64, top: 4, bottom: 22 },
      words: () => words(plan(), side),
      draw: (one) => draw(one, plan()),
      height: () => {
        const set = bars(plan());
        return Math.max(120, Math.min(grouped(plan()) ? 380 : 400, set.rows * (grouped(plan()) ? 26 : 4.2))) + 46;
      },
    });
    plot.ready = () => plan() !== null;
    plot.canvas.classList.add("steered");
    plot.hover((x, y) => {
      if (!plan()) return null;
      const { bar, version } = find(plot, plan(), x, y);
      return bar !== undefined ? about(plan(), bar) : version >= 0 ? ofVersion(plan(), version) : null;
    });
    const walk = (by) => {
      const set = bars(plan()),
        last = set.start.length - 1;
      if (last < 0) return;
      const first = set.start.findIndex((start, at) => set.row[at] >= 0 && start >= stretch.from);
      let next = plot.chosen === undefined ? Math.max(0, first) : plot.chosen + by;
      while (next > 0 && next < last && set.row[next] < 0) next += by;
      plot.chosen = Math.max(0, Math.min(last, next));
      if (set.start[plot.chosen] < stretch.from || set.end[plot.chosen] > stretch.to) {
        const half = (stretch.to - stretch.from) / 2;
        Studio.time.show(set.start[plot.chosen] - half, set.start[plot.chosen] + half);
      }
      plot.refresh();
      const lines = about(plan(), plot.chosen),
        box = plot.canvas.getBoundingClientRect(),
        { x, y, w } = plot.inner;
      Studio.say(lines.join(", "));
      const left = x + ((set.start[plot.chosen] - stretch.from) / (stretch.to - stretch.from)) * w;
      Studio.tip(
        lines,
        box.left + left,
        box.top + y + ((set.row[plot.chosen] + 1) * (plot.inner.h - 20)) / set.rows - 12,
      );
    };
    plot.canvas.addEventListener("blur", Studio.hide);
    steer(plot, {
      click: (x, y) => {
        const { bar } = find(plot, plan(), x, y);
        if (bar === undefined) return;
        if (!grouped(plan())) Studio.tell("client", plan().session.client[bar]);
        Studio.tip(
          about(plan(), bar),
          plot.canvas.getBoundingClientRect().left + x,
          plot.canvas.getBoundingClientRect().top + y,
        );
      },
      keys: { ArrowDown: () => walk(1), ArrowUp: () => walk(-1) },
    });
    return { host, head, plot };
  }

  function show(side) {
    const plan = Studio.plans[side];
    if (plan === null) {
      if (panels[side]) {
        panels[side].plot.remove();
        panels[side].host.remove();
        delete panels[side];
      }
      return;
    }
    const made = (panels[side] ??= panel(side));
    made.head.textContent =
      Studio.shown().length > 1 ? `${side.toUpperCase()}: ${Studio.name(side)}` : Studio.name(side);
    made.plot.chosen = undefined;
    made.plot.near = true; // it is why one is here
    made.plot.refresh();
  }
  const again = () =>
    Object.values(panels).forEach(({ plot }) => {
      plot.chosen = undefined;
      plot.refresh();
    });
  byId("rows").addEventListener("change", () => {
    again();
    table();
    Studio.tell("view");
  });
  Studio.on("stretch", () => {
    Object.values(panels).forEach(({ plot }) => plot.refresh());
    table();
  });

  // The same as a table, for as many bars as anybody reads.
  function table() {
    if (!byId("bars").open) return;
    const MOST = 60;
    byId("bars-table").replaceChildren(
      ...Studio.shown().map((side) => {
        const plan = Studio.plans[side],
          set = bars(plan),
          lines = [];
        let more = 0;
        for (let at = 0; at < set.start.length; at++) {
          if (set.row[at] < 0 || set.start[at] >= stretch.to || set.end[at] < stretch.from) continue;
          if (lines.length < MOST) lines.push(about(plan, at));
          else more++;
        }
        const list = make("ol", {}, ...lines.map((line) => make("li", {}, line.join("; "))));
        return make(
          "div",
          { className: "scroll", tabIndex: 0, role: "region", "aria-label": `Bars of ${Studio.name(side)}` },
          make("h3", {}, Studio.name(side)),
          list,
          more ? make("p", { className: "caption" }, `and ${count(more)} more`) : null,
        );
      }),
    );
  }
  byId("bars").addEventListener("toggle", table);

  Studio.pipeline = { show, table, about, bars };
})();
