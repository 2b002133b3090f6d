// What every plot shows: functions that return traces and a layout.  page.js draws them.
const data = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set();
const coarse = matchMedia("(pointer: coarse)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 40rem)");
const config = {
  responsive: true, displaylogo: false, showTips: false, doubleClick: "reset+autosize",
  // Named one by one: plotly's own choice has a button that uploads the plot.
  modeBarButtons: [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]], plotlyServerURL: "",
};
const shown = () => data.groups.map((_, k) => k).filter((k) => !hidden.has(k));
// As the tables round: by the binary value (57.65 is more than it looks, 68.35 less), and true ties to even.
const EVEN = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1, roundingMode: "halfEven", useGrouping: false });
const tenths = (value) => (Number.isInteger(4 * value) ? EVEN.format(value) : value.toFixed(1));
const count = (value) => Math.round(value).toLocaleString("en");
let theme = {}, printing = false;

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
    ticks: "outside", tickcolor: theme.line, separatethousands: true, tickfont: { size: printing ? 9 : 12 },
  };
  const { xaxis = {}, yaxis = {}, ...rest } = more;
  return {
    font: { family: "system-ui, sans-serif", size: printing ? 10 : narrow.matches ? 12 : 13, color: theme.ink },
    paper_bgcolor: theme.paper, plot_bgcolor: theme.paper,
    margin: { l: 52, r: 14, t: 12, b: 44 }, showlegend: false,
    // A finger must be able to scroll the page across a plot.
    dragmode: coarse.matches ? false : "zoom", hovermode: "closest",
    hoverlabel: { align: "left", bgcolor: theme.card, bordercolor: theme.line, font: { color: theme.ink } },
    xaxis: { ...axis, title: { text: x, standoff: 8, font: { size: printing ? 10 : 13 } }, ...xaxis },
    yaxis: { ...axis, title: { text: y, standoff: 8, font: { size: printing ? 10 : 13 } }, ...yaxis },
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
      customdata: line.x.map((_, at) => (line.sd ? ` ± ${tenths(line.sd[at])}` : "")),
      hovertemplate: `<b>${escape(group.label)}</b><br>%{y:.1f}%{customdata} % at %{x:,.0f} ${unit}` +
        `<br>${line.trials} trial${line.trials > 1 ? "s" : ""}<extra></extra>`,
    });
  }
  return traces;
}
const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");

// The range where schedulers differ: what the first third of a run goes through counts only if it is near.
function span(curve) {
  const kept = shown().map((k) => curve[k]).filter(Boolean);
  if (!kept.length) return [0, 100];
  const end = Math.max(...kept.map((line) => line.x.at(-1)));
  const edges = (first) => kept.flatMap((line) => line.mean.flatMap((value, at) => (
    line.x[at] < first * end && at < line.x.length - 1 ? [] : [value - (line.sd?.[at] ?? 0), value + (line.sd?.[at] ?? 0)])));
  const all = edges(0), late = kept.length > 1 ? edges(0.3) : all;
  let low = Math.min(...late), high = Math.min(100, Math.max(...all));
  for (const mark of [...data.references.map((one) => one.accuracy), data.target ?? high]) {
    if (mark > low - 15) { low = Math.min(low, mark); high = Math.max(high, mark); }
  }
  if (Math.min(...all) > low - 10) low = Math.min(low, ...all);
  const room = Math.max(1, 0.05 * (high - low));
  return [Math.max(0, low - room), Math.min(102, high + room)];
}

