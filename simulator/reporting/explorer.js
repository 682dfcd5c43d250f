"use strict";
// Ranks the embedded plans anew. Every position of the sliders was computed by plan3d; here parts
// are added up, plans that do not fit are left out, and the simplest of those alike is taken.

const GIB = 2 ** 30;
const SHOWN = 20; // rows of the table
const data = JSON.parse(document.getElementById("data").textContent);
const element = (id) => document.getElementById(id);
const asked = {
  batch: data.batches.findIndex((batch) => batch.global_batch === data.asked.global_batch),
  network: data.networks.positions.findIndex((position) => position.factor === 1),
  link: data.links.positions.findIndex((position) => position.factor === 1),
  memory: 1,
  price: data.asked.price,
};
const state = { ...asked, chosen: null, column: "step", falling: false };

// ---- what the numbers say

function rowsOf({ batch, network, link, memory }) {
  const { plans, seconds, tokens } = data.batches[batch];
  const rows = plans.map((plan, i) => {
    const parts = seconds[network][link][i];
    const step = parts.reduce((sum, part) => sum + part, 0);
    const bytes = plan.memory.reduce((sum, part) => sum + part, 0);
    return { ...plan, parts, step, bytes, speed: tokens / step, mfu: parts[0] / step };
  });
  return rows.filter((row) => row.bytes <= memory * data.limit);
}

// As asked, what the search listed; elsewhere the simplest plan of each family.
function listed(position) {
  const fitting = rowsOf(position);
  if (!moved(position)) return fitting.filter((row) => row.listed).sort(byStep);
  return (data.alike === null ? fitting : simplestOfFamilies(fitting)).sort(byStep);
}

function moved(position) {
  return ["batch", "network", "link", "memory"].some((name) => position[name] !== asked[name]);
}

function simplestOfFamilies(rows) {
  return [...byFamily(rows).values()].map((family) => {
    const fastest = Math.min(...family.map((row) => row.step));
    const alike = family.filter((row) => row.step <= (1 + data.alike) * fastest);
    return alike.reduce((a, b) => (a.simple <= b.simple ? a : b));
  });
}

function byFamily(rows) {
  const out = new Map();
  for (const row of rows) out.set(row.family, [...(out.get(row.family) ?? []), row]);
  return out;
}

const byStep = (a, b) => a.step - b.step;
const share = (row, group) =>
  row.parts.reduce((sum, part, i) => sum + (data.parts[i].group === group ? part : 0), 0) /
  row.step;
const cost = (row) => {
  const steps = data.asked.tokens / data.batches[state.batch].tokens;
  return ((steps * row.step * data.gpus) / 3600) * state.price;
};

const COLUMNS = [
  { name: "family", head: "family", value: (row) => row.family, words: true },
  { name: "step", head: "step s", value: (row) => row.step, show: (x) => x.toPrecision(4) },
  { name: "speed", head: `${data.asked.unit}/s`, value: (row) => row.speed, show: whole },
  { name: "mfu", head: "MFU %", value: (row) => row.mfu, show: percent },
  { name: "sent", head: "exposed comm. %", value: (row) => share(row, "sent"), show: percent },
  { name: "bytes", head: "memory GiB", value: (row) => row.bytes / GIB, show: (x) => x.toFixed(1) },
  { name: "left", head: "left GiB", show: (x) => x.toFixed(1),
    value: (row) => (state.memory * data.limit - row.bytes) / GIB },
  { name: "cost", head: data.asked.cost_of, value: cost, show: whole },
  { name: "plan", head: "plan", value: (row) => row.plan, words: true },
];

// ---- how they are written

function percent(part) { return (100 * part).toFixed(1); }
function whole(x) { return x < 1000 ? x.toFixed(2) : Math.round(x).toLocaleString("en-US"); }
function digits(x) { return String(Number(x.toPrecision(4))); }
function seconds(x) {
  if (Math.abs(x) >= 1) return `${digits(x)} s`;
  return Math.abs(x) >= 1e-3 ? `${digits(1e3 * x)} ms` : `${digits(1e6 * x)} µs`;
}
function made(tag, text = "", attributes = {}) {
  const out = document.createElement(tag);
  out.textContent = text;
  for (const [name, value] of Object.entries(attributes)) out.setAttribute(name, value);
  return out;
}

