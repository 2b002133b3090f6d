"use strict";
// The settings: as they are, in the address's fragment, and as the server takes them.
(() => {
  const { start } = Studio;
  const HARVEST = { key: "world.harvest", kind: "text", default: "bernoulli:0.5" };
  const shared = [...start.world, HARVEST, ...start.training];
  const inLink = (key) => key.replace(/^world\./, "");

  const settingsOf = (policy) => start.policies[policy]?.settings ?? [];

  // A value from text, by the kind of its control; what makes no sense stays text, and the server says so.
  function read(control, text) {
    if (text === "none" && control.optional) return null;
    if (control.kind === "flag") return text === "true";
    if (["whole", "number", "either"].includes(control.kind) && text.trim() !== "" && !Number.isNaN(Number(text))) {
      return Number(text);
    }
    return text;
  }

  function parse(link) {
    const given = new URLSearchParams(link.replace(/^#/, ""));
    const state = { shared: {}, sides: [], view: {} };
    for (const control of shared) {
      const text = given.get(inLink(control.key));
      state.shared[control.key] = text === null ? control.default : read(control, text);
    }
    for (const side of Studio.SIDES) {
      const policy = given.get(side);
      if (policy === null) continue;
      const known = Object.fromEntries(settingsOf(policy).map((control) => [control.key, control]));
      const settings = {};
      for (const [key, text] of given) {
        if (!key.startsWith(`${side}.`)) continue;
        const name = `policy.${key.slice(2)}`;
        settings[name] = known[name] ? read(known[name], text) : text;
      }
      state.sides.push({ policy, settings });
    }
    if (!state.sides.length) return null;
    for (const name of ["from", "to", "client"]) if (given.has(name)) state.view[name] = Number(given.get(name));
    if (given.has("rows")) state.view.rows = given.get("rows");
    return state;
  }

  const word = (value) => (value === null ? "none" : String(value));

  // Whatever differs from the defaults.
  function link(state) {
    const pairs = new URLSearchParams();
    for (const control of shared) {
      const value = state.shared[control.key];
      if (value !== control.default) pairs.set(inLink(control.key), word(value));
    }
    state.sides.forEach((side, at) => {
      pairs.set(Studio.SIDES[at], side.policy);
      for (const [key, value] of Object.entries(own(side)))
        pairs.set(`${Studio.SIDES[at]}.${key.slice(7)}`, word(value));
    });
    for (const [name, value] of Object.entries(state.view))
      if (value !== null && value !== undefined) pairs.set(name, value);
    return pairs.toString().replaceAll("%3A", ":").replaceAll("%2C", ",");
  }

  // A scheduler's settings that say something else than its defaults do.
  function own(side) {
    const known = Object.fromEntries(settingsOf(side.policy).map((control) => [control.key, control]));
    return Object.fromEntries(
      Object.entries(side.settings).filter(([key, value]) => !known[key] || known[key].default !== value),
    );
  }

  function values(state, at) {
    const changed = shared.filter((control) => state.shared[control.key] !== control.default);
    return {
      policy: state.sides[at].policy,
      ...Object.fromEntries(changed.map((control) => [control.key, state.shared[control.key]])),
      ...own(state.sides[at]),
    };
  }

  Studio.link = { parse, link, values, settingsOf };
})();
