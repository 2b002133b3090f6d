"use strict";
// Talking to the studio's server.  Of several requests about one scheduler the newest counts, here and there.
(() => {
  const page = Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("");
  const TYPES = { Int32Array, Int16Array, Uint16Array, Int8Array, Uint8Array, Float32Array };
  let number = 0;

  function decode(buffer) {
    const size = new DataView(buffer).getUint32(0, true);
    const { columns, ...facts } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
    const plan = { facts };
    for (const [name, [kind, offset, length]] of Object.entries(columns)) {
      const [room, column] = name.split(".");
      (plan[room] ??= {})[column] = new TYPES[kind](buffer, 4 + size + offset, length);
    }
    return plan;
  }

  function send(path, body, signal) {
    return fetch(path, {
      method: body === undefined ? "GET" : "POST",
      signal,
      cache: "no-store",
      credentials: "same-origin",
      headers: { "Content-Type": "application/json", "X-Studio-Token": Studio.start.token },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  }

  // The sentence about an answer that is none.
  async function complaint(answer) {
    const text = await answer.text();
    try {
      return JSON.parse(text).error ?? text;
    } catch {
      return text.replace(/^pipecycle: /, "").trim();
    }
  }
  const GONE = "The studio does not answer any more: its command has ended.";

  async function ask(path, body) {
    let answer;
    try {
      answer = await send(path, body);
    } catch {
      throw new Error(GONE);
    }
    if (!answer.ok) throw new Error(await complaint(answer));
    return answer;
  }

  // One per scheduler: the request under way, and what to ask for next.
  class Line {
    constructor(side) {
      Object.assign(this, { side, busy: null, asked: "", next: null });
    }

    // `now` drops what is under way; otherwise it is drawn first, so that a slider that moves shows something.
    want(values, now, changed) {
      const key = JSON.stringify(values);
      if (key === this.asked) {
        this.next = null;
        return;
      }
      this.next = { values, key, changed };
      if (now && this.busy) this.busy.abort();
      if (now || !this.busy) this.go();
    }

    forget() {
      this.busy?.abort();
      Object.assign(this, { busy: null, asked: "", next: null });
    }

    async go() {
      const { values, key, changed } = this.next;
      const stop = new AbortController();
      Object.assign(this, { busy: stop, asked: key, next: null });
      const sent = performance.now();
      try {
        const answer = await send("/api/plan", { page, side: this.side, number: ++number, values }, stop.signal);
        if (answer.status === 409) return;
        if (!answer.ok) throw new Error(await complaint(answer));
        const buffer = await answer.arrayBuffer();
        if (this.busy !== stop) return;
        const received = performance.now();
        const plan = decode(buffer);
        Studio.tell("plan", { side: this.side, plan, times: { changed, sent, received, bytes: buffer.byteLength } });
      } catch (error) {
        if (this.busy !== stop || error.name === "AbortError") return;
        Studio.tell("problem", { side: this.side, text: error instanceof TypeError ? GONE : error.message });
      } finally {
        if (this.busy === stop) {
          this.busy = null;
          if (this.next) this.go();
          else Studio.tell("quiet");
        }
      }
    }
  }

  const lines = { a: new Line("a"), b: new Line("b") };

  // Plans that travelled inside a saved page.
  const saved = () =>
    Array.from(document.querySelectorAll("script.plan"), (node) => {
      const letters = atob(node.textContent);
      const bytes = new Uint8Array(letters.length);
      for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
      return decode(bytes.buffer);
    });

  Studio.wire = { ask, lines, saved, busy: () => Boolean(lines.a.busy || lines.b.busy) };
})();
