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
  return bytes < 1e5 ? (bytes / 1e3).toFixed(1) + " KB" : bytes < 1e9 ? (bytes / 1e6).toFixed(1) + " MB" : (bytes / 1e9).toFixed(2) + " GB";
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

// ---- timeline

const LEFT = 172, ROW = 20, GAP = 3, HEAD = 18;
const KINDS = ["forward", "compute", "gradient", "wait", "transfer", "stage"];
// What a row has at so many moments. A view in which they are closer than pixels is drawn from them, whatever the number of slices.
const MOMENTS = 32768;

class Timeline {
  constructor(canvas, data) {
    this.canvas = canvas;
    this.data = data;
    this.names = data.timeline.names;
    this.rows = [];
    this.addPath();
    let node = -1;
    // Of a node first its workers, then its links, then what waits for them.
    const place = (track) => (track.name.startsWith("waits") ? 2 : track.name.startsWith("rank") || track.name.startsWith("worker") ? 0 : 1);
    const tracks = [...data.timeline.tracks].sort((one, two) => one.node - two.node || place(one) - place(two));
    const titles = new Map(data.timeline.nodes);
    for (const track of tracks) {
      if (track.b.length === 0) continue;
      const title = track.node === node ? "" : titles.get(track.node);
      node = track.node;
      this.rows.push({ label: track.name, title, begins: Float64Array.from(track.b), lengths: Float64Array.from(track.d),
        names: track.n, launches: track.l, longest: track.d.reduce((a, b) => Math.max(a, b), 0) });
    }
    this.end = this.rows.reduce((last, row) => row.begins.reduce((end, begin, i) => Math.max(end, begin + row.lengths[i]), last), 1);
    this.kinds = this.names.map(([category, name]) => KINDS.indexOf(category === "compute" && name.startsWith("forward") ? "forward" : category));
    this.rows.forEach((row) => this.sample(row));
    this.view = { from: 0, to: this.end };
    this.chosen = 0;
    this.readColours();
    this.listen();
    this.resize();
  }

  addPath() {
    const { b, d, k } = this.data.path;
    const order = b.map((_, i) => i).sort((x, y) => b[x] - b[y] || d[y] - d[x]);
    this.rows.push({ label: "critical path", title: "", path: order.map((i) => k[i]), begins: Float64Array.from(order, (i) => b[i]),
      lengths: Float64Array.from(order, (i) => d[i]), names: order.map(() => -1), launches: order.map(() => 0),
      longest: d.reduce((a, c) => Math.max(a, c), 0) });
  }

  readColours() {
    this.colours = { ink: colour("ink"), dim: colour("dim"), line: colour("line"), accent: colour("accent"), back: colour("back") };
    this.fills = KINDS.map((kind) => colour(kind));
    this.shares = this.data.shares.map((_, i) => colour("share" + i));
  }

  // Marks and stages are too short to be seen from so far.
  sample(row) {
    row.moments = new Uint8Array(MOMENTS + 1);
    const scale = MOMENTS / this.end;
    for (let i = 0; i < row.begins.length; ++i) {
      const kind = row.path ? row.path[i] : this.kinds[row.names[i]];
      if (row.lengths[i] === 0 || (!row.path && KINDS[kind] === "stage")) continue;
      row.moments.fill(kind + 1, Math.floor(row.begins[i] * scale), Math.floor((row.begins[i] + row.lengths[i]) * scale) + 1);
    }
  }

