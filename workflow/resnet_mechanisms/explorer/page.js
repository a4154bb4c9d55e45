"use strict";
// One view of the study: two networks side by side, Neural Collapse, claims. Data come packed (see collect.py).

const index = JSON.parse(document.getElementById("index").textContent);
const networks = index.networks;
const COLOURS = ["#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9"];
// White at 0, darker towards either end: signs differ in hue, sizes in lightness.
const DIVERGING = [[0, "#b2182b"], [0.25, "#f4a582"], [0.5, "#f7f7f7"], [0.75, "#92c5de"], [1, "#2166ac"]];
const SIDE = { a: "#0173b2", b: "#d55e00" };
const DEFINED = ["ok", "too_few_points"];
const STATUS = {
  diverged: "Training diverged: loss or weights ceased to be finite.",
  dead: "Dead: some block has J = 0 at every input.",
  chance_accuracy: "At chance: no better on its training images than naming the commonest class.",
  "": "Not trained to this epoch.",
};
const config = { displayModeBar: false, responsive: true };
const element = (id) => document.getElementById(id);

// --- Packed numbers

function bytes(text) {
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k++) out[k] = raw.charCodeAt(k);
  return out;
}

function half(h) { // IEEE 754 binary16
  const sign = h & 0x8000 ? -1 : 1, exponent = (h >> 10) & 31, fraction = h & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function unpack(item) {
  let data;
  if (item.half !== undefined) {
    const view = new DataView(bytes(item.half).buffer);
    data = Float64Array.from({ length: view.byteLength / 2 }, (_, k) => half(view.getUint16(2 * k, true)) * item.scale);
  } else {
    data = Float64Array.from(bytes(item.log), (c) => (c === 0 ? NaN : c === 1 ? 0 : item.scale * 10 ** ((-index.decades * (255 - c)) / 253)));
  }
  return { shape: item.shape, data };
}

// The part of an array at some leading indices.
function at(array, ...where) {
  let size = array.data.length, offset = 0;
  where.forEach((k, dimension) => { size /= array.shape[dimension]; offset += k * size; });
  return { shape: array.shape.slice(where.length), data: array.data.subarray(offset, offset + size) };
}

const value = (array, ...where) => at(array, ...where).data[0];
const gap = (x) => (Number.isFinite(x) ? x : null);
const rows = (array) => Array.from({ length: array.shape[0] }, (_, k) => Array.from(at(array, k).data, gap));
const shown = (x, digits = 3) => (Number.isFinite(x) ? (x !== 0 && Math.abs(x) < 0.001 ? x.toExponential(1) : x.toFixed(digits)) : "–");

// --- Loading: inside the page, or a file beside it, asked for once

const loading = new Map(), arrived = new Map();
window.explorerData = (number, text) => arrived.get(number)(text);

async function inflate(text) {
  const stream = new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const content = JSON.parse(await new Response(stream).text());
  for (const name of Object.keys(content.arrays)) content.arrays[name] = unpack(content.arrays[name]);
  return content;
}

function load(number) {
  if (loading.has(number)) return loading.get(number);
  const inside = element(`data-${number}`);
  const text = inside ? Promise.resolve(inside.textContent) : new Promise((resolve, reject) => {
    arrived.set(number, resolve);
    const script = document.createElement("script");
    script.src = `${index.folder}/${number}.js`;
    script.onerror = () => reject(new Error(`${script.src} is missing: keep the folder ${index.folder} beside this page`));
    document.head.append(script);
  });
  loading.set(number, text.then(inflate));
  return loading.get(number);
}

// --- State: what each side shows; kept in the address

const state = { a: null, b: null };
const fresh = (number) => ({ number, seed: 0, epoch: networks[number].epochs.length - 1, split: 0, input: 0, i: 1, j: Math.max(1, networks[number].depth) });

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [k, side] of ["a", "b"].entries()) {
    state[side] = fresh(index.pair[k]);
    const words = (given.get(side) || "").split("@");
    const number = networks.findIndex((n) => n.path === words[0]);
    if (number < 0) continue;
    const s = (state[side] = fresh(number)), n = networks[number];
    const position = (list, word, otherwise) => { const k = list.map(String).indexOf(word); return k < 0 ? otherwise : k; };
    s.seed = position(n.seeds, words[1], s.seed);
    s.epoch = position(n.epochs, words[2], s.epoch);
    s.split = position(index.splits, words[3], s.split);
    s.input = Math.max(0, (parseInt(words[4], 10) || 1) - 1);
    s.i = parseInt(words[5], 10) || s.i;
    s.j = parseInt(words[6], 10) || s.j;
  }
}

