// All panels of one data set: one rotation, one choice of classes, one tip.
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
    this.surface = rgb(style.getPropertyValue("--surface"));
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
    parts.push(line(`${cloud.head.symbol} = ${cloud.confidence[i].toLocaleString("en", { maximumSignificantDigits: 4 })}`));
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