  drawMoments(row, top) {
    const step = (this.view.to - this.view.from) / (this.width - LEFT) * MOMENTS / this.end, from = this.view.from * MOMENTS / this.end;
    const at = (pixel) => row.moments[Math.floor(from + pixel * step)] || 0;
    for (let pixel = 0, end; pixel < this.width - LEFT; pixel = end) {
      const kind = at(pixel);
      for (end = pixel + 1; end < this.width - LEFT && at(end) === kind; ++end);
      if (kind === 0) continue;
      this.paper.fillStyle = row.path ? this.shares[kind - 1] : this.fills[kind - 1];
      this.paper.fillRect(LEFT + pixel, top, end - pixel, ROW - 1);
    }
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.parentElement.clientWidth;
    this.height = HEAD + this.rows.reduce((sum, row) => sum + ROW + GAP + (row.title ? 16 : 0), 0) + 4;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = this.height + "px";
    this.paper = this.canvas.getContext("2d");
    this.paper.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.later();
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  x(us) { return LEFT + (us - this.view.from) / (this.view.to - this.view.from) * (this.width - LEFT); }
  us(x) { return this.view.from + (x - LEFT) / (this.width - LEFT) * (this.view.to - this.view.from); }

  // The first slice that may reach into the view. Slices are sorted by their begin.
  first(row) {
    let low = 0, high = row.begins.length;
    const least = this.view.from - row.longest;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.begins[middle] < least) low = middle + 1; else high = middle;
    }
    return low;
  }

  draw() {
    const paper = this.paper;
    paper.clearRect(0, 0, this.width, this.height);
    this.drawAxis();
    let top = HEAD;
    for (const row of this.rows) {
      paper.font = "12px system-ui, DejaVu Sans, sans-serif";
      paper.textBaseline = "middle";
      if (row.title) {
        paper.fillStyle = this.colours.ink;
        paper.fillText(row.title, 0, top + 9);
        top += 16;
      }
      paper.fillStyle = this.colours.dim;
      paper.fillText(row.label.length > 24 ? row.label.slice(0, 23) + "…" : row.label, 0, top + ROW / 2, LEFT - 8);
      row.top = top;
      if (this.view.to - this.view.from > this.end * this.width / MOMENTS) this.drawMoments(row, top); else this.drawRow(row, top);
      top += ROW + GAP;
    }
    element("window").textContent = `${msText(this.view.from)} to ${msText(this.view.to)}`;
  }

  drawAxis() {
    const paper = this.paper, span = this.view.to - this.view.from;
    let tick = 10 ** Math.floor(Math.log10(span / 6));
    while (span / tick > 10) tick *= span / tick > 40 ? 5 : 2;
    paper.font = "11px system-ui, DejaVu Sans, sans-serif";
    paper.textBaseline = "top";
    for (let at = Math.ceil(this.view.from / tick) * tick; at <= this.view.to; at += tick) {
      paper.fillStyle = this.colours.line;
      paper.fillRect(this.x(at), 0, 1, this.height);
      paper.fillStyle = this.colours.dim;
      paper.fillText(+(at / 1e3).toPrecision(7) + " ms", this.x(at) + 3, 2);
    }
  }

  drawRow(row, top) {
    const paper = this.paper, scale = (this.width - LEFT) / (this.view.to - this.view.from);
    let filled = -1, fill = "";  // the last pixel of that colour: slices within it are not seen
    for (let i = this.first(row); i < row.begins.length && row.begins[i] < this.view.to; ++i) {
      const begin = row.begins[i], length = row.lengths[i];
      const left = Math.max(LEFT, LEFT + (begin - this.view.from) * scale), right = LEFT + (begin + length - this.view.from) * scale;
      if (right < LEFT) continue;
      const style = row.path ? this.shares[row.path[i]] : this.fills[this.kinds[row.names[i]]];
      if (right <= filled && style === fill) continue;
      const stage = !row.path && this.names[row.names[i]][0] === "stage", mark = length === 0;
      const width = Math.max(mark ? 1 : 0.7, right - left);
      paper.fillStyle = style;
      paper.fillRect(left, top + (stage ? ROW - 7 : 0), width, stage ? 6 : mark ? 5 : ROW - 1);
      if (this.chosen && row.launches[i] === this.chosen) this.frame(left, top, width);
      if (right - left < 1) { filled = Math.floor(left) + 1; fill = style; }
      if (width > 34 && !stage && !row.path) this.label(this.names[row.names[i]][1], left, top, width);
    }
  }

  frame(left, top, width) {
    this.paper.strokeStyle = this.colours.accent;
    this.paper.lineWidth = 2;
    this.paper.strokeRect(left - 1, top, width + 2, ROW - 1);
  }

  label(text, left, top, width) {
    const letters = Math.floor((width - 6) / 6.4);
    this.paper.fillStyle = this.colours.ink;
    this.paper.font = "11px system-ui, DejaVu Sans, sans-serif";
    this.paper.textBaseline = "middle";
    this.paper.fillText(text.length > letters ? text.slice(0, Math.max(1, letters - 1)) + "…" : text, left + 3, top + ROW / 2 - 2);
  }

  move(from, to) {
    const span = Math.min(this.end, Math.max(20, to - from));
    const begin = Math.min(Math.max(0, from), this.end - span);
    this.view = { from: begin, to: begin + span };
    this.later();
  }

  zoom(times, x) {
    const at = this.us(x ?? (LEFT + this.width) / 2);
    this.move(at - (at - this.view.from) * times, at + (this.view.to - at) * times);
  }

  found(x, y) {
    const row = this.rows.find((each) => y >= each.top && y < each.top + ROW);
    if (!row || x < LEFT) return null;
    const at = this.us(x), slack = (this.view.to - this.view.from) / this.width * 2;
    let best = null;
    for (let i = this.first(row); i < row.begins.length && row.begins[i] <= at + slack; ++i)
      if (row.begins[i] + row.lengths[i] >= at - slack) best = { row, i };
    return best;
  }

  describe(hit) {
    if (!hit) return " ";
    const { row, i } = hit, launch = row.launches[i];
    const name = row.path ? this.data.shares[row.path[i]].name : this.names[row.names[i]].slice().reverse().join(" (") + ")";
    return `${name}: ${msText(row.lengths[i])} from ${msText(row.begins[i])}` + (launch ? `, launch ${launch - 1}` : "");
  }

  listen() {
    const canvas = this.canvas;
    let held = null;
    canvas.addEventListener("wheel", (event) => { event.preventDefault(); this.zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX); }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { held = { x: event.offsetX, view: this.view, moved: false }; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      if (!held) { element("slice").textContent = this.describe(this.found(event.offsetX, event.offsetY)); return; }
      const us = (held.x - event.offsetX) * (held.view.to - held.view.from) / (this.width - LEFT);
      held.moved ||= Math.abs(held.x - event.offsetX) > 3;
      this.move(held.view.from + us, held.view.to + us);
    });
    canvas.addEventListener("pointerup", (event) => {
      const hit = held && !held.moved ? this.found(event.offsetX, event.offsetY) : null;
      if (held && !held.moved) { this.chosen = hit ? hit.row.launches[hit.i] : 0; this.later(); }
      held = null;
    });
    canvas.addEventListener("keydown", (event) => {
      const span = this.view.to - this.view.from;
      if (event.key === "+") this.zoom(0.8); else if (event.key === "-") this.zoom(1.25);
      else if (event.key === "ArrowLeft") this.move(this.view.from - span / 5, this.view.to - span / 5);
      else if (event.key === "ArrowRight") this.move(this.view.from + span / 5, this.view.to + span / 5);
      else return;
      event.preventDefault();
    });
    element("whole").onclick = () => this.move(0, this.end);
    element("step").onclick = () => this.showStep(Math.floor(this.data.steps[0].begin.length / 2));
    window.addEventListener("resize", () => this.resize());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.readColours(); this.later(); });
  }

  showStep(index) {
    const { begin, ms } = this.data.steps[0];
    if (begin[index] === undefined) return;
    const length = 1e3 * ms[index];
    this.move(begin[index] - 0.1 * length, begin[index] + 1.4 * length);
  }

  // Milliseconds of the slowest frame while the view zooms from the whole trace into a step and out again.
  slowestFrame() {
    let slowest = 0;
    for (let i = 0; i < 60; ++i) {
      const share = 0.85 ** (i < 30 ? i : 60 - i), middle = 0.4 * this.end;
      this.view = { from: middle * (1 - share), to: middle + (this.end - middle) * share };
      const began = performance.now();
      this.draw();
      this.paper.getImageData(0, 0, 1, 1);  // waits until it is drawn
      slowest = Math.max(slowest, performance.now() - began);
    }
    this.move(0, this.end);
    return slowest;
  }
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
  element("links-note").textContent = data.traffic.length === 0
    ? "The trace has no counters of links: gloo and ps links have them." : "What each node sends, and the least round trip of gloo links. Seconds since the beginning.";
  if (data.traffic.length === 0) return;
  chart("rate-chart", joined(data.traffic.map((one) => ({ x: t(one), y: one.mbit }))), ["s", ...names], { ylabel: "Mbit/s" });
  chart("rtt-chart", joined(data.traffic.map((one) => ({ x: t(one), y: one.rtt_us }))), ["s", ...names], { ylabel: "round trip, us" });
}