function writeAddress() {
  const words = new URLSearchParams();
  for (const side of ["a", "b"]) {
    const s = state[side], n = networks[s.number];
    words.set(side, [n.path, n.seeds[s.seed], n.epochs[s.epoch], index.splits[s.split], s.input + 1, s.i, s.j].join("@"));
  }
  history.replaceState(null, "", "#" + words.toString());
}

// --- Words

const SKIP = { resnet: "ResNet", plain: "plain network" };
function describe(n) {
  if (n.type === "external") return `${n.recipe} (own network), L = ${n.depth}, ${n.dataset}, ${n.classes} classes`;
  return `${SKIP[n.skip]}, ${n.type}, L = ${n.depth}, width ${n.width}, ${n.recipe.replaceAll("_", " ")}`;
}

function twinOf(number) {
  const n = networks[number];
  const like = (m, keys) => keys.every((key) => m[key] === n[key]);
  const others = networks.map((m, k) => [m, k]).filter(([m]) => m.skip !== n.skip && like(m, ["dataset", "classes", "type", "depth", "width"]));
  const same = others.find(([m]) => m.recipe === n.recipe) || others[0];
  return same ? same[1] : null;
}

// --- Panels

const PANEL = `
  <h2></h2>
  <div class="controls">
    <label class="half">Filter networks <input type="search" data-name="filter" aria-label="Filter networks" placeholder="plain 8 usual"></label>
    <label class="half">Network <select data-name="number" aria-label="Network"></select></label>
    <label>Seed <select data-name="seed" aria-label="Seed"></select></label>
    <label>Epoch <select data-name="epoch" aria-label="Epoch"></select></label>
    <label>Images <select data-name="split" aria-label="Images"></select></label>
    <label>Input <select data-name="input" aria-label="Input"></select></label>
    <div class="full"><button type="button" data-name="twin">Show its twin on the other side</button></div>
  </div>
  <div class="message" role="status" hidden></div>
  <div class="views">
    <figure><h3>Paths h<sub>0</sub> … h<sub>L</sub> of images (RA1)</h3><div class="plot" data-plot="paths" role="img"></div><figcaption></figcaption></figure>
    <figure><h3>Alignment of block <i>i</i>'s Jacobian with block <i>j</i>'s vectors (RA2)</h3><div class="plot grid" data-plot="grid" role="img"></div><figcaption></figcaption>
      <div class="pair"><label>Block <i>i</i> <input type="number" min="1" data-name="i" aria-label="Block i"></label><label>Block <i>j</i> <input type="number" min="1" data-name="j" aria-label="Block j"></label><output></output></div>
      <div class="plot cell" data-plot="cell" role="img"></div></figure>
    <figure><h3>Singular values s<sub>k</sub> of every block (RA3)</h3><div class="plot" data-plot="values" role="img"></div><figcaption></figcaption></figure>
    <figure><h3>1/s<sub>1</sub> against the block (RA4)</h3><div class="plot" data-plot="inverse" role="img"></div><figcaption></figcaption></figure>
    <figure><h3>Scores</h3><div class="scroll"><table class="scores"><thead><tr><th scope="col">score</th><th scope="col">this input</th><th scope="col">mean over inputs</th></tr></thead><tbody></tbody></table></div></figure>
  </div>`;
const panels = {};

function fill(select, texts, chosen) {
  select.replaceChildren(...texts.map(([text, v]) => new Option(text, v)));
  select.value = String(chosen);
}

function makePanel(side, title) {
  const panel = document.createElement("section");
  panel.className = "panel";
  panel.dataset.side = side;
  panel.setAttribute("aria-label", title);
  panel.innerHTML = PANEL;
  element("panels").append(panel);
  panels[side] = panel;
  const control = (name) => panel.querySelector(`[data-name=${name}]`);
  const set = (name, change) => control(name).addEventListener("change", (event) => { change(state[side], Number(event.target.value)); update(side, name); });
  set("number", (s, v) => Object.assign(s, fresh(v)));
  set("seed", (s, v) => (s.seed = v));
  set("epoch", (s, v) => (s.epoch = v));
  set("split", (s, v) => (s.split = v));
  set("input", (s, v) => (s.input = v));
  for (const name of ["i", "j"]) set(name, (s, v) => (s[name] = v));
  control("filter").addEventListener("input", () => listNetworks(side));
  control("twin").addEventListener("click", () => {
    const twin = twinOf(state[side].number), other = side === "a" ? "b" : "a";
    if (twin !== null) { state[other] = fresh(twin); update(other); }
  });
}

