// Shows what /seam/api tells. Names come from clients and servers: they are only ever put into textContent.
"use strict";

const POLL_MS = 2000;
const PATIENCE_MS = 10000;
const ROWS = 200;
const CLASSES = ["tool_call", "ask", "refuse", "confirm", "other", "none"];
const SVG = "http://www.w3.org/2000/svg";

const $ = (id) => document.getElementById(id);

/** An element with attributes and children; a string child is text. */
function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child ?? "–"))));
  return made;
}

function svg(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
const total = (counts) => Object.values(counts).reduce((sum, n) => sum + n, 0);
const percent = (part, whole) => `${((100 * part) / whole).toFixed(part === whole ? 0 : 1)} %`;
const clock = (time) => time.slice(11, 19);
const style = (action) => (CLASSES.includes(action) ? action : "other");

/** A table with a caption; the first cell of a row heads it. Columns that begin with # hold numbers. */
function table(caption, columns, rows) {
  const kind = columns.map((name) => (name.startsWith("#") ? { class: "number" } : {}));
  const head = columns.map((name, n) => el("th", { scope: "col", ...kind[n] }, name.replace("#", "")));
  const body = rows.map((cells) =>
    el("tr", {}, ...cells.map((cell, n) => el(n ? "td" : "th", n ? kind[n] : { scope: "row" }, cell))),
  );
  return el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
}

const shown = new Map();

/** Draw a part anew only where its data changed, so that nobody loses a place or an opened fold. */
function draw(id, data, parts) {
  const now = JSON.stringify(data);
  if (shown.get(id) === now) return;
  shown.set(id, now);
  const opened = new Set([...$(id).querySelectorAll("details[open]")].map((one) => one.dataset.name));
  $(id).replaceChildren(...parts());
  for (const one of $(id).querySelectorAll("details")) one.open = opened.has(one.dataset.name);
}

function bar(counts) {
  const all = total(counts);
  const present = CLASSES.filter((action) => counts[action]);
  const parts = present.map((action) => {
    const part = el("span", { class: action }, counts[action] / all > 0.12 ? action : "");
    part.style.flexGrow = counts[action];
    return part;
  });
  const key = present.map((action) =>
    el("li", { class: action }, el("b", {}, action), el("span", {}, ` ${counts[action].toLocaleString("en")} (${percent(counts[action], all)})`)),
  );
  return [el("div", { class: "bar", "aria-hidden": "true" }, ...parts), el("ul", { class: "key" }, ...key)];
}

function mix(summary) {
  const groups = (title, by) => {
    const named = Object.entries(by).filter(([, counts]) => total(counts));
    if (named.length < 2) return [];
    return [
      el("details", { "data-name": title }, el("summary", {}, title),
        ...named.flatMap(([name, counts]) => [el("h3", {}, `${name}: ${count(total(counts), "decision")}`), ...bar(counts)])),
    ];
  };
  return [...bar(summary.actions), ...groups("By model", summary.models), ...groups("By profile", summary.profiles)];
}

function histogram(action, { counts, unread }, edges) {
  const [width, height, foot] = [240, 70, 12];
  const step = width / counts.length;
  const most = Math.max(...counts, 1);
  const read = total(counts);
  const text = `${count(read, "margin")}${unread ? `, ${unread.toLocaleString("en")} not read` : ""}`;
  const name = (n) => (n === 0 ? `up to ${edges[0]}` : n === edges.length ? `above ${edges[n - 1]}` : `${edges[n - 1]} to ${edges[n]}`);
  const parts = [el("figcaption", { class: `dot ${style(action)}` }, el("span", {}, `${action}: ${text}`))];
  if (read) {
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height + foot}`, "aria-hidden": "true", class: style(action) });
    counts.forEach((n, place) => {
      const tall = n ? Math.max(1, (height * n) / most) : 0;
      picture.append(svg("rect", { class: "fill", x: place * step + 0.5, y: height - tall, width: step - 1, height: tall }));
    });
    picture.append(svg("line", { x1: 0, x2: width, y1: height, y2: height }));
    edges.forEach((edge, n) => {
      if (![-12, -4, -1, 0, 1, 4, 12].includes(edge)) return;
      picture.append(svg("text", { x: (n + 1) * step, y: height + 10, "text-anchor": "middle" }, String(edge)));
      if (edge === 0) picture.append(svg("line", { x1: (n + 1) * step, x2: (n + 1) * step, y1: 0, y2: height, "stroke-dasharray": "2 2" }));
    });
    const rows = counts.map((n, place) => [name(place), n.toLocaleString("en")]).filter((_, place) => counts[place]);
    parts.push(picture, el("details", { "data-name": action }, el("summary", {}, "As a table"), table(`Margins of ${action}`, ["Nats", "#Decisions"], rows)));
  }
  return el("figure", {}, ...parts);
}

function interventions({ replies, acted, probes, moved, reasons }) {
  const byCount = (counts) => Object.entries(counts).sort((a, b) => b[1] - a[1]).map(([name, n]) => [name, n.toLocaleString("en")]);
  const looks = Object.entries(probes).flatMap(([probe, outcomes]) => Object.entries(outcomes).map(([outcome, n]) => [probe, outcome, n.toLocaleString("en")]));
  const parts = [table(`What acted on ${count(replies, "reply").replace("replys", "replies")}`, ["Calibration", "#Replies"], byCount(acted))];
  if (looks.length) parts.push(table("What probes did", ["Probe", "Outcome", "#Replies"], looks));
  if (Object.keys(moved).length) parts.push(table("Classes that probes moved", ["From → to", "#Replies"], byCount(moved)));
  if (Object.keys(reasons).length) parts.push(table("Why nothing acted", ["Reason", "#Replies"], byCount(reasons)));
  return parts;
}

function upstreams(status) {
  const rows = status.upstreams.flatMap((one) => {
    const server = one.problem
      ? el("span", { class: "bad" }, `Problem: ${one.problem}`)
      : `${one.kind ?? "not probed"} ${one.version ?? ""}`;
    const processor = one.processor ? `${one.processor.name} ${one.processor.version}` : "not loaded";
    return (one.models.length ? one.models : [{}]).map((model) => [
      one.name, server, one.url, processor, model.name,
      model.entry_tokens ? `${model.entry_tokens.join(", ")} ${model.entry_text}` : model.no_entry,
    ]);
  });
  return [el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table of upstreams" },
    table("What each server is, and where a call begins on its models", ["Name", "State", "URL", "Processor", "Model", "Entry tokens"], rows))];
}

function profiles(status) {
  if (!status.profiles.length) return [el("p", {}, "None loaded.")];
  const rows = status.profiles.map((one) => [
    one.name, one.model ?? "any", one.bias,
    one.stale ? el("span", { class: "bad" }, "Stale: made for another tokenizer or template than the server's") : "No mismatch",
  ]);
  return [table("Each profile and whether its fingerprint is that of the server", ["Name", "Model", "Bias", "Fingerprint"], rows)];
}

// The last decisions -----------------------------------------------------------------------------------

const filters = $("filters").elements;
let cursor = null;
let asked = 0;

function wanted() {
  const query = new URLSearchParams({ limit: String(ROWS) });
  for (const name of ["action", "model", "profile"]) if (filters[name].value) query.set(name, filters[name].value);
  if (cursor) query.set("after", cursor);
  return query;
}

function offer(select, names) {
  const all = ["", ...names];
  if (select.value && !all.includes(select.value)) all.push(select.value);
  if ([...select.options].map((one) => one.value).join("\n") === all.join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...all.map((name) => el("option", { value: name }, name || "all")));
  select.value = chosen;
}

function row(one) {
  const action = one.action ?? "none";
  const open = el("button", { type: "button", "data-id": one.id }, "Show",
    el("span", { class: "hidden" }, ` the decision of ${clock(one.time)}`));
  const margin = one.margin === null ? "–" : one.margin.toFixed(2);
  return el("tr", {}, el("td", {}, clock(one.time)), el("td", {}, el("span", { class: `dot ${style(action)}` }, el("span", {}, action))),
    el("td", {}, one.model), el("td", {}, one.profile), el("td", { class: "number" }, margin),
    el("td", {}, one.applied), el("td", {}, open));
}

function rows({ whole, decisions }) {
  const body = $("decisions").tBodies[0];
  if (whole) body.replaceChildren(...decisions.map(row));
  else body.prepend(...decisions.map(row));
  while (body.rows.length > ROWS) body.lastChild.remove();
  $("decisions-caption").textContent = body.rows.length
    ? `${count(body.rows.length, "decision")}, the newest first`
    : "None of the remembered decisions is one of these";
}

async function detail(id) {
  const list = $("detail").querySelector("dl");
  list.replaceChildren(el("dt", {}, "Asking…"));
  $("detail").showModal();
  try {
    const record = await get(`decisions/${encodeURIComponent(id)}`);
    const value = (field) => (typeof field === "string" ? field : field !== null && typeof field === "object" ? JSON.stringify(field, null, 1) : String(field ?? "–"));
    list.replaceChildren(...Object.entries(record).flatMap(([name, field]) => [el("dt", {}, name), el("dd", {}, value(field))]));
  } catch (error) {
    list.replaceChildren(el("dt", { class: "bad" }, error.status === 404 ? "The proxy no longer remembers this decision." : `The proxy does not answer: ${error.message}`));
  }
}

// Asking -----------------------------------------------------------------------------------------------

async function get(path) {
  const answer = await fetch(`/seam/api/${path}`, { signal: AbortSignal.timeout(PATIENCE_MS) });
  if (answer.ok) return answer.json();
  const why = [401, 403].includes(answer.status) ? "it wants a key that opens pages; load the page again" : `status ${answer.status}`;
  throw Object.assign(new Error(why), { status: answer.status });
}

/** Say something to those who look and, where it is new, to those who listen. */
function say(text, bad) {
  document.body.toggleAttribute("data-gone", bad);
  $("state").classList.toggle("bad", bad);
  if ($("state").textContent !== text) $("state").textContent = text;
}

function troubles(status) {
  const ill = status.upstreams.filter((one) => one.problem).map((one) => one.name);
  const stale = status.profiles.filter((one) => one.stale).map((one) => one.name);
  return [
    ...(ill.length ? [`Upstreams with a problem: ${ill.join(", ")}.`] : []),
    ...(stale.length ? [`Stale profiles: ${stale.join(", ")}.`] : []),
  ];
}

let heard = null;

async function look() {
  const turn = ++asked;
  try {
    const [status, summary, decisions] = await Promise.all([get("status"), get("summary"), get(`decisions?${wanted()}`)]);
    if (turn !== asked) return; // a filter was changed meanwhile
    cursor = decisions.cursor;
    heard = new Date();
    say([status.draining ? "The proxy is shutting down." : "The proxy answers.", ...troubles(status)].join(" "), false);
    const worker = status.worker ? `worker ${status.worker.slot + 1} of ${status.worker.of} (figures are its own), ` : "";
    $("process").textContent = `Version ${status.version}, ${worker}${count(status.in_flight, "request")} in flight.`;
    $("empty").hidden = summary.kept > 0;
    $("figures").hidden = $("last").hidden = summary.kept === 0;
    if (summary.kept) {
      $("since").textContent = `${count(summary.kept, "decision")} since ${summary.since.slice(0, 10)} ${clock(summary.since)} UTC` +
        (summary.kept === summary.most ? ", as many as are remembered." : ".");
      draw("mix", [summary.actions, summary.models, summary.profiles], () => mix(summary));
      draw("margins", summary.margins, () =>
        CLASSES.filter((action) => summary.margins.actions[action]).map((action) => histogram(action, summary.margins.actions[action], summary.margins.edges)));
      draw("interventions", summary.interventions, () => interventions(summary.interventions));
      offer(filters.action, CLASSES);
      offer(filters.model, Object.keys(summary.models));
      offer(filters.profile, Object.keys(summary.profiles));
    }
    rows(decisions);
    draw("profiles", status.profiles, () => profiles(status));
    draw("upstreams", status.upstreams, () => upstreams(status));
  } catch (error) {
    if (turn !== asked) return;
    const since = heard ? ` What is shown is of ${heard.toISOString().slice(11, 19)} UTC.` : "";
    say(`The proxy does not answer: ${error.message}.${since}`, true);
  }
}

let timer = null;
let paused = false;

/** Look now and again and again; one look at a time, and none while nobody sees the page. */
async function live() {
  clearTimeout(timer);
  if (paused || document.hidden) return;
  await look();
  clearTimeout(timer);
  timer = setTimeout(live, POLL_MS);
}

document.addEventListener("visibilitychange", live);
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  live();
});
$("filters").addEventListener("change", () => {
  cursor = null;
  look();
});
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("decisions").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-id]");
  if (button) detail(button.dataset.id);
});
live();
