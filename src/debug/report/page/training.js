// Loss and throughput: every step as a pale line, the smoothed ones as a strong one.

// The weighted mean of the steps around each, narrow at the beginning so that it does not lag where the curve falls fastest.
function smooth(values) {
  const half = Math.floor(values.length / 40);
  return values.map((_, i) => {
    const left = Math.min(half, i),
      right = Math.min(left, values.length - 1 - i);
    let total = 0,
      weights = 0;
    for (let j = i - left; j <= i + right; ++j) {
      const weight = left + 1 - Math.abs(j - i);
      total += weight * values[j];
      weights += weight;
    }
    return total / weights;
  });
}

const nearest = (steps, wanted) => {
  let low = 0,
    high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] < wanted) low = middle;
    else high = middle;
  }
  return wanted - steps[low] < steps[high] - wanted ? low : high;
};

// One curve with its scales; the pointer and the arrow keys read values off.
function chart(title, unit, steps, values, text, fromZero) {
  const known = steps.map((step, i) => [step, values[i]]).filter(([, v]) => v !== null && Number.isFinite(v));
  if (known.length === 0) return null;
  const xs = known.map((k) => k[0]),
    ys = known.map((k) => k[1]),
    means = smooth(ys);
  const width = 1000,
    height = 300,
    left = 62,
    right = 70,
    top = 16,
    bottom = 34;
  const lowest = Math.min(...ys),
    highest = Math.max(...ys),
    room = (highest - lowest || Math.abs(highest) || 1) * 0.06;
  const low = fromZero ? 0 : lowest - room,
    high = highest + room,
    last = Math.max(xs[xs.length - 1], xs[0] + 1);
  const x = (step) => left + ((step - xs[0]) / (last - xs[0])) * (width - left - right),
    y = (value) => height - bottom - ((value - low) / (high - low)) * (height - top - bottom);
  const line = (points, klass) =>
    s("polyline", {class: klass, points: points.map(([px, py]) => px.toFixed(1) + "," + py.toFixed(1)).join(" ")});
  const end = means[means.length - 1];
  const cursor = s(
    "g",
    {class: "cursor", visibility: "hidden"},
    s("line", {y1: top, y2: height - bottom}),
    s("circle", {r: 4}),
  );
  const words = `${title} from ${text(ys[0])} at step ${count(xs[0])} to ${text(end)} at step ${count(xs[xs.length - 1])}`;
  const picture = s(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      tabindex: 0,
      "aria-label": words + ". Arrow keys read single steps.",
    },
    roundMarks(low, high, 5).map((v) => [
      s("line", {class: "rule", x1: left, x2: width - right, y1: y(v), y2: y(v)}),
      s("text", {x: left - 10, y: y(v) + 4, class: "mark end"}, text(v)),
    ]),
    roundMarks(xs[0], last, 8)
      .filter(Number.isInteger)
      .map((v) => s("text", {x: x(v), y: height - 12, class: "mark middle"}, count(v))),
    s("text", {x: width - 4, y: height - 12, class: "mark end"}, "step"),
    line(
      xs.map((step, i) => [x(step), y(ys[i])]),
      "raw",
    ),
    line(
      xs.map((step, i) => [x(step), y(means[i])]),
      "smoothed",
    ),
    s("circle", {class: "dot", cx: x(xs[xs.length - 1]), cy: y(end), r: 3.5}),
    s("text", {class: "value", x: x(xs[xs.length - 1]) + 9, y: y(end) + 4}, text(end)),
    cursor,
  );
  let chosen = xs.length - 1;
  const read = (index, event) => {
    chosen = Math.max(0, Math.min(xs.length - 1, index));
    cursor.setAttribute("visibility", "visible");
    cursor.firstChild.setAttribute("x1", x(xs[chosen]));
    cursor.firstChild.setAttribute("x2", x(xs[chosen]));
    cursor.lastChild.setAttribute("cx", x(xs[chosen]));
    cursor.lastChild.setAttribute("cy", y(means[chosen]));
    const box = picture.getBoundingClientRect();
    showTip(
      `step ${count(xs[chosen])}\n${text(ys[chosen])} ${unit}, smoothed ${text(means[chosen])}`,
      event ? event.clientX : box.left + (x(xs[chosen]) / width) * box.width,
      event ? event.clientY : box.top + 40,
    );
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const step =
      xs[0] + ((((event.clientX - box.left) / box.width) * width - left) / (width - left - right)) * (last - xs[0]);
    read(nearest(xs, step), event);
  });
  const leave = () => {
    cursor.setAttribute("visibility", "hidden");
    hideTip();
  };
  picture.addEventListener("pointerleave", leave);
  picture.addEventListener("blur", leave);
  picture.addEventListener("keydown", (event) => {
    const move = {ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10}[event.key];
    if (move) {
      event.preventDefault();
      read(chosen + move);
    }
  });
  return h(
    "figure",
    {class: "chart"},
    h(
      "figcaption",
      {},
      h("b", {}, title),
      " ",
      h("span", {}, unit),
      h("span", {class: "keys"}, h("i", {class: "key-raw"}), "each step", h("i", {class: "key-smoothed"}), "smoothed"),
    ),
    picture,
  );
}

