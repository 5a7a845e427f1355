// Numbers as text, as the tables write them.

// Four significant digits.
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "not finite";
  const text = Number(value.toPrecision(4));
  const size = Math.abs(text);
  return size !== 0 && (size < 1e-4 || size >= 1e6) ? text.toExponential().replace("e+", "e") : `${text}`;
}

// The values of an axis' ticks, with the digits that tell `step` apart: 2.3208, 2.321.
export function stepped(value, step) {
  const size = Math.abs(value);
  if (!(step > 0) || size >= 1e6 || step < 1e-9 || (size !== 0 && size < 1e-4)) return short(value);
  const digits = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
  return `${Number(value.toFixed(Math.min(12, digits + 1)))}`;
}

// A power of two as "2^16", any other number as short() does.
export function scale(value) {
  const exponent = Math.log2(value);
  return Number.isInteger(exponent) ? `2^${exponent}` : short(value);
}

// 0.0123 as "1.23%".
export function percent(share) {
  if (share === 0) return "0%";
  if (share < 1e-4) return `${Number((100 * share).toPrecision(1)).toExponential().replace("e+", "e")}%`;
  return `${Number((100 * share).toPrecision(3))}%`;
}

export const grouped = (count) => count.toLocaleString("en-US");

// The end of a name says most: "...layer3.0.conv2".
export const ending = (name, most) => (name.length > most ? `…${name.slice(1 - most).replace(/^\./, "")}` : name);
