// What each rank keeps, as stacked bars; ranks with equal numbers are one bar.
const kMemoryKinds = [
  ["parameters", "parameters"],
  ["gradients", "gradients"],
  ["optimizer", "optimiser state"],
  ["activations", "activations kept for backward"],
  ["replicas", "gathered parameters"],
];
const kept = (rank) => sum(kMemoryKinds.map(([key]) => rank[key] || 0));

function memoryTiles(data) {
  const most = Math.max(...data.memory.ranks.map((r) => Math.max(r.measured_peak || 0, kept(r))));
  return [
    [
      "Memory",
      bytesText(most),
      data.memory.ranks.some((r) => r.measured_peak) ? "measured peak of a rank" : "estimated for a rank",
    ],
  ];
}

function memorySection(report) {
  const groups = new Map();
  for (const rank of report.data.memory.ranks) {
    const key = JSON.stringify([...kMemoryKinds.map(([k]) => rank[k]), rank.measured_peak]);
    if (!groups.has(key)) groups.set(key, {...rank, ranks: []});
    groups.get(key).ranks.push(rank.rank);
  }
  const rows = [...groups.values()].slice(0, 64);
  const scale = Math.max(1, ...rows.map((r) => Math.max(kept(r), r.measured_peak || 0)));
  const kinds = kMemoryKinds
    .map(([key, name], fill) => ({key, name, fill}))
    .filter((k) => rows.some((r) => r[k.key] > 0));
  const isMeasured = rows.some((r) => r.measured_peak);
  const bars = h(
    "div",
    {class: "bars memory"},
    rows.map((r) => {
      const bar = stackedBar(
        kinds.map((k) => ({name: k.name, value: r[k.key] || 0, fill: k.fill})),
        scale,
        bytesText,
      );
      if (r.measured_peak)
        bar.append(
          h("span", {
            class: "peak",
            style: `left:${(100 * r.measured_peak) / scale}%`,
            title: `measured peak: ${bytesText(r.measured_peak)}`,
          }),
        );
      return [h("span", {}, listText(r.ranks)), bar, h("span", {class: "number"}, bytesText(kept(r)))];
    }),
  );
  const numbers = table(
    "Memory by rank",
    [
      {name: "Ranks"},
      ...kinds.map((k) => ({name: h("span", {}, h("i", {class: `swatch fill-${k.fill}`}), k.name), number: true})),
      {name: "Together", number: true},
      ...(isMeasured ? [{name: "Measured peak", number: true}] : []),
    ],
    rows.map((r) => [
      listText(r.ranks),
      ...kinds.map((k) => bytesText(r[k.key] || 0)),
      bytesText(kept(r)),
      ...(isMeasured ? [r.measured_peak ? bytesText(r.measured_peak) : "–"] : []),
    ]),
  );
  const most = Math.max(...rows.map(kept));
  return section(
    "memory",
    "Memory",
    `Does it fit? ${isMeasured ? "Kept for a step" : "Estimated"}: ${bytesText(most)} on the fullest rank.` +
      (isMeasured ? " The line marks the measured peak of a step." : ""),
    bars,
    numbers,
    report.data.memory.note ? h("p", {class: "note"}, report.data.memory.note) : null,
  );
}
