// Colours, dashes and shapes. Colours are the page's CSS variables by name, so that dark mode and
// print change them without drawing again.
export const color = (name) => `var(--${name})`;

// Lanes: colour and dash, so that neither is needed alone. page.css has the colours.
const kLineStyles = [
  {color: color("line-1"), dash: []},
  {color: color("line-2"), dash: [7, 4]},
  {color: color("line-3"), dash: [2, 4]},
  {color: color("line-4"), dash: [9, 3, 2, 4]},
  {color: color("line-5"), dash: [12, 5]},
  {color: color("line-6"), dash: [4, 3, 4, 7]},
];
export const lineStyle = (index) => kLineStyles[index % kLineStyles.length];

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
    color: color("soft"), fontFamily: kFont, fontSize: kFontSize, ...more.nameTextStyle,
  },
});
export const gridLines = {show: true, lineStyle: {color: color("line"), width: 1}};

export const isNarrow = (width) => width < 560;
