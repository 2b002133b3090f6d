"use strict";
// Controls, built from the fields that they set.
(() => {
  const { start, make, byId } = Studio;
  let serial = 0;

  // Sliders count in steps; some by powers, because what they span is wide.
  const STEPS = 1000;
  function scale(control) {
    const { low, high, powers, kind } = control;
    const whole = kind === "whole";
    const least =
      control.above !== null && control.above !== undefined && low <= control.above ? (high - low) / 100 : low;
    if (powers) {
      return {
        min: 0,
        max: STEPS,
        step: 1,
        to: (value) => Math.round((STEPS * Math.log(Math.max(value, low) / low)) / Math.log(high / low)),
        from: (place) => {
          const value = low * (high / low) ** (place / STEPS);
          return whole ? Math.round(Number(value.toPrecision(2))) || 1 : Number(value.toPrecision(2));
        },
      };
    }
    const step = whole ? 1 : Number(((high - low) / 100).toPrecision(1));
    return { min: least, max: high, step, to: (value) => value, from: (place) => Number(Number(place).toPrecision(6)) };
  }

  // `set(value, now)`: `now` when the change is complete, not while a slider moves.
  function numeric(control, id, get, set) {
    const by = scale(control);
    const slider = make("input", {
      type: "range",
      min: by.min,
      max: by.max,
      step: by.step,
      "aria-label": `${control.label}, slider`,
    });
    const box = make("input", { type: "number", id, step: control.kind === "whole" ? 1 : "any" });
    const least = control.least ?? control.above;
    if (least !== null && least !== undefined) box.min = least;
    const speak = () => slider.setAttribute("aria-valuetext", box.value); // its place is no figure
    function show() {
      const value = get();
      box.value = typeof value === "number" ? value : "";
      if (typeof value !== "number") return;
      const place = by.to(value);
      if (!control.powers && place > Number(slider.max)) slider.max = place;
      slider.value = place;
      speak();
    }
    slider.addEventListener("input", () => {
      box.value = by.from(slider.value);
      speak();
      set(Number(box.value), false);
    });
    slider.addEventListener("change", () => {
      box.value = by.from(slider.value);
      set(Number(box.value), true);
    });
    box.addEventListener("change", () => {
      if (box.value !== "") {
        set(Number(box.value), true);
        show();
      }
    });
    return {
      parts: [box, slider],
      show,
      enable: (able) => {
        box.hidden = slider.hidden = !able;
      },
    };
  }

  // A number that may be left to the scheduler.
  function optional(control, id, get, set) {
    const inner = numeric(control, id, get, set);
    const auto = make("input", { type: "checkbox" });
    const middle = Math.max(
      control.low,
      Math.min(control.high, control.powers ? Math.sqrt(control.low * control.high) : 10),
    );
    let last = control.kind === "whole" ? Math.round(middle) : Number(middle.toPrecision(1));
    function show() {
      const value = get();
      auto.checked = value === null;
      if (value !== null) last = value;
      inner.enable(value !== null);
      inner.show();
    }
    auto.addEventListener("change", () => {
      set(auto.checked ? null : last, true);
      show();
    });
    const word = control.key.startsWith("policy.") ? "auto" : "none";
    const label = make("label", { className: "auto" }, auto, word);
    auto.setAttribute("aria-label", `${control.label}: ${word === "auto" ? "let the scheduler choose" : "none"}`);
    return { parts: [label, ...inner.parts], show };
  }

  // A number, or one of some words.
  function either(control, id, get, set) {
    const inner = numeric(control, `${id}-number`, get, set);
    inner.parts[0].setAttribute("aria-label", control.label);
    const pick = make(
      "select",
      { id },
      make("option", { value: "" }, "a number"),
      ...control.choices.map((word) => make("option", { value: word }, word)),
    );
    let last = typeof control.default === "number" ? control.default : control.high;
    function show() {
      const value = get();
      pick.value = typeof value === "number" ? "" : value;
      if (typeof value === "number") last = value;
      inner.enable(typeof value === "number");
      inner.show();
    }
    pick.addEventListener("change", () => {
      set(pick.value === "" ? last : pick.value, true);
      show();
    });
    return { parts: [pick, ...inner.parts], show };
  }

  function choice(control, id, get, set) {
    const pick = make("select", { id }, ...control.choices.map((word) => make("option", { value: word }, word)));
    pick.addEventListener("change", () => set(pick.value, true));
    return {
      parts: [pick],
      show: () => {
        pick.value = get();
      },
    };
  }

  function flag(control, id, get, set) {
    const box = make("input", { type: "checkbox", id });
    box.addEventListener("change", () => set(box.checked, true));
    return {
      parts: [box],
      show: () => {
        box.checked = get();
      },
    };
  }

  function text(control, id, get, set) {
    const box = make("input", { type: "text", id, maxLength: 200, spellcheck: false });
    box.addEventListener("change", () => set(box.value.trim(), true));
    return {
      parts: [box],
      show: () => {
        box.value = get() ?? "";
      },
    };
  }

  function build(control, get, set) {
    const id = `control-${++serial}`;
    const kinds = { flag, choice, either, text };
    const made = (kinds[control.kind] ?? (control.optional ? optional : numeric))(control, id, get, set);
    const note = control.note ? make("p", { className: "note", id: `${id}-note` }, control.note) : null;
    if (note)
      for (const part of made.parts) if (part.matches("input, select")) part.setAttribute("aria-describedby", note.id);
    made.show();
    return make(
      "div",
      { className: `control ${control.kind}${control.optional ? " optional" : ""}`, data: { key: control.key } },
      make("label", { for: id, className: "name" }, control.label),
      ...made.parts,
      note,
    );
  }

  // Where energy comes from: a word, then its figures.
  function harvest(get, set) {
    const kinds = start.harvests;
    const byWord = (word) => kinds.find((kind) => kind.word === word);
    function read(spec) {
      const whole = kinds.find((kind) => kind.whole && kind.word === spec);
      if (whole) return { kind: whole, given: {} };
      const [word, ...rest] = spec.split(":");
      const kind = byWord(word),
        parts = rest.length ? rest.join(":").split(",") : [];
      const given = {};
      for (const part of parts) {
        const [key, value] = part.includes("=") ? part.split("=") : [null, part];
        const control =
          key === null ? kind?.figures[Object.keys(given).length] : kind?.options.find((one) => one.key === key);
        if (!control) return { kind: byWord(""), given: { spec } };
        given[control.key] = control.kind === "number" ? Number(value) : value;
      }
      const complete = kind && kind.word && kind.figures.every((control) => control.key in given);
      return complete ? { kind, given } : { kind: byWord(""), given: { spec } };
    }
    function write(kind, given) {
      if (kind.whole) return kind.word;
      if (kind.word === "") return given.spec;
      const words = kind.figures.map((control) => given[control.key]);
      for (const control of kind.options) if (control.key in given) words.push(`${control.key}=${given[control.key]}`);
      return words.length ? `${kind.word}:${words.join(",")}` : kind.word;
    }
    const id = `control-${++serial}`;
    const pick = make("select", { id }, ...kinds.map((kind, at) => make("option", { value: at }, kind.label)));
    const fields = make("div");
    let { kind, given } = read(get());
    function show() {
      pick.value = kinds.indexOf(kind);
      fields.replaceChildren(
        ...[...kind.figures, ...kind.options].map((control) =>
          build(
            control,
            () => given[control.key] ?? control.default,
            (value, now) => {
              given[control.key] = value;
              set(write(kind, given), now);
            },
          ),
        ),
      );
    }
    pick.addEventListener("change", () => {
      const before = write(kind, given);
      kind = kinds[Number(pick.value)];
      const usual = [...kind.figures, ...kind.options].map((control) => [
        control.key,
        given[control.key] ?? control.default,
      ]);
      given = kind.word === "" ? { spec: before } : Object.fromEntries(usual);
      show();
      set(write(kind, given), true);
    });
    show();
    return [
      make(
        "div",
        { className: "control choice", data: { key: "world.harvest" } },
        make("label", { for: id, className: "name" }, "Energy comes from"),
        pick,
      ),
      fields,
    ];
  }

  function scheduler(state, at, changed) {
    const side = state.sides[at],
      name = Studio.SIDES[at].toUpperCase();
    const id = `control-${++serial}`;
    const pick = make(
      "select",
      { id, className: "policy" },
      ...Object.keys(start.policies).map((policy) => make("option", { value: policy }, policy)),
    );
    if (!start.policies[side.policy]) pick.append(make("option", { value: side.policy }, side.policy));
    pick.value = side.policy;
    pick.addEventListener("change", () => {
      const kept = side.settings,
        known = new Set(Studio.link.settingsOf(pick.value).map((control) => control.key));
      side.policy = pick.value;
      side.settings = Object.fromEntries(Object.entries(kept).filter(([key]) => known.has(key)));
      changed(true, at);
      Studio.controls.render(state, changed);
      byId("controls").querySelectorAll("select.policy")[at].focus();
    });
    const remove =
      at === 1
        ? make(
            "button",
            {
              type: "button",
              className: "small",
              on: {
                click: () => {
                  state.sides.length = 1;
                  changed(true, at);
                  Studio.controls.render(state, changed);
                  byId("add-scheduler").focus();
                },
              },
            },
            "Remove",
          )
        : null;
    const controls = Studio.link.settingsOf(side.policy).map((control) =>
      build(
        control,
        () => (control.key in side.settings ? side.settings[control.key] : control.default),
        (value, now) => {
          side.settings[control.key] = value;
          changed(now, at);
        },
      ),
    );
    return make(
      "fieldset",
      { className: `scheduler side-${Studio.SIDES[at]}` },
      make("legend", {}, `Scheduler ${name}`),
      remove,
      make(
        "div",
        { className: "control" },
        make("label", { for: id, className: "name unseen" }, `Scheduler ${name}`),
        pick,
        make("p", { className: "note" }, start.policies[side.policy]?.about ?? ""),
      ),
      ...controls,
    );
  }

  // `changed(now, at)`: `at` is the scheduler whose settings changed, none if all are touched.
  function render(state, changed) {
    const fields = (controls) =>
      controls.map((control) =>
        build(
          control,
          () => state.shared[control.key],
          (value, now) => {
            state.shared[control.key] = value;
            changed(now);
          },
        ),
      );
    const world = make(
      "fieldset",
      {},
      make("legend", {}, "World"),
      start.fleet &&
        make("p", { className: "note" }, `Devices come from ${start.fleet}; settings that it states are fixed.`),
      ...fields(start.world.slice(0, 3)),
      ...harvest(
        () => state.shared["world.harvest"],
        (spec, now) => {
          state.shared["world.harvest"] = spec;
          changed(now);
        },
      ),
      ...fields(start.world.slice(3)),
    );
    const add =
      state.sides.length === 1
        ? make(
            "button",
            {
              type: "button",
              id: "add-scheduler",
              on: {
                click: () => {
                  const other = Object.keys(start.policies).find(
                    (policy) => policy === "pipecycle+" && policy !== state.sides[0].policy,
                  );
                  const policy = other ?? Object.keys(start.policies).find((name) => name !== state.sides[0].policy);
                  const known = new Set(Studio.link.settingsOf(policy).map((control) => control.key));
                  const settings = Object.fromEntries(
                    Object.entries(state.sides[0].settings).filter(([key]) => known.has(key)),
                  );
                  state.sides.push({ policy, settings });
                  changed(true, 1);
                  render(state, changed);
                  byId("controls").querySelectorAll("select.policy")[1].focus();
                },
              },
            },
            "Compare with a second scheduler",
          )
        : null;
    const training = make("fieldset", {}, make("legend", {}, `Training on ${start.data}`), ...fields(start.training));
    const all = make(
      "fieldset",
      { className: "all", disabled: start.saved },
      make("legend", { className: "unseen" }, "Settings"),
      ...state.sides.map((_, at) => scheduler(state, at, changed)),
      add,
      world,
      training,
    );
    byId("controls").replaceChildren(all);
  }

  Studio.controls = { render, build };
})();
