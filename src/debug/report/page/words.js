// Numbers as people read them.
const grouped = new Intl.NumberFormat("en-US");
const count = (n) => grouped.format(n);
const plural = (n, one, many = one + "s") => count(n) + " " + (n === 1 ? one : many);

function scaled(value, step, units, space = " ") {
  let unit = 0;
  for (; Math.abs(value) >= step && unit + 1 < units.length; ++unit) value /= step;
  const digits = unit === 0 || Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return (
    (unit === 0 && !Number.isInteger(value) ? value.toPrecision(3) : value.toFixed(digits)) +
    (units[unit] ? space + units[unit] : "")
  );
}
const bytesText = (n) => scaled(n, 1000, ["B", "kB", "MB", "GB", "TB", "PB"]);
const shortNumber = (n) => (n < 10000 ? count(Math.round(n)) : scaled(n, 1000, ["", "k", "M", "B", "T"], " "));
function timeText(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds === 0) return "0";
  if (seconds < 1e-3) return +(seconds * 1e6).toPrecision(3) + " µs";
  if (seconds < 1) return +(seconds * 1e3).toPrecision(3) + " ms";
  return +seconds.toPrecision(3) + " s";
}
const percentText = (part) => (100 * part).toFixed(part < 0.0995 && part > 0 ? 1 : 0) + " %";
const shapeText = (shape) => (shape.length === 0 ? "one number" : shape.map(count).join(" × "));
const dimWord = (dim, dims) => (dims === 1 ? "elements" : dims === 2 ? ["rows", "columns"][dim] : "dim " + dim);

// "0 – 7", "0, 8, 16, … (128 ranks)": a list of ascending numbers, short.
function listText(numbers, what = "rank") {
  const n = numbers.length;
  const isRun = n > 2 && numbers[n - 1] - numbers[0] === n - 1;
  if (n === 1) return what + " " + count(numbers[0]);
  if (isRun) return what + "s " + count(numbers[0]) + " – " + count(numbers[n - 1]);
  if (n <= 6) return what + "s " + numbers.map(count).join(", ");
  return (
    what + "s " + numbers.slice(0, 3).map(count).join(", ") + ", … " + count(numbers[n - 1]) + " (" + count(n) + ")"
  );
}

const kTypeNames = {
  Double: "float64",
  Float: "float32",
  Half: "float16",
  BFloat16: "bfloat16",
  Long: "int64",
  Int: "int32",
  Short: "int16",
  Char: "int8",
  Byte: "uint8",
  Bool: "bool",
};
const typeText = (name) => kTypeNames[name] || name;

// "model.layers.*.mlp": the name without the number of a layer.
const anyLayer = (name) => name.replace(/(^|\.)\d+(?=\.|$)/g, "$1*");
// A dotted name that may be broken after its dots.
const dotted = (name) =>
  name.split(/(?<=[._])/).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

// Marks at round numbers: 1, 2 or 5 times a power of ten apart, about `wanted` of them.
function roundMarks(low, high, wanted) {
  const rough = Math.max(high - low, 1e-12) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const apart = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const marks = [];
  for (let i = Math.ceil(low / apart - 1e-9); i * apart <= high + 1e-9 * apart; ++i)
    marks.push(+(i * apart).toPrecision(12));
  return marks;
}
