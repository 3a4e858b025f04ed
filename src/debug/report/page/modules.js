// The modules as a tree with their parameters; layers that are alike are one line.
const kAlike = 3; // so many equal neighbours become one line

function moduleTree(split) {
  const nodes = new Map();
  const node = (name) => {
    if (!nodes.has(name)) {
      const made = {
        name,
        last: name.slice(name.lastIndexOf(".") + 1),
        type: "",
        style: "",
        children: [],
        parameters: [],
      };
      nodes.set(name, made);
      if (name !== "") node(name.includes(".") ? name.slice(0, name.lastIndexOf(".")) : "").children.push(made);
    }
    return nodes.get(name);
  };
  node("");
  for (const part of split.parts) Object.assign(node(part.name), {type: part.type, style: part.style || ""});
  for (const p of split.parameters)
    node(p.name.includes(".") ? p.name.slice(0, p.name.lastIndexOf(".")) : "").parameters.push(p);
  return nodes.get("");
}

// Equal for modules that differ in their names only.
function signature(node) {
  node.signature ??= JSON.stringify([
    node.type,
    node.style,
    node.parameters.map((p) => [p.name.slice(p.name.lastIndexOf(".") + 1), p.layout, p.dtype]),
    node.children.map((c) => [c.last, signature(c)]),
  ]);
  return node.signature;
}

// Runs of equal numbered neighbours.
function runs(children) {
  const groups = [];
  for (const child of children) {
    const last = groups[groups.length - 1];
    const isSame =
      last && /^\d+$/.test(child.last) && /^\d+$/.test(last[0].last) && signature(last[0]) === signature(child);
    if (isSame) last.push(child);
    else groups.push([child]);
  }
  return groups.flatMap((group) => (group.length >= kAlike ? [group] : group.map((one) => [one])));
}

const treeBytes = (split, node, at) =>
  sum(node.parameters.map((p) => split.bytes(p, at))) + sum(node.children.map((c) => treeBytes(split, c, at)));

function parameterRow(report, p, name) {
  const layout = report.split.layouts[p.layout];
  const bytes = h("span", {class: "bytes"});
  const row = h(
    "div",
    {class: "row parameter"},
    h(
      "span",
      {class: "name"},
      h("button", {class: "link code", "data-parameter": p.name, onclick: () => showWeight(report, p)}, name),
    ),
    h("span", {class: "shape"}, shapeText(layout.shape), h("small", {}, " " + typeText(p.dtype))),
    layoutChips(report.split, layout),
    bytes,
  );
  row.update = (at) => {
    bytes.textContent = bytesText(report.split.bytes(p, at));
  };
  return row;
}

// "ColwiseParallel" strong, its options pale.
function styleWords(style) {
  const begin = style.indexOf("(");
  if (begin < 0) return style;
  return [style.slice(0, begin), h("small", {}, " " + style.slice(begin + 1, -1))];
}

const rowsOf = (node) => 1 + node.parameters.length + sum(runs(node.children).map((run) => rowsOf(run[0])));

function moduleRow(report, group, depth, rows) {
  const node = group[0];
  const bytes = h("span", {class: "bytes"});
  const times = group.length > 1 ? ` ${group.length} alike` : "";
  const name =
    group.length > 1 ? `${node.last} – ${group[group.length - 1].last}` : node.last || report.split.root || "model";
  const inside = h("div", {class: "inside"});
  const isOpen = depth < 2 || report.opensAll;
  const details = h(
    "details",
    {class: "module", open: isOpen},
    h(
      "summary",
      {class: "row"},
      h(
        "span",
        {class: "name"},
        h("span", {class: "code"}, name),
        " ",
        name === node.type ? null : h("span", {class: "type"}, node.type),
        times ? h("span", {class: "times"}, times) : null,
      ),
      h("span", {class: "style"}, styleWords(node.style)),
      bytes,
    ),
    inside,
  );
  rows.push({
    update: (at) => {
      bytes.textContent = bytesText(sum(group.map((n) => treeBytes(report.split, n, at))));
    },
  });
  const fillInside = () => {
    if (inside.childElementCount > 0) return;
    for (const p of node.parameters) {
      const row = parameterRow(report, p, p.name.slice(p.name.lastIndexOf(".") + 1));
      rows.push(row);
      row.update(report.at());
      inside.append(row);
    }
    const before = rows.length;
    for (const run of runs(node.children)) inside.append(moduleRow(report, run, depth + 1, rows));
    for (const row of rows.slice(before)) row.update(report.at());
  };
  if (isOpen) fillInside();
  details.addEventListener("toggle", () => details.open && fillInside());
  details.fillInside = fillInside;
  return details;
}

function modulesSection(report) {
  const {split} = report;
  const rows = [],
    root = moduleTree(split);
  report.opensAll = rowsOf(root) <= 60;
  const tree = h("div", {class: "tree"}, moduleRow(report, [root], 0, rows));
  const found = h("div", {class: "tree found", hidden: true});
  const said = h("span", {class: "note", role: "status"});
  const kFound = 200;
  const input = h("input", {
    id: "search",
    type: "search",
    placeholder: "layers.7.mlp",
    autocomplete: "off",
    spellcheck: "false",
  });
  input.addEventListener("input", () => {
    const words = input.value.trim().toLowerCase();
    const names = words ? split.parameters.filter((p) => p.name.toLowerCase().includes(words)) : [];
    found.hidden = !words;
    tree.hidden = !!words;
    said.textContent = words
      ? plural(names.length, "parameter") + (names.length > kFound ? `, the first ${kFound} are shown` : "")
      : "";
    found.replaceChildren(
      ...names.slice(0, kFound).map((p) => {
        const row = parameterRow(report, p, p.name);
        row.update(report.at());
        return row;
      }),
    );
  });
  const where = h("b", {});
  report.onRank((rank) => {
    where.textContent = `rank ${count(rank)}`;
    for (const row of rows) row.update(report.at());
  });
  const all = h(
    "button",
    {
      class: "quiet",
      onclick: () => {
        const closed = [...tree.querySelectorAll("details:not([open])")];
        for (const one of closed.length ? closed : tree.querySelectorAll("details details details")) {
          one.open = closed.length > 0;
          if (one.open) one.fillInside();
        }
      },
    },
    "Open or close all",
  );
  return section(
    "modules",
    "Modules",
    "How is the model split? Each parameter with its shape, and what each mesh axis does to it. Choose a parameter to see it drawn.",
    h("div", {class: "tools"}, h("label", {for: "search"}, "Search by name"), input, said, all),
    h(
      "div",
      {class: "row heads", "aria-hidden": "true"},
      h("span", {class: "name"}, "Module or parameter"),
      h("span", {class: "shape"}, "Shape"),
      h("span", {class: "chips"}, "Layout"),
      h("span", {class: "bytes"}, "Bytes on ", where),
    ),
    tree,
    found,
  );
}
