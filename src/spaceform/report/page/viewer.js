"use strict";
// A small 3-D scatter viewer: points are rasterised in software, back to front, into one image a panel.
// No WebGL: it looks the same everywhere, prints, and 10,000 points take a few milliseconds.

const MARKS = ["disc", "square", "triangle", "diamond", "cross"];

function unpack(text, Type) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Type(bytes.buffer);
}

function inside(mark, x, y) {
  const ax = Math.abs(x), ay = Math.abs(y);
  switch (mark) {
    case "square": return Math.max(ax, ay) <= 0.86;
    case "triangle": return y >= -1 && y <= 0.8 && ax <= (y + 1) * 0.56;
    case "diamond": return ax + ay <= 1.15;
    case "cross": return Math.min(ax, ay) <= 0.34 && Math.max(ax, ay) <= 1;
    default: return x * x + y * y <= 1;
  }
}

// Pixels of a mark as [dx, dy, coverage], with edges smoothed by 4 x 4 samples a pixel.
function stamp(mark, radius) {
  const reach = Math.ceil(radius), out = [];
  for (let dy = -reach; dy <= reach; dy++) for (let dx = -reach; dx <= reach; dx++) {
    let hits = 0;
    for (let sy = 0; sy < 4; sy++) for (let sx = 0; sx < 4; sx++)
      if (inside(mark, (dx + (sx - 1.5) / 4) / radius, (dy + (sy - 1.5) / 4) / radius)) hits++;
    if (hits) out.push(dx, dy, hits / 16);
  }
  return Float32Array.from(out);
}