// ---- what is shown

function show() {
  const rows = listed(state);
  const chosen = rows.find((row) => row.plan === state.chosen) ?? rows[0];
  showPositions();
  showAnswer(rows);
  showTable(sorted(rows).slice(0, SHOWN), chosen);
  element("detail").hidden = chosen === undefined;
  if (chosen) showPlan(chosen);
}

function sorted(rows) {
  const { value } = COLUMNS.find((column) => column.name === state.column);
  const up = (a, b) => {
    const [x, y] = [value(a), value(b)];
    return x < y ? -1 : x > y ? 1 : 0;
  };
  return [...rows].sort((a, b) => (state.falling ? up(b, a) : up(a, b)));
}

function showPositions() {
  for (const name of ["network", "link"]) {
    const all = data[`${name}s`];
    const { factor, bandwidth } = all.positions[state[name]];
    element(`${name}-said`).textContent = all.positions.length > 1
      ? `${digits(bandwidth / 1e9)} GB/s a GPU, × ${factor}`
      : "no plan uses it";
  }
  const { global_batch, tokens } = data.batches[state.batch];
  const batch = global_batch.toLocaleString("en-US");
  element("batch-said").textContent = data.asked.unit === "tokens"
    ? `${batch} sequences, ${digits(tokens / 1e6)} M tokens` : `${batch} ${data.asked.unit}`;
  const memory = ((state.memory * data.limit) / GIB).toFixed(1);
  element("memory-said").textContent = `${memory} GiB, × ${digits(state.memory)}`;
  element("price-said").textContent = `${state.price.toFixed(2)} USD`;
}

function showAnswer(rows) {
  const [before] = listed(asked);
  let said = "No embedded plan fits in that memory";
  if (rows.length) {
    const [best] = rows;
    said = `Best: ${best.plan}, ${seconds(best.step)} a step`;
    said += moved(state) ? compared(best, before) : besides(best);
  }
  element("best").textContent = `${said}.`;
  element("reset").disabled = !moved(state) && state.price === asked.price;
}

function compared(best, before) {
  const change = best.speed / before.speed - 1;
  const more = `${change < 0 ? "fewer" : "more"} ${data.asked.unit}/s than as asked`;
  const which = best.plan === before.plan ? "the same" : "another";
  return `; ${percent(Math.abs(change))} % ${more}, ${which} plan`;
}

// What was found at other positions and would be better as asked, too.
function besides(best) {
  const [first] = rowsOf(asked).sort(byStep);
  if (data.alike === null || first.step * (1 + data.alike) >= best.step) return "";
  return `; found nearby: ${first.plan}, ${percent(1 - first.step / best.step)} % faster`;
}

function showTable(rows, chosen) {
  const table = element("plans");
  const head = made("tr");
  for (const { name, head: title, words } of COLUMNS) {
    const cell = made("th", "", { scope: "col", class: words ? "words" : "" });
    const button = made("button", title, { type: "button", "data-column": name });
    if (name === state.column) {
      cell.setAttribute("aria-sort", state.falling ? "descending" : "ascending");
    }
    cell.append(button);
    head.append(cell);
  }
  table.tHead.replaceChildren(head);
  table.tBodies[0].replaceChildren(...rows.map((row) => tableRow(row, row === chosen)));
}

function tableRow(row, chosen) {
  const out = made("tr", "", { "data-plan": row.plan, "aria-selected": chosen, tabindex: 0 });
  for (const { value, show = String, words } of COLUMNS) {
    out.append(made("td", show(value(row)), { class: words ? "words" : "" }));
  }
  return out;
}

