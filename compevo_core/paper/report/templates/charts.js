// Draws the figures that the page holds as JSON, in the colours of the reader's scheme.
"use strict";
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const colours = read("dark-colours");
  const options = { responsive: true, displayModeBar: false };

  // Every text that is a colour of the light scheme becomes its dark counterpart.
  const recolour = (value) => {
    if (Array.isArray(value)) return value.map(recolour);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, recolour(one)]));
    }
    return Object.hasOwn(colours, value) ? colours[value] : value;
  };

  const draw = () => {
    for (const place of document.querySelectorAll("[data-figure]")) {
      const figure = read(place.dataset.figure);
      const { data, layout } = dark.matches ? recolour(figure) : figure;
      // The legend takes more lines on a narrow screen.
      if (place.clientWidth < 560) layout.height += 90;
      layout.hoverlabel = { bgcolor: dark.matches ? "#1b222c" : "#ffffff" };
      Plotly.react(place, data, layout, options);
    }
  };

  draw();
  dark.addEventListener("change", draw);
})();
