"use strict";
// What every other file uses.  One name is global: Studio.
const Studio = { start: JSON.parse(document.getElementById("start").textContent) };
(() => {
  const SIDES = ["a", "b"];
  const byId = (id) => document.getElementById(id);

  // An element with properties; dataset, aria and events go by their own names.
  function make(tag, props = {}, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(props)) {
      if (key === "data") Object.assign(node.dataset, value);
      else if (key === "on") Object.entries(value).forEach(([name, act]) => node.addEventListener(name, act));
      else if (key.startsWith("aria-") || ["role", "for", "scope"].includes(key)) node.setAttribute(key, value);
      else node[key] = value;
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }

  const count = (value) => Math.round(value).toLocaleString("en");
  // A figure with as many digits as help.
  function figure(value) {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    if (Number.isInteger(value) || Math.abs(value) >= 1000) return count(value);
    return String(Number(value.toPrecision(3)));
  }
  const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

  // A, B, ..., Z, AA for chain 1, 2, ...; a dot for none.
  function letter(chain) {
    let name = "";
    for (; chain > 0; chain = Math.floor((chain - 1) / 26)) name = String.fromCharCode(65 + ((chain - 1) % 26)) + name;
    return name || "·";
  }
  const chainColour = (chain) =>
    chain > 0 ? Studio.start.chains[(chain - 1) % Studio.start.chains.length] : theme.none;

  // Black or white, whichever is easier to read on a colour.
  const inkOn = (colour) => {
    const [r, g, b] = [1, 3, 5].map((at) => (parseInt(colour.slice(at, at + 2), 16) / 255) ** 2.2);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#111" : "#fff";
  };

  // Colours of the page, read again when it turns light or dark.
  const theme = {};
  const dark = matchMedia("(prefers-color-scheme: dark)");
  function readTheme() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["paper", "card", "ink", "soft", "line", "accent", "focus", "none", "danger", "veil"]) {
      theme[name] = style.getPropertyValue(`--${name}`).trim();
    }
    theme.sides = [style.getPropertyValue("--side-a").trim(), style.getPropertyValue("--side-b").trim()];
  }
  readTheme();

  // What happens is told by name, so that files need not know each other.
  const listeners = {};
  const on = (name, act) => (listeners[name] ??= []).push(act);
  const tell = (name, value) => (listeners[name] ?? []).forEach((act) => act(value));
  dark.addEventListener("change", () => {
    readTheme();
    tell("theme");
  });

  // Panels stand in the order of their schedulers, whoever is planned first.
  const hang = (host, panel, side) => (side === "a" ? byId(host).prepend(panel) : byId(host).append(panel));

  function say(text) {
    byId("spoken").textContent = text;
  }

  Object.assign(Studio, {
    SIDES,
    byId,
    make,
    count,
    figure,
    plural,
    letter,
    chainColour,
    theme,
    on,
    tell,
    say,
    hang,
    inkOn,
    plans: { a: null, b: null }, // what was planned last, by side
    problems: { a: "", b: "" }, // why the newest settings could not be planned
    shown: () => SIDES.filter((side) => Studio.plans[side] !== null),
    name: (side) => Studio.plans[side].facts.policy,
  });
})();
