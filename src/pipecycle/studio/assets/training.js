"use strict";
// Training what is shown, and accuracy against energy.  Only the button starts it.
(() => {
  const { byId, start, theme, count, figure } = Studio;
  const AFTER = 300; // milliseconds between two questions about progress
  let runs = start.curves,
    state = "idle";

  const active = () => state === "running" || state === "stopping";
  const curves = () => runs.filter((run) => run.points.length);
  const colour = (run) => {
    const side = Studio.SIDES.find((one) => Studio.plans[one]?.facts.toml === run.toml);
    return side ? Studio.charts.sideColour(side) : theme.soft;
  };
  const dash = (run) => (Studio.plans.b?.facts.toml === run.toml ? [7, 4] : []);

  function chart(host, column, unit) {
    const x_of = (point) => point[column];
    const frame = (plot) => {
      const { x, y, w, h } = plot.inner,
        points = curves().flatMap((run) => run.points);
      const most = Math.max(1, ...points.map(x_of), ...(column ? [] : [Studio.time.slots()])) * 1.02,
        high = Math.min(100, Math.max(20, ...points.map((point) => point[2])) * 1.12);
      return { most, high, X: (value) => x + (value / most) * w, Y: (value) => y + h - (value / high) * h };
    };
    const plot = new Studio.Plot(byId(host), {
      height: () => 260,
      words: () =>
        curves()
          .map((run) => {
            const [slot, units, accuracy] = run.points.at(-1),
              best = Math.max(...run.points.map((point) => point[2]));
            return `${run.policy}: ${accuracy.toFixed(1)} % after ${count(column ? units : slot)} ${unit}, best ${best.toFixed(1)} %.`;
          })
          .join(" ") || "Nothing has been evaluated yet.",
      draw(one) {
        const c = one.context,
          { most, high, X, Y } = frame(one);
        one.beside(0, high, Y, " %");
        one.below(0, most, X, `# ${unit}`);
        for (const run of curves()) {
          c.strokeStyle = c.fillStyle = colour(run);
          c.lineWidth = 2;
          c.setLineDash(dash(run));
          c.beginPath();
          run.points.forEach((point) => c.lineTo(X(x_of(point)), Y(point[2])));
          c.stroke();
          c.setLineDash([]);
          run.points.forEach((point) => {
            c.beginPath();
            c.arc(X(x_of(point)), Y(point[2]), 2.6, 0, 7);
            c.fill();
          });
        }
        one.frame();
        if (!curves().length) one.empty("The first evaluation is on its way.");
      },
    });
    plot.hover((px, py) => {
      const { X, Y } = frame(plot);
      for (const run of curves())
        for (const point of run.points) {
          if (Math.hypot(X(x_of(point)) - px, Y(point[2]) - py) < 8)
            return [run.policy, `${point[2].toFixed(1)} % after ${count(point[0])} slots and ${count(point[1])} units`];
        }
      return null;
    });
    return plot;
  }
  const plots = [chart("figure-accuracy-energy", 1, "units"), chart("figure-accuracy-slot", 0, "slots")];

  const SAID = {
    running: (now) =>
      now.total
        ? `Training: ${count(now.done)} of ${count(now.total)} steps.`
        : now.note || "Loading the data and planning.",
    stopping: () => "Stopping; what has been trained is being saved.",
    finished: (now) => `Finished: in ${now.runs.map((run) => run.folder).join(" and ")}.`,
    stopped: (now) =>
      `Stopped. In ${now.runs.map((run) => run.folder).join(" and ")}; training the same settings again resumes it.`,
    failed: (now) => now.error,
  };

  function show(now) {
    ({ state, runs } = now);
    byId("accuracy").hidden = state === "idle" && !curves().length;
    byId("progress").hidden = byId("stop").hidden = !active();
    byId("stop").disabled = state === "stopping";
    byId("train").disabled = active();
    byId("progress").value = now.total ? now.done / now.total : 0;
    const text = SAID[state]?.(now) ?? "";
    if (byId("training-status").textContent !== text) byId("training-status").textContent = text;
    byId("training-status").classList.toggle("problem", state === "failed");
    byId("accuracy").dataset.state = state;
    plots.forEach((plot) => plot.refresh());
  }

  async function follow() {
    for (;;) {
      show(await (await Studio.wire.ask("/api/train")).json());
      if (!active()) return;
      await new Promise((done) => setTimeout(done, AFTER));
    }
  }
  const guarded = (act) => async () => {
    try {
      await act();
    } catch (error) {
      show({ state: "failed", runs, error: error.message, done: 0, total: 0 });
    }
  };

  byId("train").addEventListener(
    "click",
    guarded(async () => {
      byId("accuracy").hidden = false;
      byId("train").disabled = true;
      byId("accuracy").scrollIntoView({ block: "start" });
      const sides = Studio.state.sides.map((_, at) => Studio.link.values(Studio.state, at));
      show(await (await Studio.wire.ask("/api/train", { sides })).json());
      await follow();
    }),
  );
  byId("stop").addEventListener(
    "click",
    guarded(async () => {
      show(await (await Studio.wire.ask("/api/stop", {})).json());
    }),
  );

  Studio.training = {
    redraw: () => plots.forEach((plot) => plot.refresh()),
    begin: () => {
      byId("train").hidden = start.saved;
      byId("h-accuracy").textContent = `Accuracy, trained on ${start.data}`;
      if (start.saved) {
        if (curves().length) show({ state: "idle", runs, done: 0, total: 0 });
      } else guarded(follow)(); // one may be under way from before a reload
    },
  };
})();
