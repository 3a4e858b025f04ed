// The page: reads the data, shows the answers at a glance, then the sections that have data.
class Report {
  constructor(data) {
    this.data = data;
    this.split = new Split(data);
    this.rank = data.rank ?? this.split.rankAt(0);
    if (this.split.member(this.rank) === undefined) this.rank = this.split.rankAt(0);
    this.listeners = [];
  }
  at() {
    return this.split.coordinate(this.split.member(this.rank));
  }
  onRank(listener) {
    this.listeners.push(listener);
    listener(this.rank);
  }
  choose(rank) {
    if (this.split.member(rank) !== undefined) this.rank = rank;
    for (const listener of this.listeners) listener(this.rank);
  }
}

function glance(report) {
  const {data, split} = report,
    tiles = [];
  const add = (name, value, more) =>
    tiles.push(h("div", {}, h("dt", {}, name), h("dd", {}, h("b", {}, value), more ? h("small", {}, more) : null)));
  if (data.mesh)
    add(
      "Ranks",
      count(split.size),
      split.mesh.shape.map((n, axis) => `${split.axisName(axis)} ${count(n)}`).join(" × "),
    );
  if (split.parameters.length > 0) {
    const whole = sum(split.parameters.map((p) => split.wholeBytes(p))),
      here = split.bytesOn(report.at());
    add("Parameters", shortNumber(split.elements()), `${bytesText(whole)} in all`);
    add(
      `On rank ${count(report.rank)}`,
      bytesText(here),
      here === whole ? "all of the parameters" : `${percentText(here / whole)} of the parameters`,
    );
  }
  if (data.communication) {
    const all = data.communication.collectives;
    add(`Sent by rank ${count(data.rank ?? 0)}`, bytesText(totalOf(all, 1)), `in ${plural(totalOf(all, 0), "collective")}`);
  }
  for (const tile of data.memory ? memoryTiles(data) : []) add(...tile);
  for (const tile of data.training ? trainingTiles(data) : []) add(...tile);
  return tiles.length ? h("dl", {class: "glance"}, tiles) : null;
}

function themeButton() {
  const root = document.documentElement;
  const isDark = () =>
    (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = h("button", {
    class: "quiet theme",
    onclick: () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      say();
      dispatchEvent(new Event("themechange"));
    },
  });
  const say = () => {
    button.textContent = isDark() ? "Light colours" : "Dark colours";
  };
  say();
  return button;
}

function showReport() {
  const report = new Report(JSON.parse(byId("data").textContent));
  const {data} = report,
    main = byId("content");
  main.append(
    h(
      "header",
      {class: "top"},
      h("p", {class: "eyebrow"}, "meshtorch report"),
      h("h1", {}, data.title),
      data.facts && data.facts.length
        ? h(
            "ul",
            {class: "facts"},
            data.facts.map(([name, value]) => h("li", {}, name ? h("span", {}, name + " ") : null, value)),
          )
        : null,
      glance(report),
    ),
  );
  const sections = [
    data.mesh && meshSection,
    data.modules && modulesSection,
    data.communication && communicationSection,
    data.trace && timeSection,
    data.training && trainingSection,
    data.memory && memorySection,
  ];
  for (const make of sections) if (make) main.append(make(report));
  main.append(
    h("footer", {}, `Made by meshtorch ${data.meshtorch || ""}. This page is one file and needs no network.`),
  );
  byId("contents").append(
    h("p", {class: "brand"}, "meshtorch"),
    h(
      "ol",
      {},
      [...main.querySelectorAll("section")].map((part) =>
        h("li", {}, h("a", {href: "#" + part.id}, part.querySelector("h2").textContent)),
      ),
    ),
    themeButton(),
  );
  addEventListener("beforeprint", () =>
    document.querySelectorAll("details.module").forEach((d) => {
      if (!d.parentElement.closest("details:not([open])")) d.open = true;
    }),
  );
  document.documentElement.dataset.ready = "true";
}
showReport();
