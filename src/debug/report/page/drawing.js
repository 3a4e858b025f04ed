// The drawing of one weight: which ranks hold which rows and columns.
const kDrawnCuts = 24; // parts of a dim that are drawn one by one

// The two dims to draw: the first that are split, else the first; in ascending order.
function drawnDims(layout) {
  const dims = layout.shape.map((_, dim) => dim);
  const order = [...dims.filter((d) => layout.dims[d]), ...dims.filter((d) => !layout.dims[d])];
  return order.slice(0, 2).sort((a, b) => a - b);
}

// The ranges of one dim and the coordinates that hold each, by the axes that split it.
function piecesOf(split, layout, dim) {
  const part = layout.dims[dim];
  if (!part || !part.held) return [{ranges: [0, layout.shape[dim]], axes: [], at: []}];
  return part.held.map((ranges, index) => {
    const at = [];
    for (let i = part.axes.length; i-- > 0;) {
      at[i] = index % split.mesh.shape[part.axes[i]];
      index = Math.floor(index / split.mesh.shape[part.axes[i]]);
    }
    return {ranges, axes: part.axes, at};
  });
}

function holdersOf(split, pieces) {
  const fixed = new Map();
  for (const piece of pieces) piece.axes.forEach((axis, i) => fixed.set(axis, piece.at[i]));
  const at = split.mesh.shape.map((_, axis) => fixed.get(axis) ?? 0);
  const free = split.mesh.shape.map((_, axis) => axis).filter((axis) => !fixed.has(axis));
  const where = [...fixed]
    .sort((a, b) => a[0] - b[0])
    .map(([axis, i]) => `${split.axisName(axis)} ${i}`)
    .join(", ");
  return {at, where, ranks: split.along(free, at)};
}

// Every block of the drawn dims. Dims that one axis splits twice cannot come apart: none do in one tensor.
function blocksOf(split, layout) {
  const dims = drawnDims(layout);
  let blocks = [[]];
  for (const dim of dims)
    blocks = blocks.flatMap((block) => piecesOf(split, layout, dim).map((piece) => [...block, piece]));
  return {dims, blocks: blocks.map((pieces) => ({pieces, ...holdersOf(split, pieces)}))};
}

function blockPicture(split, layout, chosenAt) {
  const {dims, blocks} = blocksOf(split, layout);
  const size = (i) => (dims[i] === undefined ? 1 : Math.max(1, layout.shape[dims[i]]));
  const flat = dims.length < 2;
  const [rows, columns] = flat ? [1, size(0)] : [size(0), size(1)];
  const width = 560,
    height = flat ? 72 : Math.round(Math.max(140, Math.min(340, (width * rows) / columns)));
  const left = flat ? 0 : 76,
    top = 28;
  const picture = s("svg", {
    viewBox: `0 0 ${left + width + 2} ${top + height + 4}`,
    role: "img",
    "aria-label": `The tensor of ${shapeText(layout.shape)} as ${blocks.length} blocks; the table below says which ranks hold which`,
  });
  const byAxis = new Set(blocks.flatMap((b) => b.pieces.flatMap((p) => p.axes)));
  const axis = byAxis.size ? Math.min(...byAxis) : 0;
  const marks = [new Set(), new Set()];
  const isHere = (block) => block.pieces.every((piece) => piece.axes.every((a, i) => chosenAt[a] === piece.at[i]));
  // The outlined one is drawn last, above its neighbours.
  const drawn = blocks.map((block, number) => [block, number, isHere(block)]).sort((a, b) => a[2] - b[2]);
  drawn.forEach(([block, number, isOutlined]) => {
    const rowRanges = flat ? [0, 1] : block.pieces[0].ranges,
      columnRanges = flat ? (block.pieces[0]?.ranges ?? [0, 1]) : block.pieces[1].ranges;
    for (let r = 0; r < rowRanges.length; r += 2) {
      for (let c = 0; c < columnRanges.length; c += 2) {
        const x = left + (width * columnRanges[c]) / columns,
          y = top + (height * rowRanges[r]) / rows;
        const w = (width * (columnRanges[c + 1] - columnRanges[c])) / columns,
          t = (height * (rowRanges[r + 1] - rowRanges[r])) / rows;
        marks[0].add(rowRanges[r]);
        marks[1].add(columnRanges[c]);
        const shade = number % 2 === 0 ? "even" : "odd";
        picture.append(
          s(
            "rect",
            {x, y, width: w, height: t, class: `block axis-${axis % 6} ${shade}${isOutlined ? " here" : ""}`},
            s("title", {}, `${block.where || "every rank"}: ${listText(block.ranks)}`),
          ),
        );
        const label = block.where || "every rank";
        if (t >= 15 && w >= label.length * 6.4 + 6) {
          const isRoomy = t >= 36 && w >= 130 && block.ranks.length < 100;
          picture.append(s("text", {x: x + w / 2, y: y + t / 2 + (isRoomy ? -3 : 4), class: "block-name"}, label));
          if (isRoomy)
            picture.append(s("text", {x: x + w / 2, y: y + t / 2 + 13, class: "block-ranks"}, listText(block.ranks)));
        }
      }
    }
  });
  const shownMarks = (set) =>
    [...set].sort((a, b) => a - b).filter((_, i, all) => all.length <= 12 || i % Math.ceil(all.length / 12) === 0);
  if (!flat)
    for (const at of shownMarks(marks[0]))
      picture.append(s("text", {x: left - 8, y: top + (height * at) / rows + 11, class: "mark end"}, count(at)));
  for (const at of shownMarks(marks[1]))
    picture.append(s("text", {x: left + (width * at) / columns + 2, y: top - 8, class: "mark"}, count(at)));
  return picture;
}

