// The page of deft report. show(data) draws it; tools/report_data.h says where the data comes from.
// Text of the trace goes into the page by textContent only: a tensor may have any name.
"use strict";

const element = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const SERIES = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#ff9da7", "#9c755f", "#8a8f96"];

function made(tag, text, classes) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (classes) node.className = classes;
  return node;
}

function bytesText(bytes) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  for (; unit + 1 < units.length && bytes >= 1000 * 1024 ** unit; ++unit);
  return (bytes / 1024 ** unit).toFixed(unit === 0 ? 0 : 1) + " " + units[unit];
}
const msText = (us) => (us / 1e3).toFixed(us < 1e4 ? 2 : 1) + " ms";
const percent = (share) => (100 * share).toFixed(0) + " %";

// ---- why

function causeText(cause) {
  const step = cause.gain_us / Math.max(cause.share, 1e-9);
  return cause.what + (cause.gain_us > 0 ? `: mending it saves ${msText(cause.gain_us)} of a step's ${msText(step)} (${percent(cause.share)})` : "");
}

function showWhy(data) {
  const nodes = data.steps.length;
  element("title").textContent = `Job ${data.job}: ${msText(data.measured_us)} a step`;
  document.title = `deft report: ${data.job}`;
  element("facts").textContent = `${nodes} node${nodes > 1 ? "s" : ""}, ${data.steps[0].step.length} steps, policy ${data.options.policy || "?"}, `
    + `links ${data.links.join(", ")}; replay predicts ${msText(data.replayed_us)}. Traces: ${data.folder}`;
  for (const cause of data.causes) {
    const item = made("li", causeText(cause));
    const options = Object.entries(cause.options).map(([name, value]) => `${name} = ${value}`).join("   ");
    if (options) item.append(made("div", options, "options"));
    element("causes").append(item);
  }
  const sum = data.shares.reduce((all, share) => all + share.us, 0) || 1;
  element("notes").textContent = [data.doubt, ...data.notes].filter(Boolean).join(". ");
  data.shares.forEach((share, i) => {
    const box = made("div");
    box.style.cssText = `background:var(--share${i});flex:${share.us / sum}`;
    box.title = `${share.name}: ${msText(share.us)}`;
    element("shares").append(box);
    const entry = made("span"), mark = made("i");
    mark.style.background = `var(--share${i})`;
    entry.append(mark, `${share.name} ${msText(share.us)} (${percent(share.us / sum)})`);
    element("shares-legend").append(entry);
  });
  element("problems").textContent = data.problems.join(". ");
}

// ---- charts

const charts = [];

function chart(id, rows, labels, options) {
  element(id).hidden = rows.length === 0;
  if (rows.length === 0) return null;
  const made = new Dygraph(element(id), rows, {
    labels, colors: SERIES, strokeWidth: 1.4, connectSeparatedPoints: true, gridLineColor: colour("line"), axisLineColor: colour("line"),
    legend: "always", labelsKMB: true, animatedZooms: false, includeZero: true, ...options });
  charts.push(made);
  return made;
}

// Joins columns of several series into rows by their first value.
function joined(series) {
  const rows = new Map();
  series.forEach(({ x, y }, at) => x.forEach((value, i) => {
    if (!rows.has(value)) rows.set(value, [value, ...series.map(() => null)]);
    rows.get(value)[at + 1] = y[i];
  }));
  return [...rows.values()].sort((a, b) => a[0] - b[0]);
}

function showSteps(data, timeline) {
  const series = data.steps.flatMap((node) => [{ x: node.step, y: node.compute }]);
  series.unshift({ x: data.steps[0].step, y: data.steps[0].ms });
  const labels = ["step", "step time", ...data.steps.map((node) => `compute of node ${node.node}`)];
  chart("steps-chart", joined(series), labels, { xlabel: "step", ylabel: "ms",
    pointClickCallback: (_event, point) => { timeline.showStep(data.steps[0].step.indexOf(point.xval)); location.hash = "timeline"; } });
}

function showLinks(data) {
  const t = (one) => one.t.map((us) => us / 1e6);
  const names = data.traffic.map((one) => `node ${one.node} ${one.link}`);
  const kinds = new Set(data.traffic.map((one) => (one.link.startsWith("ps:")
    ? "What parameter servers answer each node" : "What each node sends over gloo links, and the least round trip")));
  element("links-note").textContent = data.traffic.length === 0
    ? "The trace has no counters of links: gloo and ps links have them." : `${[...kinds].join("; ")}. Seconds since the beginning.`;
  chart("rate-chart", joined(data.traffic.map((one) => ({ x: t(one), y: one.mbit }))), ["s", ...names], { ylabel: "Mbit/s" });
  chart("rtt-chart", joined(data.traffic.map((one) => ({ x: t(one), y: one.rtt_us }))), ["s", ...names], { ylabel: "round trip, us" });
}

