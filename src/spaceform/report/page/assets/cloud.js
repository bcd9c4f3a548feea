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
    const [br, bg, bb] = viewer.surface;
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