// Lines across the plot and their names, in a plot of so many pixels.  Names are pushed up until none covers another,
// and the range grows by what they need above its end.
function rules(budget, range, height) {
  const shapes = [], annotations = [], perPoint = height / (range[1] - range[0]);
  let taken = -Infinity;
  const rule = { type: "line", line: { color: theme.soft, width: 1, dash: "dot" }, layer: "below" };
  const note = { showarrow: false, font: { size: 11, color: theme.soft }, bgcolor: theme.paper, opacity: 0.85, borderpad: 1 };
  const marks = data.references.map((one) => [one.accuracy, `${escape(one.name)} ${tenths(one.accuracy)} %`]);
  if (data.target !== null) marks.push([data.target, `target ${data.target} %`]);
  for (const [value, text] of marks.sort((a, b) => a[0] - b[0])) {
    const below = value < range[0], at = Math.max(0, (value - range[0]) * perPoint), place = Math.max(at + 1, taken + 16);
    taken = place;
    if (!below) shapes.push({ ...rule, xref: "paper", x0: 0, x1: 1, y0: value, y1: value });
    annotations.push({
      ...note, xref: "paper", x: 0.005, xanchor: "left", y: below ? range[0] : value, yanchor: "bottom",
      yshift: place - at, text: below ? `${text} ↓` : text,
    });
  }
  if (budget && data.budget !== null) {
    shapes.push({ ...rule, yref: "paper", y0: 0, y1: 1, x0: data.budget, x1: data.budget });
    annotations.push({
      ...note, yref: "paper", y: 0.02, yanchor: "bottom", x: data.budget, xanchor: "right", text: "budget",
    });
  }
  if (taken + 16 > height) range[1] += (taken + 16 - height) / perPoint;
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

// Names on an axis: those of variants differ at their ends, so a long one takes two lines before it is cut.
const cut = (text, room) => escape(text.length > room ? `${text.slice(0, room - 1)}…` : text);
function broken(k) {
  const [first, ...words] = data.groups[k].label.split(" "), room = narrow.matches ? 14 : 26, lines = [first];
  while (words.length && `${lines[0]} ${words[0]}`.length <= room) lines[0] += ` ${words.shift()}`;
  if (words.length) lines.push(words.join(" "));
  return lines.map((line) => cut(line, room)).join("<br>");
}
const names = (kept) => ({
  tickvals: kept.map((_, at) => at), ticktext: kept.map(broken), range: [kept.length - 0.4, -0.6],
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
  ["training", "training", "#5F6B76", ""], ["to_hub", "to hubs", "#98A3AD", "/"],
  ["to_server", "to the server", "#BFC7CE", "x"],
  ["download", "downloads", "#3D464E", "."], ["lost", "lost", "#A9542F", "\\"],
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

// Paired differences: a mark per trial, the mean and its interval.
const minus = (value) => `${value < 0 ? "−" : value > 0 ? "+" : "±"}${tenths(Math.abs(value))}`;
function told(line) {
  if (line.group === line.best) return `best, ${tenths(line.accuracy)} %`;
  if (line.mean === null) return "no common trial";
  if (line.low !== null) return `${minus(line.mean)} (${minus(line.low)} to ${minus(line.high)})`;
  if (line.trials.length === 1) return `${minus(line.mean)}, one trial`;
  return line.mean === 0 ? "equal in every trial" : `${minus(line.mean)} in every trial`;
}
function differences() {
  const kept = data.differences.filter((line) => !hidden.has(line.group));
  const points = [0, ...kept.flatMap((line) => [...line.trials, line.mean ?? 0])];
  const low = Math.min(...points), high = Math.max(...points), room = Math.max(0.5, high - low);
  const edge = (value) => Math.min(Math.max(value, low - 0.8 * room), high + 0.8 * room);
  const ends = kept.flatMap((line) => (line.low === null ? [] : [edge(line.low), edge(line.high)])).concat(points);
  const range = [Math.min(...ends) - 0.06 * room, Math.max(...ends) + 0.06 * room];
  const traces = kept.flatMap((line, at) => {
    const k = line.group, shade = colour(k), sure = line.low !== null && (line.low > 0 || line.high < 0);
    if (k === line.best || line.mean === null) return [];
    const about = `<b>${escape(data.groups[k].label)}</b> against ${escape(data.groups[line.best].label)}<br>${told(line)} points`;
    return [{
      type: "scatter", mode: "lines", meta: k, hoverinfo: "skip", line: { color: shade, width: 3 },
      x: line.low === null ? [] : [line.low, line.high], y: line.low === null ? [] : [at, at],
    }, {
      type: "scatter", mode: "markers", meta: k, x: line.trials, y: line.trials.map(() => at + 0.24),
      hovertemplate: "one trial: %{x:+.1f} points<extra></extra>",
      marker: { symbol: "line-ns-open", size: 9, color: shade, line: { width: 1.5 } },
    }, {
      type: "scatter", mode: "markers", meta: k, x: [line.mean], y: [at], hovertemplate: `${about}<extra></extra>`,
      marker: { symbol: "circle", size: 12, color: sure ? shade : theme.paper, line: { color: shade, width: 2.5 } },
    }];
  });
  // Where there is room the numbers stand beside the picture, else above each line.
  const letters = Math.floor(document.getElementById("plot-differences").clientWidth / 6.2);
  const notes = kept.map((line, at) => ({
    text: told(line), showarrow: false, font: { size: printing ? 10 : narrow.matches ? 11 : 13, color: theme.soft },
    ...(narrow.matches
      ? {
        xref: "paper", x: 0, xanchor: "left", y: at - 0.42, yanchor: "middle",
        text: `<b>${cut(data.groups[line.group].label, Math.max(14, letters - told(line).length))}</b>  ${told(line)}`,
      }
      : { xref: "paper", x: 1.01, xanchor: "left", y: at, yanchor: "middle" }),
  }));
  const width = narrow.matches ? 14 : 24 + (printing ? 5.5 : 7) * Math.max(0, ...kept.map((line) => told(line).length));
  return [traces, layout("points of accuracy against the best", "", {
    annotations: notes, margin: { l: narrow.matches ? 14 : 52, r: width, t: narrow.matches || printing ? 8 : 32, b: 44 },  // buttons above numbers
    shapes: [{ type: "line", yref: "paper", y0: 0, y1: 1, x0: 0, x1: 0, line: { color: theme.soft, width: 1 }, layer: "below" }],
    xaxis: { range, zeroline: false },
    yaxis: {
      ...names(kept.map((line) => line.group)), showticklabels: !narrow.matches, ticks: narrow.matches ? "" : "outside",
      range: [kept.length - 0.4, narrow.matches ? -0.75 : -0.6],
    },
  })];
}

// Classes: accuracy by scheduler, and who holds what.
const SHADES = [[0, "#f3f5f7"], [0.5, "#9dbdd3"], [1, "#1d5c87"]];
const bar = (title) => ({
  thickness: 10, outlinewidth: 0, tickfont: { color: theme.ink, size: 11 }, title: { text: title, font: { size: 11 } }, ticksuffix: " %",
});
function byClass() {
  const kept = shown().filter((k) => data.panels[k].classes);
  const z = kept.map((k) => data.panels[k].classes), count = Math.max(0, ...z.map((row) => row.length));
  const cells = z.flat().filter((value) => value !== null), legible = count <= (narrow.matches ? 10 : 20);
  return [[{
    type: "heatmap", meta: kept, x: [...Array(count).keys()], y: kept.map((_, at) => at), z, xgap: 2, ygap: 2,
    zmin: Math.min(0.9 * Math.max(...cells), Math.min(...cells)), zmax: 100, colorscale: SHADES, showscale: false,
    customdata: kept.map((k) => Array(count).fill(escape(data.groups[k].label))),
    hovertemplate: "<b>%{customdata}</b><br>class %{x}: %{z:.1f} %<extra></extra>",
    ...(legible ? { texttemplate: "%{z:.0f}", textfont: { size: narrow.matches || printing ? 10 : 13 } } : {}),
  }], layout("class", "", {
    yaxis: names(kept), xaxis: { showgrid: false, zeroline: false, ticks: "", ...(count <= 20 ? { dtick: 1 } : {}) },
  })];
}
function held() {
  const h = data.holdings, single = h.x.every((name) => !name.includes(" "));
  return [[{
    type: "heatmap", x: h.x.map((_, at) => at), y: h.z.map((_, at) => at), z: h.z, zmin: 0, zmax: 100, colorscale: SHADES,
    colorbar: bar("of its samples"), customdata: h.z.map(() => h.x),
    hovertemplate: `client${single ? "" : "s"} %{customdata}, class %{y}: %{z:.0f} %<extra></extra>`,
  }], layout("client", "class", {
    xaxis: {
      showgrid: false, zeroline: false,
      ...(single ? {} : { tickvals: [0, h.x.length - 1], ticktext: [h.x[0].split(" ")[0], h.x.at(-1).split(" ").at(-1)] }),
    },
    yaxis: { showgrid: false, zeroline: false, autorange: "reversed", ...(h.z.length <= 20 ? { dtick: h.z.length <= 10 ? 1 : 2 } : {}) },
  })];
}

// The relay: every adopted model, and the chains that its updates come from.
function relay(k) {
  const m = data.panels[k].mixing, x = m.slot.map((_, at) => at + 1);
  const traces = m.chain.map((chain, at) => ({
    type: "bar", meta: k, name: m.letter[at], x, y: m.share[at], customdata: m.slot,
    marker: { color: chain ? data.chains[(chain - 1) % data.chains.length] : theme.soft, line: { color: theme.paper, width: 0.5 } },
    hovertemplate: `model %{x}, adopted in slot %{customdata:,}<br>%{y:.0f} % from chain ${m.letter[at]}<extra></extra>`,
  }));
  return [traces, layout(m.whole ? "adopted models, in order" : `the first ${x.length} adopted models`, "", {
    barmode: "stack", bargap: 0, margin: { l: 52, r: 10, t: 8, b: 40 },
    yaxis: { range: [0, 100], ticksuffix: " %", fixedrange: true, showgrid: false }, xaxis: { zeroline: false },
    ...(m.chain.length > 12 ? {} : {
      showlegend: true, margin: { l: 52, r: 10, t: 30, b: 40 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal", itemclick: false },
    }),
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