function showPlan(row) {
  element("chosen").textContent = row.plan;
  element("launch").textContent = row.launch || "No framework that plan3d knows can launch it.";
  element("copy").hidden = !row.launch;
  let start = 0;
  const bars = row.parts.map((size, i) => {
    const part = { ...data.parts[i], size, start };
    start += size;
    return part;
  });
  const shown = bars.filter(({ size }) => Math.abs(size) >= 5e-4 * row.step);
  const most = Math.max(row.step, ...bars.map(({ start: from, size }) => from + size));
  const total = { label: "predicted step", group: "step", size: row.step, start: 0 };
  element("waterfall").replaceChildren(
    ...[...shown, total].map((part) => bar(part, most, timeTold(part, row)))
  );
  const limit = Math.max(row.bytes, state.memory * data.limit);
  let bytes = 0;
  const held = row.memory.map((size, i) => {
    const part = { label: data.memory_parts[i], group: "held", size, start: bytes };
    bytes += size;
    return part;
  });
  const free = { label: "left", group: "free", size: limit - bytes, start: bytes };
  element("memory-bars").replaceChildren(
    ...[...held, free].filter(({ size }) => size > 5e-4 * limit)
      .map((part) => bar(part, limit, `${(part.size / GIB).toFixed(2)} GiB`))
  );
}

function timeTold({ name, size, group }, row) {
  const said = `${seconds(size)}, ${percent(size / row.step)} % of the step`;
  if (group === "step") return `${seconds(size)}, MFU ${percent(row.mfu)} %`;
  if (name === "ideal") return said;
  return `${said}; without it MFU ${percent(row.parts[0] / (row.step - size))} %`;
}

function bar({ label, group, size, start }, whole_, said) {
  const out = made("div", "", { class: "bar", tabindex: 0, "data-said": `${label}: ${said}` });
  const track = made("span", "", { class: "track" });
  const fill = made("span", "", { class: `fill ${group}` });
  fill.style.left = `${(100 * Math.min(start, start + size)) / whole_}%`;
  fill.style.width = `${(100 * Math.abs(size)) / whole_}%`;
  track.append(fill);
  out.append(made("span", label, { class: "name" }), track);
  out.append(made("span", said.split(",")[0], { class: "value" }));
  return out;
}

// ---- what people do

function begin() {
  const sizes = { batch: data.batches.length, network: data.networks.positions.length,
                  link: data.links.positions.length };
  for (const [name, positions] of Object.entries(sizes)) {
    element(name).max = positions - 1;
    element(name).disabled = positions < 2;
  }
  element("memory").max = data.most_memory;
  element("price").max = Math.max(10, 2 * asked.price);
  for (const name of Object.keys(asked)) {
    element(name).addEventListener("input", () => {
      state[name] = Number(element(name).value);
      show();
    });
  }
  element("reset").addEventListener("click", () => set(asked));
  element("plans").addEventListener("click", ({ target }) => pressed(target));
  element("plans").addEventListener("keydown", ({ key, target }) => {
    if (key === "Enter" && target.dataset.plan) pressed(target);
  });
  for (const name of ["mouseover", "focusin"]) {
    element("detail").addEventListener(name, ({ target }) => {
      const over = target.closest("[data-said]");
      if (over) element("said").textContent = over.dataset.said;
    });
  }
  element("copy").addEventListener("click", copy);
  for (const each of document.querySelectorAll("[data-static]")) each.hidden = true;
  element("explorer").hidden = false;
  set(asked);
}

function set(values) {
  Object.assign(state, values);
  for (const [name, value] of Object.entries(values)) element(name).value = value;
  show();
}

function pressed(target) {
  const { column } = target.dataset;
  if (column) {
    state.falling = state.column === column && !state.falling;
    state.column = column;
    show();
    element("plans").querySelector(`[data-column=${column}]`).focus();
    return;
  }
  const row = target.closest("[data-plan]");
  if (row) {
    state.chosen = row.dataset.plan;
    show();
  }
}

async function copy() {
  const text = element("launch").textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    getSelection().selectAllChildren(element("launch"));
    document.execCommand("copy");
  }
  element("copy").textContent = "Copied";
  setTimeout(() => { element("copy").textContent = "Copy"; }, 1500);
}

begin();