// ---- tables

const MOST_ROWS = 500;  // of a table: a job may have 100,000 buckets, and a browser would stand still over so many rows

function table(id, columns, rows, chosen) {
  const place = element(id), head = made("tr"), body = made("tbody");
  const fill = (list) => body.replaceChildren(...list.slice(0, MOST_ROWS).map((row) => {
    const line = made("tr", undefined, chosen && chosen(row) ? "chosen" : "");
    for (const column of columns) {
      const cell = made("td", column.text(row), column.number ? "n" : "");
      if (column.bar) {
        const share = 100 * column.bar(row);
        cell.style.background = `linear-gradient(to right, color-mix(in srgb, var(--accent) 26%, transparent) ${share}%, transparent ${share}%)`;
      }
      line.append(cell);
    }
    return line;
  }));
  for (const column of columns) {
    const cell = made("th", column.name, column.number ? "n" : "");
    let up = false;
    cell.onclick = () => {
      up = !up;
      const key = column.key;
      fill([...rows].sort((a, b) => (key(a) < key(b) ? 1 : key(a) > key(b) ? -1 : 0) * (up ? 1 : -1)));
    };
    head.append(cell);
  }
  const top = made("thead");
  top.append(head);
  place.replaceChildren(top, body);
  if (rows.length > MOST_ROWS)
    place.prepend(made("caption", `The first ${MOST_ROWS} of ${rows.length} rows. A click on a heading sorts all of them.`));
  fill(rows);
}

const numeric = (name, key, text) => ({ name, key, number: true, text: (row) => text(key(row)) });
const ms = (value) => value.toFixed(2);

function showBuckets(data) {
  const most = data.buckets.reduce((longest, row) => Math.max(longest, row.path_ms), 1e-9);
  table("bucket-table", [
    numeric("bucket", (row) => row.bucket, String),
    { name: "layers", key: (row) => row.tensors, text: (row) => row.tensors },
    numeric("size", (row) => row.bytes, bytesText),
    numeric("ready, ms", (row) => row.ready_ms, ms),
    numeric("parts a step", (row) => row.parts, (value) => value.toFixed(1)),
    numeric("part waits, ms", (row) => row.wait_ms, ms),
    numeric("on links, ms", (row) => row.link_ms, ms),
    numeric("sent as", (row) => row.wire_bytes, bytesText),
    { ...numeric("on the critical path, ms", (row) => row.path_ms, ms), bar: (row) => row.path_ms / most },
  ], data.buckets);
  const showTensors = () => {
    const word = element("tensor-search").value.toLowerCase();
    table("tensor-table", [
      { name: "tensor", key: (row) => row.tensor, text: (row) => row.tensor },
      numeric("size", (row) => row.bytes, bytesText),
      { name: "buckets", key: (row) => row.buckets[0] ?? -1, text: (row) => row.buckets.join(", ") },
    ], data.tensors.filter((row) => row.tensor.toLowerCase().includes(word)));
  };
  element("tensor-search").oninput = showTensors;
  showTensors();
}

function showThreads(data) {
  const shareText = (share) => (share === null ? "" : percent(share));
  element("threads-note").textContent = data.threads.length === 0 ? "The trace does not tell: an older version of Deft wrote it."
    : "Of a link's threads: also the share of the time in which the link had transfers. A thread that is busy nearly all of it bounds its link.";
  if (data.threads.length === 0) return;
  table("thread-table", [
    { name: "daemon", key: (row) => row.place, text: (row) => row.place },
    { name: "thread", key: (row) => row.work, text: (row) => row.work + (row.number > 0 ? ` #${row.number + 1}` : "") },
    numeric("CPU a step, ms", (row) => row.step_ms, ms),
    numeric("of all time", (row) => row.share, shareText),
    { ...numeric("of transfers' time", (row) => row.busy, shareText), bar: (row) => row.busy ?? 0 },
  ], data.threads);
}

// ---- what if

