// From values to colours: classes of one colour each, equal in all views of one unit.
import {percent, short} from "./numbers.js";

export const kMostClasses = 7;  // page.css has as many colours, --heat-1 ... --heat-7

const isShare = (unit) => /^share\b/.test(unit);
const textOf = (unit, value) => (isShare(unit) ? percent(value) : short(value));

// Lower ends of the classes, the lowest first. Logarithmic ends are 1 or 3 times a power of ten while
// that is enough for the range, else powers of ten.
function lowerEnds(least, most, isLogarithmic) {
  if (!isLogarithmic) {
    const low = Math.min(0, least);
    return Array.from({length: kMostClasses}, (_, i) => low + (i * (most - low)) / kMostClasses);
  }
  const top = Math.ceil(Math.log10(most) - 1e-9), bottom = Math.floor(Math.log10(least) + 1e-9);
  const ends = [];
  const isFine = 2 * (top - bottom) <= kMostClasses;
  for (let power = Math.max(bottom, top - kMostClasses); power < top; power += 1) {
    ends.push(10 ** power);
    if (isFine) ends.push(3 * 10 ** power);
  }
  while (ends.length > 1 && ends.at(-1) >= most) ends.pop();
  return ends.length ? ends : [most];
}

// The scale of all views with this unit: {classOf(value), classes: [{index, text}]}; class 0 has no colour.
export function heatScale(data, unit) {
  let least = Infinity, most = -Infinity;
  for (const view of data.views) {
    if (view.unit !== unit) continue;
    for (const cell of view.cells) {
      const value = cell[2];
      if (value === null || value <= data.floor) continue;
      least = Math.min(least, value);
      most = Math.max(most, value);
    }
  }
  if (least > most) return {classOf: () => 0, classes: [], text: (value) => textOf(unit, value)};
  const ends = lowerEnds(least, most, data.logarithmic && least > 0);
  // Few classes take the strong colours.
  const indexOf = (i) => kMostClasses - ends.length + 1 + i;
  const classOf = (value) => {
    if (value === null) return kMostClasses;
    if (value <= data.floor) return 0;
    let i = ends.length - 1;
    while (i > 0 && value < ends[i]) i -= 1;
    return indexOf(i);
  };
  const classes =
      ends.map((end, i) => ({
                 index: indexOf(i),
                 text: i === 0 && ends.length > 1 ? `below ${textOf(unit, ends[1])}` : `from ${textOf(unit, end)}`,
               }));
  return {classOf, classes, text: (value) => textOf(unit, value)};
}
