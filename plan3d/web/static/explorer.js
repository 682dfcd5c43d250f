"use strict";
// The answer of a search that moves under one's hands: sliders, the table of plans, and the plan
// that is chosen. The page, its frozen copy (the report) and the widget of a notebook are this one
// explorer; they differ in who answers.
//
// ask(what, whatIf, more, signal) gives a promise of a record of plan3d: "search", "estimate",
// "explain" of two plans, "timeline", "export"; null where there is none. A slider is {name, label, values: [[value,
// text]], at: the place that was asked for}; `whatIf` holds the value of each that was moved.

const PATIENCE = 300; // ms of rest after which the details of a plan are asked for

function explorer(root, { ask, sliders: slidersFrom, columns = [], wait = 120,
                          compares = true,
                          sentence = () => "", changed = () => {}, refused = () => {},
                          busy = () => {} }) {
  const all = [...COLUMNS, ...columns];
  const state = { at: {}, chosen: null, against: null, column: "step", falling: false,
                  record: null, asked: null };
  let sliders = [];
  let request = new AbortController(), timer = 0;
  const parts = skeleton();
  root.replaceChildren(...Object.values(parts.sections));

  // ---- what is asked

  function whatIf() {
    return Object.fromEntries(sliders.filter(({ name, at }) => state.at[name] !== at)
      .map(({ name, values }) => [name, values[state.at[name]][0]]));
  }

  // Whether the plans may be others; a slider that is `apart` does not rank them.
  function isMoved() { return sliders.some(({ name, at, apart }) => !apart && state.at[name] !== at); }

  // Asks the question as it stands, then moves the sliders to a what-if.
  async function start({ whatIf: moves = {}, chosen: plan = null, against = null } = {}) {
    sliders = [];
    Object.assign(state, { at: {}, chosen: plan, against });
    await search((record) => {
      state.asked = record;
      sliders = slidersFrom(record);
      showSliders(moves);
      return isMoved();
    });
    if (isMoved()) await search();
  }

  async function search(first = () => false) {
    clearTimeout(timer);
    request.abort();
    request = new AbortController();
    const { signal } = request;
    working(true);
    try {
      const record = await ask("search", whatIf(), {}, signal);
      if (signal.aborted || first(record)) return;
      state.record = record;
      show();
      if (wait) await later(PATIENCE, signal);
      await details(signal);
    } catch (error) {
      if (!signal.aborted) refuse(error);
    } finally {
      if (!signal.aborted) working(false);
    }
  }

  async function details(signal) {
    const row = chosen();
    parts.detail.hidden = !row;
    if (!row) return;
    const compared = rowOf(state.against);
    const more = { plan: row.text, own: row.own, against: compared?.text };
    parts.chosen.textContent = row.text;
    const draw = async (what, drawn, place) => {
      place.setAttribute("aria-busy", "true");
      try {
        const record = await ask(what, whatIf(), more, signal);
        if (!signal.aborted) drawn(record, row, compared);
      } catch (error) {
        if (signal.aborted) return;
        place.hidden = false;
        for (const each of place.querySelectorAll(".drawing")) each.replaceChildren();
        place.querySelector(".drawing").append(made("p", { class: "note" }, error.message));
      } finally {
        if (!signal.aborted) place.setAttribute("aria-busy", "false");
      }
    };
    await Promise.all([
      draw(compared ? "explain" : "estimate", showPlan, parts.panels),
      draw("timeline", showTimeline, parts.timeline),
      draw("export", showLaunch, parts.launch),
    ]);
  }

  function working(works) {
    root.setAttribute("aria-busy", works);
    busy(works);
  }

  function again() {
    clearTimeout(timer);
    request.abort();
    if (wait) timer = setTimeout(() => search(), wait);
    else search();
  }

  async function detailsAgain() {
    request.abort();
    request = new AbortController();
    const { signal } = request;
    show();
    working(true);
    await details(signal);
    if (!signal.aborted) working(false);
  }

  // ---- what is shown

  function rows() { return state.record?.plans ?? []; }
  function rowOf(text) { return rows().find((row) => row.text === text); }
  function own() { return rows().find((row) => row.own); }
  function chosen() { return rowOf(state.chosen) ?? own() ?? rows()[0]; }

  function show() {
    parts.error.hidden = true;
    const { record, asked } = state;
    const best = rows().find((row) => !row.own);
    parts.best.textContent = best
      ? headline(best, isMoved() ? asked?.plans[0] : null, own(), unit(), sentence)
      : noneFits(record);
    parts.safe.textContent = best ? safer(best, record.safe) : "";
    parts.figures.replaceChildren(...(best ? figures(best, unit()) : []));
    showTable();
    changed({ whatIf: whatIf(), chosen: state.chosen, against: state.against });
  }

  function unit() { return state.record?.unit ?? "tokens"; }

  function showTable() {
    const column = all.find(({ name }) => name === state.column);
    const sorted = [...rows()].sort(byColumn(column, state.falling)).slice(0, ROWS);
    const ends = sorted.flatMap((row) => row.step_seconds_interval ?? [row.step_seconds]);
    const scale = [Math.min(...ends), Math.max(...ends)];
    const against = compares ? state.against : undefined;
    const mine = chosen();
    parts.head.replaceChildren(...tableHead(all, column, state.falling, unit(), compares));
    parts.body.replaceChildren(...sorted.map((row) =>
      tableRow(all, row, row === mine, against, scale)));
    parts.wide.hidden = !sorted.length;
  }

  function showPlan(record, row, compared) {
    const losses = record.waterfall;
    parts.waterfall.replaceChildren(waterfall(losses, row.step_seconds, row.mfu));
    parts.memory.replaceChildren(...memoryOfRanks(record.stages, row.memory_bytes.capacity));
    parts.compare.hidden = !compared;
    if (!compared) return;
    const { against } = record;
    parts.other.textContent = `Beside ${compared.text}`;
    const lines = against?.sentences
      ?? ["A comparison of a launch file begins with its own plan: choose that one."];
    parts.sentences.replaceChildren(...lines.map((line) => made("li", {}, line)));
    const labels = Object.fromEntries(losses.map(({ name, label }) => [name, label]));
    parts.beside.replaceChildren(...(!against || against.refused_by.length ? [] : [
      made("div", {}, sideBySide(row, compared, against)),
      made("div", {},
        made("h4", {}, "Seconds of the step"),
        differences("Seconds of the step that differ", against.seconds, seconds, labels),
        made("h4", {}, "Memory of the fullest rank"),
        differences("Memory that differs", against.bytes, (x) => `${gib(x)} GiB`)),
    ]));
  }

  function showTimeline(record) {
    parts.timeline.hidden = !record?.chart;
    if (record?.chart) parts.gantt.replaceChildren(...timeline(record));
  }

  function showLaunch(record) {
    const place = parts.launch.querySelector(".drawing");
    const shown = [["Command", record?.command], ["Launch file", record?.text]]
      .filter(([, text]) => text);
    place.replaceChildren(...shown.map(([title, text]) => {
      const copied = button("Copy", { "data-copy": true, "aria-label": `copy the ${title.toLowerCase()}` });
      return made("div", {}, made("h4", {}, title, " ", copied),
                  made("pre", { tabindex: 0, "aria-label": title }, text));
    }));
    if (!shown.length) {
      place.append(made("p", { class: "note" }, "No framework that plan3d knows can launch it."));
    }
  }

  // An answer to another question does not stay beside the line that refuses this one.
  function refuse(error) {
    state.record = null;
    parts.best.textContent = parts.safe.textContent = "";
    parts.figures.replaceChildren();
    parts.wide.hidden = parts.detail.hidden = true;
    parts.error.textContent = error.message;
    parts.error.hidden = false;
    refused();
  }

  function showSliders(moves) {
    parts.inputs = {};
    const labels = sliders.map(({ name, label, values, at }) => {
      const to = values.findIndex(([value]) => value === moves[name]);
      state.at[name] = to < 0 ? at : to;
      const input = made("input", { type: "range", class: `slider-${name}`, min: 0, step: 1,
                                    max: values.length - 1, disabled: values.length < 2 });
      input.addEventListener("input", () => move(name, Number(input.value)));
      parts.inputs[name] = input;
      return made("label", {}, label, input, made("output", { "aria-hidden": "true" }));
    });
    parts.controls.replaceChildren(...labels, made("div", {}, parts.reset));
    parts.controls.hidden = false;
    showPositions();
  }

  function showPositions() {
    for (const { name, values } of sliders) {
      const input = parts.inputs[name];
      const text = values[state.at[name]][1];
      input.value = state.at[name];
      input.setAttribute("aria-valuetext", text);
      input.nextSibling.textContent = text;
    }
    parts.reset.disabled = sliders.every(({ name, at }) => state.at[name] === at);
  }

  // ---- what people do

  function move(name, at) {
    state.at[name] = at;
    showPositions();
    again();
  }

  function reset() {
    for (const { name, at } of sliders) state.at[name] = at;
    showPositions();
    again();
  }

  function pressed({ target }) {
    const { column, choose, compare } = target.closest("button")?.dataset ?? {};
    const plan = choose ?? target.closest("tr")?.dataset.plan;
    if (column) {
      state.falling = state.column === column && !state.falling;
      state.column = column;
      showTable();
      parts.head.querySelector(`[data-column="${column}"]`).focus();
    } else if (compare) {
      state.against = state.against === compare ? null : compare;
      detailsAgain();
      focusOn("compare", compare);
    } else if (plan) {
      if (plan === state.against) state.against = null;
      state.chosen = plan;
      detailsAgain();
      if (choose) focusOn("choose", choose);
    }
  }

  function focusOn(kind, text) {
    [...parts.body.querySelectorAll(`[data-${kind}]`)]
      .find((each) => each.dataset[kind] === text)?.focus();
  }

  function skeleton() {
    const out = { inputs: {} };
    out.reset = button("As asked", { class: "reset" });
    out.reset.addEventListener("click", reset);
    out.error = made("p", { class: "error", role: "alert", hidden: true });
    out.best = made("p", { class: "best", role: "status", "aria-live": "polite" });
    out.safe = made("p", { class: "safe" });
    out.figures = made("dl", { class: "figures" });
    out.head = made("tr");
    out.body = made("tbody");
    const table = made("table", { class: "plans" },
      made("caption", { class: "unseen" }, "Plans, the best first unless sorted otherwise"),
      made("thead", {}, out.head), out.body);
    table.addEventListener("click", pressed);
    out.wide = made("div", { class: "wide", role: "region", tabindex: 0, "aria-label": "Plans" },
                    table);
    out.chosen = made("h3", { class: "chosen" });
    out.waterfall = made("div", { class: "drawing waterfall" });
    out.memory = made("div", { class: "drawing memory" });
    out.panels = made("div", { class: "panels" },
      made("div", {}, made("h4", {}, "From arithmetic at peak to the step"), out.waterfall),
      made("div", {}, made("h4", {}, "Memory by pipeline rank"), out.memory));
    out.says = made("p", { class: "says note", "aria-hidden": "true" },
                    "Point at a bar to read it, or go there with the arrow keys.");
    out.gantt = made("div", { class: "drawing" });
    out.timeline = made("div", { class: "timeline", hidden: true },
                        made("h4", {}, "Timeline of one step"), out.gantt);
    out.other = made("h3");
    out.beside = made("div", { class: "panels drawing" });
    out.sentences = made("ul");
    out.compare = made("div", { class: "compare", hidden: true }, out.other,
                       out.sentences, out.beside);
    out.launch = made("div", { class: "launch" }, made("div", { class: "drawing panels" }));
    out.launch.addEventListener("click", ({ target }) => {
      if (target.dataset.copy !== undefined) {
        copyText(target.closest("div").querySelector("pre").textContent, target);
      }
    });
    out.detail = made("section", { class: "detail", "aria-label": "The chosen plan", hidden: true },
                      out.chosen, out.says, out.panels, out.timeline, out.compare, out.launch);
    for (const event of ["mousemove", "focusin"]) {
      out.detail.addEventListener(event, ({ target }) => {
        const over = target.closest("[data-says]");
        if (over) out.says.textContent = over.dataset.says;
      });
    }
    out.controls = made("div", { class: "controls", role: "group", "aria-label": "What if?",
                                 hidden: true });
    out.sections = {
      controls: out.controls,
      answer: made("section", { class: "outcome", "aria-label": "Answer" }, out.error, out.best, out.safe,
                   out.figures, out.wide),
      detail: out.detail,
    };
    return out;
  }

  return { start, refuse };
}