function showWhatIf(data) {
  const grid = data.what_if, { policies, nodes, compute, links } = grid;
  const at = { policy: 0, nodes: 0, compute: compute.indexOf(1), links: links.indexOf(1) };
  const us = (policy) => grid.us[((policy * nodes.length + at.nodes) * compute.length + at.compute) * links.length + at.links];
  const traced = grid.us[compute.indexOf(1) * links.length + links.indexOf(1)];
  const update = () => {
    const step = us(at.policy);
    const reasons = grid.cannot[policies[at.policy]] || {};
    const cannot = reasons[nodes[at.nodes]] || reasons[nodes[0]];  // what the traced nodes cannot have, no number of them can
    element("prediction").textContent = step === null ? (cannot ? `Cannot be: ${cannot}.` : "Not replayed: deft report replays it with a longer --budget.")
      : `${msText(step)} a step` + (traced ? `, ${(traced / step).toFixed(2)}x as fast as now` : "");
    table("policies", [
      { name: "policy", key: (row) => row.name, text: (row) => row.name + (row.index === 0 ? " (traced)" : "") },
      { ...numeric("step, ms", (row) => row.us ?? Infinity, (value) => (value === Infinity ? "-" : (value / 1e3).toFixed(1))), bar: (row) => (row.us ?? 0) / Math.max(...policies.map((_, i) => us(i) ?? 0), 1) },
    ], policies.map((name, index) => ({ name, index, us: us(index) })).sort((a, b) => (a.us ?? Infinity) - (b.us ?? Infinity)), (row) => row.index === at.policy);
  };
  const slider = (name, values, key, text) => {
    const input = made("input"), label = made("label", name), shown = made("output", text(values[at[key]]));
    Object.assign(input, { type: "range", min: 0, max: values.length - 1, value: at[key], id: "slider-" + key });
    label.htmlFor = input.id;
    input.oninput = () => { at[key] = +input.value; shown.textContent = text(values[at[key]]); update(); };
    element("sliders").append(label, input, shown);
  };
  slider("policy", policies, "policy", String);
  slider("links", links, "links", (times) => times + "x as fast");
  slider("compute", compute, "compute", (times) => times + "x as fast");
  slider("nodes", nodes, "nodes", (count) => count + " nodes");
  update();
}

// ---- comparison

// Jobs may cut their gradients in other ways: then the same number stands for other layers.
function sameBuckets(own, others) {
  const key = (bucket) => JSON.stringify([bucket.tensors, bucket.count, bucket.bytes]);
  const left = new Map();  // pieces of one large layer are alike, and come in the same order
  for (const bucket of [...others].reverse()) {
    const like = key(bucket);
    if (!left.has(like)) left.set(like, []);
    left.get(like).push(bucket);
  }
  return own.map((bucket) => [bucket, left.get(key(bucket))?.pop()]).filter(([, other]) => other !== undefined);
}

function showOther(data) {
  const other = data.other;
  if (!other) return;
  for (const part of [element("other"), document.querySelector('nav a[href="#other"]')]) part.hidden = false;
  element("other-facts").textContent = `This trace against ${other.folder} (policy ${other.options.policy || "?"}). Its first cause: ${causeText(other.causes[0])}.`;
  const pairs = sameBuckets(data.buckets, other.buckets), unlike = data.buckets.length - pairs.length;
  element("other-note").textContent = unlike === 0 ? ""
    : `${unlike} of ${data.buckets.length} buckets are not compared: there is none of the same layers and size there.`;
  const rows = [{ name: "median step", own: data.measured_us, other: other.measured_us },
    ...data.shares.map((share, i) => ({ name: share.name, own: share.us, other: other.shares[i].us })),
    ...pairs.map(([one, two]) => ({ name: `bucket ${one.bucket} on links`, own: 1e3 * one.link_ms, other: 1e3 * two.link_ms }))];
  table("other-table", [
    { name: "", key: (row) => row.name, text: (row) => row.name },
    numeric("here, ms", (row) => row.own / 1e3, ms),
    numeric("there, ms", (row) => row.other / 1e3, ms),
    numeric("difference, ms", (row) => (row.own - row.other) / 1e3, (value) => (value > 0 ? "+" : "") + ms(value)),
  ], rows);
  chart("other-chart", joined([data, other].map((one) => ({ x: one.steps[0].step, y: one.steps[0].ms }))), ["step", "here", "there"], { ylabel: "ms", xlabel: "step" });
}

function show(data) {
  showWhy(data);
  element("drawn").textContent = drawnText(data.drawn);
  const timeline = new Timeline(element("slices"), data);
  showSteps(data, timeline);
  showBuckets(data);
  showLinks(data);
  showThreads(data);
  showWhatIf(data);
  showOther(data);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    charts.forEach((each) => each.updateOptions({ gridLineColor: colour("line"), axisLineColor: colour("line") })));
  if (location.hash === "#measure") document.body.dataset.slowestFrameMs = timeline.slowestFrame().toFixed(1);
  document.body.dataset.slices = timeline.rows.reduce((sum, row) => sum + row.begins.length, 0);
}