function listNetworks(side) {
  const panel = panels[side], select = panel.querySelector("[data-name=number]");
  const words = panel.querySelector("[data-name=filter]").value.toLowerCase().split(/\s+/).filter(Boolean);
  const groups = new Map();
  networks.forEach((n, number) => {
    const text = `${n.path} ${describe(n)}`.toLowerCase();
    if (number !== state[side].number && !words.every((word) => text.includes(word))) return;
    const group = `${n.dataset}, ${n.classes} classes`;
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(new Option(describe(n), number));
  });
  select.replaceChildren(...[...groups].map(([label, options]) => {
    const group = document.createElement("optgroup");
    group.label = label;
    group.append(...options);
    return group;
  }));
  select.value = String(state[side].number);
}

const latest = { a: 0, b: 0 };
const content = { a: null, b: null };
let busy = 0;

async function update(side, changed) {
  document.body.setAttribute("aria-busy", String(++busy > 0));
  await show(side, changed);
  document.body.setAttribute("aria-busy", String(--busy > 0));
}

async function show(side, changed) {
  const turn = ++latest[side];
  const panel = panels[side], message = panel.querySelector(".message");
  if (changed && element("linked").checked && ["seed", "split", "input"].includes(changed)) follow(side, changed);
  try {
    const found = await load(state[side].number);
    if (turn !== latest[side]) return; // another choice was made meanwhile
    content[side] = found;
  } catch (error) {
    message.hidden = false;
    message.textContent = error.message;
    return;
  }
  controls(side);
  draw();
  writeAddress();
}

// What both sides share goes to the other one too, where it has that seed, split or input.
function follow(side, name) {
  const other = side === "a" ? "b" : "a", s = state[side], o = state[other];
  if (name === "seed") {
    const position = networks[o.number].seeds.indexOf(networks[s.number].seeds[s.seed]);
    if (position < 0) return;
    o.seed = position;
  } else o[name] = s[name];
  update(other);
}

function inputsOf(side) { // inputs that were measured, of the split
  const s = state[side], a = content[side].arrays.singular_values;
  return Array.from({ length: a.shape[3] }, (_, k) => k).filter((k) => Number.isFinite(value(a, s.seed, s.epoch, s.split, k, 0)));
}

function controls(side) {
  const s = state[side], n = networks[s.number], panel = panels[side];
  const control = (name) => panel.querySelector(`[data-name=${name}]`);
  panel.querySelector("h2").textContent = describe(n);
  listNetworks(side);
  fill(control("seed"), n.seeds.map((seed, k) => [seed, k]), s.seed);
  fill(control("epoch"), n.epochs.map((epoch, k) => [epoch, k]), s.epoch);
  fill(control("split"), index.splits.map((split, k) => [split === "train" ? "training" : split, k]), s.split);
  const inputs = inputsOf(side);
  if (!inputs.includes(s.input)) s.input = inputs[0] || 0;
  fill(control("input"), inputs.map((k) => [k + 1, k]), s.input);
  for (const name of ["i", "j"]) {
    s[name] = Math.min(Math.max(1, s[name]), n.depth);
    control(name).max = n.depth;
    control(name).value = s[name];
  }
  control("twin").disabled = twinOf(s.number) === null;
  const status = n.status[s.seed][s.epoch], defined = DEFINED.includes(status);
  const message = panel.querySelector(".message");
  message.hidden = status === "ok";
  message.textContent = status === "too_few_points" ? "Fewer than three blocks: no line is fitted to 1/s₁." : `No spectra. ${STATUS[status] || status}`;
  panel.querySelector(".views").hidden = !defined;
}

const isDefined = (side) => content[side] && DEFINED.includes(networks[state[side].number].status[state[side].seed][state[side].epoch]);

// --- Drawing

function layout(more) {
  const axis = { linecolor: "#9aa3ad", ticks: "outside", tickcolor: "#9aa3ad", ticklen: 4, gridcolor: "#eceff2", zeroline: false, automargin: true };
  const { xaxis, yaxis, ...rest } = more;
  return { margin: { l: 54, r: 12, t: 8, b: 42 }, font: { size: 12, color: "#1c2126", family: "system-ui, Segoe UI, Roboto, DejaVu Sans, sans-serif" }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "#fff", showlegend: false, hovermode: "closest", dragmode: false, xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest };
}

