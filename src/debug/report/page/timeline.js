// A lane for each rank: phases, operators, communication; waiting is hatched.
const kKinds = {scope: 0, operator: 1, backward: 2, collective: 3, wait: 4};
const kLane = 66,
  kLeft = 62,
  kTop = 22;

function eventsOf(rank) {
  const list = [],
    e = rank.events;
  for (let i = 0; i < e.length; i += 6)
    list.push({name: e[i], begin: e[i + 1], duration: e[i + 2], kind: e[i + 3], depth: e[i + 4], module: e[i + 5]});
  return list;
}
const isCommunication = (event) => event.kind >= kKinds.collective;

class Timeline {
  constructor(trace) {
    this.trace = trace;
    this.ranks = trace.ranks.slice(0, 32).map((rank) => ({rank: rank.rank, events: eventsOf(rank)}));
    this.end = Math.max(1, ...this.ranks.flatMap((r) => r.events.map((e) => e.begin + e.duration)));
    this.view = [0, this.end];
    this.canvas = h("canvas", {
      tabindex: 0,
      role: "img",
      "aria-label": `Timeline of ${plural(this.ranks.length, "rank")}; plus and minus zoom, arrow keys move. The tables below say the same in numbers.`,
    });
    this.canvas.style.height = kTop + kLane * this.ranks.length + 4 + "px";
    const on = (name, act) => this.canvas.addEventListener(name, act);
    on("wheel", (e) => {
      if (!e.ctrlKey && !e.shiftKey) return;
      e.preventDefault();
      this.zoom(Math.exp(e.deltaY * 0.0025), this.timeAt(e.offsetX));
    });
    on("pointerdown", (e) => {
      this.drag = {x: e.clientX, view: [...this.view]};
      this.canvas.setPointerCapture(e.pointerId);
    });
    on("pointerup", () => {
      this.drag = null;
    });
    on("pointermove", (e) => this.point(e));
    on("pointerleave", hideTip);
    on("dblclick", (e) => this.zoom(0.4, this.timeAt(e.offsetX)));
    on("keydown", (e) => {
      const act = {
        "+": () => this.zoom(0.6),
        "=": () => this.zoom(0.6),
        "-": () => this.zoom(1.6),
        0: () => this.show([0, this.end]),
        ArrowLeft: () => this.move(-0.15),
        ArrowRight: () => this.move(0.15),
      }[e.key];
      if (act) {
        e.preventDefault();
        act();
      }
    });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    for (const event of ["themechange", "beforeprint"]) addEventListener(event, () => this.draw());
  }
  get width() {
    return this.canvas.clientWidth - kLeft - 2;
  }
  x(time) {
    return kLeft + ((time - this.view[0]) / (this.view[1] - this.view[0])) * this.width;
  }
  timeAt(x) {
    return this.view[0] + ((x - kLeft) / this.width) * (this.view[1] - this.view[0]);
  }
  show([begin, end]) {
    const length = Math.min(this.end, Math.max(20, end - begin));
    begin = Math.max(0, Math.min(begin, this.end - length));
    this.view = [begin, begin + length];
    this.draw();
  }
  zoom(factor, at = (this.view[0] + this.view[1]) / 2) {
    this.show([at - (at - this.view[0]) * factor, at + (this.view[1] - at) * factor]);
  }
  move(part) {
    const by = part * (this.view[1] - this.view[0]);
    this.show([this.view[0] + by, this.view[1] + by]);
  }

