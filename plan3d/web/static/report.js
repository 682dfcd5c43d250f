// The frozen page: every position of the sliders was computed by plan3d; here parts are added up,
// plans that do not fit are left out, and of those alike the simplest is taken.

const data = JSON.parse(document.getElementById("data").textContent);
const first = { batch: data.batches.findIndex(
  ({ global_batch: batch }) => batch === data.asked.global_batch) };
for (const name of ["network", "link"]) {
  first[name] = data[`${name}s`].positions.findIndex(({ factor }) => factor === 1);
}

function rowsAt({ batch = first.batch, network = first.network, link = first.link, memory = 1 }) {
  const { plans, seconds: times, tokens } = data.batches[batch];
  const rows = plans.map((plan, i) => {
    const parts = times[network][link][i];
    const step = parts.reduce((sum, part) => sum + part, 0);
    const bytes = Object.fromEntries(data.memory_parts.map((name, at) => [name, plan.memory[at]]));
    const total = plan.memory.reduce((sum, part) => sum + part, 0);
    return {
      ...plan, text: plan.plan, plan_family: plan.family, step_seconds: step,
      step_seconds_interval: null, probability_fits: null, mfu: parts[0] / step,
      tokens_per_second: tokens / step, tokens,
      seconds: Object.fromEntries(data.parts.map(({ name }, at) => [name, parts[at]])),
      memory_bytes: { ...bytes, total, capacity: Math.max(data.capacity, memory * data.limit),
                      limit: memory * data.limit },
    };
  });
  return rows.filter((row) => row.memory_bytes.total <= row.memory_bytes.limit);
}

function byStep(a, b) { return a.step_seconds - b.step_seconds; }

function simplestOfFamilies(rows) {
  const families = new Map();
  for (const row of rows) families.set(row.family, [...(families.get(row.family) ?? []), row]);
  return [...families.values()].map((family) => {
    const fastest = Math.min(...family.map((row) => row.step_seconds));
    const alike = family.filter((row) => row.step_seconds <= (1 + data.alike) * fastest);
    return alike.reduce((a, b) => (a.simple <= b.simple ? a : b));
  });
}

// As asked, what the search listed, with its intervals; elsewhere the simplest of each family.
function listed({ price, ...position }) {
  const fitting = rowsAt(position);
  const priced = (rows) => rows.map((row) => ({ ...row, price: price ?? data.asked.price }));
  if (!Object.keys(position).length) {
    const known = new Map(data.record.plans.map((row) => [row.text, row]));
    return priced(fitting.filter((row) => row.listed).sort(byStep)
      .map((row) => ({ ...row, ...known.get(row.text) })));
  }
  return priced((data.alike === null ? fitting : simplestOfFamilies(fitting)).sort(byStep));
}

function losses({ seconds: parts, mfu, step_seconds: step }) {
  return data.parts.map(({ name, label }) => ({
    name, label, seconds: parts[name],
    mfu_if_free: name === "ideal" ? null : (mfu * step) / (step - parts[name]),
  }));
}

const frozen = {
  search: (position) => {
    const { price, ...moves } = position;
    const { safe, ...record } = data.record;
    const asked = Object.keys(moves).length ? record : data.record;
    return { ...asked, plans: listed(position) };
  },
  estimate: (position, { plan }) => {
    if (isBest(position, plan)) return data.explained;
    const row = listed(position).find(({ text }) => text === plan);
    return { waterfall: losses(row),
             stages: [{ rank: 0, name: "fullest rank", memory_bytes: row.memory_bytes }] };
  },
  timeline: (position, { plan }) => (isBest(position, plan) ? data.timeline : null),
  export: (position, { plan }) => {
    const { batch = first.batch } = position;
    return { command: data.batches[batch].plans.find((each) => each.plan === plan)?.launch };
  },
};

function isBest({ price, ...position }, plan) {
  return !Object.keys(position).length && plan === data.record.plans[0].text;
}

function frozenSliders() {
  const { asked } = data;
  const places = (all, text) => all.map((each, place) => [place, text(each)]);
  const link = (name) => {
    const { name: title, positions } = data[`${name}s`];
    return { name, label: `bandwidth of ${title}`, at: first[name],
      values: places(positions, ({ factor, bandwidth }) => (positions.length > 1
        ? `${digits(bandwidth / 1e9)} GB/s a GPU, × ${factor}` : "no plan uses it")) };
  };
  const memory = Array.from({ length: Math.round((data.most_memory - 0.25) / 0.05) + 1 },
                            (_, i) => (25 + 5 * i) / 100);
  const prices = [...new Set([...Array.from({ length: Math.max(100, 20 * asked.price) },
                                            (_, i) => (i + 1) / 10), asked.price])]
    .sort((a, b) => a - b);
  return [
    link("network"), link("link"),
    { name: "memory", label: "memory that a plan may use", at: memory.indexOf(1),
      values: memory.map((x) => [x, `${gib(x * data.limit)} GiB, × ${digits(x)}`]) },
    { name: "batch", label: "global batch", at: first.batch,
      values: places(data.batches, ({ global_batch: batch, tokens }) =>
        (asked.unit === "tokens"
          ? `${batch.toLocaleString("en-US")} sequences, ${digits(tokens / 1e6)} M tokens`
          : `${batch.toLocaleString("en-US")} ${asked.unit}`)) },
    { name: "price", label: "price of a GPU-hour", at: prices.indexOf(asked.price), apart: true,
      values: prices.map((x) => [x, `${x.toFixed(2)} USD`]) },
  ];
}

// What was found at other positions and would be better as asked, too.
function nearby() {
  const [best] = data.record.plans;
  const [row] = rowsAt({}).sort(byStep);
  if (data.alike === null || row.step_seconds * (1 + data.alike) >= best.step_seconds) return "";
  const faster = percent(1 - row.step_seconds / best.step_seconds);
  return `; found nearby: ${row.text}, ${faster} % faster`;
}

for (const each of document.querySelectorAll("[data-static]")) each.hidden = true;
document.getElementById("what-if").hidden = false;
explorer(document.getElementById("explorer"), {
  ask: async (what, position, more) => frozen[what](position, more),
  sliders: frozenSliders, sentence: nearby, wait: 0, compares: false,
  columns: [
    { name: "left", head: "left GiB", extra: true, show: (x) => gib(x),
      value: ({ memory_bytes: { limit, total } }) => limit - total },
    { name: "cost", head: data.asked.cost_of, show: whole, extra: true,
      value: (row) => ((data.asked.tokens / row.tokens) * row.step_seconds * data.gpus
                       * row.price) / 3600 },
  ],
}).start();