const lossText = (v) => +v.toPrecision(4) + "";
function trainingTiles(data) {
  const {loss, tokens_per_second: speed, communication_share: share} = data.training;
  const known = loss.filter((v) => v !== null);
  const tiles = [];
  if (known.length)
    tiles.push([
      "Loss",
      lossText(smooth(known).pop()),
      `from ${lossText(known[0])} in ${plural(data.training.step.length * (data.training.mean_of || 1), "step")}`,
    ]);
  const speeds = speed.filter((v) => v > 0);
  if (speeds.length)
    tiles.push([
      "Throughput",
      shortNumber([...speeds].sort((a, b) => a - b)[speeds.length >> 1]),
      "tokens a second" + (share.some((v) => v > 0) ? `, ${percentText(sum(share) / share.length)} waiting` : ""),
    ]);
  return tiles;
}

function trainingSection(report) {
  const t = report.data.training;
  const known = t.loss.filter((v) => v !== null);
  const lead = known.length
    ? `Does it learn, and how fast? The loss went from ${lossText(known[0])} to ${lossText(smooth(known).pop())}.`
    : "No step had a finite loss.";
  const gaps = t.loss.length - known.length;
  const every = Math.max(1, Math.ceil(t.step.length / 12));
  const rows = t.step
    .map((step, i) => [
      count(step),
      t.loss[i] === null ? "not finite" : lossText(t.loss[i]),
      shortNumber(t.tokens_per_second[i] || 0),
      timeText(t.seconds[i]),
      percentText(t.communication_share[i] || 0),
    ])
    .filter((_, i) => i % every === 0 || i === t.step.length - 1);
  return section(
    "training",
    "Loss and throughput",
    lead,
    chart("Loss", "", t.step, t.loss, lossText, false),
    t.tokens_per_second.some((v) => v > 0)
      ? chart("Throughput", "tokens a second", t.step, t.tokens_per_second, shortNumber, true)
      : null,
    gaps
      ? h("p", {class: "note"}, `${plural(gaps, "step")} without a finite loss ${gaps === 1 ? "is" : "are"} left out.`)
      : null,
    t.mean_of > 1 ? h("p", {class: "note"}, `Each point is the mean of ${t.mean_of} steps.`) : null,
    h(
      "details",
      {class: "numbers"},
      h("summary", {}, "Some steps in numbers"),
      table(
        "Some steps",
        [
          {name: "Step"},
          {name: "Loss", number: true},
          {name: "Tokens a second", number: true},
          {name: "Time", number: true},
          {name: "Waiting for communication", number: true},
        ],
        rows,
      ),
    ),
  );
}
