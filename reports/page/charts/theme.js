// Colours, dashes and shapes. Colours are the page's CSS variables by name, so that dark mode and
// print change them without drawing again.
export const color = (name) => `var(--${name})`;

// Lanes: colour and dash, so that neither is needed alone. page.css has the colours, --line-1 ...
const kColors = 6;
const kDashes = [[], [7, 4], [2, 4], [9, 3, 2, 4], [12, 5], [4, 3, 4, 7]];
// The first kColors differ in both; those after them have other pairs.
export const lineStyle = (index) => ({
  color: color(`line-${1 + (index % kColors)}`),
  dash: kDashes[(index + Math.floor(index / kColors)) % kDashes.length],
});

// A lane looks the same in all charts of the page. What follows a comma in a name is a variant of the
// lane: the same colour and dash, thinner from the second variant of a chart on.
const laneIndex = new Map();
export function laneStyles(names) {
  const seen = new Set();
  return new Map(names.map((name) => {
    const lane = name.split(", ")[0];
    if (!laneIndex.has(lane)) laneIndex.set(lane, laneIndex.size);
    const style = {...lineStyle(laneIndex.get(lane)), width: seen.has(lane) ? 1 : 2};
    seen.add(lane);
    return [name, style];
  }));
}

export const kFont = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif";
export const kFontSize = 12;

// What all axes have in common.
export const axis = (more) => ({
  axisLine: {show: true, lineStyle: {color: color("soft"), width: 1}},
  axisTick: {show: false},
  splitLine: {show: false},
  ...more,
  axisLabel: {color: color("soft"), fontFamily: kFont, fontSize: kFontSize, ...more.axisLabel},
  nameTextStyle: {
    color: color("soft"),
    fontFamily: kFont,
    fontSize: kFontSize,
    ...more.nameTextStyle,
  },
});
export const gridLines = {
  show: true,
  lineStyle: {color: color("line"), width: 1}
};

export const isNarrow = (width) => width < 560;