// The sliders of a question that plan3d can ask anew at any value.
function slidersOf({ task, machine, unit = "tokens" }) {
  const near = (count, factors) => factors.map((factor) => factor * count)
    .filter((value) => Number.isInteger(value) && value >= 1);
  const slider = (name, label, asked, values, text) =>
    ({ name, label, at: values.indexOf(asked), values: values.map((value) => [value, text(value)]) });
  const rate = (name, label, asked, factors) => slider(name, `bandwidth of ${label}`, asked,
    factors.map((factor) => factor * asked),
    (value) => `${digits(value / 1e9)} GB/s a GPU, × ${digits(value / asked)}`);
  const gpus = near(task.gpus, [0.25, 0.5, 1, 2, 4]);
  const most = Math.max(...gpus);
  return [
    slider("gpus", "GPUs", task.gpus, gpus, (value) => value.toLocaleString("en-US")),
    slider("global_batch", "global batch", task.global_batch,
           near(task.global_batch, [0.25, 0.5, 1, 2, 4]),
           (value) => `${value.toLocaleString("en-US")} ${unit === "tokens"
             ? `sequences, ${digits((value * task.sequence) / 1e6)} M tokens` : unit}`),
    rate("inter_node_bandwidth", machine.network, machine.inter_node_bandwidth,
         most > machine.gpus_per_domain ? [0.25, 0.5, 1, 2, 4] : [1]),
    rate("intra_node_bandwidth", machine.fast_domain, machine.intra_node_bandwidth,
         Math.min(most, machine.gpus_per_domain) > 1 ? [0.5, 1, 2] : [1]),
    slider("memory", "memory of a GPU", machine.memory,
           [0.5, 0.75, 1, 1.25, 1.5, 2].map((factor) => factor * machine.memory),
           (value) => `${gib(value)} GiB, × ${digits(value / machine.memory)}`),
  ];
}

function later(ms, signal) {
  if (!ms) return Promise.resolve();
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); });
  });
}

async function copyText(text, pressed) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = made("textarea", { class: "unseen" });
    area.value = text;
    pressed.after(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    pressed.focus();
  }
  pressed.dataset.before ??= pressed.textContent;
  pressed.textContent = "Copied";
  setTimeout(() => { pressed.textContent = pressed.dataset.before; }, 1500);
}
