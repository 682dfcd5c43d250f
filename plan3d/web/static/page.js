"use strict";
// The page: a question, which the address holds, and the explorer of its answer.

const TEXTS = ["model", "cluster", "gpus", "batch", "sequence", "precision", "framework", "fix",
               "choose"];
const START = { model: "llama-3.1-70b", cluster: "h100-sxm", gpus: "64" };
const EVENTS = "text/event-stream";
const REST = 350; // ms after the last key before a question is asked
const element = (id) => document.getElementById(id);
const grouped = (number) => number.toLocaleString("en-US");
const page = { file: null, presets: null, asked: null, texts: {}, timer: 0, state: {} };

// ---- the server

async function post(what, body, signal, progress) {
  const Accept = progress ? EVENTS : "application/json";
  const reply = await fetch(`api/${what}`, {
    method: "POST", signal, headers: { "Content-Type": "application/json", Accept },
    body: JSON.stringify(body),
  });
  if (reply.headers.get("content-type")?.startsWith(EVENTS)) return streamed(reply, progress);
  const record = await reply.json().catch(() => ({ error: `the server answered ${reply.status}` }));
  if (!reply.ok) throw new Error(record.error ?? `the server answered ${reply.status}`);
  return record;
}

// The last event of a stream is the answer, or the line why there is none; those before it say how
// many plans are costed.
async function streamed(reply, progress) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the server ended before its answer");
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events.filter((one) => one.startsWith("event: "))) {
      const [name, data] = event.slice("event: ".length).split("\ndata: ");
      const record = JSON.parse(data);
      if (name === "answer") return record;
      if (name === "error") throw new Error(record.error);
      progress(record.costed);
    }
  }
}

// The body of a question; once it was answered, batch and sequence stay those of the answer.
function body(whatIf) {
  const { gpus, global_batch: batch, ...numbers } = whatIf;
  const { texts, file, asked } = page;
  const count = (text) => (text ? Number(text) : undefined);
  const words = (text) => (text ? text.trim().split(/\s+/) : undefined);
  const out = {
    model: texts.config ? JSON.parse(texts.config) : texts.model, cluster: texts.cluster,
    gpus: gpus ?? count(texts.gpus),
    batch: batch ?? count(texts.batch) ?? asked?.task.global_batch,
    sequence: count(texts.sequence) ?? asked?.task.sequence,
    precision: texts.precision || undefined, framework: texts.framework || undefined,
    fix: words(texts.fix), choose: words(texts.choose),
    what_if: Object.keys(numbers).length ? numbers : undefined,
  };
  return file ? { ...out, model: file.name, files: { [file.name]: file.text } } : out;
}

const ASK = { search, estimate, explain, timeline: timelineOf, export: exported };

function ask(what, whatIf, more, signal) { return ASK[what](whatIf, more, signal); }

async function search(whatIf, more, signal) {
  const lines = [];
  const [record, launched] = await Promise.all([
    post("search", body(whatIf), signal, (costed) => {
      if (!signal.aborted) element("costed").textContent = `${grouped(costed)} plans costed so far`;
    }),
    page.file ? own(whatIf, lines, signal) : null,
  ]);
  if (!page.asked) answered(record);
  lines.push(...(record.warnings ?? []));
  element("warnings").replaceChildren(...lines.map((line) => made("li", {}, line)));
  return launched ? { ...record, plans: [...record.plans, launched] } : record;
}

// What is asked of the launch file's own plan, which states its batch and sequence.
function launchedBody(whatIf) {
  const { model, files, fix, choose, framework, batch, sequence, ...question } = body(whatIf);
  return { ...question, batch: whatIf.global_batch, launch_file: page.file };
}

// The plan of the launch file itself; where it is refused, a line says why.
async function own(whatIf, lines, signal) {
  try {
    const record = await post("explain", launchedBody(whatIf), signal);
    lines.push(...(record.warnings ?? []));
    return { ...record.plans[0], plan_family: "as launched", own: true };
  } catch (error) {
    if (signal.aborted) throw error;
    lines.push(`The launch file's own plan is left out: ${error.message}`);
    return null;
  }
}

async function estimate(whatIf, { plan, own: launched }, signal) {
  if (launched) return post("explain", launchedBody(whatIf), signal);
  const { fix, choose, framework, ...question } = body(whatIf);
  const { software } = page.asked.profile;
  return post("estimate", { ...question, software, plan }, signal);
}

// A launch file is compared from its own plan on.
async function explain(whatIf, { plan, against, own: launched }, signal) {
  if (launched) return post("explain", { ...launchedBody(whatIf), against }, signal);
  if (page.file) return estimate(whatIf, { plan }, signal);
  const { fix, choose, ...question } = body(whatIf);
  return post("explain", { ...question, plan, against }, signal);
}

async function timelineOf(whatIf, { plan }, signal) {
  const { fix, choose, framework, ...question } = body(whatIf);
  return post("timeline", { ...question, plan }, signal);
}

// By the framework that was asked for, or the first that can run the plan.
async function exported(whatIf, { plan }, signal) {
  const { fix, choose, framework, what_if: numbers, ...question } = body(whatIf);
  for (const to of framework ? [framework] : page.presets.frameworks) {
    try {
      return await post("export", { ...question, framework: to, plan }, signal);
    } catch (error) {
      if (signal.aborted || framework) throw error;
    }
  }
  return null;
}

// ---- the address holds the question

