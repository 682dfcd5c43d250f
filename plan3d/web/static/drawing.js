"use strict";
// Pictures of plan3d's records: the plans of a search, the waterfall of a step, the memory of every
// rank, the timeline of a step, two plans side by side. Every number was computed by plan3d; here
// it is written and scaled to the width there is.

const GIB = 2 ** 30;
const SVG = svgNamespace();
const MEMORY_PARTS = ["weights", "gradients", "optimizer", "activations", "logits", "buffers",
                      "reserve"];
const SMALLEST = 5e-4; // share of the whole below which a part is not drawn
const MOST_RANKS = 24; // rows of a picture by rank

// ---- how numbers are written

function percent(share) { return (100 * share).toFixed(1).replace("-", "−"); }
function whole(x) { return x < 1000 ? digits(x) : Math.round(x).toLocaleString("en-US"); }
function digits(x) { return String(Number(x.toPrecision(4))).replace("-", "−"); }
// Halves are rounded down, as the terminal has it of a GPU's 79.25 GiB.
function gib(bytes, places = 1) {
  return (bytes / GIB - 1e-9).toFixed(places).replace(/^-(?=0\.?0*$)/, "").replace("-", "−");
}
function signed(text) { return text.startsWith("−") ? text : `+${text}`; }
function seconds(x) {
  const size = Math.abs(x);
  if (size >= 1 || size === 0) return `${digits(x)} s`;
  return size >= 1e-3 ? `${digits(1e3 * x)} ms` : `${digits(1e6 * x)} µs`;
}
// Word joiners keep it in one line.
function between([low, high]) {
  return `${low.toPrecision(3)}\u2060–\u2060${high.toPrecision(3)}`;
}
function chance(probability) {
  // Rounded down, as the terminal does: 95 % is one that fits.
  const percent = Math.floor(100 * probability);
  if (percent >= 99) return "> 99 %";
  return percent < 1 ? "< 1 %" : `${percent} %`;
}

// ---- elements

function made(tag, attributes = {}, ...inside) {
  const out = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) out.setAttribute(name, "");
    else if (value !== false && value !== null) out.setAttribute(name, value);
  }
  out.append(...inside);
  return out;
}

// Read off an element, so that a page that loads nothing holds no address.
function svgNamespace() {
  const template = document.createElement("template");
  template.innerHTML = "<svg></svg>";
  return template.content.firstChild.namespaceURI;
}

function vector(tag, attributes, ...inside) {
  const out = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) out.setAttribute(name, value);
  out.append(...inside);
  return out;
}

function button(text, attributes = {}) { return made("button", { type: "button", ...attributes }, text); }

