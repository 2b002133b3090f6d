// All plots by the id of their element; `group` marks those of a single scheduler.
const plots = new Map();
const add = (id, build, group = null) => plots.set(id, { build, group, node: document.getElementById(id), near: false });

function panel(host, kind, k, build, alt, buttons, about = "") {
  const label = data.groups[k].label, id = `plot-${kind}-${k}`;
  const figure = document.createElement("figure");
  figure.dataset.panel = k;
  const head = figure.appendChild(document.createElement("div"));
  head.className = "panel-head";
  head.appendChild(document.createElement("h3")).textContent = label;
  if (about) head.appendChild(Object.assign(document.createElement("span"), { className: "about", textContent: about }));
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
  // On paper a plot is as wide as its column, which is not the window's.
  const size = printing ? { width: plot.node.clientWidth, height: plot.node.clientHeight } : {};
  const bar = narrow.matches || printing ? false : "hover";
  Plotly.react(plot.node, traces, { ...wanted, ...size }, { ...config, responsive: !printing, displayModeBar: bar });
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
function accuracy(axis, unit, title) {
  const range = span(data.curves[axis]);
  const marks = rules(axis === "energy", range, document.getElementById(`plot-${axis}`).clientHeight - 60);
  return [lines(data.curves[axis], unit), layout(title, "accuracy", {
    ...marks, xaxis: { rangemode: "tozero" },
    yaxis: { ticksuffix: narrow.matches ? "" : " %", range, zeroline: false },
  })];
}
if (data.differences.length) {
  add("plot-differences", differences);
  document.getElementById("plot-differences").style.height = `${narrow.matches ? 70 + 46 * data.differences.length : 94 + 36 * data.differences.length}px`;
}
if (data.curves.slot.some(Boolean)) {
  add("plot-slot", () => accuracy("slot", "slots", "slots"));
  add("plot-energy", () => accuracy("energy", "units", "energy spent by the fleet (units)"));
  if (data.target === null || data.groups.length === 1) document.getElementById("figure-target").hidden = true;
  else {
    document.getElementById("target-title").textContent = `Energy to reach ${data.target} % accuracy`;
    add("plot-target", toTarget);
  }
}
if (data.panels.some((panel) => panel.classes)) {
  add("plot-classes", byClass);
  document.getElementById("plot-classes").style.height = `${64 + 34 * data.groups.length}px`;
}
if (data.panels.some((panel) => panel.clients.x.length)) {
  add("plot-clients", () => [hover("%{y:.1f} % for client number %{x}, the worst served first")(simple("clients", "lines+markers", "linear")()),
    layout("clients, worst served first", "accuracy on its classes", { yaxis: { ticksuffix: " %" } })]);
}
if (data.holdings.z) add("plot-holdings", held);
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
  const m = data.panels[k].mixing;
  panel("relays", "mixing", k, m.share ? relay : null, m.share
    ? `Chains in the models that the server adopted under ${group.label}: ${m.slot.length} models from ${m.chain.length} chains; ` +
      `on average a model draws on ${m.sources} of them.`
    : `${m.reason.replace(/\.$/, "")}.`, [], m.share ? `${m.sources.toFixed(1)} chains in a model` : "");
  const last = b.z ? b.z.map((row) => row.at(-1)) : [];
  panel("batteries", "battery", k, b.z ? heat : null, b.z
    ? `Battery levels under ${group.label}: at the end ${Math.min(...last)} to ${Math.max(...last)} units, ` +
      `${(last.reduce((sum, one) => sum + one, 0) / last.length).toFixed(1)} on average.`
    : `Battery levels are not known: ${b.reason}.`, []);
});
for (const id of ["plot-target", "plot-purpose"]) {
  const node = document.getElementById(id);
  const count = data.groups.length, row = count < 4 ? 50 : data.groups.some((group) => group.label.length > 14) ? 34 : 20;
  if (count > 12 || count < 4 || row * count > 240) node.style.height = `${100 + row * count}px`;
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
function print(on) {
  printing = on;
  document.documentElement.classList.toggle("printing", on);
  readTheme();
  swatches();
  if (on) plots.forEach((plot) => { plot.near = true; });
  plots.forEach((plot) => { if (!on && plot.node._fullLayout) Plotly.purge(plot.node); });
  drawAll();
}
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
