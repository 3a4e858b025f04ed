// Where time goes: the timeline, and the same in tables by rank and by module.

// The time of outermost events of a kind, so that what is nested counts once.
function outermost(events, isWanted) {
  let total = 0,
    until = -1;
  for (const e of events) {
    if (!isWanted(e) || e.begin < until) continue;
    total += e.duration;
    until = e.begin + e.duration;
  }
  return total;
}

function timeSection(report) {
  const {trace} = report.data,
    timeline = new Timeline(trace);
  const perRank = timeline.ranks.map(({rank, events}) => {
    const busy = outermost(events, (e) => e.kind !== kKinds.scope),
      comm = outermost(events, isCommunication),
      waits = outermost(events, (e) => e.kind === kKinds.wait);
    return {rank, busy, comm, waits};
  });
  const byModule = new Map();
  for (const {events} of timeline.ranks) {
    const groups = new Map();
    for (const e of events) {
      if (e.kind === kKinds.scope) continue;
      const key = e.module < 0 ? "" : anyLayer(trace.modules[e.module]);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(e);
    }
    for (const [key, list] of groups) {
      const entry = byModule.get(key) || {all: 0, comm: 0};
      entry.all += outermost(list, () => true);
      entry.comm += outermost(list, isCommunication);
      byModule.set(key, entry);
    }
  }
  const modules = [...byModule].sort((a, b) => b[1].all - a[1].all).slice(0, 24),
    all = sum([...byModule.values()].map((m) => m.all));
  const button = (text, label, act) => h("button", {class: "quiet", "aria-label": label, onclick: act}, text);
  const hasWaits = perRank.some((r) => r.waits > 0);
  const share = sum(perRank.map((r) => r.comm)) / Math.max(1e-9, sum(perRank.map((r) => r.busy)));
  return section(
    "time",
    "Time",
    `Where does time go? ${timeText(timeline.end * 1e-6)} of ${plural(trace.ranks.length, "rank")}; ${percentText(share)} of it is communication.`,
    h(
      "div",
      {class: "tools"},
      h(
        "span",
        {class: "keys"},
        h("i", {class: "swatch kind-1"}),
        "operator",
        h("i", {class: "swatch kind-2"}),
        "backward",
        h("i", {class: "swatch kind-3"}),
        "collective",
        hasWaits ? [h("i", {class: "swatch kind-4"}), "waiting"] : null,
      ),
      h(
        "span",
        {class: "zoom"},
        button("+", "Zoom in", () => timeline.zoom(0.6)),
        button("−", "Zoom out", () => timeline.zoom(1.6)),
        button("◂", "Earlier", () => timeline.move(-0.3)),
        button("▸", "Later", () => timeline.move(0.3)),
        button("Whole", "Show all", () => timeline.show([0, timeline.end])),
      ),
    ),
    timeline.canvas,
    h(
      "p",
      {class: "note"},
      "Drag to move, Ctrl and the wheel or a double click to zoom." +
        (trace.left_out > 0
          ? ` ${count(trace.left_out)} events shorter than ${timeText(trace.shortest * 1e-6)} are left out.`
          : "") +
        (trace.ranks.length > 32 ? " The first 32 ranks are drawn." : ""),
    ),
    h(
      "div",
      {class: "halves"},
      h(
        "div",
        {},
        h("h3", {}, "By rank"),
        table(
          "Time by rank",
          [
            {name: "Rank"},
            {name: "Busy", number: true},
            {name: "Communication", number: true},
            ...(hasWaits ? [{name: "of which waiting", number: true}] : []),
            {name: "Share", number: true},
          ],
          perRank.map((r) => [
            count(r.rank),
            timeText(r.busy * 1e-6),
            timeText(r.comm * 1e-6),
            ...(hasWaits ? [timeText(r.waits * 1e-6)] : []),
            percentText(r.comm / Math.max(1e-9, r.busy)),
          ]),
        ),
      ),
      h(
        "div",
        {},
        h("h3", {}, "By module"),
        table(
          "Time by module, all ranks",
          [{name: "Module"}, {name: "Share of time", number: true}, {name: "Communication in it", number: true}],
          modules.map(([name, m]) => [
            name ? h("span", {class: "code"}, dotted(name)) : "outside of modules",
            percentText(m.all / all),
            percentText(m.comm / Math.max(1e-9, m.all)),
          ]),
        ),
      ),
    ),
  );
}
