// What is sent: totals by collective, by phase, by module, and why operators moved data.
const kMeasures = {bytes: ["Bytes sent", 1, bytesText], seconds: ["Time", 2, timeText], count: ["Calls", 0, count]};

const totalOf = (collectives, index) => sum(Object.values(collectives || {}).map((c) => c[index]));
function plus(a, b, sign = 1) {
  const result = {...a};
  for (const [name, numbers] of Object.entries(b || {})) {
    const now = (result[name] || [0, 0, 0]).map((n, i) => n + sign * numbers[i]);
    if (now[0] > 0 || now[1] > 0 || now[2] > 1e-9) result[name] = now;
    else delete result[name];
  }
  return result;
}

// A bar in parts, each with its share; parts have a pattern beside their colour, and stand in the legend.
function stackedBar(parts, scale, text) {
  return h(
    "div",
    {class: "bar"},
    parts
      .filter((p) => p.value > 0)
      .map((p) =>
        h(
          "span",
          {
            class: `part fill-${p.fill % 8}`,
            style: `width:${(100 * p.value) / scale}%`,
            title: `${p.name}: ${text(p.value)}`,
            onpointermove: (e) => showTip(`${p.name}: ${text(p.value)}`, e.clientX, e.clientY),
            onpointerleave: hideTip,
          },
          p.value / scale > 0.16 ? h("span", {}, p.name) : null,
        ),
      ),
  );
}

// What each module sends by itself, without the modules inside it; equal layers are added up.
function ownCosts(modules) {
  const inside = new Map();
  for (const path of Object.keys(modules)) {
    let parent = path;
    do parent = parent.slice(0, Math.max(0, parent.lastIndexOf(".")));
    while (parent && !modules[parent]);
    if (parent) inside.set(parent, [...(inside.get(parent) || []), path]);
  }
  const rows = new Map();
  for (const [path, phases] of Object.entries(modules)) {
    const key = anyLayer(path);
    if (!rows.has(key)) rows.set(key, {name: key, layers: 0, forward: {}, backward: {}});
    const row = rows.get(key);
    row.layers += 1;
    for (const phase of ["forward", "backward"]) {
      let own = phases[phase] || {};
      for (const child of inside.get(path) || []) own = plus(own, modules[child][phase], -1);
      row[phase] = plus(row[phase], own);
    }
  }
  return [...rows.values()];
}

const collectiveWords = (collectives) =>
  Object.entries(collectives)
    .sort((a, b) => b[1][1] - a[1][1])
    .map(([name, c]) => h("div", {}, h("span", {class: "code"}, dotted(name)), ` ×\u00a0${count(c[0])}`));

function communicationSection(report) {
  const comm = report.data.communication,
    names = Object.keys(comm.collectives);
  const fillOf = new Map(names.map((name, i) => [name, i]));
  const measures = Object.keys(kMeasures).filter(
    (m) => (m !== "seconds" || comm.is_timed) && totalOf(comm.collectives, kMeasures[m][1]) > 0,
  );
  let measure = measures[0] || "count";
  const body = h("div", {});
  const draw = () => {
    const [title, index, text] = kMeasures[measure];
    const total = totalOf(comm.collectives, index);
    const partsOf = (collectives) =>
      Object.entries(collectives).map(([name, c]) => ({name, value: c[index], fill: fillOf.get(name)}));
    const legend = table(
      "All collectives",
      [
        {name: "Collective"},
        {name: "Calls", number: true},
        {name: "Bytes sent", number: true},
        ...(comm.is_timed ? [{name: "Time", number: true}] : []),
        {name: "Share", number: true},
      ],
      Object.entries(comm.collectives)
        .sort((a, b) => b[1][index] - a[1][index])
        .map(([name, c]) => [
          h("span", {}, h("i", {class: `swatch fill-${fillOf.get(name) % 8}`}), h("span", {class: "code"}, name)),
          count(c[0]),
          bytesText(c[1]),
          ...(comm.is_timed ? [timeText(c[2])] : []),
          total ? percentText(c[index] / total) : "–",
        ]),
    );
    const phases = (comm.phases || []).filter((p) => totalOf(p.collectives, 0) > 0);
    const phaseBars =
      phases.length === 0
        ? null
        : h(
            "div",
            {class: "bars"},
            phases.map((p) => [
              h("span", {}, p.name),
              stackedBar(partsOf(p.collectives), total, text),
              h("span", {class: "number"}, text(totalOf(p.collectives, index))),
            ]),
          );
    const rows = ownCosts(comm.modules || {})
      .map((row) => ({...row, cost: totalOf(row.forward, index) + totalOf(row.backward, index)}))
      .filter((row) => totalOf(row.forward, 0) + totalOf(row.backward, 0) > 0);
    const inModules = sum(rows.map((row) => row.cost));
    const everything = Object.values(comm.modules || {}).length ? total - inModules : 0;
    if (everything > 1e-9 * total && total > 0) {
      let rest = comm.collectives;
      for (const row of rows) rest = plus(plus(rest, row.forward, -1), row.backward, -1);
      rows.push({
        name: "outside of modules (loss, gradients, …)",
        layers: 1,
        forward: rest,
        backward: {},
        cost: everything,
        isRest: true,
      });
    }
    rows.sort((a, b) => b.cost - a.cost);
    const most = Math.max(1e-12, ...rows.map((row) => row.cost));
    const byModule =
      rows.length === 0
        ? null
        : [
            h("h3", {}, "By module"),
            h(
              "p",
              {class: "note"},
              "What each module sends itself, without the modules inside it; layers that are alike are added up. Dearest first.",
            ),
            table(
              "Communication by module",
              [
                {name: "Module"},
                {name: "Forward"},
                {name: "Backward"},
                {name: title, number: true},
                {name: "Share of all"},
              ],
              rows.map((row) => [
                h(
                  "span",
                  {class: row.isRest ? "" : "code"},
                  row.isRest ? row.name : dotted(row.name),
                  row.layers > 1 ? h("small", {}, ` × ${row.layers}`) : null,
                ),
                row.isRest ? h("div", {}, collectiveWords(row.forward)) : h("div", {}, collectiveWords(row.forward)),
                h("div", {}, collectiveWords(row.backward)),
                text(row.cost),
                h(
                  "div",
                  {class: "share"},
                  h("span", {class: "meter", style: `width:${(100 * row.cost) / most}%`}),
                  h("span", {}, total ? percentText(row.cost / total) : ""),
                ),
              ]),
              {class: "wrap"},
            ),
          ];
    body.replaceChildren(
      ...[
        stackedBar(
          partsOf(comm.collectives).sort((a, b) => b.value - a.value),
          total || 1,
          text,
        ),
        legend,
        phaseBars ? h("h3", {}, "By phase") : null,
        phaseBars,
        byModule,
      ]
        .flat()
        .filter(Boolean),
    );
  };
  draw();
  const total = totalOf(comm.collectives, 0);
  return section(
    "communication",
    "Communication",
    `What is sent, and by whom? ${comm.what || "What was counted"}: rank ${count(report.data.rank ?? 0)} calls ${plural(total, "collective")} and sends ${bytesText(totalOf(comm.collectives, 1))}.`,
    measures.length > 1
      ? choice(
          "Measure",
          measures.map((m) => [m, kMeasures[m][0]]),
          measure,
          (value) => {
            measure = value;
            draw();
          },
        )
      : null,
    body,
    report.data.redistributions ? redistributions(report) : null,
  );
}