function plot(side, name, traces, shape, words) {
  const place = panels[side].querySelector(`[data-plot=${name}]`);
  place.setAttribute("aria-label", words);
  return Plotly.react(place, traces, layout(shape), config);
}

const caption = (side, name, text) => (panels[side].querySelector(`[data-plot=${name}]`).parentElement.querySelector("figcaption").textContent = text);

function lineFit(y) { // least squares on the block index, all blocks
  const n = y.length, mx = (n + 1) / 2, my = y.reduce((a, b) => a + b, 0) / n;
  let xy = 0, xx = 0, yy = 0;
  y.forEach((v, k) => { xy += (k + 1 - mx) * (v - my); xx += (k + 1 - mx) ** 2; yy += (v - my) ** 2; });
  const slope = xy / xx;
  return { slope, intercept: my - slope * mx, r2: (slope ** 2 * xx) / yy };
}

// All that a side shows at its seed, epoch, split and input.
function measured(side) {
  const s = state[side], n = networks[s.number], arrays = content[side].arrays;
  const values = at(arrays.singular_values, s.seed, s.epoch, s.split);
  const own = at(values, s.input);
  const depth = n.depth, blocks = Array.from({ length: depth }, (_, l) => l + 1);
  const inverse = blocks.map((_, l) => 1 / value(own, l, 0));
  const inputs = inputsOf(side);
  const mean = blocks.map((_, l) => inputs.length / inputs.reduce((sum, k) => sum + value(values, k, l, 0), 0));
  return { s, n, arrays, own, blocks, inverse, mean, inputs };
}

function draw() {
  const sides = ["a", "b"].filter(isDefined);
  const all = Object.fromEntries(sides.map((side) => [side, measured(side)]));
  const finite = (list) => list.filter((x) => Number.isFinite(x) && x > 0);
  const s = finite(sides.flatMap((side) => Array.from(all[side].own.data)));
  const top = Math.max(...s, 1e-12), bottom = Math.max(Math.min(...s), top * 1e-6);
  const range = { values: [Math.log10(bottom) - 0.15, Math.log10(top) + 0.15] };
  const inverses = finite(sides.flatMap((side) => [...all[side].inverse, ...all[side].mean]));
  inverses.sort((x, y) => x - y);
  // One input with almost no open gate may have a huge 1/s; the axis need not show it.
  const high = Math.min(inverses.at(-1) || 1, 4 * (inverses[Math.floor(inverses.length * 0.9)] || 1));
  range.inverse = [0, 1.08 * high];
  const cells = Math.max(...sides.map((side) => cellTop(side)), 1e-12);
  for (const side of sides) {
    drawPaths(side, all[side]);
    drawGrid(side, all[side]);
    drawCell(side, all[side], Math.log10(cells));
    drawValues(side, all[side], range.values);
    drawInverse(side, all[side], range.inverse);
    drawScores(side, all[side]);
  }
  drawCollapse();
}

function drawPaths(side, { s, n, arrays }) {
  const projection = Number(element("projection").value);
  const paths = at(arrays.trajectory, s.seed, s.epoch, projection);
  const labels = content[side].labels[s.seed], groups = new Map();
  labels.forEach((label, k) => {
    if (!groups.has(label)) groups.set(label, { x: [], y: [] });
    const path = at(paths, k);
    for (let l = 0; l < path.shape[0]; l++) { groups.get(label).x.push(gap(value(path, l, 0))); groups.get(label).y.push(gap(value(path, l, 1))); }
    groups.get(label).x.push(null); groups.get(label).y.push(null);
  });
  const traces = [...groups].sort((p, q) => p[0] - q[0]).map(([label, { x, y }]) => ({ x, y, mode: "lines+markers", name: `class ${label}`, line: { width: 1, color: COLOURS[label % 10] }, marker: { size: 3 }, opacity: 0.75, hoverinfo: "name" }));
  const which = s.split === 0 && content[side].input_sample ? content[side].input_sample[s.input] : -1;
  if (which >= 0) {
    const path = at(paths, which), x = [], y = [];
    for (let l = 0; l < path.shape[0]; l++) { x.push(gap(value(path, l, 0))); y.push(gap(value(path, l, 1))); }
    traces.push({ x, y, mode: "lines+markers", name: "the chosen input", line: { width: 3, color: "#000" }, marker: { size: 6, color: "#000" }, customdata: x.map((_, l) => l), hovertemplate: "chosen input, h<sub>%{customdata}</sub><extra></extra>" });
  }
  const share = at(arrays.variance_share, s.seed, s.epoch).data;
  const names = projection === 0 ? [`PC 1 (${shown(100 * share[0], 0)} % of variance)`, `PC 2 (${shown(100 * share[1], 0)} %)`] : ["random direction 1", "random direction 2"];
  const score = value(arrays.line_shape_score, s.seed, s.epoch, s.split, s.input), cv = value(arrays.step_cv, s.seed, s.epoch, s.split, s.input);
  const text = `Line-shape score ${shown(score)} (1: straight), step length CV ${shown(cv)} (0: equispaced) at this input.` + (which >= 0 ? " Black: the chosen input." : s.split === 1 ? " Paths are of training images." : "");
  caption(side, "paths", text);
  plot(side, "paths", traces, { xaxis: { title: { text: names[0] } }, yaxis: { title: { text: names[1] }, scaleanchor: "x" } }, `Paths of images through the ${n.depth} blocks. ${text}`);
}