function showWeight(report, parameter) {
  const {split} = report,
    layout = split.layouts[parameter.layout];
  const member = split.member(report.rank),
    at = split.coordinate(member);
  const {dims, blocks} = blocksOf(split, layout);
  const isKnown = layout.placements && layout.dims.every((d) => !d || d.held);
  const rows = blocks
    .slice(0, 256)
    .map((block) => [
      block.where || "every rank",
      listText(block.ranks),
      h(
        "span",
        {class: "code"},
        "[" +
          layout.shape
            .map((n, d) => (dims.includes(d) ? rangesText(block.pieces[dims.indexOf(d)].ranges) : "0:" + n))
            .join(", ") +
          "]",
      ),
      bytesText(split.bytes(parameter, block.at)),
    ]);
  const dialog = byId("drawing");
  dialog.replaceChildren(
    h(
      "header",
      {},
      h("h2", {id: "drawing-name", class: "code"}, parameter.name),
      h("button", {class: "close", "aria-label": "Close", onclick: () => dialog.close()}, "✕"),
    ),
    h(
      "p",
      {},
      `${shapeText(layout.shape)} ${typeText(parameter.dtype)}, ${bytesText(split.wholeBytes(parameter))} in all. `,
      layoutChips(split, layout),
    ),
    !layout.placements
      ? h("p", {}, "A plain tensor: each rank has its own.")
      : !isKnown
        ? h("p", {}, "It is cut into too many pieces to draw.")
        : h(
            "div",
            {},
            layout.shape.length === 0 ? null : blockPicture(split, layout, at),
            h(
              "p",
              {class: "here-words"},
              h("b", {}, `Rank ${count(report.rank)}`),
              " holds ",
              h(
                "span",
                {class: "code", id: "drawing-indices"},
                "[" + split.held(layout, at).map(rangesText).join(", ") + "]",
              ),
              ", of shape ",
              h("span", {id: "drawing-shape"}, shapeText(split.localShape(layout, at))),
              ": ",
              h("b", {id: "drawing-bytes"}, bytesText(split.bytes(parameter, at))),
              layout.shape.length ? " (outlined)." : ".",
            ),
            table(
              "Blocks of the tensor",
              [{name: "Where"}, {name: "Held by"}, {name: "Indices"}, {name: "Bytes each", number: true}],
              rows,
            ),
            blocks.length > 256 ? h("p", {class: "note"}, `The first 256 of ${count(blocks.length)} blocks.`) : null,
          ),
  );
  dialog.showModal();
}
