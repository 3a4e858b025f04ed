// The mesh as a grid of ranks; the chosen rank tells what it holds.
const kWholeMesh = 512; // ranks; larger meshes are shown by a sample

// The coordinates of an axis that are drawn: all, or the first ones and the last with a gap (null).
function shownOn(extent, room) {
  if (extent <= room) return Array.from({length: extent}, (_, i) => i);
  return [...Array.from({length: room - 2}, (_, i) => i), null, extent - 1];
}

function rankGrid(report, outer) {
  const {split} = report,
    shape = split.mesh.shape,
    axes = shape.length;
  const room = split.size <= kWholeMesh ? Infinity : 6;
  const columnsAxis = axes - 1,
    rowsAxis = axes - 2;
  const columns = shownOn(shape[columnsAxis], Math.min(room === Infinity ? 64 : 10));
  const rows = rowsAxis >= 0 ? shownOn(shape[rowsAxis], room) : [0];
  const name = (axis, i) => (i === null ? "⋯" : `${split.axisName(axis)} ${count(i)}`);
  const cell = (row, column) => {
    if (row === null || column === null) return h("td", {class: "gap"}, "⋯");
    const at = [...outer, row, column].slice(-axes);
    const rank = split.rankAt(split.memberAt(at));
    return h(
      "td",
      {},
      h(
        "button",
        {
          class: "rank",
          "data-rank": rank,
          tabindex: -1,
          "aria-pressed": "false",
          "aria-label": `rank ${rank}, ` + at.map((i, axis) => name(axis, i)).join(", "),
          onclick: () => report.choose(rank),
        },
        count(rank),
      ),
    );
  };
  return h(
    "table",
    {class: "ranks"},
    h("caption", {}, outer.length ? outer.map((i, axis) => name(axis, i)).join(", ") : null),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        rowsAxis >= 0 ? h("td") : null,
        columns.map((c) => h("th", {scope: "col", class: `axis-${columnsAxis % 6}`}, name(columnsAxis, c))),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map((r) =>
        h(
          "tr",
          {},
          rowsAxis >= 0 ? h("th", {scope: "row", class: `axis-${rowsAxis % 6}`}, name(rowsAxis, r)) : null,
          columns.map((c) => cell(r, c)),
        ),
      ),
    ),
  );
}

// One grid for the last two axes, repeated over those before them.
function rankGrids(report) {
  const shape = report.split.mesh.shape;
  let outer = [[]];
  for (let axis = 0; axis + 2 < shape.length; ++axis) {
    outer = outer.flatMap((at) =>
      shownOn(shape[axis], 4)
        .filter((i) => i !== null)
        .map((i) => [...at, i]),
    );
  }
  return outer.map((at) => rankGrid(report, at));
}

// Arrow keys go from rank to rank; Tab goes into the grid and out of it.
function moveFocus(event) {
  const steps = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
  const step = steps[event.key];
  const cell = event.target.closest("td");
  if (!step || !cell) return;
  event.preventDefault();
  let row = cell.parentElement,
    next = cell;
  do {
    if (step[0]) row = step[0] > 0 ? row.nextElementSibling : row.previousElementSibling;
    next = step[0]
      ? row && row.children[cell.cellIndex]
      : step[1] > 0
        ? next.nextElementSibling
        : next.previousElementSibling;
  } while (next && !next.querySelector("button") && next.tagName === "TD");
  const button = next && next.querySelector("button");
  if (button) button.focus();
}

function rankPanel(report, rank) {
  const {split} = report,
    member = split.member(rank),
    at = split.coordinate(member);
  const groups = split.mesh.shape.map((extent, axis) =>
    h(
      "div",
      {},
      h("dt", {class: `axis-${axis % 6}`}, `${split.axisName(axis)} ${count(at[axis])}`),
      h("dd", {}, extent === 1 ? "alone on this axis" : "with " + listText(split.along([axis], at))),
    ),
  );
  const holding = new Map();
  for (const p of split.parameters) {
    const key = anyLayer(p.name) + " " + p.layout;
    if (!holding.has(key)) holding.set(key, {p, names: 0, bytes: 0});
    const entry = holding.get(key);
    entry.names += 1;
    entry.bytes += split.bytes(p, at);
  }
  const rows = [...holding.values()]
    .sort((a, b) => b.bytes - a.bytes)
    .map(({p, names, bytes}) => {
      const layout = split.layouts[p.layout];
      return [
        h(
          "span",
          {class: "code"},
          dotted(names > 1 ? anyLayer(p.name) : p.name),
          names > 1 ? h("small", {}, ` × ${names}`) : null,
        ),
        [
          h("span", {class: "code"}, "[" + split.held(layout, at).map(rangesText).join(", ") + "]"),
          h("small", {class: "below"}, shapeText(split.localShape(layout, at))),
        ],
        bytesText(bytes),
      ];
    });
  return [
    h("h3", {}, `Rank ${count(rank)}`),
    h("dl", {class: "groups"}, groups),
    rows.length === 0
      ? null
      : [
          h(
            "p",
            {},
            "It holds ",
            h("b", {"data-bytes": split.bytesOn(at)}, bytesText(split.bytesOn(at))),
            ` of parameters, in ${plural(split.parameters.length, "tensor")}:`,
          ),
          table(
            `What rank ${rank} holds`,
            [{name: "Parameter"}, {name: "Indices and shape"}, {name: "Bytes", number: true}],
            rows,
          ),
        ],
  ];
}

function meshSection(report) {
  const {split} = report,
    shape = split.mesh.shape;
  const panel = h("div", {id: "rank-panel", class: "panel", "aria-live": "polite"});
  const grids = h("div", {class: "grids", onkeydown: moveFocus}, rankGrids(report));
  const input = h("input", {id: "rank-number", type: "number", min: 0, value: report.rank, inputmode: "numeric"});
  input.addEventListener("change", () => report.choose(Number(input.value)));
  report.onRank((rank) => {
    panel.replaceChildren(...rankPanel(report, rank).flat().filter(Boolean));
    input.value = rank;
    for (const button of grids.querySelectorAll("button.rank")) {
      const isChosen = Number(button.dataset.rank) === rank;
      button.setAttribute("aria-pressed", String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
    }
    if (!grids.querySelector("[tabindex='0']")) grids.querySelector("button.rank").tabIndex = 0;
  });
  const axes = shape.map((extent, axis) =>
    h("li", {}, h("b", {class: `axis-${axis % 6}`}, split.axisName(axis)), " ", plural(extent, "rank")),
  );
  const isSample = split.size > kWholeMesh;
  return section(
    "mesh",
    "Mesh",
    `How are the ranks arranged? ${plural(split.size, "rank")} on ${split.mesh.device}` +
      (shape.length > 1 ? `, in a grid of ${plural(shape.length, "axis", "axes")}` : "") +
      ". Choose a rank to see what it holds.",
    h("ul", {class: "axes"}, axes),
    h(
      "div",
      {class: "columns"},
      h(
        "div",
        {},
        grids,
        h(
          "p",
          {class: "note"},
          isSample ? "A sample of the ranks. " : "",
          h("label", {for: "rank-number"}, isSample ? "Any other, by its number: " : "By number: "),
          input,
        ),
      ),
      panel,
    ),
  );
}
