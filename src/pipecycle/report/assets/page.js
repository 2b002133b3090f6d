"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set();
  const coarse = matchMedia("(pointer: coarse)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 40rem)");
  const config = {
    responsive: true, displaylogo: false, showTips: false, doubleClick: "reset",
    // Named one by one: plotly's own choice has a button that uploads the plot.
    modeBarButtons: [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]], plotlyServerURL: "",
  };
  const shown = () => data.groups.map((_, k) => k).filter((k) => !hidden.has(k));
  const count = (value) => Math.round(value).toLocaleString("en");
  let theme = {};

  function readTheme() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    theme = {
      ink: get("--ink"), soft: get("--soft"), line: get("--line"), paper: get("--paper"), card: get("--card"),
      focus: get("--focus"), band: Number(get("--band")),
    };
  }
  const colour = (k) => (data.groups[k].colour === "ink" ? theme.ink : data.groups[k].colour);
  function veil(k) {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour(k).slice(at, at + 2), 16));
    return `rgba(${r},${g},${b},${theme.band})`;
  }

  // Layouts.
  function layout(x, y, more = {}) {
    const axis = {
      gridcolor: theme.line, linecolor: theme.soft, zerolinecolor: theme.line, automargin: true,
      ticks: "outside", tickcolor: theme.line, separatethousands: true,
    };
    const { xaxis = {}, yaxis = {}, ...rest } = more;
    return {
      font: { family: "system-ui, sans-serif", size: narrow.matches ? 12 : 13, color: theme.ink },
      paper_bgcolor: theme.paper, plot_bgcolor: theme.paper,
      margin: { l: 52, r: 14, t: 12, b: 44 }, showlegend: false,
      // A finger must be able to scroll the page across a plot.
      dragmode: coarse.matches ? false : "zoom", hovermode: "closest",
      hoverlabel: { align: "left", bgcolor: theme.card, bordercolor: theme.line, font: { color: theme.ink } },
      xaxis: { ...axis, title: { text: x, standoff: 8 }, ...xaxis },
      yaxis: { ...axis, title: { text: y, standoff: 8 }, ...yaxis },
      uirevision: "kept", ...rest,
    };
  }

  // Curves: one line and one band per scheduler.
  function lines(curve, unit) {
    const traces = [];
    for (const k of shown()) {
      const line = curve[k];
      if (!line || !line.sd) continue;
      const edge = { type: "scatter", mode: "lines", line: { width: 0 }, hoverinfo: "skip", meta: k };
      traces.push({ ...edge, x: line.x, y: line.mean.map((value, at) => value - line.sd[at]) });
      traces.push({
        ...edge, x: line.x, y: line.mean.map((value, at) => value + line.sd[at]), fill: "tonexty", fillcolor: veil(k),
      });
    }
    for (const k of shown()) {
      const line = curve[k];
      if (!line) continue;
      const group = data.groups[k];
      traces.push({
        type: "scatter", mode: "lines+markers", x: line.x, y: line.mean, name: group.label, meta: k,
        line: { color: colour(k), dash: group.dash, width: 2.2 },
        marker: { symbol: group.marker, size: 8, color: colour(k), maxdisplayed: 9, line: { width: 0 } },
        customdata: line.x.map((_, at) => (line.sd ? ` ± ${line.sd[at].toFixed(1)}` : "")),
        hovertemplate: `<b>${escape(group.label)}</b><br>%{y:.1f}%{customdata} % at %{x:,.0f} ${unit}` +
          `<br>${line.trials} trial${line.trials > 1 ? "s" : ""}<extra></extra>`,
      });
    }
    return traces;
  }
  const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");

  function rules(budget) {
    const shapes = [], annotations = [];
    const rule = { type: "line", line: { color: theme.soft, width: 1, dash: "dot" }, layer: "below" };
    const note = { showarrow: false, font: { size: 11, color: theme.soft }, bgcolor: theme.paper, opacity: 0.85, borderpad: 1 };
    for (const one of data.references) {
      shapes.push({ ...rule, xref: "paper", x0: 0, x1: 1, y0: one.accuracy, y1: one.accuracy });
      annotations.push({
        ...note, xref: "paper", x: 0.005, xanchor: "left", y: one.accuracy, yanchor: "bottom",
        text: `${escape(one.name)} ${one.accuracy.toFixed(1)} %`,
      });
    }
    if (data.target !== null) {
      shapes.push({ ...rule, xref: "paper", x0: 0, x1: 1, y0: data.target, y1: data.target });
      annotations.push({
        ...note, xref: "paper", x: 0.995, xanchor: "right", y: data.target, yanchor: "top", text: `target ${data.target} %`,
      });
    }
    if (budget && data.budget !== null) {
      shapes.push({ ...rule, yref: "paper", y0: 0, y1: 1, x0: data.budget, x1: data.budget });
      annotations.push({
        ...note, yref: "paper", y: 0.02, yanchor: "bottom", x: data.budget, xanchor: "right", text: "budget",
      });
    }
    return { shapes, annotations };
  }

  const simple = (key, mode, shape) => () => shown().map((k) => {
    const group = data.groups[k], panel = data.panels[k][key];
    return {
      type: "scatter", mode, x: panel.x, y: panel.y, name: group.label, meta: k,
      line: { color: colour(k), dash: group.dash, width: 2, shape },
      marker: { symbol: group.marker, size: 8, color: colour(k), maxdisplayed: 14 },
    };
  });
  const hover = (template) => (traces) => traces.map((trace) => ({
    ...trace, hovertemplate: `<b>${escape(trace.name)}</b><br>${template}<extra></extra>`,
  }));

  const short = (k) => {
    const label = data.groups[k].label, room = narrow.matches ? 14 : 26;
    return escape(label.length > room ? `${label.slice(0, room - 1)}…` : label);
  };
  const names = (kept) => ({
    tickvals: kept.map((_, at) => at), ticktext: kept.map(short), range: [kept.length - 0.4, -0.6],
    title: { text: "" }, showgrid: false, fixedrange: true, zeroline: false,
  });

  function toTarget() {
    const kept = shown();
    const traces = kept.flatMap((k, at) => {
      const row = data.rows[k], group = data.groups[k];
      if (row.energy_to_target === null) return [];
      const about = `<b>${escape(group.label)}</b><br>${count(row.energy_to_target)} units and ` +
        `${count(row.slots_to_target)} slots<br>${row.reached} of ${row.trials} trials<extra></extra>`;
      const bar = {
        type: "bar", orientation: "h", y: [at], x: [row.energy_to_target], meta: k, name: group.label, width: 0.62,
        marker: { color: colour(k) }, hovertemplate: about,
      };
      const marks = {
        type: "scatter", mode: "markers", y: row.energy_to_target_by_trial.map(() => at), meta: k,
        x: row.energy_to_target_by_trial, hovertemplate: "one trial: %{x:,.0f} units<extra></extra>",
        marker: { symbol: "circle", size: 7, color: theme.paper, line: { color: theme.ink, width: 1.4 } },
      };
      return row.reached === row.trials ? [bar, marks] : [marks];
    });
    const none = kept.flatMap((k, at) => {
      const row = data.rows[k];
      if (row.reached === row.trials) return [];
      const text = row.reached ? ` ${row.reached} of ${row.trials} trials` : " not reached";
      return [{ x: 0, y: at, xanchor: "left", text, showarrow: false, font: { color: theme.soft } }];
    });
    return [traces, layout("energy (units)", "", {
      yaxis: names(kept), xaxis: { rangemode: "tozero" }, annotations: none, barmode: "overlay",
    })];
  }

  const PURPOSES = [
    ["training", "training", "#0072B2", ""], ["to_hub", "to hubs", "#E69F00", "/"],
    ["to_server", "to the server", "#009E73", "x"],
    ["download", "downloads", "#56B4E9", "."], ["lost", "lost", "#D55E00", "\\"],
  ];
  function byPurpose() {
    const kept = shown();
    const paid = PURPOSES.filter(([key], at) => at < 3 || kept.some((k) => data.rows[k][key]));
    const traces = paid.map(([key, name, fill, shape]) => ({
      type: "bar", orientation: "h", name, y: kept.map((_, at) => at), x: kept.map((k) => data.rows[k][key]),
      customdata: kept.map((k) => data.groups[k].label), width: 0.62,
      marker: { color: fill, pattern: { shape, size: 5, solidity: 0.35, fgcolor: theme.paper, fillmode: "overlay" } },
      hovertemplate: `<b>%{customdata}</b><br>${name}: %{x:,.0f} units<extra></extra>`,
    }));
    return [traces, layout("energy (units)", "", {
      barmode: "stack", yaxis: names(kept), showlegend: true, margin: { l: 52, r: 14, t: 34, b: 44 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
    })];
  }

  // The pipeline: bars on lanes, hand-overs as arrows.
  function gantt(k) {
    const p = data.panels[k].pipeline, traces = [];
    const rows = p.lanes.length, server = rows + Math.max(0.1, rows / 30), legible = rows <= 16;
    const kinds = new Map();
    p.start.forEach((_, at) => {
      const key = `${p.chain[at] % data.chains.length}/${p.chain[at] ? 1 : 0}/${p.state[at]}`;
      if (!kinds.has(key)) kinds.set(key, []);
      kinds.get(key).push(at);
    });
    for (const bars of kinds.values()) {
      const first = bars[0], state = p.state[first];
      const fill = p.chain[first] ? data.chains[(p.chain[first] - 1) % data.chains.length] : theme.soft;
      traces.push({
        type: "bar", orientation: "h", meta: k, width: 0.78,
        y: bars.map((at) => p.lane[at]), base: bars.map((at) => p.start[at]),
        x: bars.map((at) => p.end[at] - p.start[at] + 1),
        text: bars.map((at) => (legible ? p.letter[at] : "")), textposition: "inside", insidetextanchor: "middle",
        textangle: 0,
        insidetextfont: { color: p.chain[first] ? "#111" : theme.paper, size: 11 }, constraintext: "inside",
        marker: {
          color: fill, opacity: state === "flying" ? 0.45 : 1, line: { color: theme.paper, width: 1 },
          pattern: { shape: state === "unused" ? "/" : "", fgcolor: "#333", size: 6, solidity: 0.3, fillmode: "overlay" },
        },
        hovertext: bars.map((at) => `${p.about[at]}<br>chain ${p.letter[at]}`), hoverinfo: "text",
      });
    }
    // Thin lines for what only a few members of a group took on; both reach half a slot into the bars.
    for (const main of [0, 1]) {
      const x = [], y = [], size = [];
      for (const [start, lane, end, to, first] of p.handovers) {
        if (first !== main) continue;
        x.push(start - 0.5, end + 0.5 + (end - start < 2), null);
        y.push(lane, to, null);
        size.push(5, 10, 0);
      }
      if (!x.length) continue;
      traces.push({
        type: "scatter", mode: "lines+markers", meta: k, x, y, hoverinfo: "skip", opacity: main ? 1 : 0.3,
        line: { color: theme.ink, width: main ? 1.4 : 0.8 },
        marker: {
          symbol: x.map((_, at) => (at % 3 === 1 ? "arrow" : "circle")), angleref: "previous", color: theme.ink,
          size: main ? size : size.map((one) => one / 2), line: { width: main, color: theme.paper },
        },
      });
    }
    traces.push({
      type: "scatter", mode: "markers", meta: k, x: p.published.map((slot) => slot + 1), y: p.published.map(() => server),
      marker: { symbol: "diamond", size: 8, color: theme.focus },
      hovertemplate: "the server adopts a version in slot %{customdata}<extra></extra>", customdata: p.published,
    });
    const step = Math.ceil((rows + 1) / 14);
    const ticks = p.lanes.map((_, at) => at).filter((at) => at % step === 0 && at + 0.7 * step < server).concat(server);
    return [traces, layout("slot", "", {
      dragmode: coarse.matches ? false : "pan", barmode: "overlay", bargap: 0.2,
      margin: { l: 60, r: 10, t: 8, b: 40 },
      xaxis: {
        range: [p.first - 2, p.first + p.view], minallowed: p.first - 10, maxallowed: p.last + 12, zeroline: false,
      },
      yaxis: {
        tickvals: ticks, ticktext: ticks.map((at) => (at === server ? "server" : p.lanes[at])),
        range: [server + Math.max(0.7, rows / 30), -0.7], fixedrange: true, showgrid: false, zeroline: false, title: { text: "" },
      },
    })];
  }

  const fullest = (() => {
    const all = data.panels.flatMap((panel) => (panel.battery.z || []).flat()).sort((a, b) => a - b);
    return all.length ? Math.max(1, all[Math.floor(0.99 * (all.length - 1))]) : 1;
  })();
  function heat(k) {
    const b = data.panels[k].battery;
    const single = b.y.every((name) => !name.includes(" "));
    return [[{
      type: "heatmap", meta: k, x: b.x, y: b.y.map((_, at) => at), z: b.z, zmin: 0, zmax: fullest,
      colorscale: "Cividis", customdata: b.z.map((row, at) => row.map(() => b.y[at])),
      colorbar: { thickness: 10, outlinewidth: 0, tickfont: { color: theme.ink }, title: { text: "units", font: { size: 11 } } },
      hovertemplate: `client${single ? "" : "s"} %{customdata}${single ? "" : " (mean)"}<br>slot %{x:,}: %{z:,.1f} units<extra></extra>`,
    }], layout("slot", "client", {
      margin: { l: 52, r: 10, t: 8, b: 40 },
      yaxis: single ? { showgrid: false } : {
        showgrid: false, tickvals: [0, b.y.length - 1], ticktext: [b.y[0].split(" ")[0], b.y.at(-1).split(" ").at(-1)],
      },
      xaxis: { showgrid: false },
    })];
  }

  // All plots by the id of their element; `group` marks those of a single scheduler.
  const plots = new Map();
  const add = (id, build, group = null) => plots.set(id, { build, group, node: document.getElementById(id), near: false });

  function panel(host, kind, k, build, alt, buttons) {
    const label = data.groups[k].label, id = `plot-${kind}-${k}`;
    const figure = document.createElement("figure");
    figure.dataset.panel = k;
    const head = figure.appendChild(document.createElement("div"));
    head.className = "panel-head";
    head.appendChild(document.createElement("h3")).textContent = label;
    if (build === null) {
      figure.appendChild(Object.assign(document.createElement("p"), { className: "reason", textContent: alt }));
    } else {
      for (const [face, name, act] of buttons) {
        const button = head.appendChild(document.createElement("button"));
        button.type = "button";
        button.textContent = face;
        button.setAttribute("aria-label", `${name}: ${label}`);
        button.addEventListener("click", () => act(id));
      }
      const node = figure.appendChild(document.createElement("div"));
      Object.assign(node, { id, className: "plot" });
      node.dataset.alt = alt;
    }
    document.getElementById(host).appendChild(figure);
    if (build !== null) add(id, () => build(k), k);
  }

  function move(id, shift, zoom) {
    const node = document.getElementById(id);
    if (!node._fullLayout) return;
    const axis = node._fullLayout.xaxis, [left, right] = axis.range.map(Number);
    const middle = (left + right) / 2 + shift * (right - left), half = ((right - left) / 2) * zoom;
    Plotly.relayout(node, { "xaxis.range": [middle - half, middle + half] });
  }
  function reset(id) {
    const plot = plots.get(id), [, wanted] = plot.build();
    Plotly.relayout(plot.node, wanted.xaxis.range
      ? { "xaxis.range": wanted.xaxis.range }
      : { "xaxis.autorange": true, ...(wanted.yaxis.range ? {} : { "yaxis.autorange": true }) });
  }
  const ZOOM = [
    ["◀", "Earlier", (id) => move(id, -0.5, 1)], ["▶", "Later", (id) => move(id, 0.5, 1)],
    ["+", "Zoom in", (id) => move(id, 0, 0.5)], ["−", "Zoom out", (id) => move(id, 0, 2)], ["↺", "Reset", reset],
  ];
  const KEYS = {
    ArrowLeft: (id) => move(id, -0.25, 1), ArrowRight: (id) => move(id, 0.25, 1), "+": (id) => move(id, 0, 0.5),
    "=": (id) => move(id, 0, 0.5), "-": (id) => move(id, 0, 2), 0: reset,
  };

  function draw(plot) {
    if (!plot.near || (plot.group !== null && hidden.has(plot.group))) return;
    const [traces, wanted] = plot.build();
    Plotly.react(plot.node, traces, wanted, { ...config, displayModeBar: narrow.matches ? false : "hover" });
  }
  const drawAll = () => plots.forEach(draw);

  function swatches() {
    document.querySelectorAll("[data-swatch]").forEach((svg) => {
      const k = Number(svg.dataset.swatch), group = data.groups[k];
      const dashes = { solid: "", dash: "7 3", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 3", longdashdot: "11 3 2 3" };
      const dash = dashes[group.dash] ?? group.dash.replaceAll("px", "");
      const points = {
        circle: '<circle cx="17" cy="6" r="4"/>', square: '<rect x="13.5" y="2.5" width="7" height="7"/>',
        diamond: '<path d="M17 1l5 5-5 5-5-5z"/>', "triangle-up": '<path d="M17 1l5 9H12z"/>',
        "triangle-down": '<path d="M17 11l5-9H12z"/>', pentagon: '<path d="M17 1l5 4-2 6h-6l-2-6z"/>',
        x: '<path d="M13 3.5L14.5 2 17 4.5 19.500 2 21 3.500 18.500 6 21 8.500 19.500 10 17 7.500 14.500 10 13 8.500 15.500 6z"/>',
        star: '<path d="M17 .5l1.500 3.900 4.200.2-3.300 2.600 1.100 4.100L17 9l-3.500 2.300 1.100-4.100-3.300-2.600 4.200-.2z"/>',
        cross: '<path d="M15.500 1h3v3.500H22v3h-3.500V11h-3V7.500H12v-3h3.500z"/>',
      };
      svg.innerHTML = `<g fill="${colour(k)}" stroke="none"><line x1="0" y1="6" x2="34" y2="6" stroke="${colour(k)}" ` +
        `stroke-width="2.2" stroke-dasharray="${dash}"/>${points[group.marker]}</g>`;
    });
  }

  function toggled() {
    document.querySelectorAll("[data-group]").forEach((box) => {
      const k = Number(box.dataset.group);
      if (box.checked) hidden.delete(k); else hidden.add(k);
    });
    document.querySelectorAll("[data-panel]").forEach((figure) => { figure.hidden = hidden.has(Number(figure.dataset.panel)); });
    drawAll();
    const left = shown().length;
    document.getElementById("status").textContent = left === data.groups.length
      ? "" : `${left} of ${data.groups.length} schedulers shown.`;
  }

  // Assembly.
  const accuracy = { yaxis: { ticksuffix: narrow.matches ? "" : " %" } };
  if (data.curves.slot.some(Boolean)) {
    add("plot-slot", () => [lines(data.curves.slot, "slots"),
      layout("slots", "accuracy", { ...accuracy, ...rules(false), xaxis: { rangemode: "tozero" } })]);
    add("plot-energy", () => [lines(data.curves.energy, "units"),
      layout("energy spent by the fleet (units)", "accuracy", { ...accuracy, ...rules(true), xaxis: { rangemode: "tozero" } })]);
    if (data.target === null) document.getElementById("figure-target").hidden = true;
    else {
      document.getElementById("target-title").textContent = `Energy to reach ${data.target} % accuracy`;
      add("plot-target", toTarget);
    }
  }
  add("plot-purpose", byPurpose);
  add("plot-coverage", () => [hover("%{y} clients after %{x:,} slots")(simple("coverage", "lines+markers", "hv")()),
    layout("slots", "clients", { yaxis: { rangemode: "tozero" }, xaxis: { rangemode: "tozero" } })]);
  add("plot-lag", () => [hover("lag %{x}: %{y:.1f} % of updates")(simple("lag", "lines+markers", "linear")()),
    layout("lag (versions)", "share of updates", { yaxis: { rangemode: "tozero", ticksuffix: " %" } })]);
  add("plot-participation", () => [hover("client number %{x} by activity: %{y} sessions")(simple("participation", "lines+markers", "linear")()),
    layout("clients, busiest first", "sessions", { yaxis: { rangemode: "tozero" } })]);
  data.groups.forEach((group, k) => {
    const p = data.panels[k].pipeline, b = data.panels[k].battery;
    panel("pipelines", "pipeline", k, p.start.length ? gantt : null, p.start.length
      ? `Pipeline of ${group.label}: ${p.start.length} ${p.by === "group" ? "groups" : "sessions"} on ${p.lanes.length} ` +
        `${p.by === "group" ? "lanes" : "clients"}, slots ${p.first} to ${p.last}, ${p.handovers.length} hand-overs, ` +
        `${p.published.length} versions adopted by the server.`
      : "Nobody trained.", ZOOM);
    const last = b.z ? b.z.map((row) => row.at(-1)) : [];
    panel("batteries", "battery", k, b.z ? heat : null, b.z
      ? `Battery levels under ${group.label}: at the end ${Math.min(...last)} to ${Math.max(...last)} units, ` +
        `${(last.reduce((sum, one) => sum + one, 0) / last.length).toFixed(1)} on average.`
      : `Battery levels are not known: ${b.reason}.`, []);
  });
  for (const id of ["plot-target", "plot-purpose"]) {
    const node = document.getElementById(id);
    if (data.groups.length > 12) node.style.height = `${100 + 20 * data.groups.length}px`;
  }
  readTheme();
  swatches();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watcher.unobserve(entry.target);
      const plot = plots.get(entry.target.id);
      plot.near = true;
      draw(plot);
    }
  }, { rootMargin: "800px 0px" });
  plots.forEach((plot, id) => {
    Object.assign(plot.node, { tabIndex: 0 });
    plot.node.setAttribute("role", "img");
    plot.node.setAttribute("aria-label", plot.node.dataset.alt);
    plot.node.addEventListener("keydown", (event) => {
      if (KEYS[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); KEYS[event.key](id); }
    });
    watcher.observe(plot.node);
  });
  document.querySelectorAll("[data-group]").forEach((box) => box.addEventListener("change", toggled));
  const setAll = (value) => () => {
    document.querySelectorAll("[data-group]").forEach((box) => { box.checked = value; });
    toggled();
  };
  document.getElementById("all").addEventListener("click", setAll(true));
  document.getElementById("none").addEventListener("click", setAll(false));
  toggled(); // a browser may restore boxes after a reload
  dark.addEventListener("change", () => { readTheme(); swatches(); drawAll(); });
  addEventListener("beforeprint", () => { plots.forEach((plot) => { plot.near = true; }); drawAll(); });
})();