function rgb(text) {
  const found = text.trim().match(/^#(..)(..)(..)$/);
  return found ? found.slice(1).map(part => parseInt(part, 16)) : [128, 128, 128];
}

function turn(m, yaw, pitch) {
  const cy = Math.cos(yaw), sy = Math.sin(yaw), cp = Math.cos(pitch), sp = Math.sin(pitch);
  const r = [cy, 0, sy, sp * sy, cp, -sp * cy, -cp * sy, sp, cp * cy];
  const out = new Array(9);
  for (let i = 0; i < 3; i++) for (let j = 0; j < 3; j++)
    out[3 * i + j] = r[3 * i] * m[j] + r[3 * i + 1] * m[3 + j] + r[3 * i + 2] * m[6 + j];
  return out;
}

const START = turn([1, 0, 0, 0, 1, 0, 0, 0, 1], 0.65, 0.4); // a first look, from above and the side

class Cloud {
  constructor(viewer, head, figure) {
    this.viewer = viewer;
    this.head = head;
    this.figure = figure;
    this.canvas = figure.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.layer = document.createElement("canvas");
    const packed = unpack(head.xyz, Int16Array);
    const n = packed.length / 3;
    this.emitted = Float32Array.from(packed, value => value * head.scale / 32767);
    this.placed = new Float32Array(3 * n);
    for (let i = 0; i < n; i++) {
      const x = this.emitted[3 * i], y = this.emitted[3 * i + 1], z = this.emitted[3 * i + 2];
      const r = Math.sqrt(x * x + y * y + z * z);
      let factor = 1;
      if (head.geometry === "spherical") factor = r > 0 ? 1 / r : 0;
      else if (head.geometry === "hyperbolic") { const t = Math.sqrt(head.curvature) * r; factor = t > 0 ? Math.tanh(t) / t : 1; }
      this.placed[3 * i] = x * factor; this.placed[3 * i + 1] = y * factor; this.placed[3 * i + 2] = z * factor;
    }
    this.predicted = head.predicted ? unpack(head.predicted, Uint16Array) : null;
    this.probability = head.probability ? unpack(head.probability, Uint16Array) : null;
    this.confidence = unpack(head.confidence, Float32Array);
    this.screen = new Float32Array(2 * n);
    this.depth = new Float32Array(n);
    this.order = new Uint32Array(n);
    this.reaches = { emitted: this.reach(this.emitted), space: this.reach(this.placed) };
    this.dirty = true;
    this.shown = true;
    this.near = false;
  }

  reach(points) {
    const norms = new Float32Array(points.length / 3);
    for (let i = 0; i < norms.length; i++) norms[i] = Math.hypot(points[3 * i], points[3 * i + 1], points[3 * i + 2]);
    norms.sort();
    return norms[Math.floor((norms.length - 1) * 0.997)] || 1;
  }

  draw() {
    this.dirty = false;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const box = this.canvas.getBoundingClientRect();
    const width = Math.max(1, Math.round(box.width * ratio)), height = Math.max(1, Math.round(box.height * ratio));
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = this.layer.width = width;
      this.canvas.height = this.layer.height = height;
      this.image = null;
    }
    const ink = this.layer.getContext("2d");
    if (!this.image) this.image = ink.createImageData(width, height);
    const { viewer } = this, pixels = this.image.data;
    pixels.fill(0);
    const points = viewer.view === "space" ? this.placed : this.emitted;
    const sphere = viewer.view === "space" && this.head.geometry === "spherical";
    const reach = this.reaches[viewer.view];
    const ball = viewer.view === "space" && this.head.geometry === "hyperbolic" ? 1 / Math.sqrt(this.head.curvature) : Infinity;
    const round = sphere ? 1 : ball < 1.6 * reach ? ball : 0; // the ball is drawn where its boundary is in sight
    const radius = round || reach;
    const scale = Math.min(width, height) * 0.44 * viewer.zoom / radius;
    this.project(points, scale, width / 2, height / 2, radius);
    this.stampAll(pixels, width, height, ratio * (width / ratio > 520 ? 3.1 : 2.3) * (this.depth.length < 2000 ? 1.35 : 1));
    ink.putImageData(this.image, 0, 0);
    const { context } = this;
    context.clearRect(0, 0, width, height);
    this.frame(context, scale, width / 2, height / 2, radius, round, ratio);
    context.drawImage(this.layer, 0, 0);
    if (viewer.focus >= 0 && viewer.visible(viewer.focus)) {
      context.lineWidth = 2 * ratio;
      context.strokeStyle = viewer.ink;
      context.beginPath();
      context.arc(this.screen[2 * viewer.focus], this.screen[2 * viewer.focus + 1], 7 * ratio, 0, 2 * Math.PI);
      context.stroke();
    }
    this.ratio = ratio;
  }

  project(points, scale, cx, cy, radius) {
    const m = this.viewer.rotation, { screen, depth } = this;
    for (let i = 0, j = 0; i < depth.length; i++, j += 3) {
      const x = points[j], y = points[j + 1], z = points[j + 2];
      const d = (m[6] * x + m[7] * y + m[8] * z) / radius;
      const away = 1 / (1 - 0.16 * Math.max(-2, Math.min(2, d)));
      screen[2 * i] = cx + scale * away * (m[0] * x + m[1] * y + m[2] * z);
      screen[2 * i + 1] = cy - scale * away * (m[3] * x + m[4] * y + m[5] * z);
      depth[i] = d;
    }
    const bins = 512, count = new Uint32Array(bins + 1), { order, viewer } = this;
    const bin = d => Math.max(0, Math.min(bins - 1, Math.floor((d + 1.2) / 2.4 * bins)));
    for (let i = 0; i < depth.length; i++) if (viewer.visible(i)) count[bin(depth[i]) + 1]++;
    for (let b = 0; b < bins; b++) count[b + 1] += count[b];
    this.total = count[bins];
    for (let i = 0; i < depth.length; i++) if (viewer.visible(i)) order[count[bin(depth[i])]++] = i;
  }

  stampAll(pixels, width, height, size) {
    const { viewer, screen, depth, order } = this;
    if (this.size !== size) { this.size = size; this.stamps = MARKS.map(mark => stamp(mark, size)); }
    const [br, bg, bb] = viewer.paper;
    for (let k = 0; k < this.total; k++) {
      const i = order[k], label = viewer.labels[i];
      const color = viewer.colors[label % viewer.colors.length];
      const marks = this.stamps[Math.floor(label / viewer.colors.length) % MARKS.length];
      const near = Math.max(0, Math.min(1, (depth[i] + 1) / 2));
      const keep = 0.5 + 0.5 * near, strength = 0.55 + 0.4 * near;
      const r = br + (color[0] - br) * keep, g = bg + (color[1] - bg) * keep, b = bb + (color[2] - bb) * keep;
      const x0 = Math.round(screen[2 * i]), y0 = Math.round(screen[2 * i + 1]);
      for (let s = 0; s < marks.length; s += 3) {
        const x = x0 + marks[s], y = y0 + marks[s + 1];
        if (x < 0 || y < 0 || x >= width || y >= height) continue;
        const at = 4 * (y * width + x), a = marks[s + 2] * strength, under = pixels[at + 3] / 255;
        const alpha = a + under * (1 - a), old = under * (1 - a);
        pixels[at] = (r * a + pixels[at] * old) / alpha;
        pixels[at + 1] = (g * a + pixels[at + 1] * old) / alpha;
        pixels[at + 2] = (b * a + pixels[at + 2] * old) / alpha;
        pixels[at + 3] = 255 * alpha;
      }
    }
  }

  // The sphere or the ball of radius `round`, or else three axes through the origin.
  frame(context, scale, cx, cy, radius, round, ratio) {
    const m = this.viewer.rotation;
    context.strokeStyle = this.viewer.line;
    context.lineWidth = ratio;
    const path = (steps, point) => {
      context.beginPath();
      for (let i = 0; i <= steps; i++) {
        const [x, y, z] = point(i / steps);
        const away = 1 / (1 - 0.16 * Math.max(-2, Math.min(2, (m[6] * x + m[7] * y + m[8] * z) / radius)));
        context.lineTo(cx + scale * away * (m[0] * x + m[1] * y + m[2] * z), cy - scale * away * (m[3] * x + m[4] * y + m[5] * z));
      }
      context.stroke();
    };
    if (round) {
      for (let k = -2; k <= 2; k++) {
        const lift = Math.sin(k * Math.PI / 6) * round, wide = Math.cos(k * Math.PI / 6) * round;
        path(72, t => [wide * Math.cos(2 * Math.PI * t), lift, wide * Math.sin(2 * Math.PI * t)]);
      }
      for (let k = 0; k < 6; k++) {
        const a = k * Math.PI / 6;
        path(72, t => [round * Math.cos(a) * Math.sin(2 * Math.PI * t), round * Math.cos(2 * Math.PI * t), round * Math.sin(a) * Math.sin(2 * Math.PI * t)]);
      }
    } else {
      for (let axis = 0; axis < 3; axis++)
        path(1, t => [0, 1, 2].map(k => k === axis ? (2 * t - 1) * radius : 0));
    }
  }

  pick(x, y) {
    const { viewer, screen, depth, ratio } = this;
    let best = -1, least = Infinity;
    for (let i = 0; i < depth.length; i++) {
      if (!viewer.visible(i)) continue;
      const away = Math.hypot(screen[2 * i] / ratio - x, screen[2 * i + 1] / ratio - y);
      if (away < 12 && away - 3 * depth[i] < least) { least = away - 3 * depth[i]; best = i; }
    }
    return best;
  }
}