function drawGrid(side, { s, n, arrays, blocks }) {
  const scores = rows(at(arrays.pairs, s.seed, s.epoch));
  const place = panels[side].querySelector("[data-plot=grid]");
  const trace = { type: "heatmap", x: blocks, y: blocks, z: scores, zmin: -1, zmax: 1, colorscale: DIVERGING, xgap: n.depth > 40 ? 0 : 1, ygap: n.depth > 40 ? 0 : 1, hoverongaps: false, hovertemplate: "i = %{y}, j = %{x}<br>alignment %{z:.3f}<extra></extra>", colorbar: { thickness: 10, len: 0.95, outlinewidth: 0, tickvals: [-1, 0, 1] } };
  const marker = { x: [s.j], y: [s.i], mode: "markers", marker: { symbol: "square-open", size: Math.max(8, Math.min(26, 220 / n.depth)), color: "#000", line: { width: 2 } }, hoverinfo: "skip" };
  const mean = value(arrays.alignment, s.seed, s.epoch, s.split, s.input);
  const text = `Alignment ${shown(mean, 2)} over pairs i ≠ j at this input (1: perfect, 0: unrelated). The grid is of the first training input; blank: the states have another shape.`;
  caption(side, "grid", text);
  const step = Math.ceil(n.depth / 12);
  const ticks = { tickmode: "array", tickvals: blocks.filter((b) => b === 1 || b % step === 0) };
  plot(side, "grid", [trace, marker], { xaxis: { title: { text: "block j (vectors)" }, showgrid: false, ...ticks, constrain: "domain" }, yaxis: { title: { text: "block i (Jacobian)" }, showgrid: false, autorange: "reversed", scaleanchor: "x", constrain: "domain", ...ticks } }, `Alignment of all pairs of ${n.depth} blocks. ${text}`).then(() => {
    if (place.dataset.listens) return;
    place.dataset.listens = "yes";
    place.on("plotly_click", (event) => {
      // The cell under the pointer: event.points is up to 50 ms old, of a cell passed on the way.
      const { xaxis, yaxis } = event.points[0], box = place.getBoundingClientRect();
      const j = Math.round(xaxis.p2d(event.event.clientX - box.left - xaxis._offset));
      const i = Math.round(yaxis.p2d(event.event.clientY - box.top - yaxis._offset));
      const { depth } = networks[state[side].number];
      if (Math.min(i, j) < 1 || Math.max(i, j) > depth) return;
      state[side].i = i; state[side].j = j;
      update(side, "pair");
    });
  });
}

function cell(side) { // |U_j^T J_i V_j| of the chosen pair, rows of numbers
  const s = state[side];
  return at(content[side].arrays.alignment_matrix, s.seed, s.epoch, s.i - 1, s.j - 1);
}

const cellTop = (side) => Math.max(0, ...Array.from(cell(side).data).filter(Number.isFinite));

