"use strict";
// Settings change, plans come in, pictures follow.
(() => {
  const { start, byId, SIDES, wire } = Studio;
  let drawn = 0;

  function place(state) {
    const { stretch } = Studio.time;
    state.view = stretch.chosen ? { from: Math.round(stretch.from), to: Math.round(stretch.to) } : {};
    if (Studio.battery.chosen() !== null) state.view.client = Studio.battery.chosen();
    if (byId("rows").value === "client") state.view.rows = "client";
  }

  // The address always says what is shown; it replaces itself, so that Back leaves the studio.
  let noting = 0;
  function note() {
    clearTimeout(noting);
    noting = setTimeout(() => {
      place(Studio.state);
      history.replaceState(null, "", `#${Studio.link.link(Studio.state)}`);
    }, 150);
  }

  // `at` is the scheduler that changed, none for both; `now` when the change is complete.
  function changed(now, at) {
    const when = performance.now();
    SIDES.forEach((side, k) => {
      if (k >= Studio.state.sides.length) {
        remove(side);
        return;
      }
      if (at === undefined || at === k) wire.lines[side].want(Studio.link.values(Studio.state, k), now, when);
    });
    status();
    note();
  }

  function remove(side) {
    wire.lines[side].forget();
    if (Studio.plans[side] === null && !Studio.problems[side]) return;
    Studio.plans[side] = null;
    Studio.problems[side] = "";
    redraw(side);
    rest();
  }

  function redraw(side) {
    document.body.classList.toggle("two", Studio.shown().length > 1);
    document.body.classList.toggle("some", Studio.shown().length > 0);
    if (Studio.shown().length) Studio.time.fit();
    Studio.pipeline.show(side);
    for (const other of Studio.shown()) if (other !== side) Studio.pipeline.show(other); // the stretch may have moved
  }

  // Everything but the pipelines, which are painted first.
  function rest() {
    for (const side of SIDES) Studio.battery.show(side);
    Studio.charts.show();
    Studio.training.redraw();
    if (Studio.shown().length) Studio.time.strip.refresh();
    Studio.words.show();
    Studio.pipeline.table();
  }

  // A message to oneself comes after the frame has been painted.
  function afterPaint(act) {
    requestAnimationFrame(() => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = act;
      port2.postMessage(0);
    });
  }

  let unpainted = 0; // plans of which only the pipeline is there
  Studio.on("plan", ({ side, plan, times }) => {
    Studio.plans[side] = plan;
    Studio.problems[side] = "";
    redraw(side);
    const ready = performance.now();
    unpainted++;
    afterPaint(() => {
      const painted = performance.now();
      unpainted--;
      if (!unpainted) rest();
      status();
      document.body.dataset.drawn = ++drawn;
      Studio.last = { ...times, ready, painted, complete: performance.now(), took: plan.facts.took, side };
      document.dispatchEvent(new CustomEvent("drawn", { detail: Studio.last }));
    });
  });
  Studio.on("problem", ({ side, text }) => {
    Studio.problems[side] = text;
    Studio.words.notices();
    status();
  });
  Studio.on("quiet", () => status());
  Studio.on("view", note);
  Studio.on("stretch", note);

  function status() {
    document.body.dataset.busy = wire.busy() || unpainted > 0;
    if (start.saved) {
      byId("status").textContent = "A saved page";
      return;
    }
    const took = Studio.shown()
      .map((side) => `${Math.round(Studio.plans[side].facts.took.plan)} ms`)
      .join(" and ");
    byId("status").textContent = SIDES.some((side) => Studio.problems[side])
      ? "These settings cannot be planned"
      : took
        ? `planned in ${took}`
        : "planning";
  }

  byId("copy-link").addEventListener("click", () => {
    place(Studio.state);
    const home = start.saved ? "" : location.origin + location.pathname;
    Studio.words.copy(`${home}#${Studio.link.link(Studio.state)}`, byId("copy-link"));
  });
  byId("save-page").addEventListener("click", async () => {
    place(Studio.state);
    const sides = Studio.state.sides.map((_, at) => Studio.link.values(Studio.state, at));
    try {
      const page = await (await wire.ask("/api/export", { sides, view: Studio.state.view })).blob();
      const to = Studio.make("a", {
        href: URL.createObjectURL(page),
        download: `studio-${Studio.state.sides.map((side) => side.policy).join("-")}.html`,
      });
      to.click();
      setTimeout(() => URL.revokeObjectURL(to.href), 10_000);
      Studio.say("Saved.");
    } catch (error) {
      Studio.tell("problem", { side: "a", text: error.message });
    }
  });

  function view({ from, to, client, rows }) {
    if (rows === "client") byId("rows").value = "client";
    if (Number.isFinite(from) && Number.isFinite(to)) Object.assign(Studio.time.stretch, { from, to, chosen: true });
    if (Number.isInteger(client) && client >= 0) Studio.battery.choose(client);
  }

  function open(link) {
    Studio.state = Studio.link.parse(link) ?? Studio.link.parse(start.link);
    view(Studio.state.view);
    Studio.controls.render(Studio.state, changed);
  }

  const narrow = matchMedia("(max-width: 60rem)");
  const unfold = () => {
    byId("settings").open = !narrow.matches;
  };
  narrow.addEventListener("change", unfold);
  unfold();
  byId("save-page").hidden = start.saved;
  if (start.saved) {
    open(start.link);
    wire.saved().forEach((plan, at) => {
      Studio.plans[SIDES[at]] = plan;
    });
    Studio.shown().forEach(redraw);
    rest();
    status();
    document.body.dataset.drawn = ++drawn;
  } else {
    open(location.hash);
    changed(true);
    addEventListener("hashchange", () => {
      Studio.time.stretch.chosen = false;
      open(location.hash);
      changed(true);
    });
  }
  Studio.training.begin();
})();
