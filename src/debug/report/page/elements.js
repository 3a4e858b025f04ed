// Making elements. Text only ever becomes text: names from the data cannot turn into markup.
const kSvg = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(kSvg, tag), attributes, children);
const byId = (id) => document.getElementById(id);

// A section with a question that it answers; the page's table of contents is made of them.
function section(id, title, question, ...children) {
  return h(
    "section",
    {id, "aria-labelledby": id + "-title"},
    h("header", {}, h("h2", {id: id + "-title"}, title), h("p", {class: "lead"}, question)),
    children,
  );
}

// A table: columns are {name, number?, wide?}, cells are text or elements.
function table(caption, columns, rows, attributes = {}) {
  return h(
    "div",
    {class: "scroll", tabindex: 0, role: "region", "aria-label": caption},
    h(
      "table",
      attributes,
      h("caption", {class: "hidden"}, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((c) => h("th", {scope: "col", class: c.number ? "number" : null}, c.name)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            {},
            row.map((cell, i) =>
              h(
                i === 0 ? "th" : "td",
                {scope: i === 0 ? "row" : null, class: columns[i].number ? "number" : null},
                cell,
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

// Choices of which one is taken, as buttons that look like a switch.
function choice(label, options, chosen, onChoice) {
  const name = "choice-" + label.replace(/\W/g, "-");
  return h(
    "fieldset",
    {class: "choice"},
    h("legend", {}, label),
    options.map(([value, text]) =>
      h(
        "label",
        {},
        h("input", {type: "radio", name, value, checked: value === chosen, onchange: () => onChoice(value)}),
        h("span", {}, text),
      ),
    ),
  );
}

// A word that stays beside the pointer, and is said by screen readers.
function showTip(text, x, y) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  const width = tip.offsetWidth,
    height = tip.offsetHeight;
  tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - width - 8)) + "px";
  tip.style.top = (y + 18 + height > innerHeight ? y - height - 10 : y + 18) + "px";
}
const hideTip = () => {
  byId("tip").hidden = true;
};