  rowOf(event) {
    return event.kind === kKinds.scope ? 0 : isCommunication(event) ? 3 : Math.min(event.depth, 1) + 1;
  }
  box(lane, event) {
    const row = this.rowOf(event),
      top = kTop + lane * kLane + [0, 13, 26, 41][row];
    return {
      x: this.x(event.begin),
      w: (event.duration / (this.view[1] - this.view[0])) * this.width,
      y: top,
      h: [11, 12, 12, 16][row],
    };
  }
  // Only one event a pixel of a row is drawn; the rest could not be seen.
  draw() {
    const scale = devicePixelRatio || 1,
      canvas = this.canvas,
      css = getComputedStyle(document.documentElement);
    canvas.width = canvas.clientWidth * scale;
    canvas.height = canvas.clientHeight * scale;
    const c = canvas.getContext("2d"),
      colour = (name) => css.getPropertyValue(name).trim();
    c.scale(scale, scale);
    const fills = [
      colour("--line"),
      colour("--f0"),
      colour("--f3"),
      colour("--f1"),
      this.hatch(c, colour("--f1"), colour("--paper")),
    ];
    c.font = "12px system-ui, sans-serif";
    c.fillStyle = colour("--soft");
    for (const t of roundMarks(this.view[0], this.view[1], 8)) {
      c.fillRect(this.x(t), kTop - 6, 1, 4);
      c.fillText(timeText(t * 1e-6), this.x(t) + 3, 12);
    }
    this.ranks.forEach(({rank, events}, lane) => {
      const top = kTop + lane * kLane;
      c.fillStyle = colour("--ink");
      c.fillText("rank " + rank, 0, top + 24);
      c.fillStyle = colour("--line");
      c.fillRect(0, top + kLane - 6, canvas.clientWidth, 1);
      const lastPixel = [-1, -1, -1, -1];
      for (const event of events) {
        const {x, w, y, h: tall} = this.box(lane, event);
        if (x + w < kLeft || x > canvas.clientWidth) continue;
        const row = this.rowOf(event),
          end = Math.floor(x + w);
        if (w < 1 && end === lastPixel[row]) continue;
        lastPixel[row] = end;
        const from = Math.max(kLeft, x),
          wide = Math.max(0.75, x + w - from);
        c.fillStyle = fills[event.kind];
        c.fillRect(from, y, wide > 3 ? wide - 0.6 : wide, tall);
        const name = this.short(event);
        if (wide > 42) {
          c.save();
          c.beginPath();
          c.rect(from, y, wide - 3, tall);
          c.clip();
          c.fillStyle =
            event.kind === kKinds.scope
              ? colour("--ink")
              : event.kind === kKinds.wait
                ? colour("--ink")
                : colour("--on-fill");
          c.font = "10px system-ui, sans-serif";
          c.fillText(name, from + 4, y + tall / 2 + 3.5);
          c.restore();
          c.font = "12px system-ui, sans-serif";
        }
      }
    });
  }
  hatch(c, strong, pale) {
    const tile = h("canvas", {width: 6, height: 6}),
      t = tile.getContext("2d");
    t.fillStyle = pale;
    t.fillRect(0, 0, 6, 6);
    t.strokeStyle = strong;
    t.lineWidth = 1.6;
    t.beginPath();
    for (const at of [-6, 0, 6]) {
      t.moveTo(at, 6);
      t.lineTo(at + 6, 0);
    }
    t.stroke();
    return c.createPattern(tile, "repeat");
  }
  short(event) {
    return this.trace.names[event.name].replace(/^(aten|c10d|meshtorch)::/, "");
  }
  point(event) {
    if (this.drag) {
      const by = ((this.drag.x - event.clientX) / this.width) * (this.view[1] - this.view[0]);
      this.show([this.drag.view[0] + by, this.drag.view[1] + by]);
      return;
    }
    const lane = Math.floor((event.offsetY - kTop) / kLane),
      here = this.ranks[lane];
    const found =
      here &&
      here.events
        .filter((e) => {
          const b = this.box(lane, e);
          return (
            event.offsetX >= b.x - 1 &&
            event.offsetX <= b.x + b.w + 1 &&
            event.offsetY >= b.y &&
            event.offsetY <= b.y + b.h
          );
        })
        .pop();
    if (!found) return hideTip();
    const module = found.module >= 0 ? "\nin " + this.trace.modules[found.module] : "";
    showTip(
      `${this.trace.names[found.name]}\n${timeText(found.duration * 1e-6)} at ${timeText(found.begin * 1e-6)}, rank ${here.rank}${module}`,
      event.clientX,
      event.clientY,
    );
  }
}