function drawCell(side, { s, arrays }, top) {
  const numbers = rows(cell(side)), k = numbers.length;
  const score = value(arrays.pairs, s.seed, s.epoch, s.i - 1, s.j - 1);
  panels[side].querySelector("output").textContent = Number.isFinite(score) ? `i = ${s.i}, j = ${s.j}: alignment ${shown(score)}` : `i = ${s.i}, j = ${s.j}: states of different shape`;
  const ranks = Array.from({ length: k }, (_, u) => u + 1);
  const trace = { type: "heatmap", x: ranks, y: ranks, z: numbers.map((row) => row.map((x) => (x === null ? null : Math.max(top - 3, Math.log10(x || 1e-30))))), customdata: numbers, zmin: top - 3, zmax: top, colorscale: "Viridis", hovertemplate: "u<sub>%{y}</sub>, v<sub>%{x}</sub><br>%{customdata:.3g}<extra></extra>", colorbar: { thickness: 10, outlinewidth: 0, tickvals: [top - 3, top - 2, top - 1, top], ticktext: [3, 2, 1, 0].map((d) => shown(10 ** (top - d), 2)) } };
  plot(side, "cell", [trace], { xaxis: { title: { text: "singular vector v" }, dtick: 3, tick0: 1, showgrid: false, constrain: "domain" }, yaxis: { title: { text: "u" }, dtick: 3, tick0: 1, showgrid: false, autorange: "reversed", scaleanchor: "x", constrain: "domain" } }, `The ${k} by ${k} products of the first singular vectors of this pair, magnitudes`);
}

function drawValues(side, { n, own, blocks }, range) {
  const ranks = own.shape[1], traces = [];
  for (let k = ranks - 1; k >= 0; k--) {
    const first = k < n.classes, share = n.classes > 1 ? k / (n.classes - 1) : 0;
    traces.push({ x: blocks, y: blocks.map((_, l) => gap(value(own, l, k))), mode: "lines+markers", line: { width: first ? 1.6 : 1, color: first ? `hsl(${265 - 205 * share}, 65%, ${32 + 22 * share}%)` : "#b3b8be" }, marker: { size: first ? 4 : 3 }, hovertemplate: `s<sub>${k + 1}</sub>, block %{x}: %{y:.3g}<extra></extra>` });
  }
  const mean = (k) => blocks.reduce((sum, _, l) => sum + value(own, l, k) / value(own, l, 0), 0) / blocks.length;
  const text = `Coloured: the first C = ${n.classes}, from violet (first) to yellow (last); grey: the rest. Mean over blocks: value C over the first ${shown(mean(n.classes - 1))}` + (ranks > n.classes ? `, value C + 1 over the first ${shown(mean(n.classes))}.` : ".");
  caption(side, "values", text);
  plot(side, "values", traces, { xaxis: { title: { text: "block l" } }, yaxis: { title: { text: "s<sub>k</sub>" }, type: "log", range, exponentformat: "power" } }, `Singular values. ${text}`);
}

function drawInverse(side, { s, n, arrays, blocks, inverse, mean }, range) {
  const traces = [{ x: blocks, y: mean.map(gap), mode: "markers", name: "1 over the mean over inputs", marker: { size: 9, color: "#fff", line: { width: 1.6, color: SIDE[side] } }, hovertemplate: "block %{x}: %{y:.3f}<extra>mean over inputs</extra>" }, { x: blocks, y: inverse.map(gap), mode: "markers", name: "this input", marker: { size: 6, color: SIDE[side] }, hovertemplate: "block %{x}: %{y:.3f}<extra>this input</extra>" }];
  let text = "Fewer than three blocks: no line.";
  if (n.depth >= 3) {
    const fit = lineFit(inverse), line = ["slope", "intercept", "r2"].map((name) => value(arrays[`line_${name}`], s.seed, s.epoch, s.split));
    const ends = [1, n.depth];
    traces.unshift({ x: ends, y: ends.map((l) => fit.intercept + fit.slope * l), mode: "lines", name: "least squares, this input", line: { color: SIDE[side], width: 1.6 }, hoverinfo: "skip" }, { x: ends, y: ends.map((l) => line[1] + line[0] * l), mode: "lines", name: "least squares, mean over inputs", line: { color: "#56606b", width: 1.2, dash: "dash" }, hoverinfo: "skip" });
    text = `This input (filled): slope ${shown(fit.slope)}, R² ${shown(fit.r2)}; mean over inputs (open): slope ${shown(line[0])}, R² ${shown(line[2])}. Exact Residual Alignment has slope 1.`;
  }
  caption(side, "inverse", text);
  plot(side, "inverse", traces, { xaxis: { title: { text: "block l" } }, yaxis: { title: { text: "1/s₁" }, range } }, `1 over the top singular value. ${text}`);
}

