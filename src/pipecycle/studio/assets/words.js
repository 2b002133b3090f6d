"use strict";
// Figures, notices, and what can be taken along: command, file and digest.
(() => {
  const { byId, make, count, figure } = Studio;
  const percent = (part) => (part === null ? null : 100 * part);

  // Label, value, unit; the first six are the tiles.
  const FIGURES = [
    ["Aggregations", (f) => f.figures.aggregations],
    ["Energy spent", (f) => f.figures.energy.spent, "units"],
    ["Mean lag", (f) => f.figures.lag.mean, "versions"],
    ["Largest step", (f) => f.step.ratio_max, "× limit"],
    ["Narrowest chain", (f) => f.figures.chains.coverage_min, "clients"],
    ["Fairness (Jain)", (f) => f.figures.fairness],
    ["Sessions", (f) => f.figures.sessions],
    ["Wasted sessions", (f) => f.figures.wasted],
    ["Updates per aggregation", (f) => f.figures.group_size.mean],
    ["Versions published", (f) => f.figures.published],
    ["Groups at once, most", (f) => f.figures.max_concurrent_groups],
    ["Largest lag", (f) => f.figures.lag.max, "versions"],
    ["Mean step", (f) => f.step.ratio_mean, "× limit"],
    ["Chains", (f) => f.figures.chains.count],
    ["Depth of the longest chain", (f) => f.figures.chains.depth_max, "aggregations"],
    ["Clients that took part", (f) => f.figures.participants],
    ["Energy harvested", (f) => f.figures.energy.harvested, "units"],
    ["… for training", (f) => f.figures.spent_on.training, "units"],
    ["… to hubs", (f) => f.figures.spent_on.to_hub, "units"],
    ["… to the server", (f) => f.figures.spent_on.to_server, "units"],
    ["… downloads", (f) => f.figures.spent_on.download ?? null, "units"],
    ["… lost", (f) => f.figures.spent_on.lost ?? null, "units"],
    ["… stored at the end", (f) => f.figures.energy.stored, "units"],
    ["… overflowed", (f) => f.figures.energy.overflowed, "units"],
    ["… idled away", (f) => f.figures.energy.idle ?? null, "units"],
    ["… leaked", (f) => f.figures.energy.leaked ?? null, "units"],
    [
      "Share of harvest spent",
      (f) => percent(f.figures.energy.harvested ? f.figures.energy.spent / f.figures.energy.harvested : null),
      "%",
    ],
    ["Slots", (f) => f.slots],
  ];

  function difference(a, b) {
    if (typeof a !== "number" || typeof b !== "number") return "";
    if (a === b) return "same";
    if (figure(a) === figure(b)) return "about the same";
    const by = b - a,
      sign = by > 0 ? "+" : "−",
      part = a ? Math.abs((100 * by) / a) : null;
    return `${sign}${figure(Math.abs(by))}${part === null || part >= 1000 ? "" : ` (${sign}${part < 10 ? part.toFixed(1) : Math.round(part)} %)`}`;
  }

  function tiles() {
    const sides = Studio.shown();
    byId("tiles").replaceChildren(
      ...FIGURES.slice(0, 6).map(([name, value, unit]) => {
        const values = sides.map((side) => value(Studio.plans[side].facts));
        const danger =
          name === "Largest step"
            ? (one) => one > 1 + 1e-6
            : name === "Narrowest chain"
              ? (one, side) => one < Studio.plans[side].facts.figures.participants
              : () => false;
        return make(
          "div",
          { className: "tile" },
          make("dt", {}, name),
          ...values.map((one, at) =>
            make(
              "dd",
              { className: `side-${sides[at]}${danger(one, sides[at]) ? " wrong" : ""}` },
              make("span", { className: "unseen" }, sides.length > 1 ? `${Studio.name(sides[at])}: ` : ""),
              make("b", {}, figure(one)),
              at === 0 && unit && one !== null ? make("small", {}, unit) : null,
              at === 1 ? make("small", {}, difference(values[0], one)) : null,
            ),
          ),
        );
      }),
    );
  }

  function table() {
    const sides = Studio.shown(),
      two = sides.length > 1;
    const head = make(
      "tr",
      {},
      make("th", { scope: "col" }, "Figure"),
      ...sides.map((side) => make("th", { scope: "col" }, Studio.charts.label(side))),
      two ? make("th", { scope: "col" }, "Difference") : null,
    );
    const rows = FIGURES.map(([name, value, unit]) => {
      const values = sides.map((side) => value(Studio.plans[side].facts));
      if (values.every((one) => one === null)) return null;
      return make(
        "tr",
        {},
        make("th", { scope: "row" }, name, unit ? make("small", {}, ` ${unit}`) : null),
        ...values.map((one, at) => make("td", { data: { head: Studio.charts.label(sides[at]) } }, figure(one))),
        two ? make("td", { data: { head: "Difference" } }, difference(...values)) : null,
      );
    });
    const caption = two
      ? `The same weather for both; the difference is ${Studio.name("b")} less ${Studio.name("a")}.`
      : "What the schedule comes to.";
    const lists = sides.map((side) =>
      make(
        "details",
        {},
        make("summary", {}, `${Studio.charts.label(side)} in sentences`),
        make(
          "dl",
          { className: "sentences" },
          ...Object.entries(Studio.plans[side].facts.sentences).flatMap(([name, text]) => [
            make("dt", {}, name),
            make("dd", {}, text),
          ]),
        ),
      ),
    );
    byId("summary").replaceChildren(
      make(
        "div",
        { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Figures" },
        make(
          "table",
          {},
          make("caption", {}, caption),
          make("thead", {}, head),
          make("tbody", {}, ...rows.filter(Boolean)),
        ),
      ),
      ...lists,
    );
  }

  // Copying, with a word about it; a browser may refuse.
  async function copy(text, button) {
    let done = "Copied";
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = make("textarea", { value: text, className: "unseen" });
      document.body.append(area);
      area.select();
      if (!document.execCommand("copy")) done = "Not allowed";
      area.remove();
    }
    const before = button.dataset.word ?? (button.dataset.word = button.textContent);
    button.textContent = done;
    Studio.say(`${done}: ${button.getAttribute("aria-label") ?? before}`);
    setTimeout(() => {
      button.textContent = before;
    }, 1200);
  }

  function take(what, text, side, long = false) {
    const name = `${what}, ${Studio.charts.label(side)}`;
    const button = make("button", { type: "button", className: "small", "aria-label": `Copy ${name}` }, "Copy");
    button.addEventListener("click", () => copy(text, button));
    return make(
      "div",
      { className: "take" },
      make("div", { className: "take-head" }, make("span", {}, what), button),
      make("pre", { tabIndex: 0, className: long ? "long" : "", role: "region", "aria-label": name }, text),
    );
  }

  function takes() {
    byId("takes").replaceChildren(
      ...Studio.shown().map((side) => {
        const { commands, toml, figures } = Studio.plans[side].facts;
        return make(
          "div",
          { className: "panel", data: { side } },
          make("h3", { className: `side-${side}` }, Studio.charts.label(side)),
          take("Command", commands.plan, side),
          take("Command that also trains it", commands.run, side),
          take("Digest of the schedule", figures.digest, side),
          take("config.toml", toml, side, true),
        );
      }),
    );
  }

  function notices() {
    const found = [];
    if (Studio.start.saved) {
      found.push(
        make(
          "p",
          {},
          "A saved page: the pictures move, the settings are fixed. ",
          make("code", {}, Studio.start.again),
          " opens them to change.",
        ),
      );
    }
    for (const side of Studio.SIDES) {
      if (Studio.problems[side]) {
        const old = Studio.plans[side] ? " The pictures show the last settings that worked." : "",
          stop = /[.!?]$/.test(Studio.problems[side]) ? "" : ".";
        found.push(
          make(
            "p",
            { className: `problem side-${side}`, role: "alert" },
            make("b", {}, `Scheduler ${side.toUpperCase()}: `),
            Studio.problems[side] + stop + old,
          ),
        );
      } else if (Studio.plans[side]) {
        for (const text of Studio.plans[side].facts.warnings) {
          found.push(make("p", { className: "worth" }, make("b", {}, `${Studio.name(side)}: `), text));
        }
      }
    }
    const host = byId("notices");
    if (found.map((node) => node.textContent).join() !== Array.from(host.children, (node) => node.textContent).join())
      host.replaceChildren(...found); // said once
    for (const node of document.querySelectorAll(".panel[data-side]"))
      node.classList.toggle("old", Boolean(Studio.problems[node.dataset.side]));
  }

  function show() {
    if (Studio.shown().length) {
      tiles();
      table();
      takes();
    }
    notices();
  }

  Studio.words = { show, notices, copy, count };
})();