class Viewer {
  constructor(root) {
    this.root = root;
    const data = JSON.parse(document.getElementById(root.dataset.viewer).textContent);
    this.data = data;
    this.labels = unpack(data.labels, Uint16Array);
    this.index = unpack(data.index, Uint32Array);
    this.on = new Uint8Array(data.classes.length).fill(1);
    this.rotation = START.slice();
    this.zoom = 1;
    this.focus = -1;
    this.view = "space";
    this.tip = root.querySelector(".tip");
    this.clouds = data.heads.map((head, i) => new Cloud(this, head, root.querySelectorAll(".cloud")[i]));
    this.theme();
    this.classes();
    this.controls();
    for (const cloud of this.clouds) cloud.draw(); // all at once: a page that is printed or photographed is never scrolled
    const watch = new IntersectionObserver(seen => {
      for (const entry of seen) {
        const cloud = this.clouds.find(one => one.canvas === entry.target);
        cloud.near = entry.isIntersecting;
      }
      this.paint();
    }, { rootMargin: "300px" });
    const sized = new ResizeObserver(() => this.invalidate());
    for (const cloud of this.clouds) { this.listen(cloud); watch.observe(cloud.canvas); sized.observe(cloud.canvas); }
    root.dataset.ready = "yes";
  }

  visible(i) { return this.on[this.labels[i]] === 1; }

