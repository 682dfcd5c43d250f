// The plans of a search: what is written of the best, and the table of all.

const ROWS = 20; // of the table

const share = (row, test) => Object.entries(row.seconds)
  .reduce((sum, [name, part]) => sum + (test(name) ? part : 0), 0) / row.step_seconds;
const COLUMNS = [
  { name: "plan", head: "plan", words: true, value: (row) => row.text },
  { name: "step", head: "step s, 80 % interval", value: (row) => row.step_seconds },
  { name: "speed", head: "/s", value: (row) => row.tokens_per_second, show: whole, extra: true },
  { name: "mfu", head: "MFU %", value: (row) => row.mfu, show: percent },
  { name: "sent", head: "exposed comm. %", show: percent, extra: true,
    value: (row) => share(row, (name) => lossKind(name) === "sent") },
  { name: "bytes", head: "memory GiB", value: (row) => row.memory_bytes.total,
    show: (x) => gib(x), extra: true },
  { name: "fits", head: "fits", value: (row) => row.probability_fits ?? -1 },
];

// ---- the best

function noneFits({ infeasible: lines = ["no plan fits"] }) {
  return lines.map((line) => `${line[0].toUpperCase()}${line.slice(1)}.`).join(" ");
}

// The best beside the launch file's own plan, or beside the best `before` sliders were moved.
function headline(best, before, launched, unit, sentence) {
  const start = `Best: ${best.text}, ${seconds(best.step_seconds)} a step`;
  if (launched) {
    const longer = launched.step_seconds / best.step_seconds - 1;
    return `${start}; the launch file's own plan takes ${percent(Math.abs(longer))} % `
      + `${longer < 0 ? "less" : "more"}.`;
  }
  if (!before) return `${start}${sentence()}.`;
  const change = best.tokens_per_second / before.tokens_per_second - 1;
  const more = `${percent(Math.abs(change))} % ${change < 0 ? "fewer" : "more"} ${unit}/s`;
  const which = best.text === before.text ? "the same" : "another";
  return `${start}; ${more} than as asked, ${which} plan.`;
}

// The plan that is sure to fit, where the best is at the edge.
function safer(best, safe) {
  if (!safe) return "";
  const slower = percent(safe.step_seconds / best.step_seconds - 1);
  return `At the edge of memory. Safe: ${safe.text}, ${slower} % slower, fits with `
    + `${chance(safe.probability_fits)}.`;
}

function figures(best, unit) {
  const { total, limit } = best.memory_bytes;
  const tile = (name, value, note) => made("div", {}, made("dt", {}, name),
    made("dd", {}, made("strong", {}, value), made("span", {}, note)));
  const interval = best.step_seconds_interval;
  return [
    tile("step", seconds(best.step_seconds), interval
      ? `80 % interval ${between(interval)} s` : "no interval here"),
    tile("throughput", `${whole(best.tokens_per_second)} ${unit}/s`,
         `MFU ${percent(best.mfu)} %`),
    tile("memory", `${gib(total)} GiB`, `of ${gib(limit)} GiB a plan may use`),
    tile("fits", best.probability_fits === null ? "—" : chance(best.probability_fits),
         best.probability_fits === null ? "known as asked" : verdict(best)),
  ];
}

function verdict(row) {
  return { fits: "fits", edge: "at the edge" }[row.verdict] ?? row.verdict;
}

// ---- the table

function classOf({ words, extra, name }) {
  return [words ? "words" : "", extra ? "extra" : "", `column-${name}`].filter(Boolean).join(" ");
}

function byColumn({ value }, falling) {
  return (a, b) => {
    const [x, y] = falling ? [value(b), value(a)] : [value(a), value(b)];
    return x < y ? -1 : x > y ? 1 : 0;
  };
}

function tableHead(columns, sorted, falling, unit, compares) {
  const heads = columns.map((column) => {
    const sign = column !== sorted ? false : falling ? "descending" : "ascending";
    return made("th", { scope: "col", class: classOf(column), "aria-sort": sign },
      button(column.name === "speed" ? `${unit}/s` : column.head, { "data-column": column.name }));
  });
  const compare = made("th", { scope: "col" }, made("span", { class: "unseen" }, "compare"));
  return compares ? [...heads, compare] : heads;
}

// A row; `against` is the plan that is compared, undefined where none can be.
function tableRow(columns, row, isChosen, against, [low, high]) {
  const cells = columns.map((column) => made("td", { class: classOf(column) },
                                             ...cell(column, row, isChosen, low, high)));
  const other = against === undefined ? [] : [made("td", {}, button("compare", {
    "data-compare": row.text, "aria-pressed": `${row.text === against}`, disabled: isChosen,
    "aria-label": `compare with ${row.text}`,
  }))];
  return made("tr", { "data-plan": row.text, class: isChosen ? "chosen" : false },
              ...cells, ...other);
}

function cell(column, row, isChosen, low, high) {
  if (column.name === "plan") {
    return [button(row.text, { "data-choose": row.text, "aria-pressed": `${isChosen}` }),
            made("span", { class: "family" }, row.plan_family ?? "")];
  }
  if (column.name === "step") {
    const interval = row.step_seconds_interval;
    return [range(row, low, high), made("span", { class: "number" }, digits(row.step_seconds)),
            made("small", {}, interval ? between(interval) : "")];
  }
  if (column.name === "fits") {
    if (row.probability_fits === null) return ["—"];
    const meter = made("span", { class: `meter ${row.verdict === "edge" ? "edge" : ""}`,
                                 "aria-hidden": "true" }, made("span"));
    meter.firstChild.style.width = `${100 * row.probability_fits}%`;
    return [meter, chance(row.probability_fits)];
  }
  return [(column.show ?? String)(column.value(row))];
}