const SCORES = [
  ["line_shape_score", "line-shape score (1: straight)"], ["step_cv", "step length CV (0: equispaced)"], ["pc1_share", "variance on PC 1 (1: a line)"],
  ["alignment", "alignment (1: perfect, 0: unrelated)"], ["alignment_neighbours", "… of neighbours"], ["alignment_swapped", "left with right vectors"], ["alignment_inputs", "with another input's vectors"],
  ["overlap_uu", "overlap of left vectors"], ["overlap_vv", "overlap of right vectors"], ["overlap_chance", "… of random ones"],
  ["inverse_slope", "slope of 1/s₁ (1: exact RA)"], ["inverse_r2", "R² of the line"],
];

function drawScores(side, { s, arrays, inputs }) {
  const body = panels[side].querySelector(".scores tbody"), at3 = [s.seed, s.epoch];
  const line = (text, one, mean) => {
    const row = document.createElement("tr");
    row.innerHTML = `<th scope="row"></th><td class="number"></td><td class="number"></td>`;
    [text, one, mean].forEach((word, k) => (row.children[k].textContent = word));
    return row;
  };
  const list = SCORES.filter(([name]) => arrays[name]).map(([name, text]) => {
    const of = (k) => value(arrays[name], s.seed, s.epoch, s.split, k);
    const known = inputs.map(of).filter(Number.isFinite);
    return line(text, shown(of(s.input)), shown(known.reduce((x, y) => x + y, 0) / known.length));
  });
  list.push(line("accuracy (training, test)", "", `${shown(value(arrays.train_accuracy, ...at3))}, ${shown(value(arrays.test_accuracy, ...at3))}`));
  body.replaceChildren(...list);
}

function drawCollapse() {
  const names = ["nc1", "nc2_norm", "nc2_angle", "nc3", "nc4"], titles = ["NC1 within / between", "NC2 equal norms", "NC2 equal angles", "NC3 self-duality", "NC4 nearest mean"];
  const traces = [], sides = ["a", "b"].filter((side) => content[side]);
  const known = sides.flatMap((side) => names.flatMap((name) => Array.from(content[side].arrays[name].data))).filter((x) => x > 0 && Number.isFinite(x));
  const floor = Math.min(...known, 1) / 3;
  for (const side of sides) {
    const s = state[side], n = networks[s.number], arrays = content[side].arrays;
    const x = [], y = [], sizes = [], words = [];
    names.forEach((name, k) => n.seeds.forEach((seed, p) => n.epochs.forEach((epoch, e) => {
      const v = value(arrays[name], p, e);
      if (!Number.isFinite(v)) return;
      const chosen = p === s.seed && e === s.epoch;
      const along = n.epochs.length > 1 ? e / (n.epochs.length - 1) - 0.5 : 0;
      x.push(k + (side === "a" ? -0.2 : 0.2) + 0.25 * along);
      y.push(Math.max(v, floor)); sizes.push(chosen ? 13 : 7);
      words.push(`${titles[k]}: ${shown(v)}<br>seed ${seed}, epoch ${epoch}`);
    })));
    traces.push({ x, y, mode: "markers", name: `${side === "a" ? "left" : "right"}: ${describe(n)}`, text: words, hovertemplate: "%{text}<extra></extra>", marker: { size: sizes, color: SIDE[side], opacity: 0.75, symbol: side === "a" ? "circle" : "diamond", line: { width: sizes.map((z) => (z > 7 ? 2 : 0)), color: "#000" } } });
  }
  const place = element("collapse-plot");
  place.setAttribute("aria-label", "NC1 to NC4 of both networks; the numbers appear on pointing at the marks");
  Plotly.react(place, traces, layout({ showlegend: true, legend: { orientation: "h", y: 1.14, x: 0 }, margin: { l: 54, r: 12, t: 40, b: 42 }, xaxis: { tickmode: "array", tickvals: [0, 1, 2, 3, 4], ticktext: titles, range: [-0.5, 4.5], showgrid: false }, yaxis: { type: "log", exponentformat: "power", title: { text: "value" } } }), config);
}

// --- Claims

const MARKS = { reproduced: "✓", "not reproduced": "✗", inconclusive: "?" };
const made = (tag, text, className) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; if (className) e.className = className; return e; };
const number3 = (x) => (x === null || x === undefined ? "undefined" : String(Number(Number(x).toPrecision(3))));