  theme() {
    const style = getComputedStyle(document.documentElement);
    this.colors = Array.from({ length: 10 }, (_, i) => rgb(style.getPropertyValue(`--class-${i}`)));
    this.paper = rgb(style.getPropertyValue("--paper"));
    this.ink = style.getPropertyValue("--ink").trim();
    this.line = style.getPropertyValue("--line").trim();
    if (this.swatches) this.swatches.forEach((canvas, i) => this.swatch(canvas, i));
    this.invalidate();
  }

  invalidate() { for (const cloud of this.clouds) cloud.dirty = true; this.paint(); }

  paint() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      for (const cloud of this.clouds) if (cloud.dirty && cloud.shown && cloud.near) cloud.draw();
    });
  }

  print() { this.theme(); for (const cloud of this.clouds) if (cloud.shown) cloud.draw(); }

  swatch(canvas, label) {
    canvas.width = canvas.height = 24;
    const context = canvas.getContext("2d"), image = context.createImageData(24, 24);
    const marks = stamp(MARKS[Math.floor(label / this.colors.length) % MARKS.length], 9.5);
    const color = this.colors[label % this.colors.length];
    for (let s = 0; s < marks.length; s += 3) {
      const at = 4 * ((12 + marks[s + 1]) * 24 + 12 + marks[s]);
      image.data.set([...color, 255 * marks[s + 2]], at);
    }
    context.putImageData(image, 0, 0);
  }

  classes() {
    const box = this.root.querySelector(".classes"), { classes } = this.data;
    const present = [...new Set(this.labels)].sort((a, b) => a - b); // a test split need not hold every class
    const most = 200; // chips on the page at once; the others are found by name
    this.swatches = new Map();
    this.chips = new Map();
    const chipOf = i => {
      const name = classes[i], chip = document.createElement("button"), canvas = document.createElement("canvas"), text = document.createElement("span");
      chip.type = "button";
      chip.className = "chip";
      chip.setAttribute("aria-pressed", String(this.on[i] === 1));
      chip.title = `${name}: click to hide or show, double-click to show it alone`;
      text.textContent = name;
      chip.append(canvas, text);
      this.swatch(canvas, i);
      this.swatches.set(i, canvas);
      this.chips.set(i, chip);
      chip.addEventListener("click", () => this.toggle(i, !this.on[i]));
      chip.addEventListener("dblclick", () => this.only(k => k === i));
      return chip;
    };
    const show = wanted => {
      const found = present.filter(i => classes[i].toLowerCase().includes(wanted)).slice(0, most);
      box.replaceChildren(...found.map(i => this.chips.get(i) || chipOf(i)));
    };
    show("");
    const find = this.root.querySelector("input[type=search]");
    if (find) find.addEventListener("input", () => show(find.value.trim().toLowerCase()));
  }

  toggle(i, on) {
    this.on[i] = on ? 1 : 0;
    if (this.chips.has(i)) this.chips.get(i).setAttribute("aria-pressed", String(Boolean(on)));
    this.invalidate();
  }

  only(keep) { this.on.forEach((_, i) => this.toggle(i, keep(i))); }

  controls() {
    const { root } = this;
    root.querySelectorAll("[data-head]").forEach(chip => chip.addEventListener("click", () => {
      const cloud = this.clouds[Number(chip.dataset.head)];
      cloud.shown = !cloud.shown;
      cloud.figure.hidden = !cloud.shown;
      cloud.dirty = true;
      chip.setAttribute("aria-pressed", String(cloud.shown));
      root.querySelector(".clouds").classList.toggle("one", this.clouds.filter(one => one.shown).length === 1);
      this.invalidate();
    }));
    root.querySelectorAll("[data-view]").forEach(button => button.addEventListener("click", () => {
      this.view = button.dataset.view;
      root.querySelectorAll("[data-view]").forEach(one => one.setAttribute("aria-pressed", String(one === button)));
      this.invalidate();
    }));
    const act = { all: () => this.only(() => true), none: () => this.only(() => false), reset: () => { this.rotation = START.slice(); this.zoom = 1; this.invalidate(); } };
    root.querySelectorAll("[data-act]").forEach(button => button.addEventListener("click", act[button.dataset.act]));
  }

  rotate(dx, dy) { this.rotation = turn(this.rotation, dx, dy); this.hide(); this.invalidate(); }

  listen(cloud) {
    const { canvas } = cloud;
    let held = null;
    canvas.addEventListener("pointerdown", event => {
      held = { x: event.clientX, y: event.clientY, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", event => {
      if (!held) { if (event.pointerType !== "touch") this.hover(cloud, event); return; }
      const dx = event.clientX - held.x, dy = event.clientY - held.y;
      if (!held.moved && Math.hypot(dx, dy) < 4) return;
      held = { x: event.clientX, y: event.clientY, moved: true };
      this.rotate(dx * 0.008, dy * 0.008);
    });
    const release = event => { if (held && !held.moved && event.type === "pointerup") this.hover(cloud, event); held = null; };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", event => { if (event.pointerType !== "touch") this.hide(); });
    canvas.addEventListener("wheel", event => {
      if (!event.ctrlKey) return; // plain scrolling belongs to the page; a pinch arrives with ctrlKey
      event.preventDefault();
      this.zoom = Math.max(0.4, Math.min(8, this.zoom * Math.exp(-event.deltaY * 0.01)));
      this.invalidate();
    }, { passive: false });
    canvas.addEventListener("keydown", event => {
      const step = 0.12;
      const keys = {
        ArrowLeft: () => this.rotate(-step, 0), ArrowRight: () => this.rotate(step, 0),
        ArrowUp: () => this.rotate(0, -step), ArrowDown: () => this.rotate(0, step),
        "+": () => { this.zoom = Math.min(8, this.zoom * 1.2); }, "=": () => { this.zoom = Math.min(8, this.zoom * 1.2); },
        "-": () => { this.zoom = Math.max(0.4, this.zoom / 1.2); }, 0: () => { this.rotation = START.slice(); this.zoom = 1; },
        Escape: () => this.hide(),
      };
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
      this.invalidate();
    });
  }

  hide() { if (this.focus >= 0) { this.focus = -1; this.invalidate(); } this.tip.hidden = true; }

  hover(cloud, event) {
    const box = cloud.canvas.getBoundingClientRect();
    const found = cloud.pick(event.clientX - box.left, event.clientY - box.top);
    if (found !== this.focus) { this.focus = found; this.invalidate(); }
    if (found < 0) { this.tip.hidden = true; return; }
    this.describe(cloud, found);
    this.tip.hidden = false;
    const own = this.tip.getBoundingClientRect();
    const left = event.clientX + 16 + own.width > innerWidth ? event.clientX - own.width - 12 : event.clientX + 16;
    const top = event.clientY + 16 + own.height > innerHeight ? event.clientY - own.height - 12 : event.clientY + 16;
    this.tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
  }

  describe(cloud, i) {
    const { data } = this, text = this.tip.querySelector("div");
    const line = (content, name) => { const part = document.createElement(name || "div"); part.textContent = content; return part; };
    const parts = [line(data.classes[this.labels[i]], "b"), line(`item ${this.index[i].toLocaleString("en")}`)];
    if (cloud.predicted) {
      const wrong = cloud.predicted[i] !== this.labels[i];
      const said = line(`${wrong ? "✗ taken for" : "✓"} ${wrong ? data.classes[cloud.predicted[i]] : "right"}, p = ${(cloud.probability[i] / 65535).toFixed(3)}`);
      if (wrong) said.className = "wrong";
      parts.push(said);
    }
    parts.push(line(`${cloud.head.word} = ${cloud.confidence[i].toLocaleString("en", { maximumSignificantDigits: 4 })}`));
    text.replaceChildren(...parts);
    this.thumbnail(i);
  }

  thumbnail(i) {
    const canvas = this.tip.querySelector("canvas"), { sheet } = this.data;
    canvas.hidden = !sheet;
    if (!sheet) return;
    const paint = () => {
      const { side, columns } = sheet;
      canvas.width = canvas.height = side;
      canvas.style.imageRendering = side < 40 ? "pixelated" : "auto";
      canvas.getContext("2d").drawImage(this.sheet, (i % columns) * side, Math.floor(i / columns) * side, side, side, 0, 0, side, side);
    };
    if (this.sheet) { if (this.sheet.complete) paint(); else this.sheet.onload = paint; return; }
    this.sheet = new Image(); // decoded at the first hover, not while the page opens
    this.sheet.onload = paint;
    this.sheet.src = `data:${sheet.mime};base64,${document.getElementById(sheet.id).textContent.trim()}`;
  }
}
