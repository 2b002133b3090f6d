"use strict";
// Energy, lag, steps, coverage and accuracy.
(() => {
  const { byId, make, theme, count, figure, SIDES } = Studio;
  const sideColour = (side) => theme.sides[SIDES.indexOf(side)];
  const plans = () => Studio.shown().map((side) => ({ side, plan: Studio.plans[side] }));
  const label = (side) =>
    Studio.shown().length > 1 ? `${side.toUpperCase()}: ${Studio.name(side)}` : Studio.name(side);
  const panels = { energies: {}, chains: {} };

  // Where the energy went: what was harvested, as a stack.
  const PURPOSES = [
    ["training", "training", "#0072B2"],
    ["to_hub", "to hubs", "#CC79A7"],
    ["to_server", "to the server", "#D55E00"],
    ["download", "downloads", "#56B4E9"],
    ["lost", "lost", "#AA3377"],
    ["stored", "stored", "#E69F00"],
    ["overflowed", "overflowed", "#999999"],
    ["idle", "idled away", "#F0E442"],
    ["leaked", "leaked", "#009E73"],
  ];
  const purposes = (plan) => PURPOSES.filter(([key]) => plan.energy[key]); // some are of fleets from files only

  function swatch(colour, name) {
    const mark = make("i");
    mark.style.background = colour;
    return make("li", {}, mark, name);
  }

  function energy(plot, plan) {
    const c = plot.context,
      { x, y, w, h } = plot.inner,
      { moment } = plan.energy,
      longest = Studio.time.slots();
    const total = (one) => purposes(one).reduce((sum, [key]) => sum + one.energy[key].at(-1), 0);
    const most = 1.04 * Math.max(1, ...plans().map((one) => total(one.plan)));
    const X = (slot) => x + (slot / longest) * w,
      Y = (units) => y + h - (units / most) * h;
    plot.beside(0, most, Y);
    plot.below(0, longest, X, "slot #");
    const base = new Float64Array(moment.length);
    for (const [key, , colour] of purposes(plan)) {
      const column = plan.energy[key];
      if (!column.at(-1) && key !== "training") continue;
      c.beginPath();
      c.moveTo(X(0), Y(0));
      for (let at = 0; at < moment.length; at++) c.lineTo(X(moment[at] + 1), Y(base[at] + column[at]));
      for (let at = moment.length - 1; at >= 0; at--) c.lineTo(X(moment[at] + 1), Y(base[at]));
      c.closePath();
      c.fillStyle = colour;
      c.fill();
      for (let at = 0; at < moment.length; at++) base[at] += column[at];
    }
    plot.frame();
  }

  function energyWords(plan, side) {
    const { energy: e, spent_on: on } = plan.facts.figures;
    const parts = purposes(plan).map(([key, name]) => `${count(on[key] ?? e[key])} ${name}`);
    return `${Studio.name(side)}: ${count(e.harvested)} units harvested = ${parts.join(" + ")}.`;
  }

  function energyTip(plot, plan, px) {
    const { x, w } = plot.inner,
      slot = ((px - x) / w) * Studio.time.slots();
    if (slot < 0 || slot > plan.facts.slots) return null;
    const { moment } = plan.energy,
      at = Math.min(moment.length - 1, Math.round((slot / plan.facts.slots) * moment.length));
    return [
      `After ${count(moment[at] + 1)} slots`,
      ...purposes(plan).map(([key, name]) => `${name}: ${count(plan.energy[key][at])}`),
    ];
  }

  // Lag: the share of updates by how old they were.
  const lag = new Studio.Plot(byId("figure-lag"), {
    height: () => 240,
    words: () =>
      plans()
        .map(({ side, plan }) => {
          const { mean, max } = plan.facts.figures.lag;
          return mean === null
            ? `${Studio.name(side)}: no update was used.`
            : `${Studio.name(side)}: lag ${figure(mean)} on average, ${figure(max)} at most.`;
        })
        .join(" "),
    draw(plot) {
      const c = plot.context,
        { x, y, w, h } = plot.inner,
        shown = plans();
      const most = Math.max(2, ...shown.map(({ plan }) => plan.lag.count.length));
      const shares = shown.map(({ side, plan }) => {
        const all = plan.lag.count.reduce((sum, one) => sum + one, 0);
        return { side, parts: Array.from(plan.lag.count, (one) => (100 * one) / Math.max(1, all)) };
      });
      const high = 1.05 * Math.max(10, ...shares.flatMap(({ parts }) => parts));
      const X = (place) => x + ((place + 0.5) / most) * w,
        Y = (part) => y + h - (part / high) * h,
        wide = Math.min(40, (w / most) * 0.8);
      plot.beside(0, high, Y, " %");
      c.fillStyle = theme.soft;
      c.textAlign = "center";
      c.textBaseline = "top";
      const step = Math.ceil(most / Math.max(2, w / 28));
      for (let at = 0; at < most; at += step) c.fillText(at === 40 ? "40+" : String(at), X(at), y + h + 7);
      shares.forEach(({ side, parts }, k) => {
        c.fillStyle = sideColour(side);
        parts.forEach((part, at) =>
          c.fillRect(
            X(at) - wide / 2 + (k * wide) / shares.length,
            Y(part),
            wide / shares.length - 0.5,
            y + h - Y(part),
          ),
        );
      });
      plot.frame();
    },
  });
  lag.hover((px) => {
    const { x, w } = lag.inner,
      most = Math.max(2, ...plans().map(({ plan }) => plan.lag.count.length)),
      at = Math.floor(((px - x) / w) * most);
    if (at < 0 || at >= most) return null;
    return [
      `Lag ${at}`,
      ...plans().map(({ side, plan }) => {
        const all = plan.lag.count.reduce((sum, one) => sum + one, 0);
        return `${label(side)}: ${figure((100 * (plan.lag.count[at] ?? 0)) / Math.max(1, all))} % of updates`;
      }),
    ];
  });

  // Steps: every published version by its lag, beside the largest stable step.
  function marks(plan) {
    if (plan.marks) return plan.marks;
    const seen = new Map();
    plan.step.lag.forEach((one, at) => {
      const key = `${one}/${plan.step.step[at].toFixed(2)}`;
      const mark = seen.get(key) ?? { lag: one, step: plan.step.step[at], times: 0 };
      mark.times++;
      seen.set(key, mark);
    });
    return (plan.marks = [...seen.values()]);
  }
  const unstable = (plan) =>
    plan.step.lag.reduce((sum, one, at) => sum + (plan.step.step[at] > plan.facts.limits[one] + 1e-6), 0);
  const aside = (side) => (Studio.shown().length > 1 ? (side === "a" ? -5 : 5) : 0); // so that neither hides the other
  const stepFrame = (plot) => {
    const { x, y, w, h } = plot.inner,
      shown = plans();
    const limits = shown.map(({ plan }) => plan.facts.limits).reduce((p, q) => (p.length > q.length ? p : q), []);
    const last = Math.max(2, limits.length - 1),
      high = Math.max(1.2, 1.1 * Math.max(0, ...shown.flatMap(({ plan }) => marks(plan).map((mark) => mark.step))));
    return {
      limits,
      last,
      high,
      X: (value) => x + ((value + 0.4) / (last + 0.8)) * w,
      Y: (value) => y + h - (Math.min(value, high) / high) * h,
    };
  };
  const step = new Studio.Plot(byId("figure-step"), {
    height: () => 240,
    words: () =>
      plans()
        .map(({ side, plan }) => {
          const all = plan.step.lag.length,
            over = unstable(plan),
            { ratio_max: most } = plan.facts.step;
          if (!all) return `${Studio.name(side)}: nothing was published.`;
          return (
            `${Studio.name(side)}: ${over ? `${count(over)} of ${count(all)} steps are beyond the limit` : `all ${count(all)} steps are within the limit`}, ` +
            `the largest is ${figure(most)} times its limit.`
          );
        })
        .join(" "),
    draw(plot) {
      const c = plot.context,
        { y, h } = plot.inner,
        { limits, last, high, X, Y } = stepFrame(plot);
      c.save();
      c.beginPath();
      c.rect(plot.inner.x, y, plot.inner.w, h);
      c.clip();
      const line = () => {
        limits.forEach((limit, at) => c.lineTo(X(at), y + h - (limit / high) * h));
        c.lineTo(X(last + 0.4), y + h - (limits.at(-1) / high) * h);
      };
      c.beginPath();
      line();
      c.lineTo(X(last + 0.4), y - 2000);
      c.lineTo(X(0), y - 2000);
      c.closePath();
      c.fillStyle = Studio.fade(theme.danger, 0.13);
      c.fill();
      c.beginPath();
      line();
      c.strokeStyle = theme.danger;
      c.lineWidth = 1.8;
      c.stroke();
      c.restore();
      plot.beside(0, high, Y);
      c.fillStyle = theme.soft;
      c.textAlign = "center";
      c.textBaseline = "top";
      const every = Math.ceil((last + 1) / Math.max(2, plot.inner.w / 28));
      for (let at = 0; at <= last; at += every) c.fillText(String(at), X(at), y + h + 7);
      c.textAlign = "right";
      c.fillStyle = theme.danger;
      c.fillText("unstable in stiff directions", plot.inner.x + plot.inner.w - 6, y + 5);
      for (const { side, plan } of plans()) {
        c.fillStyle = Studio.fade(sideColour(side), 0.75);
        c.strokeStyle = theme.paper;
        c.lineWidth = 1;
        for (const mark of marks(plan)) {
          const size = 3.5 + 1.6 * Math.log10(mark.times + 1);
          const middle = X(mark.lag) + aside(side);
          c.beginPath();
          if (side === "a") c.arc(middle, Y(mark.step), size, 0, 2 * Math.PI);
          else c.rect(middle - size, Y(mark.step) - size, 2 * size, 2 * size);
          c.fill();
          c.stroke();
        }
      }
      plot.frame();
    },
  });
  step.hover((px, py) => {
    const { X, Y } = stepFrame(step);
    for (const { side, plan } of plans())
      for (const mark of marks(plan)) {
        if (Math.hypot(X(mark.lag) + aside(side) - px, Y(mark.step) - py) > 8) continue;
        return [
          label(side),
          `${Studio.plural(mark.times, "version")} of lag ${mark.lag}`,
          `step ${figure(mark.step)}, stable below ${figure(plan.facts.limits[mark.lag])}`,
        ];
      }
    return null;
  });

  // Coverage of what the server serves.
  const coverage = new Studio.Plot(byId("figure-coverage"), {
    height: () => 170,
    words: () =>
      plans()
        .map(
          ({ side, plan }) =>
            `${Studio.name(side)}: the served model has met ${count(plan.coverage.clients.at(-1))} of ` +
            `${count(plan.facts.clients)} clients at the end.`,
        )
        .join(" "),
    draw(plot) {
      const c = plot.context,
        { x, y, w, h } = plot.inner,
        longest = Studio.time.slots(),
        most = 1.06 * Math.max(...plans().map(({ plan }) => plan.facts.clients));
      const X = (slot) => x + (slot / longest) * w,
        Y = (clients) => y + h - (clients / most) * h;
      plot.beside(0, most, Y, "", true);
      plot.below(0, longest, X, "slot #");
      plans().forEach(({ side, plan }) => {
        c.strokeStyle = sideColour(side);
        c.lineWidth = 2;
        c.setLineDash(side === "a" ? [] : [7, 4]);
        c.beginPath();
        plan.coverage.slot.forEach((slot, at) => {
          if (at) c.lineTo(X(slot), Y(plan.coverage.clients[at - 1]));
          c.lineTo(X(slot), Y(plan.coverage.clients[at]));
        });
        c.stroke();
      });
      c.setLineDash([]);
      plot.frame();
    },
  });
  for (const plot of [lag, step, coverage]) plot.ready = () => Studio.shown().length > 0;

  // Whom each chain has met.
  function chains(plot, plan) {
    const c = plot.context,
      { x, y, w, h } = plot.inner,
      { chains: rows, bins } = plan.facts,
      tall = h / rows.length,
      wide = w / bins;
    c.textBaseline = "middle";
    rows.forEach((row, at) => {
      const top = y + at * tall,
        colour = Studio.chainColour(row.chain);
      c.fillStyle = theme.card;
      c.fillRect(x, top + 0.5, w, tall - 1);
      c.fillStyle = colour;
      for (let bin = 0; bin < bins; bin++) {
        const met = plan.chain.met[at * bins + bin];
        if (!met) continue;
        c.globalAlpha = met / 255;
        c.fillRect(x + bin * wide, top + 0.5, wide > 4 ? wide - 0.6 : wide + 0.2, tall - 1);
      }
      c.globalAlpha = 1;
      c.fillStyle = theme.soft;
      c.textAlign = "right";
      c.fillText(row.name, x - 6, top + tall / 2);
      c.textAlign = "left";
      c.fillText(count(row.coverage), x + w + 6, top + tall / 2);
    });
    plot.below(0, plan.facts.clients, (client) => x + (client / plan.facts.clients) * w, "client #", true, false);
  }
  function chainWords(plan, side) {
    const { count: all, coverage_min: least, coverage_mean: mean, depth_max: depth } = plan.facts.figures.chains,
      who = plan.facts.figures.participants;
    const met =
      all === 1 ? `It has met ${count(least)}` : `They have met ${count(least)} (fewest) and ${figure(mean)} (mean)`;
    const rest = all > plan.facts.chains.length ? ` The ${plan.facts.chains.length} narrowest are shown.` : "";
    return `${Studio.name(side)}: ${Studio.plural(all, "chain")}, ${Studio.plural(depth, "aggregation")} deep. ${met} of ${Studio.plural(who, "participant")}.${rest}`;
  }

  const KINDS = {
    energies: { draw: energy, words: energyWords, height: () => 220, tip: energyTip },
    chains: {
      draw: chains,
      words: chainWords,
      margin: { right: 44, left: 36 },
      height: (plan) => Math.max(26, Math.min(300, plan.facts.chains.length * 18)) + 34,
      tip: (plot, plan, px, py) => {
        const { x, y, w, h } = plot.inner,
          rows = plan.facts.chains,
          at = Math.floor(((py - y) / h) * rows.length),
          client = Math.floor(((px - x) / w) * plan.facts.clients);
        if (!rows[at] || client < 0 || client >= plan.facts.clients) return null;
        const met = plan.chain.met[at * plan.facts.bins + Math.floor(((px - x) / w) * plan.facts.bins)];
        return [
          `Chain ${rows[at].name}`,
          `met ${count(rows[at].coverage)} clients in ${Studio.plural(rows[at].depth, "aggregation")}`,
          `client ${client}${plan.facts.bins < plan.facts.clients ? " and neighbours" : ""}: ${met === 255 ? "met" : met ? "some met" : "not met"}`,
        ];
      },
    },
  };

  function panel(side) {
    const plan = Studio.plans[side];
    for (const [host, kind] of Object.entries(KINDS)) {
      const known = panels[host];
      if (plan === null) {
        if (known[side]) {
          known[side].plot.remove();
          known[side].box.remove();
          delete known[side];
        }
        continue;
      }
      if (!known[side]) {
        const head = make("h3", { className: `side-${side}` }),
          box = make("figure", { className: "panel", data: { side } }, head);
        Studio.hang(host, box, side);
        const now = () => Studio.plans[side];
        const plot = new Studio.Plot(box, {
          margin: kind.margin,
          draw: (one) => kind.draw(one, now()),
          words: () => kind.words(now(), side),
          height: () => kind.height(now()),
        });
        plot.ready = () => now() !== null;
        if (kind.tip) plot.hover((x, y) => now() && kind.tip(plot, now(), x, y));
        known[side] = { head, box, plot };
      }
      known[side].head.textContent = label(side);
      known[side].plot.refresh();
    }
  }

  function show() {
    SIDES.forEach(panel);
    const some = new Set(plans().flatMap(({ plan }) => purposes(plan)));
    byId("energy-legend").replaceChildren(...Array.from(some, ([, name, colour]) => swatch(colour, name)));
    [lag, step, coverage].forEach((plot) => plot.refresh());
    document
      .querySelectorAll(".side-legend")
      .forEach((list) =>
        list.replaceChildren(
          ...(Studio.shown().length > 1 ? plans().map(({ side: one }) => swatch(sideColour(one), label(one))) : []),
        ),
      );
  }

  Studio.on("theme", show); // legends have colours, too
  Studio.charts = { show, label, sideColour };
})();