async function packed(text) {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const letters = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(letters).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function unpacked(text) {
  const letters = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).text();
}

async function writeAddress() {
  const { texts, file, state } = page;
  const out = new URLSearchParams(TEXTS.map((name) => [name, texts[name]]).filter(([, x]) => x));
  if (texts.config) out.set("config", await packed(texts.config));
  if (file) {
    out.set("file", file.name);
    out.set("text", await packed(file.text));
  }
  for (const [name, value] of Object.entries(state.whatIf ?? {})) out.set(`if.${name}`, value);
  for (const name of ["chosen", "against"]) if (state[name]) out.set(name, state[name]);
  history.replaceState(null, "", `#${out}`);
}

async function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const texts = given.size ? Object.fromEntries(given) : START;
  for (const name of TEXTS) element(name).value = texts[name] ?? "";
  element("config").value = texts.config ? await unpacked(texts.config) : "";
  page.file = texts.text ? { name: texts.file, text: await unpacked(texts.text) } : null;
  const moves = Object.entries(texts).filter(([name]) => name.startsWith("if."))
    .map(([name, value]) => [name.slice(3), Number(value)]);
  return { whatIf: Object.fromEntries(moves), chosen: texts.chosen ?? null,
           against: texts.against ?? null };
}

// ---- the question

function list(id, entries) {
  element(id).replaceChildren(...entries.map(([value, text]) => made("option", { value }, text)));
}

function fillLists({ models, clusters, frameworks, precisions, plan3d }) {
  list("models", models.map((one) => [one.name, one.hub_id ?? ""]));
  list("cluster", clusters.map((one) => [one.name, one.name]));
  list("framework", [["", "any"], ...frameworks.map((name) => [name, name])]);
  list("precision", [["", "usual"], ...precisions.map((name) => [name, name])]);
  element("version").textContent = `plan3d ${plan3d}`;
}

function answered(record) {
  page.asked = record;
  const { task, profile } = record;
  element("title").textContent = `${task.model} on ${grouped(task.gpus)} × ${task.accelerator}`;
  document.title = `${element("title").textContent} · plan3d`;
  element("asked").textContent = `batch ${grouped(task.global_batch)} × ${grouped(task.sequence)}, `
    + `software ${profile.software}`;
  element("command").textContent = record.command;
  element("as-command").hidden = false;
}

// A question without an answer has neither a title nor a command.
function refused() {
  if (page.asked) return;
  element("title").textContent = "No answer";
  document.title = "plan3d";
  element("asked").textContent = "";
  element("warnings").replaceChildren();
  element("as-command").hidden = true;
}

function showFile() {
  element("file-shown").hidden = !page.file;
  element("file-name").textContent = page.file?.name ?? "";
  element("model").disabled = Boolean(page.file);
  element("config").disabled = Boolean(page.file);
}

async function take(file) {
  if (!file) return;
  const text = await file.text();
  const config = asConfig(text);
  if (config) {
    element("config").value = text;
    element("paste").open = true;
  }
  const name = file.name.replaceAll(/[^\w.+-]/g, "-").replace(/^\W+/, "").slice(-90) || "launch.sh";
  page.file = config ? null : { name, text };
  element("file").value = "";
  begin();
}

// The text of a model, as the hub has it; a launch file may be JSON too.
function asConfig(text) {
  try {
    const found = JSON.parse(text);
    return found.model_type || found.architectures || found.layers ? found : null;
  } catch {
    return null;
  }
}

function readQuestion() {
  page.texts = Object.fromEntries([...TEXTS, "config"].map((name) =>
    [name, element(name).value.trim()]));
  if (page.texts.config && !asConfig(page.texts.config)) {
    throw new Error("the text in its field is no config.json: a JSON object with model_type");
  }
}

function begin(state = {}) {
  clearTimeout(page.timer);
  showFile();
  page.asked = null;
  try {
    readQuestion();
  } catch (error) {
    shown.refuse(error);
    return;
  }
  page.state = state;
  writeAddress();
  shown.start(state);
}

const shown = explorer(element("explorer"), {
  ask, sliders: slidersOf, refused,
  changed(state) {
    page.state = state;
    writeAddress();
  },
  busy(works) {
    document.body.classList.toggle("busy", works);
    if (!works) element("costed").textContent = "";
  },
});

function soon() {
  clearTimeout(page.timer);
  page.timer = setTimeout(begin, REST);
}

async function open() {
  const form = element("question");
  form.addEventListener("submit", (event) => { event.preventDefault(); begin(); });
  form.addEventListener("input", ({ target }) => { if (target.type !== "file") soon(); });
  element("file").addEventListener("change", ({ target }) => take(target.files[0]));
  element("file-remove").addEventListener("click", () => { page.file = null; begin(); });
  for (const name of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault();
      element("drop").classList.toggle("over", name === "dragover");
      if (name === "drop") take(event.dataTransfer.files[0]);
    });
  }
  for (const [id, text] of [["link", () => location.href],
                            ["copy-command", () => element("command").textContent]]) {
    element(id).addEventListener("click", ({ target }) => copyText(text(), target));
  }
  addEventListener("hashchange", async () => begin(await readAddress()));
  try {
    const reply = await fetch("api/presets");
    page.presets = await reply.json();
    fillLists(page.presets);
    begin(await readAddress());
  } catch (error) {
    shown.refuse(new Error(`the server cannot be asked: ${error.message}`));
  }
}

open();