// A group with one tab stop: arrows move among its items, each of which says what it is.
function group(label, items) {
  const out = made("div", { class: "items", role: "group", "aria-label": label }, ...items);
  const stops = items.filter((item) => item.dataset.says);
  stops.forEach((item, place) => {
    item.tabIndex = place === 0 ? 0 : -1;
    item.setAttribute("role", "img");
    item.setAttribute("aria-label", item.dataset.says);
  });
  out.addEventListener("keydown", (event) => {
    const at = stops.indexOf(document.activeElement?.shadowRoot?.activeElement ?? event.target);
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowLeft: at - 1,
                    Home: 0, End: stops.length - 1 };
    const next = stops[moves[event.key]];
    if (at < 0 || !next) return;
    event.preventDefault();
    stops[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  return out;
}

function fill(kind, start, size, most) {
  const out = made("span", { class: `fill ${kind}` });
  out.style.left = `${(100 * Math.min(start, start + size)) / most}%`;
  out.style.width = `${(100 * Math.abs(size)) / most}%`;
  return out;
}

function bar(name, value, says, fills) {
  return made("div", { class: "bar", "data-says": `${name}: ${says}` },
    made("span", { class: "name" }, name), made("span", { class: "track" }, ...fills),
    made("span", { class: "value" }, value));
}

function legend(entries) {
  return made("p", { class: "legend", "aria-hidden": "true" },
    ...entries.map(([kind, text]) =>
      made("span", {}, made("span", { class: `key ${kind}` }), text)));
}

// ---- the step: from arithmetic at peak to the prediction

function lossKind(name) {
  if (name === "ideal") return "ideal";
  if (name.endsWith("_comm") && name !== "host_comm") return "sent";
  return ["causal", "matmul", "attention", "memory_bound", "recompute", "contended"]
    .includes(name) ? "kernel" : "other";
}

function inWords(name) { return name.replaceAll("_", " ").replace("comm", "communication"); }

function waterfall(losses, step, mfu) {
  let start = 0, most = step;
  const parts = losses.map((loss) => {
    const part = { ...loss, start };
    start += loss.seconds;
    most = Math.max(most, start, part.start);
    return part;
  });
  const bars = parts.filter((part) => Math.abs(part.seconds) >= SMALLEST * step).map((part) => {
    const free = part.mfu_if_free === null ? ""
      : `; without it MFU ${percent(part.mfu_if_free)} %`;
    const says = `${seconds(part.seconds)}, ${percent(part.seconds / step)} % of the step${free}`;
    return bar(part.label, seconds(part.seconds), says,
               [fill(lossKind(part.name), part.start, part.seconds, most)]);
  });
  bars.push(bar("predicted step", seconds(step), `${seconds(step)}, MFU ${percent(mfu)} %`,
                [fill("step", 0, step, most)]));
  return group("Waterfall of the step", bars);
}

// ---- memory by pipeline rank

// Neighbours that hold the same are one row; of many rows the first, the last and the fullest.
function ranksAlike(stages) {
  const runs = [];
  for (const stage of stages) {
    const last = runs.at(-1);
    const same = last && MEMORY_PARTS.every((part) =>
      last.bytes[part] === stage.memory_bytes[part]);
    if (same) last.to = stage.rank;
    else {
      runs.push({ from: stage.rank, to: stage.rank, name: stage.name, bytes: stage.memory_bytes });
    }
  }
  if (runs.length <= MOST_RANKS) return runs;
  const fullest = runs.reduce((a, b) => (b.bytes.total > a.bytes.total ? b : a));
  const half = MOST_RANKS / 2;
  return runs.filter((run, i) => i < half || i >= runs.length - half || run === fullest);
}

function memoryOfRanks(stages, capacity) {
  const runs = ranksAlike(stages);
  const fullest = Math.max(...runs.map((run) => run.bytes.total));
  const most = Math.max(capacity, fullest);
  const bars = runs.map(({ from, to, name: given, bytes }) => {
    let start = 0;
    const held = MEMORY_PARTS.filter((part) => bytes[part] > 0);
    const fills = held.map((part) => {
      const out = fill(`memory-${part}`, start, bytes[part], most);
      start += bytes[part];
      return out;
    });
    const limit = fill("limit", capacity, 0, most);
    const name = given ? given : stages.length === 1 ? "every rank"
      : from === to ? `rank ${from}` : `ranks ${from}–${to}`;
    const parts = held.map((part) => `${part} ${gib(bytes[part], 2)}`).join(", ");
    const left = capacity - bytes.total;
    const room = left < 0 ? `${gib(-left)} GiB too much` : `${gib(left)} GiB left`;
    const out = bar(name, `${gib(bytes.total)} GiB`,
                    `${gib(bytes.total)} of ${gib(capacity)} GiB, ${room}; ${parts}`,
                    [...fills, limit]);
    if (left < 0) out.classList.add("over");
    return out;
  });
  const used = MEMORY_PARTS.filter((part) => runs.some((run) => run.bytes[part] > 0));
  return [
    legend([...used.map((part) => [`memory-${part}`, part]),
            ["limit", `GPU: ${gib(capacity)} GiB`]]),
    group("Memory of every pipeline rank", bars),
  ];
}

// ---- the timeline of a step

const PASS_HEIGHT = { forward: 0.62, backward: 0.92, "input gradient": 0.92,
                      "weight gradient": 0.42 };
const AFTER = { expert_comm: "exchanges of experts", contended: "slower kernels",
                data_comm: "synchronisation", host_comm: "copies to the host",
                optimizer: "optimizer" };

function passClass(name) { return `pass-${name.replace(" ", "-")}`; }

// A row for each rank: single passes, or where those are too many, how an interval is shared.
function timeline(record) {
  const { chart, seconds: parts, ranks } = record;
  const step = record.step_seconds;
  const rows = chart.ranks.map((row, place) => {
    const picture = vector("svg", { viewBox: "0 0 1000 20", preserveAspectRatio: "none",
                                    "aria-hidden": "true", focusable: "false" });
    const scale = 1000 / step;
    for (const [name, d] of Object.entries(row.passes ? boxes(row.passes, chart.passes, scale)
      : areas(row.shares, chart, scale))) {
      picture.append(vector("path", { d, class: passClass(name) }));
    }
    let start = parts.pipeline;
    for (const name of Object.keys(AFTER)) {
      if (!parts[name]) continue;
      picture.append(vector("rect", { x: scale * start, width: scale * parts[name], y: 1,
                                      height: 18, class: `after-${name}` }));
      start += parts[name];
    }
    const { busy_seconds: busy, idle_share: idle } = ranks[row.rank];
    const says = `busy ${seconds(busy)}, idle ${percent(idle)} % of the pipeline`;
    const out = bar(`rank ${row.rank}`, `${percent(idle)} %`, says, [picture]);
    if (row.passes) pointAtPasses(out, picture, row.passes, chart.passes, step);
    return out;
  });
  const after = Object.keys(AFTER).filter((name) => parts[name] > SMALLEST * step);
  const axis = made("div", { class: "bar axis", "aria-hidden": "true" },
    made("span", { class: "name" }), made("span", { class: "ticks" },
      ...[0, 0.25, 0.5, 0.75, 1].map((at) => made("span", {}, seconds(at * step)))),
    made("span", { class: "value" }, "idle"));
  return [
    legend([...chart.passes.map((name) => [passClass(name), name]),
            ...after.map((name) => [`after-${name}`, AFTER[name]])]),
    group("Timeline of every pipeline rank", rows),
    axis,
  ];
}

function boxes(passes, names, scale) {
  const paths = {};
  for (const [pass, , start, end] of passes) {
    const name = names[pass];
    const height = 20 * PASS_HEIGHT[name];
    const width = Math.max(scale * (end - start) * 0.97, 0.2);
    paths[name] = `${paths[name] ?? ""}M${(scale * start).toFixed(2)} ${(20 - height).toFixed(1)}`
      + `h${width.toFixed(2)}V20h${(-width).toFixed(2)}z`;
  }
  return paths;
}

function areas(shares, { edges, passes }, scale) {
  const paths = {}, below = edges.slice(1).map(() => 0);
  for (const [pass, row] of shares.entries()) {
    paths[passes[pass]] = row.map((share, i) => {
      const [left, width] = [scale * edges[i], scale * (edges[i + 1] - edges[i])];
      const bottom = 20 * (1 - below[i]);
      below[i] += share;
      return share ? `M${left.toFixed(2)} ${bottom.toFixed(2)}h${width.toFixed(2)}v`
        + `${(-20 * share).toFixed(2)}h${(-width).toFixed(2)}z` : "";
    }).join("");
  }
  return paths;
}

function pointAtPasses(row, picture, passes, names, step) {
  const says = row.dataset.says;
  picture.addEventListener("mousemove", ({ clientX }) => {
    const { left, width } = picture.getBoundingClientRect();
    const at = ((clientX - left) / width) * step;
    const pass = passes.find(([, , start, end]) => start <= at && at < end);
    row.dataset.says = pass === undefined ? says
      : `${row.firstChild.textContent}: ${names[pass[0]]} of micro-batch ${pass[1]}, `
        + `${seconds(pass[2])} to ${seconds(pass[3])}`;
  });
  picture.addEventListener("mouseleave", () => { row.dataset.says = says; });
}

// ---- two plans side by side

function sideBySide(mine, other, against) {
  const number = (name, one, two, show, better) => {
    const change = two / one - 1;
    const word = Math.abs(change) < 5e-4 ? "the same"
      : `${signed(percent(change))}\u00a0%${change > 0 === better ? "" : " (worse)"}`;
    return made("tr", {}, made("th", { scope: "row" }, name), made("td", {}, show(one)),
                made("td", {}, show(two)), made("td", {}, word));
  };
  const rows = [
    number("step", mine.step_seconds, against.step_seconds, seconds, false),
    number("memory", mine.memory_bytes.total, against.memory_bytes,
           (bytes) => `${gib(bytes)} GiB`, false),
  ];
  const text = (name, one, two) => made("tr", {}, made("th", { scope: "row" }, name),
    made("td", {}, one), made("td", {}, two), made("td"));
  if (other?.step_seconds_interval && mine.step_seconds_interval) {
    rows.splice(1, 0, text("80 % interval, s", between(mine.step_seconds_interval),
                           between(other.step_seconds_interval)));
  }
  rows.push(text("fits", chance(mine.probability_fits), chance(against.probability_fits)));
  for (const [name, [was, is]] of Object.entries(against.changed)) {
    rows.push(text(name, String(was), String(is)));
  }
  const head = made("tr", {}, ...["field", "this plan", "the other", "change"].map((word) => made("th", { scope: "col" }, word)));
  return made("table", { class: "beside" }, made("thead", {}, head), made("tbody", {}, ...rows));
}

// Bars to the left are saved by the other plan, to the right they are added.
function differences(label, changes, show, labels = {}) {
  const entries = Object.entries(changes).sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
  const most = Math.max(...entries.map(([, change]) => Math.abs(change)));
  const bars = entries.filter(([, change]) => Math.abs(change) > 0.01 * most)
    .map(([name, change]) => bar(
      labels[name] ?? inWords(name), signed(show(change)),
      `${signed(show(change))} with the other plan`,
      [fill("middle", most, 0, 2 * most),
       fill(change > 0 ? "worse" : "better", most, change, 2 * most)]));
  return group(label, bars);
}

// ---- the range of a step, on one scale for all rows of a table

function range(row, low, high) {
  const x = (at) => (4 + (92 * (at - low)) / Math.max(high - low, 1e-12)).toFixed(2);
  const out = vector("svg", { viewBox: "0 0 100 12", class: "range", "aria-hidden": "true",
                              focusable: "false" });
  if (row.step_seconds_interval) {
    const [from, to] = row.step_seconds_interval.map(x);
    out.append(vector("path", { d: `M${from} 6H${to}M${from} 3V9M${to} 3V9` }));
  }
  out.append(vector("circle", { cx: x(row.step_seconds), cy: 6, r: 3.2 }));
  return out;
}
