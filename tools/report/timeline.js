// The timeline of deft report's page: a canvas with a row for each track. It uses what page.js has: elements, colours, texts.
"use strict";

// Which steps of a long trace the timeline has.
function drawnText({ all, cut, steps, of }) {
  if (all) return "";
  const which = steps.length === 0 ? "The trace is too long to be drawn as a whole, and its end is left out"
    : `Of ${of} steps ${steps.length} ${steps.length === 1 ? "is" : "are"} drawn, each as a whole and on all nodes: more would make the page slow. ` +
      "What is grey is left out";
  return which + (cut ? ", and details of what is drawn, too" : "") + ". deft trace merge writes all of it.";
}

const LEFT = 172, ROW = 20, GAP = 3, HEAD = 18;
const KINDS = ["forward", "compute", "gradient", "wait", "transfer", "stage", "policy"];
// What a row has at so many moments. A view in which they are closer than pixels is drawn from them, whatever the number of slices.
const MOMENTS = 32768;

class Timeline {
  constructor(canvas, data) {
    this.canvas = canvas;
    this.data = data;
    this.names = data.timeline.names;
    this.rows = [];
    this.addPath();
    // Of a node first its workers, then its links. What waits for links comes last, of all nodes: it may take many rows.
    const waits = (track) => track.name.startsWith("waits"), isWorker = (track) => /^(rank|worker)/.test(track.name);
    const place = (track) => [waits(track), track.node, !isWorker(track)].map(Number);
    const order = (one, two) => one[0] - two[0] || one[1] - two[1] || one[2] - two[2];
    const tracks = [...data.timeline.tracks].sort((one, two) => order(place(one), place(two)));
    const titles = new Map(data.timeline.nodes);
    let last = "";
    for (const track of tracks) {
      if (track.b.length === 0) continue;
      const name = titles.get(track.node) + (waits(track) ? ": what waits for a link" : "");
      const title = name === last ? "" : name;
      last = name;
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
    this.colours = { ink: colour("ink"), dim: colour("dim"), line: colour("line"), accent: colour("accent"), gap: colour("gap") };
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
    this.drawGaps();
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

  // Grey, where steps of the trace are left out.
  drawGaps() {
    const gap = (from, to) => {
      const left = Math.max(LEFT, this.x(from)), right = Math.min(this.width, this.x(to));
      if (right > left) this.paper.fillRect(left, HEAD, right - left, this.height - HEAD);
    };
    this.paper.fillStyle = this.colours.gap;
    let last = 0;
    for (const [, begin, length] of this.data.drawn.steps) {
      gap(last, begin);
      last = begin + length;
    }
    if (last > 0) gap(last, this.end);
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

  // The nearest step that is drawn, if some are left out.
  showStep(chosen) {
    const { begin, ms, step } = this.data.steps[0];
    if (begin[chosen] === undefined) return;
    const far = ([number]) => Math.abs(number - step[chosen]);
    const [nearest] = [...this.data.drawn.steps].sort((one, two) => far(one) - far(two));
    const index = nearest ? step.indexOf(nearest[0]) : chosen;
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
