// Elements with text. Text is only ever set as text, so that a name from a model cannot become markup.

// element("p", {class: "note"}, "text", child, ...)
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true)
      made.setAttribute(name, "");
    else if (value !== false && value !== undefined)
      made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

let fields = 0;

// An input or a select with its label in front.
export function field(text, input) {
  fields += 1;
  input.id = `field-${fields}`;
  return element("div", {class: "field"}, element("label", {for: input.id
                 }, text), input);
}

// A labelled <select>; options are {value, text}.
export function choice(label, options, onChange) {
  const select = element("select");
  fill(select, options);
  select.addEventListener("change", () => onChange(select.value));
  return {select, field: field(label, select)};
}

export function fill(select, options) {
  select.replaceChildren(...options.map(({value, text}) => element("option", {value}, text)));
}

// What a chart says of one place: a title, rows {swatch, name, value}, further lines. As a tooltip's
// element, and as a sentence for screen readers.
export function tip({title, rows = [], notes = []}) {
  return element(
      "div", {class: "tip"}, element("b", {}, title),
      element(
          "dl", {},
          ...rows.flatMap(
              ({swatch, name, value}) =>
                  [element("dt", {}, ...(swatch ? [swatch.cloneNode(true)] : []), name),
                   element("dd", {}, value),
  ])),
      ...notes.map((note) => element("p", {}, note)));
}

export function sentence({title, rows = [], notes = []}) {
  const values = rows.map(({name, value}) => `${name} ${value}`.trim());
  return [`${title}: ${values.join("; ")}`, ...notes].join(". ");
}