function evidence(claim) {
  const box = made("details");
  const of = claim.evidence;
  box.append(made("summary", of ? `Evidence: ${of.count} rows of ${claim.table}${of.networks.length ? `, ${of.networks.length} networks to look at` : ""}` : "No evidence in this study"));
  box.addEventListener("toggle", () => {
    if (!box.open || box.dataset.filled || !of) return;
    box.dataset.filled = "yes";
    const rule = made("p", undefined, "measured");
    rule.append("Rows: ", made("code", claim.query));
    box.append(rule);
    for (const name of claim.figures) { const link = made("a", `figure ${name}`); link.href = `figures/${name}.png`; rule.append(" · ", link); }
    const list = made("ul", undefined, "networks");
    of.networks.slice(0, 12).forEach((path) => {
      const number = networks.findIndex((n) => n.path === path), item = made("li");
      for (const [side, word] of [["a", "left"], ["b", "right"]]) {
        const button = made("button", `show ${word}`);
        button.setAttribute("aria-label", `Show ${path} on the ${word}`);
        button.addEventListener("click", () => { state[side] = fresh(number); update(side); element("compare").scrollIntoView(); });
        item.append(button);
      }
      item.append(made("span", path));
      list.append(item);
    });
    if (of.networks.length > 12) list.append(made("li", `and ${of.networks.length - 12} more: choose them above`));
    box.append(list);
    const table = made("table"), head = made("tr"), scroll = made("div", undefined, "scroll");
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", `Rows of ${claim.claim}`);
    of.columns.forEach((name) => { const cell = made("th", name); cell.scope = "col"; head.append(cell); });
    table.append(made("thead"), made("tbody"));
    table.firstChild.append(head);
    of.rows.forEach((row) => { const line = made("tr"); row.forEach((v) => line.append(made("td", v === null ? "" : String(v), typeof v === "number" ? "number" : ""))); table.lastChild.append(line); });
    scroll.append(table);
    box.append(scroll);
    if (of.count > of.rows.length) box.append(made("p", `The first ${of.rows.length} of ${of.count} rows; all are in results/tables/${claim.table}.csv.`, "measured"));
  });
  return box;
}

function drawClaims() {
  const verdict = element("verdict").value, paper = element("paper").value, list = element("claim-list");
  const chosen = index.claims.filter((c) => (!verdict || c.verdict === verdict) && (!paper || c.paper === paper));
  element("claim-count").textContent = `${chosen.length} of ${index.claims.length} claims`;
  list.replaceChildren();
  let last = null;
  for (const claim of chosen) {
    if (claim.paper !== last) list.append(made("h3", (last = claim.paper), "paper"));
    const item = made("article", undefined, "claim"), head = made("div", undefined, "claim-head"), words = made("div");
    const tag = made("span", claim.verdict, `tag ${claim.verdict.replace(" ", "-")}`);
    tag.dataset.mark = MARKS[claim.verdict];
    words.append(made("p", claim.statement));
    const range = claim.low === null || claim.high === null ? "" : ` [${number3(claim.low)}, ${number3(claim.high)}]`;
    words.append(made("p", `${claim.claim}: ${claim.statistic} = ${number3(claim.value)}${range}, passes if ${claim.threshold} (${claim.origin})${claim.status === "ok" ? "" : `; ${claim.status}`}`, "measured"));
    words.append(evidence(claim));
    const left = made("div");
    left.append(tag);
    head.append(left, words);
    item.append(head);
    list.append(item);
  }
}

// --- Begin

const counts = Object.keys(MARKS).map((v) => `${index.claims.filter((c) => c.verdict === v).length} ${v}`);
element("summary").textContent = `${networks.length} network configurations, ${index.claims.length} claims: ${counts.join(", ")}.`;
element("budget").textContent = index.budget;
fill(element("paper"), [["all", ""], ...[...new Set(index.claims.map((c) => c.paper))].map((p) => [p, p])], "");
if (networks.length) {
  makePanel("a", "Left network");
  makePanel("b", "Right network");
  readAddress();
  Promise.all([update("a"), update("b")]).then(() => (document.body.dataset.ready = "yes"));
  element("projection").addEventListener("change", draw);
  window.addEventListener("hashchange", () => { readAddress(); update("a"); update("b"); });
} else {
  element("panels").append(made("p", "This study measures no Residual Jacobians.", "message"));
  element("collapse").hidden = true;
  document.body.dataset.ready = "yes";
}
element("verdict").addEventListener("change", drawClaims);
element("paper").addEventListener("change", drawClaims);
drawClaims();
