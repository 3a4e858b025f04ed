// Who holds what. Which indices a rank holds was worked out by the library; here it is looked up.
class Split {
  constructor(data) {
    this.mesh = data.mesh || {shape: [1], names: ["rank"], device: ""};
    this.size = this.mesh.shape.reduce((a, b) => a * b, 1);
    const modules = data.modules || {parts: [], parameters: [], layouts: []};
    this.layouts = modules.layouts;
    this.parameters = modules.parameters;
    this.parts = modules.parts;
    this.root = modules.root || "";
    this.memberOf = this.mesh.ranks ? new Map(this.mesh.ranks.map((rank, i) => [rank, i])) : null;
  }

  rankAt(member) {
    return this.mesh.ranks ? this.mesh.ranks[member] : member;
  }
  member(rank) {
    return this.memberOf ? this.memberOf.get(rank) : rank < this.size ? rank : undefined;
  }
  axisName(axis) {
    return this.mesh.names[axis];
  }

  coordinate(member) {
    const at = [];
    for (let axis = this.mesh.shape.length; axis-- > 0;) {
      at[axis] = member % this.mesh.shape[axis];
      member = Math.floor(member / this.mesh.shape[axis]);
    }
    return at;
  }
  memberAt(coordinate) {
    return this.mesh.shape.reduce((member, extent, axis) => member * extent + coordinate[axis], 0);
  }

  // The ranks that differ from this one on these axes only.
  along(axes, coordinate) {
    let list = [coordinate];
    for (const axis of axes) {
      list = list.flatMap((at) =>
        Array.from({length: this.mesh.shape[axis]}, (_, i) =>
          at.with ? at.with(axis, i) : Object.assign([...at], {[axis]: i}),
        ),
      );
    }
    return list.map((at) => this.rankAt(this.memberAt(at))).sort((a, b) => a - b);
  }

  // For each dim the index ranges [begin, end, begin, end, …]; null where the page does not say.
  held(layout, coordinate) {
    return layout.shape.map((size, dim) => {
      const split = layout.dims[dim];
      if (!split) return [0, size];
      if (!split.held) return null;
      return split.held[split.axes.reduce((index, axis) => index * this.mesh.shape[axis] + coordinate[axis], 0)];
    });
  }
  localShape(layout, coordinate) {
    return this.held(layout, coordinate).map((ranges, dim) => {
      if (ranges) return rangesLength(ranges);
      const parts = layout.dims[dim].axes.reduce((n, axis) => n * this.mesh.shape[axis], 1);
      return Math.ceil(layout.shape[dim] / parts);
    });
  }
  bytes(parameter, coordinate) {
    return this.localShape(this.layouts[parameter.layout], coordinate).reduce((a, b) => a * b, 1) * parameter.item_size;
  }
  // Of all parameters. Layouts repeat, so that each is worked out once.
  bytesOn(coordinate) {
    const elements = this.layouts.map((layout) => this.localShape(layout, coordinate).reduce((a, b) => a * b, 1));
    return sum(this.parameters.map((p) => elements[p.layout] * p.item_size));
  }
  wholeBytes(parameter) {
    return this.layouts[parameter.layout].shape.reduce((a, b) => a * b, 1) * parameter.item_size;
  }
  elements() {
    return sum(this.parameters.map((p) => this.layouts[p.layout].shape.reduce((a, b) => a * b, 1)));
  }
}

function rangesLength(ranges) {
  let length = 0;
  for (let i = 0; i < ranges.length; i += 2) length += ranges[i + 1] - ranges[i];
  return length;
}
// "0:16032", the way indices are written in code; several pieces are joined.
function rangesText(ranges) {
  if (ranges === null) return "a part";
  if (ranges.length === 0) return "nothing";
  const pieces = [];
  for (let i = 0; i < ranges.length && i < 8; i += 2) pieces.push(ranges[i] + ":" + ranges[i + 1]);
  const text = pieces.join(", ") + (ranges.length > 8 ? ", …" : "");
  return pieces.length > 1 ? `(${text})` : text;
}

// One chip for each mesh axis: what it does to the tensor, as a picture and in words.
function layoutChips(split, layout) {
  if (!layout.placements) return h("span", {class: "chips"}, h("span", {class: "chip plain"}, "not distributed"));
  return h(
    "span",
    {class: "chips"},
    layout.placements.map((placement, axis) => {
      const extent = split.mesh.shape[axis],
        name = split.axisName(axis);
      const shard = /^SS?\((\d+)/.exec(placement);
      if (placement === "-") return null;
      const words = shard
        ? `${name} ${dimWord(+shard[1], layout.shape.length)} ÷ ${count(extent)}`
        : placement === "R"
          ? `${name} copy`
          : `${name} ${placement}`;
      const title = shard
        ? `${placement}: split by ${dimWord(+shard[1], layout.shape.length)} over the ${extent} ranks of axis ${name}`
        : placement === "R"
          ? `R: a copy on each of the ${extent} ranks of axis ${name}`
          : `${placement} on axis ${name}`;
      return h(
        "span",
        {class: `chip axis-${axis % 6} ${shard ? "cut" : "copy"}`, title},
        h("i", {"aria-hidden": "true", style: shard ? `--parts:${Math.min(extent, 8)}` : null}),
        words,
      );
    }),
  );
}