// ---- tables

function table(id, columns, rows, chosen) {
  const place = element(id), head = made("tr"), body = made("tbody");
  const fill = (list) => body.replaceChildren(...list.map((row) => {
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
  fill(rows);
}

const numeric = (name, key, text) => ({ name, key, number: true, text: (row) => text(key(row)) });
const ms = (value) => value.toFixed(2);

function showBuckets(data) {
  const most = Math.max(...data.buckets.map((row) => row.path_ms), 1e-9);
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
    ], data.tensors.filter((row) => row.tensor.toLowerCase().includes(word)).slice(0, 500));
  };
  element("tensor-search").oninput = showTensors;
  showTensors();
}

// ---- what if

function showWhatIf(data) {
  const grid = data.what_if, { policies, nodes, compute, links } = grid;
  const at = { policy: 0, nodes: 0, compute: compute.indexOf(1), links: links.indexOf(1) };
  const us = (policy) => grid.us[((policy * nodes.length + at.nodes) * compute.length + at.compute) * links.length + at.links];
  const traced = grid.us[compute.indexOf(1) * links.length + links.indexOf(1)];
  const update = () => {
    const step = us(at.policy);
    const cannot = grid.cannot[policies[at.policy]];
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

function showOther(data) {
  const other = data.other;
  if (!other) return;
  for (const part of [element("other"), document.querySelector('nav a[href="#other"]')]) part.hidden = false;
  element("other-facts").textContent = `This trace against ${other.folder} (policy ${other.options.policy || "?"}). Its first cause: ${causeText(other.causes[0])}.`;
  const rows = [{ name: "median step", own: data.measured_us, other: other.measured_us },
    ...data.shares.map((share, i) => ({ name: share.name, own: share.us, other: other.shares[i].us })),
    ...data.buckets.map((bucket) => ({ name: `bucket ${bucket.bucket} on links`, own: 1e3 * bucket.link_ms,
      other: 1e3 * (other.buckets[bucket.bucket] || { link_ms: NaN }).link_ms }))];
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
  const timeline = new Timeline(element("slices"), data);
  showSteps(data, timeline);
  showBuckets(data);
  showLinks(data);
  showWhatIf(data);
  showOther(data);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    charts.forEach((each) => each.updateOptions({ gridLineColor: colour("line"), axisLineColor: colour("line") })));
  if (location.hash === "#measure") document.body.dataset.slowestFrameMs = timeline.slowestFrame().toFixed(1);
  document.body.dataset.slices = timeline.rows.reduce((sum, row) => sum + row.begins.length, 0);
}
