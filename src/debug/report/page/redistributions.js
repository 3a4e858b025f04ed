// Why data moved: each redistribution with who asked for it, and for an operator's own choice what else there was.
function optionsTable(reason) {
  return reason.axes.map((axis) => {
    const options = [...axis.options].sort((a, b) => b[3] - a[3] || a[2] - b[2] || a[1] - b[1]);
    return table(
      `Options on axis ${axis.axis}`,
      [
        {name: `On axis ${axis.axis}`},
        {name: "Option"},
        {name: "Data must move"},
        {name: "Estimated time", number: true},
      ],
      options.map(([option, seconds, moves, isChosen], i) => [
        isChosen ? h("b", {}, "✓ chosen") : i === 1 ? "next best" : "",
        h("span", {class: "code"}, option),
        moves ? "yes" : "no",
        timeText(seconds),
      ]),
    );
  });
}

// The style of the module, as the plan gave it; counts name modules from the outermost class on.
function styleOf(report, module) {
  const name = module.slice(module.indexOf(".") + 1);
  return (report.split.parts.find((part) => part.name === name) || {}).style;
}

function whyWords(report, entry, reason) {
  if (!entry.operator) {
    const style = entry.module && styleOf(report, entry.example);
    if (!style) return "Asked for by a call of redistribute.";
    return (
      (entry.backward ? "The gradient of what the module's style asks for: " : "The module's style asks for it: ") +
      style +
      "."
    );
  }
  if (!reason) return "The operator needs whole tensors.";
  const words = reason.axes.map((axis) => {
    const chosen = axis.options.find((o) => o[3]),
      others = axis.options.filter((o) => !o[3]).sort((a, b) => a[2] - b[2] || a[1] - b[1]);
    if (!chosen || !chosen[2]) return null;
    return (
      `On ${axis.axis} ${chosen[0]} for ${timeText(chosen[1])}` +
      (others.length ? `; next best ${others[0][0]} for ${timeText(others[0][1])}` : "; there was no other way")
    );
  });
  return words.filter(Boolean).join(". ") || "The cheapest of the options.";
}

function redistributions(report) {
  const {entries, reasons} = report.data.redistributions,
    groups = new Map();
  for (const entry of entries) {
    const key = JSON.stringify([
      anyLayer(entry.module),
      entry.backward,
      entry.operator,
      entry.argument,
      entry.from,
      entry.to,
      entry.shape,
      entry.reason,
    ]);
    if (!groups.has(key))
      groups.set(key, {...entry, module: anyLayer(entry.module), example: entry.module, layers: 0, count: 0});
    const group = groups.get(key);
    group.layers += 1;
    group.count += entry.count;
  }
  const rows = [...groups.values()].sort((a, b) => b.bytes * b.count - a.bytes * a.count);
  const moving = rows.filter((row) => row.bytes > 0);
  if (moving.length === 0)
    return [h("h3", {}, "Why data moved"), h("p", {class: "note"}, "No redistribution sent anything.")];
  const kShown = 100;
  return [
    h("h3", {}, "Why data moved"),
    h(
      "p",
      {class: "note"},
      "Each change of layout that sends something, with the reason. Times are the library's estimates, by which it chooses.",
    ),
    h(
      "div",
      {class: "moves"},
      moving.slice(0, kShown).map((row) => {
        const reason = row.reason === undefined ? null : reasons[row.reason];
        return h(
          "details",
          {class: "move"},
          h(
            "summary",
            {},
            h(
              "span",
              {class: "who"},
              h("b", {class: "code"}, row.operator || "redistribute"),
              h("span", {class: "code"}, row.module || "outside of modules"),
              row.layers > 1 ? h("small", {}, `× ${row.layers}`) : null,
              h("small", {}, row.backward ? "backward" : "forward"),
            ),
            h(
              "span",
              {class: "change"},
              row.argument ? h("span", {class: "code"}, row.argument + " ") : null,
              h("span", {class: "code"}, row.from),
              " → ",
              h("span", {class: "code"}, row.to),
              h("small", {}, " " + row.steps.join(", ")),
            ),
            h("span", {class: "number"}, bytesText(row.bytes * row.count)),
          ),
          h(
            "div",
            {class: "why"},
            h("p", {}, whyWords(report, row, reason)),
            h(
              "p",
              {class: "note"},
              `A tensor of ${shapeText(row.shape)}; ${plural(row.count, "time")}, each sending ${bytesText(row.bytes)}, estimated ${timeText(row.seconds)}.`,
            ),
            reason
              ? [h("p", {class: "note"}, "Rule ", h("span", {class: "code"}, reason.rule)), optionsTable(reason)]
              : null,
          ),
        );
      }),
    ),
    moving.length > kShown ? h("p", {class: "note"}, `The ${kShown} dearest of ${count(moving.length)}.`) : null,
  ];
}
